//! One-sided operations that the device carries out (`docs/adr/0063`): reads and writes of memory
//! that the peer has granted, on the lane that the grant is for.
//!
//! A write whose acknowledgement is not enough (`FI_DELIVERY_COMPLETE`) is followed by a read of
//! the same region: its answer comes when the bytes are in the target's memory.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::peer::{Owner, Shortcut, ShortcutEnd};
use ferrofabric_contracts::types::{FiAddr, GrantedMemory, IoBuf, RmaKind, RmaOp, total_len};
use ferrofabric_protocol::lanes::BROKEN;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_runtime::rma::plan::{Behind, LaneMemory, Operation, Route, Rule, Way, plan};
use ferrofabric_verbs_sys::ibv_sge;

use super::RdmTransport;
use super::poster::{PostError, Poster};
use crate::gather::{Readable, entry};
use crate::lane::{OneSidedWqe, PacketBuffer, RcLane};
use crate::mr::Access;
use crate::post::{RemoteMemory, SendFlags, SendRequest};
use crate::registration::MemoryRegion;
use crate::slots::SlotPool;

/// Bytes that a read behind a write reads.
const FLUSH_BYTES: usize = 1;

/// Scatter/gather entries of a request, at most.
const MAX_ENTRIES: usize = 2;

/// The local memory of a request.
struct LocalMemory {
    entries: [ibv_sge; MAX_ENTRIES],
    count: usize,
    flags: SendFlags,
    packet: PacketBuffer,
    regions: Option<Box<[Arc<MemoryRegion>]>>,
}

impl RdmTransport {
    /// As [`Transport::shortcut`](ferrofabric_contracts::peer::Transport::shortcut).
    ///
    /// # Safety
    ///
    /// As there.
    pub(super) unsafe fn one_sided(
        &mut self,
        peer: u32,
        op: &RmaOp,
        iov: &[IoBuf],
        memory: Option<&GrantedMemory>,
    ) -> Shortcut {
        let operation = Operation::of(op);
        let at = self.peers.at(peer);
        let session = at.lane.filter(|_| at.pending.is_empty());
        let lane = session.and_then(|session| Some((session, self.lanes.rc(session)?)));
        let Some((session, lane)) = lane.filter(|(_, lane)| lane.head.gate.is_open()) else {
            // No grant is for another lane than one that is open: `Rule::NotReady`.
            return Shortcut::Impossible;
        };
        let number = lane.head.key.to_bits();
        let granted = memory.filter(|memory| memory.lane == number);
        let reached = (self.poster).lane_memory(lane, (operation, op), iov, granted);
        let rule = plan(operation, Behind::Nothing, Route::Lane(reached));
        if let Some(refused) = refusal(rule, number) {
            return refused;
        }
        let Some(memory) = granted else {
            return Shortcut::Impossible;
        };
        let must_post = self.poster.holds_back()
            && (self.poster.chain_of() != session
                || !self.poster.has_room_in_chain(requests_of(operation)));
        let lane = match must_post {
            false => lane,
            true => {
                self.post_held_back();
                match self.lanes.rc(session) {
                    Some(lane) => lane,
                    None => return Shortcut::Impossible,
                }
            }
        };
        // SAFETY: the caller's promise.
        match unsafe { self.poster.one_sided(lane, (operation, op), iov, memory) } {
            Some(Ok(())) => Shortcut::UnderWay,
            // It was entered, and ends with the lane.
            Some(Err(_)) => {
                self.lane_broke(session);
                Shortcut::UnderWay
            }
            None => {
                let route = Route::Lane(LaneMemory::Unregistered);
                let rule = plan(operation, Behind::Nothing, route);
                refusal(rule, number).unwrap_or(Shortcut::Impossible)
            }
        }
    }

    /// A peer's device has denied the request with this number.
    #[cold]
    pub(super) fn one_sided_denied(&mut self, session: SessionId, number: u32) {
        let Some(lane) = self.lanes.rc(session) else {
            return;
        };
        // The operation's last request has its number. The one that failed may be the one before.
        // Behind it the peer's device takes no request of the lane.
        let mut end = ShortcutEnd::Denied;
        for one in lane.queue.one_sided_since(number) {
            one.end = end;
            if one.number.is_some() {
                end = ShortcutEnd::NotBegun;
            }
        }
    }

    /// The lane of these operations is dead, and its requests are flushed.
    pub(super) fn end_lost_one_sided<O: Owner>(
        &mut self,
        lost: VecDeque<OneSidedWqe>,
        owner: &mut O,
    ) {
        for one in lost {
            if let Some(number) = one.number {
                self.poster.counters.sent.one_sided.lost += 1;
                owner.shortcut_over(number, one.end);
            }
        }
    }

    /// As [`Transport::cut_off`](ferrofabric_contracts::peer::Transport::cut_off).
    #[cold]
    pub(super) fn cut_off_peer(&mut self, addr: FiAddr) -> bool {
        let Some(session) = (self.peers.routed(addr)).and_then(|peer| self.peers.at(peer).lane)
        else {
            return true;
        };
        if (self.lanes.rc(session)).is_some_and(|lane| !lane.head.gate.is_ending()) {
            self.break_lane(session, BROKEN);
        }
        // In error, its queue pair takes no request any more.
        (self.lanes.rc(session)).is_none_or(|lane| lane.head.gate.is_ending() && !lane.unflushed)
    }
}

/// The answer to the owner by a rule that does not let the device carry an operation out.
#[inline]
fn refusal(rule: Rule, lane: u64) -> Option<Shortcut> {
    match (rule.way(), rule) {
        (Way::Device, _) => None,
        (Way::Again, _) => Some(Shortcut::Again),
        (Way::Message, Rule::NotGranted) => Some(Shortcut::NeedsGrant { lane }),
        (Way::Message | Way::Mapped | Way::Kernel | Way::LookUp, _) => Some(Shortcut::Impossible),
    }
}

/// Work requests of an operation: a write that has to be visible is read back.
fn requests_of(operation: Operation) -> usize {
    1 + usize::from(operation == Operation::VisibleWrite)
}

impl Poster {
    /// The memory of an operation, as the device reaches it over a lane. What the rules of the plan
    /// say first is looked at first.
    #[inline]
    fn lane_memory(
        &mut self,
        lane: &RcLane,
        (operation, op): (Operation, &RmaOp),
        iov: &[IoBuf],
        granted: Option<&GrantedMemory>,
    ) -> LaneMemory {
        if !self.could_do(lane, op, iov) {
            return LaneMemory::Unfit;
        }
        let Some(memory) = granted else {
            return LaneMemory::NotGranted;
        };
        if !lane.queue.has_room_for(requests_of(operation)) {
            return LaneMemory::Full;
        }
        if self.is_scarce() && !self.has_share(lane) {
            return LaneMemory::Scarce;
        }
        let is_read_back = operation == Operation::VisibleWrite;
        if is_read_back && !(memory.rights.contains(Rights::READ) && self.has_read_scratch()) {
            return LaneMemory::Unreadable;
        }
        LaneMemory::Granted
    }

    /// Whether an operation is of a kind that the device carries out on a lane.
    fn could_do(&self, lane: &RcLane, op: &RmaOp, iov: &[IoBuf]) -> bool {
        let len = total_len(iov);
        let rendezvous = &self.tuning.rendezvous;
        let longest = match op.kind {
            RmaKind::Read if rendezvous.reads_are_torn => {
                self.mtu.bytes().min(lane.packet_bytes) as u64
            }
            RmaKind::Read => rendezvous.read_chunk,
            // A copy has to fit into the request, or into a bounce buffer.
            RmaKind::Write if op.flags.contains(Flags::INJECT) => self.bounces.slot_bytes() as u64,
            RmaKind::Write => rendezvous.write_chunk,
        };
        let pieces = iov.iter().filter(|buf| buf.len != 0).count();
        len != 0 && len as u64 <= longest && pieces <= self.tuning.send_entries
    }

    /// Posts the requests of an operation. `None`: its memory is not at hand, and nothing has
    /// happened.
    ///
    /// # Safety
    ///
    /// As [`Transport::shortcut`](ferrofabric_contracts::peer::Transport::shortcut).
    unsafe fn one_sided(
        &mut self,
        lane: &mut RcLane,
        (operation, op): (Operation, &RmaOp),
        iov: &[IoBuf],
        memory: &GrantedMemory,
    ) -> Option<Result<(), PostError>> {
        // SAFETY: the caller's promise.
        let local = unsafe { self.local_memory(lane, op, iov) }?;
        let is_flushed = operation == Operation::VisibleWrite;
        let more = op.flags.contains(Flags::MORE) && !op.flags.contains(Flags::INJECT);
        let (wr_id, signaled) = lane.next(!is_flushed);
        let flags = match signaled {
            true => local.flags | SendFlags::SIGNALED,
            false => local.flags,
        };
        let remote = RemoteMemory {
            addr: memory.address,
            rkey: memory.rkey,
        };
        let ends = (!is_flushed).then_some(memory.number);
        let one = one_sided_wqe(ends, local.regions);
        let counters = &mut self.counters.sent.one_sided;
        match op.kind {
            RmaKind::Write => counters.writes += 1,
            RmaKind::Read => counters.reads += 1,
        }
        let wqe = (one, local.packet);
        let held = more || is_flushed;
        let posted = match (local.count, local.entries) {
            (1, [one, _]) => {
                let request = request(op.kind, wr_id, [one], remote).flags(flags);
                self.post_one_sided(lane, &request, wqe, held)
            }
            (_, both) => {
                let request = request(op.kind, wr_id, both, remote).flags(flags);
                self.post_one_sided(lane, &request, wqe, held)
            }
        };
        if !is_flushed {
            return Some(posted);
        }
        let (wr_id, _) = lane.next(true);
        let into = self.read_scratch.as_ref().map_or((0, 0), |scratch| {
            (scratch.address(0) as u64, scratch.lkey())
        });
        let read = SendRequest::read(wr_id, [entry(into.0, FLUSH_BYTES, into.1)], remote)
            .flags(SendFlags::SIGNALED);
        let one = one_sided_wqe(Some(memory.number), None);
        Some(self.post_one_sided(lane, &read, (one, PacketBuffer::Nowhere), more))
    }

    /// The memory that the device reads from, or writes to.
    ///
    /// # Safety
    ///
    /// As [`Poster::one_sided`].
    unsafe fn local_memory(
        &mut self,
        lane: &RcLane,
        op: &RmaOp,
        iov: &[IoBuf],
    ) -> Option<LocalMemory> {
        let len = total_len(iov);
        let mut memory = LocalMemory {
            entries: [entry(0, 0, 0); MAX_ENTRIES],
            count: 0,
            flags: SendFlags::empty(),
            packet: PacketBuffer::Nowhere,
            regions: None,
        };
        let pieces = iov.iter().filter(|buf| buf.len != 0);
        if op.kind == RmaKind::Write && len <= self.tuning.inline_bytes {
            memory.flags = SendFlags::INLINE;
            for (buf, entry_of) in pieces.zip(&mut memory.entries) {
                *entry_of = entry(buf.addr as u64, buf.len, 0);
                memory.count += 1;
            }
            return Some(memory);
        }
        let access = match op.kind {
            RmaKind::Read => Access::LOCAL_WRITE,
            RmaKind::Write => Access::empty(),
        };
        let is_copied = op.flags.contains(Flags::INJECT);
        let described: Option<Vec<_>> = pieces
            .clone()
            .map(|buf| self.registrations.described(op.desc, *buf, access))
            .collect();
        let regions = match described.filter(|_| !is_copied) {
            Some(regions) => regions,
            None if op.kind == RmaKind::Write && len <= self.bounces.slot_bytes() => {
                let slot = self.take_bounce(lane)?;
                let at = self.bounces.address(slot);
                // SAFETY: the caller's promise; the slot has that many bytes, and is ours until
                // its request is over.
                unsafe { Readable::new(iov).gather(0, len, at) };
                memory.entries[0] = entry(at as u64, len, self.bounces.lkey(slot));
                memory.count = 1;
                let len = len as u32;
                memory.packet = PacketBuffer::Bounce { slot, len };
                return Some(memory);
            }
            None => {
                let registrations = &mut self.registrations;
                let made = pieces.clone().map(|buf| {
                    // SAFETY: the buffers stay until the operation completes, and the regions are
                    // released before that.
                    unsafe { registrations.region(buf.as_mut_ptr(), buf.len, access) }
                });
                made.collect::<Result<Vec<_>, _>>().ok()?
            }
        };
        for ((buf, region), entry_of) in pieces.zip(&regions).zip(&mut memory.entries) {
            *entry_of = entry(buf.addr as u64, buf.len, region.lkey());
            memory.count += 1;
        }
        memory.regions = Some(regions.into());
        Some(memory)
    }

    /// Whether there is memory for reads whose bytes nobody needs; it is made for the first.
    #[inline]
    fn has_read_scratch(&mut self) -> bool {
        self.read_scratch.is_some() || self.make_read_scratch()
    }

    #[cold]
    fn make_read_scratch(&mut self) -> bool {
        let pd = self.registrations.pd();
        match SlotPool::create(pd, 1, FLUSH_BYTES, Access::LOCAL_WRITE) {
            Ok(scratch) => self.read_scratch = Some(scratch),
            Err(error) => tracing::debug!("writes go as messages: {error}"),
        }
        self.read_scratch.is_some()
    }
}

fn one_sided_wqe(number: Option<u64>, regions: Option<Box<[Arc<MemoryRegion>]>>) -> OneSidedWqe {
    OneSidedWqe {
        number,
        end: ShortcutEnd::Lost,
        _regions: regions,
    }
}

fn request<const N: usize>(
    kind: RmaKind,
    wr_id: u64,
    entries: [ibv_sge; N],
    remote: RemoteMemory,
) -> SendRequest<N> {
    match kind {
        RmaKind::Read => SendRequest::read(wr_id, entries, remote),
        RmaKind::Write => SendRequest::write(wr_id, entries, remote),
    }
}
