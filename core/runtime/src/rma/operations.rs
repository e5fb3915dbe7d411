//! One-sided operations of one endpoint (`docs/adr/0061`): the parts that wait for something, at
//! the initiator and at the target.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::part::{Part, RegionName, RemotePlace};
use ferrofabric_contracts::region_window::RegionAccess;
use ferrofabric_contracts::types::{
    FiAddr, IoBuf, MAX_REQUESTS, MrDesc, MsgKind, RemoteKind, RmaKind, RmaOp, SendOp, total_len,
};
use ferrofabric_matching::ReceiveBuffers;
use slab::Slab;

use crate::rma::as_initiator::mapped_atomics::MappedAtomics;
use crate::rma::as_initiator::read_order::{ReadOrder, ReadPlace};
use crate::rma::as_initiator::shortcuts::Shortcuts;
use crate::rma::as_target::atomic_arrivals::AtomicArrivals;
use crate::rma::as_target::regions::{RegionCounters, RegionPart, RegionTable};
use crate::rma::grants::{GivenGrants, GrantFields, HeldGrants};
use crate::rma::orders::Orders;
use crate::rma::outbox::PartOutbox;

/// Bytes of a request to read: the number of the read, and its length.
pub(crate) const REQUEST_BYTES: usize = 16;

/// The state of an endpoint's one-sided operations.
pub(crate) struct RemoteOperations {
    regions: Arc<RegionTable>,
    /// Of peers, by way of this endpoint.
    rights: Rights,
    /// Of the endpoint's own operations.
    pub(crate) orders: Orders,
    reads: Slab<ReadUnderWay>,
    /// Number of reads so far.
    reads_begun: u32,
    /// In which the reads complete.
    pub(crate) read_order: ReadOrder,
    /// Writes by messages that are not over: those with CQ data, until their notice goes, and where
    /// operations keep an order, all others.
    pub(crate) noticed: Slab<NoticedWrite>,
    rooms: Slab<PartRoom>,
    /// Refusals that the transport takes when the message is over that they are for.
    pub(crate) refusals: Vec<SendOp>,
    /// The parts on their way here or from here.
    taken: Slab<TakenPart>,
    /// Bytes of the copies among them.
    copied: usize,
    /// The memory of a small copy that was sent, for the next one.
    spare: Option<Box<[MaybeUninit<u8>]>>,
    /// Parts that this endpoint is to send.
    pub(crate) outbox: PartOutbox,
    /// Grants of peers' regions.
    pub(crate) held: HeldGrants,
    /// Grants that peers hold by way of this endpoint.
    pub(crate) given: GivenGrants,
    /// Operations that the transport carries out by itself.
    pub(crate) shortcuts: Shortcuts,
    /// Atomic operations of peers.
    pub(crate) atomics: AtomicArrivals,
    /// Own ones in mapped memory.
    pub(crate) mapped_atomics: MappedAtomics,
}

/// A read, or an atomic operation, that its initiator awaits. Its flags have `ATOMIC` if it is one.
pub(crate) struct ReadUnderWay {
    number: u64,
    /// Of a read: its place among the reads of its peer.
    pub(crate) place: Option<ReadPlace>,
    pub(crate) op: RmaOp,
    /// The address that its reply comes from: the first one of the peer, if the operation has
    /// another; `NOTAVAIL` once one of them is removed.
    pub(crate) from: FiAddr,
    pub(crate) into: ReceiveBuffers,
    /// Bytes of the reply.
    pub(crate) len: u64,
    /// Bytes of the target's memory.
    pub(crate) target_bytes: usize,
    /// The transport has taken the request. Until then an error is that of the call.
    is_requested: bool,
    /// Its bytes are on their way into the buffers.
    pub(crate) arrives: bool,
}

impl ReadUnderWay {
    /// Whether it is an atomic operation.
    #[inline]
    pub(crate) fn is_atomic(&self) -> bool {
        self.op.flags.contains(Flags::ATOMIC)
    }

    /// Whether it is among the first reads of its endpoint, `begun` of them (modulo 2³²).
    pub(crate) fn is_of_the_first(&self, begun: u32) -> bool {
        begun.wrapping_sub((self.number >> 32) as u32) <= u32::MAX / 2
    }

    /// The addresses of its target; none once one of them is removed.
    pub(crate) fn targets(&self) -> Option<[FiAddr; 2]> {
        (self.from != FiAddr::NOTAVAIL).then_some([self.op.dest, self.from])
    }
}

/// A write whose CQ data follows it, or that others wait for.
pub(crate) struct NoticedWrite {
    pub(crate) op: RmaOp,
    /// The address that the data goes to: the first one of the peer, if the operation has another;
    /// `NOTAVAIL` once one of them is removed.
    pub(crate) to: FiAddr,
}

impl NoticedWrite {
    /// The addresses of its target; none once one of them is removed.
    pub(crate) fn targets(&self) -> Option<[FiAddr; 2]> {
        (self.to != FiAddr::NOTAVAIL).then_some([self.op.dest, self.to])
    }
}

/// Bytes of copies that an endpoint keeps for replies at a time. What is beyond goes out of the
/// region.
const COPIED_MAX: usize = 64 << 20;

/// The memory of a small copy has so many bytes.
const SMALL_COPY: usize = 256;

/// The memory of a part that is on its way.
enum TakenPart {
    /// In a region, by its number.
    Region(usize),
    /// A copy of what was asked for, and maybe some more memory.
    Copy(Box<[MaybeUninit<u8>]>),
}

/// Room for a request, or for a grant.
struct PartRoom {
    bytes: RoomBytes,
    /// The source of the part; `NOTAVAIL` if it is to be refused.
    src: FiAddr,
}

/// Bytes that a transport writes.
struct RoomBytes(Box<[UnsafeCell<u8>]>);

// SAFETY: the lock of the domain is held by each user of it.
unsafe impl Send for RoomBytes {}

impl RemoteOperations {
    pub(crate) fn new(regions: Arc<RegionTable>, rights: Rights) -> Self {
        Self {
            regions,
            rights,
            orders: Orders::default(),
            reads: Slab::new(),
            reads_begun: 0,
            read_order: ReadOrder::default(),
            noticed: Slab::new(),
            rooms: Slab::new(),
            refusals: Vec::new(),
            taken: Slab::new(),
            copied: 0,
            spare: None,
            outbox: PartOutbox::default(),
            held: HeldGrants::default(),
            given: GivenGrants::default(),
            shortcuts: Shortcuts::default(),
            atomics: AtomicArrivals::default(),
            mapped_atomics: MappedAtomics::default(),
        }
    }

    /// Whether peers may write by way of this endpoint.
    pub(crate) fn accepts_writes(&self) -> bool {
        self.rights.contains(Rights::WRITE)
    }

    /// Whether parts wait to be sent.
    pub(crate) fn has_parts_to_send(&self) -> bool {
        !self.outbox.is_empty() || self.shortcuts.has_lost()
    }

    /// Number of reads so far, modulo 2³².
    pub(crate) fn reads_begun(&self) -> u32 {
        self.reads_begun
    }

    /// Whether operations on a peer's memory wait for something but for a message that was sent.
    pub(crate) fn is_busy_with(&self, peer: FiAddr) -> bool {
        let reads = self.reads().map(ReadUnderWay::targets);
        let writes = self.noticed.iter().map(|(_, one)| one.targets());
        (reads.chain(writes).flatten().flatten()).any(|with| with == peer)
            || self.outbox.len_for(peer) != 0
            || self.shortcuts.is_busy_with(peer)
    }

    /// Grants a region to a peer's device, with the rights that this endpoint has. Returns the
    /// number of the grant.
    pub(crate) fn grant(&mut self, holder: FiAddr, key: u64) -> Option<(u64, GrantFields)> {
        let (region, mut fields) = self.regions.grant(key)?;
        fields.window.rights &= self.rights;
        match self.given.give(holder, region) {
            Some((number, true)) => Some((number, fields)),
            // It counts once.
            given => {
                self.regions.ungrant(region);
                given.map(|(number, _)| (number, fields))
            }
        }
    }

    /// A grant is returned, or its holder cut off.
    pub(crate) fn returned(&mut self, number: u64, holder: FiAddr) {
        if let Some(region) = self.given.take(number, holder) {
            self.regions.ungrant(region);
        }
    }

    /// A holder is gone.
    pub(crate) fn holder_is_gone(&mut self, holder: FiAddr) {
        for region in self.given.take_of(holder) {
            self.regions.ungrant(region);
        }
    }

    /// Reports the statistics of grants and of atomic operations, by name.
    pub(crate) fn report(&self, report: &mut dyn FnMut(&'static str, u64)) {
        report("rma_grants_given", self.given.count.into());
        report("rma_grants_revoked", self.given.revoked);
        report("rma_regions_left_now", self.regions.left() as u64);
        report("rma_grants_received", self.held.came);
        report("atomics_carried_out", self.atomics.carried_out);
        report("atomics_mapped", self.mapped_atomics.carried_out);
    }

    /// Reports the peers to which injected operations go on, and their number.
    pub(crate) fn report_injected(&self, report: &mut dyn FnMut(FiAddr, usize)) {
        let noticed = self.noticed.iter().map(|(_, write)| &write.op);
        let atomics = self.reads.iter().map(|(_, atomic)| &atomic.op);
        let operations = noticed.chain(atomics).chain(self.shortcuts.not_over());
        for op in operations.filter(|op| op.flags.contains(Flags::INJECT)) {
            report(op.dest, 1);
        }
    }

    /// Takes `len` bytes of a region. The number gives them back. `None`: there is no such region,
    /// range or right, or it is of a grant, and closes.
    pub(crate) fn take(
        &mut self,
        at: RemotePlace,
        len: u64,
        access: RegionAccess,
    ) -> Option<(u64, RegionPart)> {
        if !self.rights.contains(access.rights) {
            return None;
        }
        let part = match at.region {
            RegionName::Key(key) => self.regions.take(key, at.place, len, access)?,
            RegionName::Grant(grant) => {
                let region = self.given.region_of(grant)?;
                self.regions.take_granted(region, at.place, len, access)?
            }
        };
        let number = self.taken.insert(TakenPart::Region(part.region)) as u64;
        Some((number, part))
    }

    /// Copies a part that was taken to be sent, and gives it back: the region may close then, and
    /// its bytes may change. Returns the copy, which has the number of the part. `None`: there are
    /// too many copies, and nothing has happened.
    pub(crate) fn copy(&mut self, number: u64, part: &RegionPart) -> Option<IoBuf> {
        let taken = self.taken.get_mut(number as usize)?;
        let pieces = part.bufs.segments();
        let len = total_len(pieces);
        if COPIED_MAX.saturating_sub(self.copied) < len {
            return None;
        }
        let mut copy = match len {
            ..=SMALL_COPY => {
                (self.spare.take()).unwrap_or_else(|| Box::new_uninit_slice(SMALL_COPY))
            }
            _ => Box::new_uninit_slice(len),
        };
        let mut at = 0;
        for piece in pieces {
            // SAFETY: the region is registered and does not close before its part is given back,
            // and the copy has room for all pieces.
            unsafe {
                let to = copy.as_mut_ptr().cast::<u8>().add(at);
                to.copy_from_nonoverlapping(piece.as_mut_ptr(), piece.len);
            }
            at += piece.len;
        }
        let buf = IoBuf::new(copy.as_ptr().cast(), len);
        self.copied += copy.len();
        *taken = TakenPart::Copy(copy);
        self.regions.give(part.region);
        Some(buf)
    }

    /// Ends a part. Returns the counters of its region, unless it was copied.
    pub(crate) fn give(&mut self, number: u64) -> Option<RegionCounters> {
        match self.taken.try_remove(number as usize)? {
            TakenPart::Region(region) => Some(self.regions.give(region)),
            TakenPart::Copy(copy) => {
                self.copied -= copy.len();
                if copy.len() == SMALL_COPY {
                    self.spare = Some(copy);
                }
                None
            }
        }
    }

    /// The numbers of the parts that are on their way into a region or out of it.
    pub(crate) fn parts_of(&self, region: usize) -> Vec<u64> {
        let is_of = |part: &TakenPart| matches!(part, TakenPart::Region(of) if *of == region);
        let parts = self.taken.iter().filter(|(_, part)| is_of(part));
        parts.map(|(number, _)| number as u64).collect()
    }

    /// Begins a read. Returns the message that requests it.
    ///
    /// # Errors
    ///
    /// `Again`: as many reads as there may be are under way.
    pub(crate) fn begin_read(
        &mut self,
        op: &RmaOp,
        into: &[IoBuf],
    ) -> Result<(SendOp, [u8; REQUEST_BYTES]), OpError> {
        self.begin_read_at(place_of(op), op, into, None)
    }

    /// As [`begin_read`](Self::begin_read), of a read that may name its region by a grant, and that
    /// is in its peer's line already if it has a place there.
    pub(crate) fn begin_read_at(
        &mut self,
        at: RemotePlace,
        op: &RmaOp,
        into: &[IoBuf],
        place: Option<ReadPlace>,
    ) -> Result<(SendOp, [u8; REQUEST_BYTES]), OpError> {
        let len = total_len(into);
        let flags = op.flags - Flags::ATOMIC;
        let number = self.enter_read(&RmaOp { flags, ..*op }, into, len)?;
        if self.read_order.unlined != 0 {
            self.line_up_reads_by_devices();
        }
        let place = place.unwrap_or_else(|| self.read_order.begin(op.dest));
        self.reads[number as u32 as usize].place = Some(place);
        let mut request = [0; REQUEST_BYTES];
        request[..8].copy_from_slice(&number.to_le_bytes());
        request[8..].copy_from_slice(&(len as u64).to_le_bytes());
        let flags = (op.flags & (Flags::MORE | Flags::FENCE)) | Flags::INJECT;
        Ok((message_of(op, Part::Read(at), number, flags), request))
    }

    /// A request of a read begins: the reads of the device take their places before it.
    #[cold]
    fn line_up_reads_by_devices(&mut self) {
        self.read_order.unlined = 0;
        for (_, one) in &mut self.shortcuts.under_way {
            if one.op.kind == RmaKind::Read && one.place.is_none() {
                one.place = Some(self.read_order.begin(one.op.dest));
            }
        }
    }

    /// The number of the next operation that waits for a reply.
    ///
    /// # Errors
    ///
    /// `Again`: there are too many of them.
    pub(crate) fn next_read(&self) -> Result<u64, OpError> {
        if self.reads.len() == MAX_REQUESTS {
            return Err(OpError::Again);
        }
        let begun = u64::from(self.reads_begun.wrapping_add(1));
        Ok((begun << 32) | self.reads.vacant_key() as u64)
    }

    /// Enters an operation that waits for a reply. Returns its number.
    ///
    /// # Errors
    ///
    /// As [`begin_read`](Self::begin_read).
    pub(crate) fn enter_read(
        &mut self,
        op: &RmaOp,
        into: &[IoBuf],
        target_bytes: usize,
    ) -> Result<u64, OpError> {
        let number = self.next_read()?;
        self.reads_begun = self.reads_begun.wrapping_add(1);
        self.mapped_atomics.by_messages += usize::from(op.flags.contains(Flags::ATOMIC));
        self.reads.insert(ReadUnderWay {
            number,
            place: None,
            op: *op,
            from: op.dest,
            into: match into {
                [] => ReceiveBuffers::One(IoBuf::EMPTY),
                &[one] => ReceiveBuffers::One(one),
                many => ReceiveBuffers::Many(many.into()),
            },
            len: total_len(into) as u64,
            target_bytes,
            is_requested: false,
            arrives: false,
        });
        Ok(number)
    }

    /// The message of a write.
    pub(crate) fn begin_write(&mut self, op: &RmaOp) -> SendOp {
        match op.flags.contains(Flags::REMOTE_CQ_DATA) || self.orders.is_any() {
            true => self.begin_noticed_write(op, place_of(op)),
            false => {
                let flags = op.flags & (KEPT_OF_WRITES | Flags::COMPLETION);
                message_of(op, Part::Write(place_of(op)), op.context, flags)
            }
        }
    }

    /// The message of a write that others wait for, or that names its region by a grant.
    pub(crate) fn begin_noticed_write(&mut self, op: &RmaOp, at: RemotePlace) -> SendOp {
        let write = NoticedWrite {
            op: *op,
            to: op.dest,
        };
        let number = self.noticed.insert(write) as u64;
        let flags = op.flags & KEPT_OF_WRITES;
        message_of(op, Part::NoticedWrite(at), number, flags)
    }

    /// The operations that wait for a reply.
    pub(crate) fn reads(&self) -> impl Iterator<Item = &ReadUnderWay> {
        self.reads.iter().map(|(_, read)| read)
    }

    /// An operation was not sent after all.
    pub(crate) fn forget(&mut self, kind: MsgKind, number: u64) {
        match kind {
            _ if kind.is_request() => {
                if let Some(place) = self.take_read(number).and_then(|read| read.place) {
                    self.read_order.withdraw(place);
                }
            }
            MsgKind::Remote(RemoteKind::NoticedWrite | RemoteKind::WriteAgain) => {
                self.noticed.try_remove(number as usize);
            }
            _ => {}
        }
    }

    /// A part goes to the address under which its peer came first: the answer comes from there.
    #[cold]
    pub(crate) fn redirect(&mut self, part: &SendOp) {
        match part.kind {
            kind if kind.is_request() => {
                if let Some(read) = self.read(part.context) {
                    read.from = part.dest;
                }
            }
            MsgKind::Remote(RemoteKind::NoticedWrite | RemoteKind::WriteAgain) => {
                if let Some(write) = self.noticed.get_mut(part.context as usize) {
                    write.to = part.dest;
                }
            }
            _ => {}
        }
    }

    /// The transport has taken the request of a read.
    pub(crate) fn set_requested(&mut self, number: u64) {
        if let Some(read) = self.read(number) {
            read.is_requested = true;
        }
    }

    /// The source of a request; `NOTAVAIL` if the request is to be refused, since the source has as
    /// many requests and replies waiting here as an initiator may have. `requests` is the number of
    /// its requests that are not carried out yet.
    pub(crate) fn source_to_serve(&self, src: FiAddr, requests: usize) -> FiAddr {
        match self.outbox.replies_to(src) + requests < MAX_REQUESTS {
            true => src,
            false => FiAddr::NOTAVAIL,
        }
    }

    /// Room for `len` bytes of a request or a grant that has come from `src`, and the number by
    /// which it is taken out again.
    pub(crate) fn room_for(&mut self, src: FiAddr, len: usize) -> (u64, IoBuf) {
        let bytes = RoomBytes((0..len).map(|_| UnsafeCell::new(0)).collect());
        let buf = IoBuf::new(bytes.0.as_ptr().cast::<u8>(), len);
        (self.rooms.insert(PartRoom { bytes, src }) as u64, buf)
    }

    /// The source of the part that a room is for; `NOTAVAIL` if it is to be refused.
    pub(crate) fn room_source(&self, number: u64) -> Option<FiAddr> {
        Some(self.rooms.get(number as usize)?.src)
    }

    /// Takes out the bytes that have come into a room, and their source; `NOTAVAIL` for those to be
    /// refused.
    pub(crate) fn take_room(&mut self, number: u64) -> Option<(FiAddr, Vec<u8>)> {
        let room = self.rooms.try_remove(number as usize)?;
        let bytes = room.bytes.0.into_vec().into_iter();
        Some((room.src, bytes.map(UnsafeCell::into_inner).collect()))
    }

    /// Number of requests and grants on their way here.
    #[cfg(test)]
    pub(crate) fn rooms(&self) -> usize {
        self.rooms.len()
    }

    /// A read that waits for its reply.
    pub(crate) fn read(&mut self, number: u64) -> Option<&mut ReadUnderWay> {
        let read = self.reads.get_mut(number as u32 as usize)?;
        (read.number == number).then_some(read)
    }

    /// Takes out a read.
    pub(crate) fn take_read(&mut self, number: u64) -> Option<ReadUnderWay> {
        self.read(number)?;
        Some(self.remove_read(number as u32 as usize))
    }

    fn remove_read(&mut self, key: usize) -> ReadUnderWay {
        let read = self.reads.remove(key);
        self.mapped_atomics.by_messages -= usize::from(read.is_atomic());
        read
    }

    /// Takes out a read whose request has failed, unless its bytes are on their way: then it ends
    /// with them.
    pub(crate) fn take_lost_read(&mut self, number: u64) -> Option<ReadUnderWay> {
        let arrives = self.read(number)?.arrives;
        if arrives {
            None
        } else {
            self.take_read(number)
        }
    }

    /// The address of a target is removed, or the target is gone: notices of writes to it are not
    /// sent, for the address may be another peer's by then.
    pub(crate) fn forget_notices_to(&mut self, target: FiAddr) {
        for (_, write) in &mut self.noticed {
            if [write.op.dest, write.to].contains(&target) {
                write.to = FiAddr::NOTAVAIL;
            }
        }
    }

    /// Takes out the reads of a target that is gone, but for those whose bytes are on their way.
    pub(crate) fn take_reads_of(&mut self, target: FiAddr) -> Vec<ReadUnderWay> {
        let mut lost = Vec::new();
        for (key, read) in &mut self.reads {
            if ![read.op.dest, read.from].contains(&target) || !read.is_requested {
                continue;
            }
            match read.arrives {
                true => read.from = FiAddr::NOTAVAIL,
                false => lost.push(key),
            }
        }
        (lost.into_iter())
            .map(|key| self.remove_read(key))
            .collect()
    }
}

/// The flags of a write that its message has, too.
const KEPT_OF_WRITES: Flags = Flags::INJECT.union(Flags::MORE).union(Flags::FENCE);

/// The place of an operation, in the region with its key.
pub(crate) fn place_of(op: &RmaOp) -> RemotePlace {
    RemotePlace {
        region: RegionName::Key(op.key),
        place: op.place,
    }
}

/// The message that is a part of an operation.
pub(crate) fn message_of(op: &RmaOp, part: Part, context: u64, flags: Flags) -> SendOp {
    let mut message = part.message(op.dest, op.desc, context, flags);
    // The reply to a request says whether the target took it. Else the answer to the message does.
    if !message.kind.is_request() {
        message.flags |= Flags::DELIVERY_COMPLETE;
    }
    message
}

/// The number of the bytes that a reply has, if it has none.
pub(crate) const NO_BYTES: u64 = u64::MAX;

/// A reply to the request with a number: with bytes, which have a number, too, by which they are
/// given back, or with an error.
pub(crate) fn reply_to(dest: FiAddr, request: u64, bytes: Result<(u64, MrDesc), Errno>) -> SendOp {
    let error = bytes.as_ref().err().copied();
    let (context, desc) = bytes.unwrap_or((NO_BYTES, MrDesc::NONE));
    // With a completion, transports report it soon: the region may wait for it.
    Part::Reply { request, error }.message(dest, desc, context, Flags::COMPLETION)
}

impl Drop for RemoteOperations {
    /// The endpoint closes, and its transport is closed already: no part is on its way any more.
    fn drop(&mut self) {
        for part in self.taken.drain() {
            if let TakenPart::Region(region) = part {
                self.regions.give(region);
            }
        }
        // Nor has a peer a lane.
        for region in self.given.take_all() {
            self.regions.ungrant(region);
        }
    }
}
