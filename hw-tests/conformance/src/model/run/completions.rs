//! Checks completions: finds the operation of each, and decides whether the completion is allowed.

use super::*;
use crate::ends::context_of;

/// The context of an operation that has none. The programs give no such one.
const NO_CONTEXT: u64 = 0;

impl MessageRun<'_> {
    pub(super) fn send_is_done(&mut self, at: NodeNumber, done: Done) -> Result<(), Wrong> {
        let context = context_of(&done);
        if let Some(op) = self.nodes[at].ops.get(&context) {
            return self.op_is_done(*op, &done);
        }
        let send = self.nodes[at].sends.get(&context).copied();
        let send = send.or_else(|| self.send_without_context(at, &done));
        let send = send.ok_or_else(|| format!("a send that is none completes: {done:?}"))?;
        let closed = self.is_closed(self.sends[send].to);
        let send = &mut self.sends[send];
        if send.done {
            return Err(format!("a send completes twice: {done:?}"));
        }
        send.done = true;
        match done {
            Ok(_) if send.quiet => Err("a send completes that has no FI_COMPLETION".into()),
            Ok(c) if c.flags != send.kind.send_flags() => Err(format!("a send says {c:?}")),
            Ok(_) => {
                if !send.injected {
                    send.memory.spoil();
                }
                let receiver = &mut self.nodes[send.to].history;
                if send.delivers && !receiver.closed {
                    receiver.events.push(ReceiverEvent::Delivered(send.message));
                }
                self.nodes[at].sent.ok += 1;
                Ok(())
            }
            Err(error) => {
                self.nodes[at].sent.errors += 1;
                self.nodes[send.to].history.messages[send.message].may_be_lost = true;
                match (closed && is_gone(error.errno)) || send.removed {
                    true => Ok(()),
                    false => Err(format!("a send fails: {error:?}")),
                }
            }
        }
    }

    /// The send that an error without a context is of: one by a call that takes none, as fi_inject
    /// does, to a peer that is gone or removed. It may be any of them.
    fn send_without_context(&mut self, at: NodeNumber, done: &Done) -> Option<usize> {
        let error = done
            .as_ref()
            .err()
            .filter(|_| NO_CONTEXT == context_of(done))?;
        let may_fail = |send: &RunSend| {
            let is_by_such_a_call = send.injected && send.quiet && send.from == at;
            let is_of_kind = send.kind.send_flags() == error.completion.flags;
            let has_no_peer = send.removed || self.is_closed(send.to);
            is_by_such_a_call && is_of_kind && has_no_peer && !send.done
        };
        let all: Vec<_> = (0..self.sends.len())
            .filter(|&send| may_fail(&self.sends[send]))
            .collect();
        for &send in &all {
            let (to, message) = (self.sends[send].to, self.sends[send].message);
            self.nodes[to].history.messages[message].may_be_lost = true;
        }
        all.first().copied()
    }

    pub(super) fn receive_is_done(&mut self, at: NodeNumber, done: Done) -> Result<(), Wrong> {
        match &done {
            Ok(notice) if notice.flags.contains(Flags::RMA) => {
                return self.notice_came(at, notice);
            }
            _ => {}
        }
        let context = context_of(&done);
        let anybody_gone = (0..self.nodes.len()).any(|node| self.is_closed(node));
        let live = &mut self.nodes[at];
        if live.probing == Some(context) && live.probed.is_none() {
            live.probed = Some(done);
            return Ok(());
        }
        let receive = live.receives.get(&context).copied();
        let receive =
            receive.ok_or_else(|| format!("a receive that is none completes: {done:?}"))?;
        let posted = live.posted.iter_mut().rfind(|p| p.context == context);
        let posted = posted.ok_or("a receive completes that was not posted")?;
        if posted.over {
            return Err(format!("a receive completes twice: {done:?}"));
        }
        let of = &mut live.history.receives[receive];
        let flags = match &done {
            Ok(c) => c.flags,
            Err(error) => error.completion.flags,
        };
        if flags - Flags::MULTI_RECV - Flags::REMOTE_CQ_DATA != of.kind.recv_flags()
            || (flags.contains(Flags::MULTI_RECV) && !of.multi)
        {
            return Err(format!("a receive completes with other flags: {done:?}"));
        }
        posted.over = !of.multi || flags.contains(Flags::MULTI_RECV);
        let whole = posted.memory.addr();
        let offset = |buf: usize| match buf {
            0 if posted.list => Ok(0),
            buf if !of.multi && buf == whole => Ok(0),
            buf if of.multi && (whole..=whole + of.room).contains(&buf) => Ok(buf - whole),
            buf => Err(format!(
                "a message lies at {buf:#x}, the buffer at {whole:#x}"
            )),
        };
        let outcome = match &done {
            Ok(c) => {
                live.received.ok += 1;
                let offset = offset(c.buf)?;
                if c.len > of.room - offset {
                    return Err(format!("a message is longer than its buffer: {c:?}"));
                }
                let number = posted.memory.message(offset, c.len)?;
                ReceiveOutcome::Message {
                    told: told(c, c.len, number),
                    truncated: false,
                    offset,
                }
            }
            Err(error) => {
                let c = &error.completion;
                let was_probe = error.errno == Errno::ENOMSG;
                live.received.errors += u64::from(!was_probe);
                match error.errno {
                    Errno::ETRUNC => {
                        let offset = offset(c.buf)?;
                        if c.len != of.room - offset || error.olen == 0 {
                            return Err(format!("a truncated message: {error:?}"));
                        }
                        let number = posted.memory.message(offset, c.len)?;
                        ReceiveOutcome::Message {
                            told: told(c, c.len + error.olen, number),
                            truncated: true,
                            offset,
                        }
                    }
                    Errno::ECANCELED => ReceiveOutcome::Cancelled,
                    errno if anybody_gone && (is_gone(errno) || was_probe) => {
                        ReceiveOutcome::Broken
                    }
                    _ => return Err(format!("a receive fails: {error:?}")),
                }
            }
        };
        if posted.over {
            let used = match &outcome {
                ReceiveOutcome::Message { told, offset, .. } => Some(offset + told.len),
                ReceiveOutcome::Cancelled if !of.multi => Some(0),
                _ => None,
            };
            if let Some(used) = used.filter(|_| !of.multi) {
                posted.memory.untouched_behind(used.min(of.room))?;
            }
        }
        live.history.events.push(ReceiverEvent::Completed {
            receive,
            outcome: of.outcomes.len(),
        });
        of.outcomes.push(outcome);
        Ok(())
    }

    /// Drives all until there is nothing to be seen for a while.
    pub(super) fn settle(&mut self) -> Result<(), Wrong> {
        let until = Instant::now() + self.fabric.patience;
        let mut moved = Instant::now();
        while moved.elapsed() < QUIET {
            if self.pump_all()? > 0 {
                moved = Instant::now();
            }
            if Instant::now() > until {
                return Err("it does not come to rest".into());
            }
        }
        Ok(())
    }

    pub(super) fn until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Result<bool, Wrong>,
    ) -> Result<(), Wrong> {
        let mut until = Instant::now() + self.fabric.patience;
        while !done(self)? {
            if self.pump_all()? > 0 {
                until = Instant::now() + self.fabric.patience;
            }
            if Instant::now() > until {
                return Err(format!("{what}: {}", self.state()));
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}
