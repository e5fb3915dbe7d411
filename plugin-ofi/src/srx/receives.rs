//! The receives of an endpoint that another provider has: each message that arrives is announced
//! to the owner, and received into the buffers of the owner's entry.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Arrived;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp};
use ferrofabric_runtime::fabric::Endpoint;
use ferrofabric_system::locks::Mutex;

use super::SrxObject;
use super::entries::{self, EntryState, HeldEntry, MessageHolder};
use super::owner::{OwnerMatch, RxEntry};
use super::peer;
use crate::fid::SharedObject;

/// The receives of one endpoint.
pub(crate) struct ForeignReceives {
    srx: SharedObject<SrxObject>,
    endpoint: Arc<dyn Endpoint>,
    /// The thread that announces messages has it.
    turn: Mutex<Turn>,
    /// Queued entries whose source is unknown.
    unknown: AtomicUsize,
}

/// Messages that are claimed and for which the owner had no entry, by kind. They are first in the
/// next turn.
#[derive(Default)]
struct Turn {
    tagged: Option<ClaimedMessage>,
    untagged: Option<ClaimedMessage>,
}

#[derive(Clone, Copy)]
struct ClaimedMessage {
    number: u64,
    arrived: Arrived,
}

/// Messages that are announced to an owner.
const KINDS: [MsgKind; 2] = [MsgKind::Tagged, MsgKind::Msg];

impl ForeignReceives {
    pub(crate) fn new(srx: SharedObject<SrxObject>, endpoint: Arc<dyn Endpoint>) -> Arc<Self> {
        Arc::new(Self {
            srx,
            endpoint,
            turn: Mutex::new(Turn::default()),
            unknown: AtomicUsize::new(0),
        })
    }

    /// Announces the messages that have arrived. Returns whether one of them went to a receive.
    fn announce(self: &Arc<Self>) -> Result<bool, OpError> {
        // Another thread does it, or the owner drives this provider in a call of it.
        let Some(mut turn) = self.turn.try_lock() else {
            return Ok(false);
        };
        let mut has_started = false;
        for kind in KINDS {
            while let Some(message) = self.next(&mut turn, kind)? {
                match self.srx.owner.find(kind, &message.arrived) {
                    OwnerMatch::Receive(entry) => {
                        self.hold(kind, message.number, entry, EntryState::Started);
                        self.start(kind, message.number, entry);
                        has_started = true;
                    }
                    OwnerMatch::None(entry) => {
                        if let Err(error) = self.queue(kind, &message, entry) {
                            self.srx.owner.free(entry);
                            self.keep(&mut turn, kind, message, error);
                            break;
                        }
                    }
                    OwnerMatch::Refused(error) => {
                        self.keep(&mut turn, kind, message, error);
                        break;
                    }
                }
            }
        }
        Ok(has_started)
    }

    /// The next message to announce.
    fn next(&self, turn: &mut Turn, kind: MsgKind) -> Result<Option<ClaimedMessage>, OpError> {
        if let Some(kept) = turn.of(kind).take() {
            // Its sender may have been inserted meanwhile.
            let src = self.endpoint.claimed_source(kind, kept.number)?;
            let arrived = Arrived {
                src,
                ..kept.arrived
            };
            return Ok(Some(ClaimedMessage { arrived, ..kept }));
        }
        let number = entries::new_number();
        let arrived = self.endpoint.claim_oldest(kind, number)?;
        Ok(arrived.map(|arrived| ClaimedMessage { number, arrived }))
    }

    /// Keeps a message for which the owner has no entry now.
    fn keep(&self, turn: &mut Turn, kind: MsgKind, message: ClaimedMessage, error: Errno) {
        tracing::debug!("the owner of a shared receive context took no message: {error}");
        *turn.of(kind) = Some(message);
    }

    fn hold(self: &Arc<Self>, kind: MsgKind, number: u64, entry: RxEntry, state: EntryState) {
        let holder = Arc::downgrade(self);
        entries::hold(
            number,
            HeldEntry {
                entry,
                kind,
                state,
                owner: self.srx.owner,
                holder,
            },
        );
    }

    /// Queues the entry of a message that has no receive yet. The owner may start it in this call.
    fn queue(
        self: &Arc<Self>,
        kind: MsgKind,
        message: &ClaimedMessage,
        entry: RxEntry,
    ) -> Result<(), Errno> {
        // SAFETY: the owner has just handed it out.
        unsafe { entry.note(message.number, &message.arrived) };
        self.hold(kind, message.number, entry, EntryState::Queued);
        if message.arrived.src == FiAddr::NOTAVAIL {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
        self.srx.owner.queue(kind, entry).inspect_err(|_| {
            entries::remove(message.number);
        })
    }

    fn receive(
        &self,
        kind: MsgKind,
        number: u64,
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
        // the completion.
        unsafe { self.endpoint.recv(&op, iov) }
    }

    /// Has the owner update the sources of its queued entries, where one has become known.
    fn look_for_sources(&self) {
        if self.unknown.load(Ordering::Relaxed) == 0 {
            return;
        }
        let queued = entries::queued_of(self);
        let unknown = (queued.iter())
            .filter(|(number, kind)| self.source_of(*kind, *number) == FiAddr::NOTAVAIL)
            .count();
        if self.unknown.swap(unknown, Ordering::Relaxed) != unknown {
            self.srx.owner.update_sources(peer::source_of);
        }
    }
}

impl MessageHolder for ForeignReceives {
    /// A receive that can not have the message fails, and the message is dropped.
    fn start(&self, kind: MsgKind, number: u64, entry: RxEntry) {
        // SAFETY: the entry is this provider's, until it is freed.
        let (iov, desc) = unsafe { entry.buffers() };
        if let Err(error) = self.receive(kind, number, Flags::CLAIM, (iov, desc)) {
            entries::set_state(number, EntryState::Failed(error.errno()));
            self.discard(kind, number);
        }
    }

    fn discard(&self, kind: MsgKind, number: u64) {
        let flags = Flags::CLAIM | Flags::DISCARD;
        if let Err(error) = self.receive(kind, number, flags, (&[], MrDesc::NONE)) {
            tracing::warn!("a message for another provider can not be dropped: {error}");
        }
    }

    fn source_of(&self, kind: MsgKind, number: u64) -> FiAddr {
        let source = self.endpoint.claimed_source(kind, number);
        source.unwrap_or(FiAddr::NOTAVAIL)
    }
}

impl Turn {
    fn of(&mut self, kind: MsgKind) -> &mut Option<ClaimedMessage> {
        match kind {
            MsgKind::Tagged => &mut self.tagged,
            _ => &mut self.untagged,
        }
    }
}

impl Drop for ForeignReceives {
    fn drop(&mut self) {
        for held in entries::remove_of(self) {
            held.free();
        }
    }
}

/// The receives that are announced where an object is used: a queue or counter that the owner
/// reads, an address vector that gets addresses.
#[derive(Default)]
pub(crate) struct BoundReceives(Mutex<Vec<Weak<ForeignReceives>>>);

impl BoundReceives {
    pub(crate) fn add(&self, receives: &Arc<ForeignReceives>) {
        let mut all = self.0.lock();
        all.retain(|one| one.strong_count() != 0);
        all.push(Arc::downgrade(receives));
    }

    /// Those whose endpoints are open.
    fn open(&self) -> Vec<Arc<ForeignReceives>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Announces messages to their owners. Returns whether one of them went to a receive.
    pub(crate) fn announce(&self) -> Result<bool, OpError> {
        let mut has_started = false;
        for receives in self.open() {
            has_started |= receives.announce()?;
            receives.look_for_sources();
        }
        Ok(has_started)
    }

    /// Has owners update the sources of messages, after addresses were inserted.
    pub(crate) fn look_for_sources(&self) {
        for receives in self.open() {
            receives.look_for_sources();
        }
    }
}
