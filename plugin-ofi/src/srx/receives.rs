//! The receives of an endpoint that another provider has: each message that arrives is announced
//! to the owner, and received into the buffers of the owner's entry.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Arrived;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp};
use ferrofabric_runtime::fabric::Endpoint;
use ferrofabric_system::locks::{Mutex, MutexGuard};

use super::SrxObject;
use super::entries::{self, EntryState, HeldEntry, MessageHolder};
use super::owner::{OwnerMatch, RxEntry};
use super::peer;
use super::turn::TurnLock;
use crate::fid::SharedObject;

/// The receives of one endpoint.
pub(crate) struct ForeignReceives {
    srx: SharedObject<SrxObject>,
    /// `None` once it is closed.
    endpoint: Mutex<Option<Arc<dyn Endpoint>>>,
    /// The thread that announces messages has it.
    turn: TurnLock<Turn>,
    /// Queued messages whose source is unknown.
    unknown: Mutex<BTreeMap<u64, MsgKind>>,
    has_unknown: AtomicBool,
    /// Announcements so far.
    turns: AtomicU64,
}

/// The state of the announcements.
#[derive(Default)]
struct Turn {
    /// A number that is not used yet.
    number: Option<u64>,
    /// Messages that are claimed and for which the owner had no entry. They are first in the next
    /// turn.
    kept: Vec<ClaimedMessage>,
}

#[derive(Clone, Copy)]
struct ClaimedMessage {
    number: u64,
    kind: MsgKind,
    arrived: Arrived,
}

/// Messages that are announced to an owner.
const KINDS: [MsgKind; 2] = [MsgKind::Tagged, MsgKind::Msg];

/// One in so many announcements looks for sources that have become known meanwhile: by insertions
/// that end later than their calls, and those of other processes.
const LOOK_EACH: u64 = 64;

impl ForeignReceives {
    pub(crate) fn new(srx: SharedObject<SrxObject>, endpoint: Arc<dyn Endpoint>) -> Arc<Self> {
        Arc::new(Self {
            srx,
            endpoint: Mutex::new(Some(endpoint)),
            turn: TurnLock::default(),
            unknown: Mutex::default(),
            has_unknown: AtomicBool::new(false),
            turns: AtomicU64::new(0),
        })
    }

    fn endpoint(&self) -> Option<Arc<dyn Endpoint>> {
        self.endpoint.lock().clone()
    }

    fn is_open(&self) -> bool {
        self.endpoint.lock().is_some()
    }

    /// Announces the messages that have arrived. Returns whether one of them went to a receive.
    fn announce(self: &Arc<Self>) -> Result<bool, OpError> {
        // Another thread does it, or the owner drives this provider in a call of it.
        let Some(mut turn) = self.turn.try_take() else {
            return Ok(false);
        };
        let mut has_started = false;
        for message in std::mem::take(&mut turn.kept) {
            has_started |= self.offer(&mut turn, self.updated(message));
        }
        // A kind with a message that is kept waits.
        while let Some(message) = self.next(&mut turn)? {
            has_started |= self.offer(&mut turn, message);
        }
        if !self.is_open() {
            // The owner has closed the endpoint in one of its functions.
            drop(ClosedReceives(entries::remove_of(&**self)));
        }
        Ok(has_started)
    }

    /// A message that was kept. Its sender may have been inserted meanwhile.
    fn updated(&self, message: ClaimedMessage) -> ClaimedMessage {
        let src = self.source_of(message.kind, message.number);
        let arrived = Arrived {
            src,
            ..message.arrived
        };
        ClaimedMessage { arrived, ..message }
    }

    /// Claims the next message.
    fn next(&self, turn: &mut Turn) -> Result<Option<ClaimedMessage>, OpError> {
        let Some(endpoint) = self.endpoint() else {
            return Ok(None);
        };
        let is_kept = |kind: MsgKind| turn.kept.iter().any(|message| message.kind == kind);
        let kinds = match KINDS.map(is_kept) {
            [false, false] => &KINDS[..],
            [false, true] => &KINDS[..1],
            [true, false] => &KINDS[1..],
            [true, true] => return Ok(None),
        };
        let number = *turn.number.get_or_insert_with(entries::new_number);
        let claimed = endpoint.claim_oldest(kinds, number)?;
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
    fn offer(self: &Arc<Self>, turn: &mut Turn, message: ClaimedMessage) -> bool {
        let ClaimedMessage { number, kind, .. } = message;
        if !self.is_open() {
            return false;
        }
        let error = match self.srx.owner.find(kind, &message.arrived) {
            OwnerMatch::Receive(entry) => {
                self.hold(kind, number, entry, EntryState::Started);
                self.start(kind, number, entry);
                return true;
            }
            OwnerMatch::None(entry) => match self.queue(&message, entry) {
                Ok(()) => return false,
                Err(error) => {
                    self.srx.owner.free(entry);
                    error
                }
            },
            OwnerMatch::Refused(error) => error,
        };
        tracing::debug!("the owner of a shared receive context took no message: {error}");
        turn.kept.push(message);
        false
    }

    fn hold(self: &Arc<Self>, kind: MsgKind, number: u64, entry: RxEntry, state: EntryState) {
        let holder: Weak<Self> = Arc::downgrade(self);
        let held = HeldEntry {
            entry,
            kind,
            state,
            owner: self.srx.owner,
            holder,
        };
        entries::hold(number, held);
    }

    /// Queues the entry of a message that has no receive yet. The owner may start it in this call.
    fn queue(self: &Arc<Self>, message: &ClaimedMessage, entry: RxEntry) -> Result<(), Errno> {
        let ClaimedMessage { number, kind, .. } = *message;
        // SAFETY: the owner has just handed it out.
        unsafe { entry.note(number, &message.arrived) };
        self.hold(kind, number, entry, EntryState::Queued);
        if message.arrived.src == FiAddr::NOTAVAIL {
            self.unknown.lock().insert(number, kind);
            self.has_unknown.store(true, Ordering::Relaxed);
        }
        self.srx.owner.queue(kind, entry).inspect_err(|_| {
            entries::remove(number);
        })
    }

    fn receive(
        &self,
        kind: MsgKind,
        number: u64,
        flags: Flags,
        (iov, desc): (&[IoBuf], MrDesc),
    ) -> Result<(), OpError> {
        let Some(endpoint) = self.endpoint() else {
            // The close of the endpoint frees the entry.
            return Ok(());
        };
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
    fn look_for_sources(&self) {
        if !self.has_unknown.load(Ordering::Relaxed) {
            return;
        }
        let mut has_changed = false;
        let mut unknown = self.unknown.lock();
        unknown.retain(|number, kind| {
            let is_known = self.source_of(*kind, *number) != FiAddr::NOTAVAIL;
            has_changed |= is_known;
            !is_known && entries::is_queued(*number)
        });
        self.has_unknown
            .store(!unknown.is_empty(), Ordering::Relaxed);
        drop(unknown);
        if has_changed {
            self.srx.owner.update_sources(peer::source_of);
        }
    }

    /// Announces nothing more, once no other thread does, and returns the entries that have a
    /// receive.
    pub(crate) fn close(&self) -> ClosedReceives {
        drop(self.endpoint.lock().take());
        self.turn.wait();
        ClosedReceives(entries::remove_of(self))
    }
}

impl MessageHolder for ForeignReceives {
    /// A receive that can not have the message fails, and the message is dropped.
    fn start(&self, kind: MsgKind, number: u64, entry: RxEntry) {
        // SAFETY: the entry is this provider's, until it is freed.
        let (iov, desc) = unsafe { entry.buffers() };
        if let Err(error) = self.receive(kind, number, Flags::CLAIM, (iov, desc)) {
            entries::set_state(number, EntryState::Failed(error.errno()));
            // Without buffers it fails, and is counted.
            let nowhere = self.receive(kind, number, Flags::CLAIM, (&[], MrDesc::NONE));
            if let Err(error) = nowhere {
                tracing::warn!("a message for another provider can not be dropped: {error}");
            }
        }
    }

    fn discard(&self, kind: MsgKind, number: u64) {
        let flags = Flags::CLAIM | Flags::DISCARD;
        if let Err(error) = self.receive(kind, number, flags, (&[], MrDesc::NONE)) {
            tracing::warn!("a message for another provider can not be dropped: {error}");
        }
    }

    fn source_of(&self, kind: MsgKind, number: u64) -> FiAddr {
        let endpoint = self.endpoint();
        let source = endpoint.and_then(|endpoint| endpoint.claimed_source(kind, number).ok());
        source.unwrap_or(FiAddr::NOTAVAIL)
    }
}

/// The entries of a closed endpoint that have a receive. They go back when this is dropped, which
/// has to be after the endpoint is.
pub(crate) struct ClosedReceives(Vec<HeldEntry>);

impl Drop for ClosedReceives {
    fn drop(&mut self) {
        for held in &self.0 {
            held.owner.free(held.entry);
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
            if receives.turns.fetch_add(1, Ordering::Relaxed) % LOOK_EACH == 0 {
                receives.look_for_sources();
            }
        }
        result
    }

    /// Has owners update the sources of messages, after addresses were inserted.
    pub(crate) fn look_for_sources(&self) {
        for receives in self.all().iter().filter_map(Weak::upgrade) {
            receives.look_for_sources();
        }
    }
}
