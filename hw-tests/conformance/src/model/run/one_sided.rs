//! One-sided operations of a program: the calls, what completes, and the CQ data and counters at
//! the target.

mod atomics;
mod ends;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofabric_contracts::types::{RmaKind, RmaOp};
use ferrofabric_runtime::fabric::Domain;
use serde::{Deserialize, Serialize};

use super::regions::{RegionUse, RunRegion};
use super::*;
use crate::model::oracle::atomics::{AtomicCall, AtomicEnd};
use crate::model::program::{OneSidedFault, OneSidedStep};
use atomics::RunAtomic;

/// The content of a write is that of a message with a number that no message has.
const FIRST_NUMBER: usize = 1 << 40;

/// The upper half of the CQ data of a write.
const DATA: u64 = 0x5ded;

/// Calls of a fenced operation, which waits for those before it.
const FENCED_TRIES: usize = 200;

/// A region that does not close for so long may wait for a reply behind a fence, and that for the
/// receive of a message.
const CLOSE_ALONE: Duration = Duration::from_millis(100);

/// Keys of regions that are registered by a step: no two are the same, so that no operation on one
/// that has closed finds another.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1 << 33);

/// An operation that has begun.
pub(super) struct RunOneSided {
    context: u64,
    /// No other operation of the run has it.
    number: usize,
    pub(super) kind: RmaKind,
    pub(super) from: NodeNumber,
    pub(super) to: NodeNumber,
    /// The rank that has the region, and its place in the list of that rank's.
    pub(super) region: (usize, usize),
    place: Range<usize>,
    memory: MessageMemory,
    /// The bytes of a write, or those that a read gets.
    bytes: Vec<u8>,
    pub(super) data: Option<u64>,
    pub(super) quiet: bool,
    injected: bool,
    allowed: AllowedOutcome,
    /// Its address was removed while it was under way.
    removed: bool,
    /// Its target has its initiator's address.
    is_known: bool,
    /// A fenced operation uses its place, too.
    is_overlapped: bool,
    pub(super) succeeded: Option<bool>,
    pub(super) noticed: bool,
    atomic: Option<RunAtomic>,
    /// A read of bytes that atomic operations change which the fence of the read waits for.
    is_behind_atomics: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllowedOutcome {
    Success,
    /// The target refuses it.
    Refusal,
    Either,
}

/// Key and place of an operation.
struct ChosenPlace {
    key: u64,
    place: u64,
    len: usize,
    /// The bytes of the region; none if the operation is refused.
    used: Option<Range<usize>>,
    /// Atomic operations change these bytes, and its fence waits for them.
    is_behind_atomics: bool,
}

/// A write to a region of the other process, or an atomic operation on it.
#[derive(Serialize, Deserialize)]
pub(super) struct RemoteWrite {
    pub(super) region: (usize, usize),
    pub(super) place: Range<usize>,
    pub(super) number: usize,
    /// The bytes there after all atomic operations, if it is one.
    pub(super) after: Option<Vec<u8>>,
    pub(super) to: NodeNumber,
    pub(super) data: Option<u64>,
    pub(super) succeeded: bool,
}

/// The bytes of the write with this number.
pub(super) fn content(number: usize, len: usize) -> Vec<u8> {
    MessageMemory::of_message(FIRST_NUMBER + number, len).bytes(0..len)
}

impl MessageRun<'_> {
    pub(super) fn has_one_sided(&self) -> bool {
        self.fabric.offers(Flags::RMA)
    }

    /// The domain of a rank, if it is in this process.
    fn domain_of(&self, rank: usize) -> Option<&dyn Domain> {
        let (process, processes) = self.share;
        (rank % processes == process).then(|| self.fabric.domain(rank))
    }

    /// Registers the regions that a rank has from the beginning.
    pub(super) fn open_regions(&mut self, rank: usize) {
        let mut regions = Vec::new();
        if self.has_one_sided() {
            let both = Flags::REMOTE_READ | Flags::REMOTE_WRITE;
            for (which, len) in [64 << 10, 600_000.min(self.fabric.longest)]
                .into_iter()
                .enumerate()
            {
                let key = (rank * 16 + which) as u64;
                let domain = self.domain_of(rank);
                regions.push(RunRegion::open(domain, key, both, len, false));
            }
        }
        self.regions.push(regions);
    }

    pub(super) fn register(
        &mut self,
        rank: usize,
        len: usize,
        rights: Flags,
        is_virtual: bool,
    ) -> Result<(), Wrong> {
        // Without a right for peers, it is no region of theirs.
        if self.has_one_sided() && !rights.is_empty() {
            let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
            let domain = self.domain_of(rank);
            let region = RunRegion::open(domain, key, rights, len.max(1), is_virtual);
            self.regions[rank].push(region);
        }
        Ok(())
    }

    /// Closes the `which`th region that a rank has open. Nothing else fails by that.
    pub(super) fn close_region(&mut self, rank: usize, which: usize) -> Result<(), Wrong> {
        let open = self.regions[rank].iter().enumerate();
        let Some((at, _)) = open.filter(|(_, region)| region.is_open()).nth(which) else {
            return Ok(());
        };
        for op in &mut self.ops {
            if op.region == (rank, at) && op.allowed == AllowedOutcome::Success {
                op.allowed = AllowedOutcome::Either;
            }
        }
        let mr = self.regions[rank][at].begin_close();
        // A close drives its own domain, and may wait for peers.
        let closing = std::thread::spawn(move || drop(mr));
        let since = Instant::now();
        self.until("a region does not close", |run| {
            if since.elapsed() > CLOSE_ALONE {
                run.take_all_out()?;
            }
            Ok(closing.is_finished())
        })?;
        closing.join().map_err(|_| "a close panics")?;
        self.regions[rank][at].end_close()
    }

    pub(super) fn check_regions(&self) -> Result<(), Wrong> {
        self.regions.iter().flatten().try_for_each(RunRegion::check)
    }

    /// The address by which an endpoint reaches another, and whether that was removed.
    pub(super) fn destination(&self, from: NodeNumber, to: NodeNumber) -> Option<(FiAddr, bool)> {
        let live = &self.nodes[from];
        // An index of a table that is another's by now is not.
        let is_of_nobody = |addr: &&FiAddr| live.peers.values().all(|other| other != *addr);
        let stale = live.stale.get(&to).filter(is_of_nobody);
        match (live.peers.get(&to), stale) {
            (Some(&addr), _) => Some((addr, false)),
            (None, Some(&addr)) => Some((addr, true)),
            (None, None) => None,
        }
    }

    /// The number of the next operation, which no other process gives to one of its own.
    fn op_number(&self) -> usize {
        let (process, processes) = self.share;
        self.ops.len() * processes + process
    }

    pub(super) fn one_sided(&mut self, step: &OneSidedStep) -> Result<(), Wrong> {
        let (from, to) = (self.node(step.from), self.node(step.to));
        let Some((dest, is_stale)) = self.destination(from, to) else {
            return Ok(());
        };
        let rank = self.nodes[to].rank;
        if self.regions[rank].is_empty() {
            return Ok(());
        }
        let region = (rank, step.which % self.regions[rank].len());
        let Some(choice) = self.choose(step, (from, to), region) else {
            return Ok(());
        };
        let number = self.op_number();
        let op = self.op_of(step, dest, number, &choice);
        let memory = match op.kind {
            RmaKind::Read => MessageMemory::for_receive(choice.len),
            RmaKind::Write => MessageMemory::of_message(FIRST_NUMBER + number, choice.len),
        };
        let iov = memory.list(step.pieces.min(self.fabric.info().tx.iov_limit));
        let by = (from, is_stale, op.flags.contains(Flags::FENCE));
        // SAFETY: the memory is kept until the run is over.
        let begin = |end: &QueuedEndpoint| unsafe { end.endpoint.rma(&op, &iov) };
        if self.begins(by, &op, begin)? {
            self.has_begun(&op, (from, to), region, choice, memory);
        }
        Ok(())
    }

    /// Begins an operation. Says whether there was room for it; if not, the program goes on without
    /// it.
    fn begins(
        &mut self,
        (from, is_stale, is_fenced): (NodeNumber, bool, bool),
        op: &dyn Debug,
        begin: impl Fn(&QueuedEndpoint) -> Result<(), OpError>,
    ) -> Result<bool, Wrong> {
        for _ in 0..if is_fenced { FENCED_TRIES } else { TRIES } {
            match begin(self.end(from)?) {
                Ok(()) if !is_stale => return Ok(true),
                Err(OpError::Failed(Errno::EADDRNOTAVAIL)) if is_stale => return Ok(false),
                // It waits for those before it, even if the address is removed.
                Err(OpError::Again) if is_fenced => drop(self.pump_all()?),
                Err(OpError::Again) if !is_stale => drop(self.pump(from)?),
                said => {
                    let address = if is_stale { "a removed" } else { "an" };
                    return Err(format!("{op:?} to {address} address says {said:?}"));
                }
            }
        }
        Ok(false)
    }

    /// The part of a region that the ranks of this process use.
    fn share_of(&self, region: &RunRegion) -> Range<usize> {
        let (process, processes) = self.share;
        region.len() * process / processes..region.len() * (process + 1) / processes
    }

    /// The flags that are wanted, and offered if they are not always.
    fn offered(&self, flags: [(Flags, bool); 3]) -> Flags {
        let flags = flags.into_iter().filter(|(flag, wanted)| {
            *wanted && (*flag != Flags::FENCE || self.fabric.offers(Flags::FENCE))
        });
        flags.fold(Flags::empty(), |all, (flag, _)| all | flag)
    }

    /// Chooses key and place.
    fn choose(
        &self,
        step: &OneSidedStep,
        by: (NodeNumber, NodeNumber),
        (rank, at): (usize, usize),
    ) -> Option<ChosenPlace> {
        let region = &self.regions[rank][at];
        let right = match step.read {
            true => Flags::REMOTE_READ,
            false => Flags::REMOTE_WRITE,
        };
        let within = self.share_of(region);
        let limit = match step.inject && !step.read {
            true => self.fabric.info().tx.inject_size,
            false => usize::MAX,
        };
        let len = step.size.min(within.len()).min(limit);
        let refused = |key, place| {
            Some(ChosenPlace {
                key,
                place,
                len,
                used: None,
                is_behind_atomics: false,
            })
        };
        let first = region.first_place;
        if let Some((key, place)) = region.place_with(step.fault, len) {
            return refused(key, place);
        }
        if region.is_closed || !region.rights.contains(right) {
            return refused(region.key, first);
        }
        let is_fenced = step.fence && self.fabric.offers(Flags::FENCE);
        let atomics = (is_fenced && step.read)
            .then(|| region.place_behind_atomics(&within, by, len))
            .flatten();
        let behind = || is_fenced.then(|| region.place_behind_fence(&within, by, len));
        let free = || region.free_place(&within, step.place, len, !step.read);
        let start = atomics.or_else(|| behind().flatten()).or_else(free)?;
        Some(ChosenPlace {
            key: region.key,
            place: first + start as u64,
            len,
            used: Some(start..start + len),
            is_behind_atomics: atomics.is_some(),
        })
    }

    fn op_of(
        &mut self,
        step: &OneSidedStep,
        dest: FiAddr,
        number: usize,
        choice: &ChosenPlace,
    ) -> RmaOp {
        let has_data = step.data && !step.read;
        RmaOp {
            kind: match step.read {
                true => RmaKind::Read,
                false => RmaKind::Write,
            },
            dest,
            key: choice.key,
            place: choice.place,
            data: if has_data {
                (DATA << 32) | number as u64
            } else {
                0
            },
            desc: MrDesc::NONE,
            context: self.context(),
            flags: self.offered([
                (Flags::INJECT, step.inject && !step.read),
                (Flags::COMPLETION, !step.quiet),
                (Flags::FENCE, step.fence),
            ]) | if has_data {
                Flags::REMOTE_CQ_DATA
            } else {
                Flags::empty()
            },
        }
    }

    /// Whether a target has the address of an initiator, as far as anybody knows.
    fn is_known(&self, (from, to): (NodeNumber, NodeNumber)) -> bool {
        self.nodes[to].elsewhere || self.nodes[to].peers.contains_key(&from)
    }

    /// An operation uses a place once more while those before it are under way. The place of a
    /// write is free when the write is done, and its CQ data may be read after that.
    fn note_overlap(&mut self, region: (usize, usize), used: &Range<usize>) {
        for overlapped in self.regions[region.0][region.1].overlapped(used) {
            self.ops[overlapped].is_overlapped = true;
        }
        for before in &mut self.ops {
            let shares = before.place.start < used.end && used.start < before.place.end;
            before.is_overlapped |= before.region == region && !before.noticed && shares;
        }
    }

    /// Writes down an operation that has begun.
    fn has_begun(
        &mut self,
        op: &RmaOp,
        (from, to): (NodeNumber, NodeNumber),
        region: (usize, usize),
        choice: ChosenPlace,
        memory: MessageMemory,
    ) {
        let (index, number) = (self.ops.len(), self.op_number());
        let injected = op.flags.contains(Flags::INJECT);
        let is_known = self.is_known((from, to));
        if let Some(used) = &choice.used {
            self.note_overlap(region, used);
        }
        let of = &mut self.regions[region.0][region.1];
        let bytes = match (&choice.used, op.kind) {
            (Some(used), RmaKind::Read) => of.content(used.clone()),
            (None, RmaKind::Read) => Vec::new(),
            (_, RmaKind::Write) => memory.bytes(0..choice.len),
        };
        if injected {
            memory.spoil();
        }
        if let (true, Some(used)) = (choice.is_behind_atomics, &choice.used) {
            of.begin_atomic(AtomicCall::read(index, (from, to), used.clone()));
        } else if let Some(used) = &choice.used {
            let writes = op.kind == RmaKind::Write;
            let used = RegionUse {
                op: index,
                by: (from, to),
                place: used.clone(),
                writes,
                is_lost: false,
            };
            of.begin(used, writes.then_some(&bytes[..]));
        }
        self.nodes[from].ops.insert(op.context, index);
        self.ops.push(RunOneSided {
            context: op.context,
            number,
            kind: op.kind,
            from,
            to,
            region,
            allowed: match choice.used {
                None => AllowedOutcome::Refusal,
                Some(_) => AllowedOutcome::Success,
            },
            place: choice.used.unwrap_or(0..choice.len),
            memory,
            bytes,
            data: op.flags.contains(Flags::REMOTE_CQ_DATA).then_some(op.data),
            quiet: !op.flags.contains(Flags::COMPLETION),
            injected,
            removed: false,
            is_known,
            is_overlapped: false,
            succeeded: None,
            noticed: false,
            atomic: None,
            is_behind_atomics: choice.is_behind_atomics,
        });
    }
}

impl RunOneSided {
    pub(super) fn is_refused(&self) -> bool {
        self.allowed == AllowedOutcome::Refusal
    }

    /// Whether it may change its target's memory.
    pub(super) fn changes(&self) -> bool {
        !self.is_refused() && (self.kind == RmaKind::Write || self.atomic.is_some())
    }

    pub(super) fn to_remote(&self, region: &RunRegion) -> RemoteWrite {
        let is_open = region.has_open_atomics(&self.place);
        RemoteWrite {
            region: self.region,
            place: self.place.clone(),
            number: self.number,
            after: (self.atomic.as_ref()).map(|_| region.content(self.place.clone())),
            to: self.to,
            data: self.data,
            succeeded: self.succeeded == Some(true) && !is_open,
        }
    }

    pub(super) fn in_words(&self) -> String {
        format!(
            "operation {} {:?} {:?} from node {} to {} on region {:?} at {:?}, {:?}{}",
            self.context,
            self.kind,
            self.atomic.as_ref().map(|atomic| atomic.kind),
            self.from,
            self.to,
            self.region,
            self.place,
            self.allowed,
            if self.removed { ", removed" } else { "" },
        )
    }
}
