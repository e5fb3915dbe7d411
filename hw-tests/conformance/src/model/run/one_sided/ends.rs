//! The end of one-sided operations: their completions, and the CQ data at the target.

use super::*;

impl MessageRun<'_> {
    /// An address is removed: operations by way of it may end either way. Those of the removed peer
    /// go on, and CQ data of its writes has no source.
    pub(in super::super) fn is_removed(&mut self, at: NodeNumber, peer: NodeNumber) {
        for op in &mut self.ops {
            if (op.from, op.to) == (at, peer) && op.succeeded.is_none() {
                op.removed = true;
            }
            if (op.from, op.to) == (peer, at) {
                op.is_known = false;
            }
        }
    }

    /// An endpoint is closed: the outcome of its operations stays unknown.
    pub(in super::super) fn forget_ops_of(&mut self, node: NodeNumber) -> Result<(), Wrong> {
        for at in 0..self.ops.len() {
            if self.ops[at].from == node && self.ops[at].succeeded.is_none() {
                self.fails(at, None)?;
            }
        }
        Ok(())
    }

    /// An operation has failed, or nobody will see its end.
    fn fails(&mut self, at: usize, errno: Option<Errno>) -> Result<(), Wrong> {
        let op = &self.ops[at];
        if op.atomic.is_some() {
            return self.atomic_fails(at, errno);
        }
        if op.is_behind_atomics {
            // It changes nothing.
            return self.atomic_ends(at, AtomicEnd::Refused);
        }
        self.ends(at, false);
        Ok(())
    }

    fn ends(&mut self, at: usize, succeeded: bool) {
        let op = &mut self.ops[at];
        op.succeeded = Some(succeeded);
        let (rank, region) = op.region;
        let is_lost = !succeeded && op.kind == RmaKind::Write;
        self.regions[rank][region].end(at, is_lost);
    }

    pub(in super::super) fn ends_well(&mut self, at: usize) -> Result<(), Wrong> {
        let op = &self.ops[at];
        if op.allowed == AllowedOutcome::Refusal {
            return Err("it is not refused".into());
        }
        if op.atomic.is_some() || op.is_behind_atomics {
            return self.atomic_ends_well(at);
        }
        if op.kind == RmaKind::Read {
            let region = &self.regions[op.region.0][op.region.1];
            let came = op.memory.bytes(0..op.place.len());
            let mut pairs = came.iter().zip(&op.bytes).enumerate();
            let differs =
                pairs.find(|(at, (is, model))| is != model && !region.is_lost(op.place.start + at));
            if let Some((at, (is, model))) = differs {
                return Err(format!("byte {at} is {is:02x}, the model's {model:02x}"));
            }
            op.memory.untouched_behind(op.place.len())?;
        } else if !op.injected {
            op.memory.spoil();
        }
        self.ends(at, true);
        Ok(())
    }

    pub(in super::super) fn op_is_done(&mut self, at: usize, done: &Done) -> Result<(), Wrong> {
        let op = &self.ops[at];
        if op.succeeded.is_some() {
            return Err(format!("an operation completes twice: {done:?}"));
        }
        let flags = match op.atomic {
            Some(_) => (op.kind.completion_flags() - Flags::RMA) | Flags::ATOMIC,
            None => op.kind.completion_flags(),
        };
        let wrong =
            |why: &str, op: &RunOneSided| Err(format!("{why}: {done:?}: {}", op.in_words()));
        match done {
            Ok(_) if op.quiet => wrong("no FI_COMPLETION", op),
            Ok(c) if c.flags != flags => wrong("other flags", op),
            Ok(_) => match self.ends_well(at) {
                Ok(()) => Ok(()),
                Err(why) => wrong(&why, &self.ops[at]),
            },
            Err(error) => {
                let is_closed = self.is_closed(op.to);
                let is_open = self.regions[op.region.0][op.region.1].is_open();
                let is_refusal = match &op.atomic {
                    Some(atomic) => atomic.may_fail_with(error.errno, is_open),
                    None => error.errno == Errno::EACCES,
                };
                let allowed = op.removed
                    || (op.allowed != AllowedOutcome::Success && is_refusal)
                    || (is_closed && is_gone(error.errno));
                if !allowed {
                    return wrong("it fails", op);
                }
                op.memory.untouched_around()?;
                self.nodes[op.from].failed_ops += 1;
                self.fails(at, Some(error.errno))
            }
        }
    }

    /// CQ data of a write has come, behind the write's bytes.
    pub(in super::super) fn notice_came(
        &mut self,
        at: NodeNumber,
        c: &Completion,
    ) -> Result<(), Wrong> {
        let (process, processes) = self.share;
        let number = c.data as u32 as usize;
        if c.flags != Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA {
            return Err(format!("CQ data comes with other flags: {c:?}"));
        }
        if number % processes != process {
            self.nodes[at].notices.push((c.data, c.len));
            return Ok(());
        }
        let op = self.ops.get_mut(number / processes);
        let op = op.ok_or_else(|| format!("CQ data of no write: {c:?}"))?;
        let is_its = (op.to, op.data, op.place.len()) == (at, Some(c.data), c.len);
        if !is_its || op.noticed || op.allowed == AllowedOutcome::Refusal {
            return Err(format!("CQ data comes: {c:?}: {}", op.in_words()));
        }
        op.noticed = true;
        let op = &self.ops[number / processes];
        let src = self.nodes[at].peers.get(&op.from);
        if op.is_known && src.is_some_and(|src| *src != c.src) {
            return Err(format!(
                "CQ data of another source: {c:?}: {}",
                op.in_words()
            ));
        }
        let region = &self.regions[op.region.0][op.region.1];
        if !op.is_overlapped && region.is_open() && !region.has(op.place.clone(), &op.bytes) {
            return Err(format!("CQ data before its bytes: {}", op.in_words()));
        }
        Ok(())
    }
}
