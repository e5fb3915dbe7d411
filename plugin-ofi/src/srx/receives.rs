//! The receives of an endpoint that another provider has: each message that arrives is announced
//! to the owner, and received into the buffers of the owner's entry.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Arrived;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp};
use ferrofabric_runtime::fabric::Endpoint;
use ferrofabric_system::forked::Birth;
use ferrofabric_system::locks::{Mutex, MutexGuard};

use super::SrxObject;
use super::entries::{self, EntryState, HeldEntry, MessageHolder};
use super::owner::{OwnerMatch, RxEntry, SrxOwner};
use super::peer;
use crate::fid::{Given, SharedObject};
use crate::turn::TurnLock;

/// The receives of one endpoint.
pub(crate) struct ForeignReceives {
    /// The endpoint's binding keeps it open until the endpoint is closed.
    owner: SrxOwner,
    /// For the entries that are held.
    srx: Weak<Given<SrxObject>>,
    /// `None` once it is closed.
    endpoint: Mutex<Option<Arc<dyn Endpoint>>>,
    /// The thread that announces messages has it.
    turn: TurnLock<Announcements>,
    /// A call in an owner's function left the look for sources to the thread that has the turn.
    looks_again: AtomicBool,
    birth: Birth,
}

/// The state of the announcements.
#[derive(Default)]
struct Announcements {
    /// A number that is not used yet.
    number: Option<u64>,
    /// Messages that are claimed and for which the owner had no entry. They are first in the next
    /// turn.
    kept: Vec<ClaimedMessage>,
    /// Queued messages whose source is unknown.
    unknown: BTreeMap<u64, MsgKind>,
    /// Turns so far.
    turns: u64,
}

#[derive(Clone, Copy)]
struct ClaimedMessage {
    number: u64,
    kind: MsgKind,
    arrived: Arrived,
}

/// Messages that are announced to an owner.
const KINDS: [MsgKind; 2] = [MsgKind::Tagged, MsgKind::Msg];

/// Messages that are announced in one turn.
const MESSAGES: usize = 256;

/// With more messages than this whose source is unknown, one turn in so many looks for sources.
const FEW: usize = 16;
const LOOK_EACH: u64 = 64;

impl ForeignReceives {
    pub(crate) fn new(srx: &SharedObject<SrxObject>, endpoint: Arc<dyn Endpoint>) -> Arc<Self> {
        Arc::new(Self {
            owner: srx.owner,
            srx: Arc::downgrade(srx),
            endpoint: Mutex::new(Some(endpoint)),
            turn: TurnLock::default(),
            looks_again: AtomicBool::new(false),
            birth: Birth::here(),
        })
    }

    /// Calls the endpoint; `None`: it is closed. The endpoint closes after the call.
    fn with<R>(&self, call: impl FnOnce(&dyn Endpoint) -> R) -> Option<R> {
        self.endpoint.lock().as_deref().map(call)
    }

    /// Announces the messages that have arrived. Returns whether one of them went to a receive.
    fn announce(self: &Arc<Self>) -> Result<bool, OpError> {
        // Another thread does it, or the owner drives this provider in a call of it.
        let Some(mut turn) = self.turn.try_take() else {
            return Ok(false);
        };
        let announced = self.announce_in(&mut turn);
        drop(turn);
        self.look_again();
        announced
    }

    fn announce_in(self: &Arc<Self>, turn: &mut Announcements) -> Result<bool, OpError> {
        turn.turns += 1;
        if turn.unknown.len() <= FEW || turn.turns % LOOK_EACH == 0 {
            self.look_for_sources(turn);
        }
        let mut has_started = false;
        for message in std::mem::take(&mut turn.kept) {
            // One that is lost with its sender is nobody's.
            if let Some(message) = self.updated(message) {
                has_started |= self.offer(turn, message);
            }
        }
        for _ in 0..MESSAGES {
            let Some(message) = self.next(turn)? else {
                break;
            };
            has_started |= self.offer(turn, message);
            if self.looks_again.swap(false, Ordering::SeqCst) {
                self.look_for_sources(turn);
            }
        }
        Ok(has_started)
    }

    /// A message that was kept. Its sender may have been inserted meanwhile.
    fn updated(&self, message: ClaimedMessage) -> Option<ClaimedMessage> {
        let src = self.source_of(message.kind, message.number)?;
        let arrived = Arrived {
            src,
            ..message.arrived
        };
        Some(ClaimedMessage { arrived, ..message })
    }

    /// Claims the next message. A kind with a message that is kept waits.
    fn next(&self, turn: &mut Announcements) -> Result<Option<ClaimedMessage>, OpError> {
        let is_kept = |kind: MsgKind| turn.kept.iter().any(|message| message.kind == kind);
        let kinds = match KINDS.map(is_kept) {
            [false, false] => &KINDS[..],
            [false, true] => &KINDS[..1],
            [true, false] => &KINDS[1..],
            [true, true] => return Ok(None),
        };
        let number = *turn.number.get_or_insert_with(entries::new_number);
        let claimed = self.with(|endpoint| endpoint.claim_oldest(kinds, number));
        let claimed = claimed.transpose()?.flatten();
        Ok(claimed.map(|(kind, arrived)| {
            turn.number = None;
            ClaimedMessage {
                number,
                kind,
                arrived,
            }
        }))
    }

    /// Passes a message to the owner. Returns whether it went to a receive.
    fn offer(self: &Arc<Self>, turn: &mut Announcements, message: ClaimedMessage) -> bool {
        let ClaimedMessage { number, kind, .. } = message;
        if !self.is_open() {
            return false;
        }
        let error = match self.owner.find(kind, &message.arrived) {
            OwnerMatch::Receive(entry) => {
                match self.hold(kind, number, entry, EntryState::Started) {
                    Ok(true) => {
                        self.start(kind, number, entry);
                        return true;
                    }
                    Ok(false) => return false,
                    Err(error) => error,
                }
            }
            OwnerMatch::None(entry) => match self.queue(turn, &message, entry) {
                Ok(()) => return false,
                Err(error) => error,
            },
            OwnerMatch::Refused(error) => error,
        };
        tracing::debug!("the owner of a shared receive context took no message: {error}");
        turn.kept.push(message);
        false
    }

    /// Enters an entry in the table. If the owner has closed the endpoint in the call that returned
    /// it, the entry goes back: false.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the entry is that of another message, and does not go back.
    fn hold(
        self: &Arc<Self>,
        kind: MsgKind,
        number: u64,
        entry: RxEntry,
        state: EntryState,
    ) -> Result<bool, Errno> {
        let Some(srx) = self.srx.upgrade().filter(|_| self.is_open()) else {
            self.owner.free(entry);
            return Ok(false);
        };
        let holder: Weak<Self> = Arc::downgrade(self);
        let held = HeldEntry {
            entry,
            kind,
            state,
            srx,
            holder,
        };
        entries::hold(number, held).map(|()| true)
    }

    /// Queues the entry of a message that has no receive yet. An entry that the owner does not
    /// queue goes back, unless the owner has started or dropped it in this call, or closed the
    /// endpoint.
    fn queue(
        self: &Arc<Self>,
        turn: &mut Announcements,
        message: &ClaimedMessage,
        entry: RxEntry,
    ) -> Result<(), Errno> {
        let ClaimedMessage { number, kind, .. } = *message;
        if !self.hold(kind, number, entry, EntryState::Queued)? {
            return Ok(());
        }
        // SAFETY: the owner has just handed it out.
        unsafe { entry.note(number, &message.arrived) };
        if let Err(error) = self.owner.queue(kind, entry) {
            if !entries::remove_queued(number) {
                return Ok(());
            }
            self.owner.free(entry);
            return Err(error);
        }
        if message.arrived.src == FiAddr::NOTAVAIL {
            turn.unknown.insert(number, kind);
            // The sender may have been inserted since the message was claimed.
            self.look_for_sources(turn);
        }
        Ok(())
    }

    fn receive(
        &self,
        endpoint: &dyn Endpoint,
        (kind, number): (MsgKind, u64),
        flags: Flags,
        (iov, desc): (&[IoBuf], MrDesc),
    ) -> Result<(), OpError> {
        let op = RecvOp {
            kind,
            src: FiAddr::UNSPEC,
            tag: 0,
            ignore: u64::MAX,
            desc,
            context: number,
            flags: flags | Flags::COMPLETION,
        };
        // SAFETY: the owner of an entry keeps its buffers until the entry is freed, which is after
        // the completion, or after the endpoint is closed.
        unsafe { endpoint.recv(&op, iov) }
    }

    /// Has the owner update the sources of its queued entries, where one has become known.
    fn look_for_sources(&self, turn: &mut Announcements) {
        if turn.unknown.is_empty() || !self.is_open() {
            return;
        }
        let mut has_changed = false;
        turn.unknown.retain(|number, kind| {
            let source = self.source_of(*kind, *number);
            let is_known = source.is_some_and(FiAddr::is_some);
            has_changed |= is_known;
            source.is_some() && !is_known && entries::is_queued(*number)
        });
        if has_changed {
            self.owner.update_sources(peer::source_of);
        }
    }

    /// As [`look_for_sources`](Self::look_for_sources), at the end of a call that inserts
    /// addresses: after other threads' announcements. A call in an owner's function waits for none
    /// of them: the thread that announces looks.
    fn look_after_insertion(&self) {
        match self.turn.take_outside_work() {
            Some(mut turn) => self.look_for_sources(&mut turn),
            None => self.looks_again.store(true, Ordering::SeqCst),
        }
        self.look_again();
    }

    /// Looks for sources if that is due, unless a thread has the turn: it does so afterwards.
    fn look_again(&self) {
        while self.looks_again.load(Ordering::SeqCst) {
            let Some(mut turn) = self.turn.try_take() else {
                return;
            };
            self.looks_again.store(false, Ordering::SeqCst);
            self.look_for_sources(&mut turn);
        }
    }

    /// Announces nothing more, once no other thread does, and returns the entries that have a
    /// receive. A child of fork leaves all to its parent.
    pub(crate) fn close(&self) -> Option<ClosedReceives> {
        if !self.birth.is_this_process() {
            return None;
        }
        drop(self.endpoint.lock().take());
        self.turn.wait();
        Some(ClosedReceives(entries::remove_of(self)))
    }
}

impl MessageHolder for ForeignReceives {
    /// A receive that can not have the message fails, and the message is dropped.
    fn start(&self, kind: MsgKind, number: u64, entry: RxEntry) {
        // A closed endpoint has freed the entry.
        self.with(|endpoint| {
            // SAFETY: the entry is this provider's, and freed after the endpoint is closed.
            let (iov, desc) = unsafe { entry.buffers() };
            let message = (kind, number);
            let Err(error) = self.receive(endpoint, message, Flags::CLAIM, (iov, desc)) else {
                return;
            };
            entries::set_state(number, EntryState::Failed(error.errno()));
            // Without buffers it ends, and is counted: as a failure, unless it has no bytes.
            let nowhere = (&[][..], MrDesc::NONE);
            if let Err(error) = self.receive(endpoint, message, Flags::CLAIM, nowhere) {
                tracing::warn!("a message for another provider can not be dropped: {error}");
            }
        });
    }

    fn discard(&self, kind: MsgKind, number: u64) {
        let flags = Flags::CLAIM | Flags::DISCARD;
        self.with(|endpoint| {
            let nowhere = (&[][..], MrDesc::NONE);
            if let Err(error) = self.receive(endpoint, (kind, number), flags, nowhere) {
                tracing::warn!("a message for another provider can not be dropped: {error}");
            }
        });
    }

    fn source_of(&self, kind: MsgKind, number: u64) -> Option<FiAddr> {
        match self.with(|endpoint| endpoint.claimed_source(kind, number))? {
            Ok(source) => source,
            Err(_) => Some(FiAddr::NOTAVAIL),
        }
    }

    fn is_open(&self) -> bool {
        self.endpoint.lock().is_some()
    }
}

/// The entries of a closed endpoint that have a receive. They go back when this is dropped, which
/// has to be after the endpoint is.
pub(crate) struct ClosedReceives(Vec<HeldEntry>);

impl Drop for ClosedReceives {
    fn drop(&mut self) {
        for held in &self.0 {
            held.free();
        }
    }
}

/// The receives that are announced where an object is used: a queue or counter that the owner
/// reads, an address vector that gets addresses.
#[derive(Default)]
pub(crate) struct BoundReceives(Mutex<Arc<[Weak<ForeignReceives>]>>);

impl BoundReceives {
    pub(crate) fn add(&self, receives: &Arc<ForeignReceives>) {
        let mut all = self.lock();
        let open = all.iter().filter(|one| one.strong_count() != 0).cloned();
        *all = open.chain([Arc::downgrade(receives)]).collect();
    }

    fn lock(&self) -> MutexGuard<'_, Arc<[Weak<ForeignReceives>]>> {
        self.0.lock()
    }

    /// Those that are there now. The owner's functions may bind others.
    fn all(&self) -> Arc<[Weak<ForeignReceives>]> {
        self.lock().clone()
    }

    /// Announces messages to their owners. Returns whether one of them went to a receive.
    pub(crate) fn announce(&self) -> Result<bool, OpError> {
        let mut result = Ok(false);
        for receives in self.all().iter().filter_map(Weak::upgrade) {
            match (receives.announce(), &mut result) {
                (Ok(has_started), Ok(any)) => *any |= has_started,
                (Err(error), Ok(_)) => result = Err(error),
                (_, Err(_)) => {}
            }
        }
        result
    }

    /// Has owners update the sources of messages, after addresses were inserted.
    pub(crate) fn look_for_sources(&self) {
        for receives in self.all().iter().filter_map(Weak::upgrade) {
            receives.look_after_insertion();
        }
    }
}
