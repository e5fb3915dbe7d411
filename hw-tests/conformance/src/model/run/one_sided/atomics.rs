//! Atomic operations of a program: the calls, and their ends.

use ferrofabric_contracts::atomics::{
    AtomicBuffers, AtomicForm, AtomicOp, AtomicOperator, Datatype, MAX_ATOMIC_BYTES,
};
use ferrofabric_contracts::flags::Rights;

use super::*;
use crate::model::oracle::elements;
use crate::model::program::AtomicStep;

/// The part of an operation that only an atomic one has.
pub(super) struct RunAtomic {
    pub(super) kind: (AtomicForm, AtomicOperator, Datatype),
    /// The errno of the target's refusal.
    refusal: Errno,
    /// Operands and compare values, which are free once the operation has begun.
    sources: [MessageMemory; 2],
}

/// Where an atomic operation goes.
struct AtomicPlace {
    key: u64,
    place: u64,
    /// The target refuses it with this.
    refusal: Option<Errno>,
}

impl MessageRun<'_> {
    /// Begins the operations of a step, those whose initiators are in this process.
    pub(in super::super) fn atomics(&mut self, step: &AtomicStep) -> Result<(), Wrong> {
        for number in 0..step.times {
            let from = match step.spread {
                true => step.from.wrapping_add(number),
                false => step.from,
            };
            if !self.nodes[self.node(from)].elsewhere {
                self.atomic(&AtomicStep {
                    from,
                    operand: step.operand.wrapping_add(number as i8),
                    ..*step
                })?;
            }
        }
        Ok(())
    }

    fn atomic(&mut self, step: &AtomicStep) -> Result<(), Wrong> {
        let (from, to) = (self.node(step.from), self.node(step.to));
        let Some((dest, is_stale)) = self.destination(from, to) else {
            return Ok(());
        };
        let rank = self.nodes[to].rank;
        if !self.fabric.offers(Flags::ATOMIC) || self.regions[rank].is_empty() {
            return Ok(());
        }
        let region = (rank, step.which % self.regions[rank].len());
        let Some((mut call, at)) = self.choose_atomic(step, (from, to), region) else {
            return Ok(());
        };
        self.fill_arrays(step, region, &mut call);
        let op = AtomicOp {
            form: call.form,
            operator: call.operator,
            datatype: call.datatype,
            dest,
            key: at.key,
            place: at.place,
            desc: MrDesc::NONE,
            context: self.context(),
            flags: self.offered([
                (Flags::INJECT, step.inject),
                (Flags::COMPLETION, !step.quiet),
                (Flags::FENCE, step.fence),
            ]),
        };
        let sources = [&call.operands, &call.compares].map(|bytes| MessageMemory::of_bytes(bytes));
        let results = MessageMemory::for_receive(match call.form {
            AtomicForm::Base => 0,
            AtomicForm::Fetch | AtomicForm::Compare => call.place.len(),
        });
        let pieces = step.pieces.min(self.fabric.info().tx.iov_limit);
        let lists = [&sources[0], &sources[1], &results].map(|memory| memory.list(pieces));
        let buffers = AtomicBuffers {
            operands: &lists[0],
            compares: &lists[1],
            results: &lists[2],
        };
        let by = (from, is_stale, op.flags.contains(Flags::FENCE));
        // SAFETY: the memory is kept until the run is over.
        let begin = |end: &QueuedEndpoint| unsafe { end.endpoint.atomic(&op, &buffers) };
        if self.begins(by, &op, begin)? {
            sources.iter().for_each(MessageMemory::spoil);
            let atomic = RunAtomic {
                kind: (call.form, call.operator, call.datatype),
                refusal: at.refusal.unwrap_or(Errno::EACCES),
                sources,
            };
            self.atomic_has_begun(&op, call, region, at.refusal.is_some(), (atomic, results));
        }
        Ok(())
    }

    /// Chooses key and place. The arrays of the call are still empty.
    fn choose_atomic(
        &self,
        step: &AtomicStep,
        by: (NodeNumber, NodeNumber),
        (rank, which): (usize, usize),
    ) -> Option<(AtomicCall, AtomicPlace)> {
        let form = AtomicForm::from_number(step.form)?;
        let operator = AtomicOperator::from_number(step.operator)?;
        let datatype = Datatype::from_number(step.datatype)?;
        let region = &self.regions[rank][which];
        let within = self.share_of(region);
        let (size, alignment) = (datatype.size(), datatype.alignment());
        let aligned = |place: usize| place.next_multiple_of(alignment);
        let limit = match step.inject {
            true => self.fabric.info().tx.inject_size,
            false => MAX_ATOMIC_BYTES,
        };
        let wanted = aligned(within.end - step.place.min(within.len()));
        let room = match within.end.saturating_sub(wanted) {
            room if room >= size => room,
            _ => within.end.saturating_sub(aligned(within.start)),
        };
        let count = step.count.min(limit.min(room).min(MAX_ATOMIC_BYTES) / size);
        if count == 0 || !form.has(operator, datatype) {
            return None;
        }
        let len = count * size;
        let at = |start: usize| AtomicCall {
            number: self.ops.len(),
            by,
            place: start..start + len,
            form,
            operator,
            datatype,
            operands: Vec::new(),
            compares: Vec::new(),
            is_plain: false,
        };
        let refused = |key, place, errno| {
            let refusal = Some(errno);
            Some((
                at(0),
                AtomicPlace {
                    key,
                    place,
                    refusal,
                },
            ))
        };
        if let Some((key, place)) = region.place_with(step.fault, len) {
            return refused(key, place, Errno::EACCES);
        }
        if region.is_closed || !Rights::of(region.rights).contains(form.rights(operator)) {
            return refused(region.key, region.first_place, Errno::EACCES);
        }
        if step.fault == OneSidedFault::Alignment && alignment > 1 && len < region.len() {
            return refused(region.key, region.first_place + 1, Errno::EINVAL);
        }
        let fenced = step.fence && self.fabric.offers(Flags::FENCE);
        let behind = region.last_place(by).filter(|_| fenced);
        let starts = behind.into_iter().chain([wanted, within.start]);
        let mut starts = starts.chain(region.ends_of_uses()).map(aligned);
        let start = starts.find(|&start| {
            let call = at(start);
            start >= within.start
                && call.place.end <= within.end
                && region.takes_atomic(&call, fenced)
        })?;
        let place = AtomicPlace {
            key: region.key,
            place: region.first_place + start as u64,
            refusal: None,
        };
        Some((at(start), place))
    }

    /// Gives a call its operands and compare values.
    fn fill_arrays(&self, step: &AtomicStep, region: (usize, usize), call: &mut AtomicCall) {
        let count = call.place.len() / call.datatype.size();
        let from = |first: i8| {
            elements(
                call.datatype,
                (0..count).map(|at| first.wrapping_add(at as i8)),
            )
        };
        let of_target = || self.regions[region.0][region.1].content(call.place.clone());
        let operands = match call.operator {
            AtomicOperator::Read => Vec::new(),
            _ => from(step.operand),
        };
        let compares = match (call.form, step.compare) {
            (AtomicForm::Compare, Some(first)) => from(first),
            (AtomicForm::Compare, None) => of_target(),
            _ => Vec::new(),
        };
        call.operands = operands;
        call.compares = compares;
    }

    /// Writes down an operation that has begun.
    fn atomic_has_begun(
        &mut self,
        op: &AtomicOp,
        call: AtomicCall,
        region: (usize, usize),
        is_refused: bool,
        (atomic, results): (RunAtomic, MessageMemory),
    ) {
        let (from, to) = call.by;
        let (kind, place) = (op.form.kind(), call.place.clone());
        let is_known = self.is_known((from, to));
        let number = self.op_number();
        if !is_refused {
            self.note_overlap(region, &place);
            self.regions[region.0][region.1].begin_atomic(call);
        }
        self.nodes[from].ops.insert(op.context, self.ops.len());
        self.ops.push(RunOneSided {
            context: op.context,
            number,
            kind,
            from,
            to,
            region,
            place,
            memory: results,
            bytes: Vec::new(),
            data: None,
            quiet: !op.flags.contains(Flags::COMPLETION),
            injected: op.flags.contains(Flags::INJECT),
            allowed: match is_refused {
                true => AllowedOutcome::Refusal,
                false => AllowedOutcome::Success,
            },
            removed: false,
            is_known,
            is_overlapped: false,
            succeeded: None,
            noticed: false,
            atomic: Some(atomic),
            is_behind_atomics: false,
        });
    }

    /// An atomic operation, or a read behind such ones, has succeeded.
    pub(super) fn atomic_ends_well(&mut self, at: usize) -> Result<(), Wrong> {
        let op = &self.ops[at];
        let fetched = match op.kind {
            RmaKind::Read => op.memory.bytes(0..op.place.len()),
            RmaKind::Write => Vec::new(),
        };
        op.memory.untouched_behind(fetched.len())?;
        let before = self.ops.len();
        self.atomic_ends(at, AtomicEnd::Done { before, fetched })
    }

    /// An atomic operation has failed, or nobody will see its end.
    pub(super) fn atomic_fails(&mut self, at: usize, errno: Option<Errno>) -> Result<(), Wrong> {
        let end = match errno {
            Some(Errno::EACCES | Errno::EINVAL) => AtomicEnd::Refused,
            _ => AtomicEnd::Unknown,
        };
        self.atomic_ends(at, end)
    }

    pub(super) fn atomic_ends(&mut self, at: usize, end: AtomicEnd) -> Result<(), Wrong> {
        let op = &mut self.ops[at];
        op.succeeded = Some(matches!(end, AtomicEnd::Done { .. }));
        if let Some(atomic) = &op.atomic {
            for source in &atomic.sources {
                source.untouched_around()?;
            }
        }
        let (rank, region) = op.region;
        match op.is_refused() {
            true => Ok(()),
            false => self.regions[rank][region].end_atomic(at, end),
        }
    }
}

impl RunAtomic {
    /// Whether it may fail with an error of its target.
    pub(super) fn may_fail_with(&self, errno: Errno, is_open: bool) -> bool {
        match (errno, self.refusal) {
            // Its region may have closed before.
            (Errno::EACCES, Errno::EINVAL) => !is_open,
            (errno, refusal) => errno == refusal,
        }
    }
}
