//! The receiving side of an endpoint: it takes each slot of its links, matches messages, and copies
//! them into receives or keeps them as unexpected messages.

mod deliveries;
mod message;
mod unexpected;
mod with_id;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Matched, Owner, PeerSrx, Piece, Start, Token, deliver};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind};

use crate::copy::{copy_bulk, copy_short, copy_soon};
use crate::incoming::IncomingState;
use crate::link::{AnswerSlot, CloseMessage, Quota, ShmLink};
use crate::outbox::Outbox;
use crate::paths;
use crate::ring::{LinkViolation, PublishedSlot};
use crate::stats::ShmStats;
use crate::wire::{
    CHUNK, CLOSE, DELIVERED, EAGER, GO, INLINE, INLINE_BYTES, INLINE_DATA_WORD, SHORT, START,
};
use deliveries::Deliveries;
use message::{Beginning, MatchedMessage, Unfinished, kind_of};
use unexpected::{UnexpectedMessage, UnexpectedMessages};

/// The receiving state of an endpoint, for all its links.
pub(crate) struct ShmReceiver {
    /// The number of this transport among the endpoint's transports.
    number: u32,
    unexpected: UnexpectedMessages,
    deliveries: Deliveries,
    stats: ShmStats,
    /// The last message came within its slot, and awaits no answer.
    last_was_short: bool,
}

impl ShmReceiver {
    /// `quota` is for all links together.
    pub(crate) fn new(number: u32, quota: Quota) -> Self {
        Self {
            number,
            unexpected: UnexpectedMessages::new(quota),
            deliveries: Deliveries::default(),
            stats: ShmStats::default(),
            last_was_short: true,
        }
    }

    /// The number of this transport among the endpoint's transports.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The counters of the endpoint.
    #[inline(always)]
    pub(crate) fn stats(&self) -> &ShmStats {
        &self.stats
    }

    #[inline(always)]
    pub(crate) fn stats_mut(&mut self) -> &mut ShmStats {
        &mut self.stats
    }

    /// Whether the last message came within its slot, and awaits no answer.
    #[inline(always)]
    pub(crate) fn last_was_short(&self) -> bool {
        self.last_was_short
    }

    /// Takes one slot of the link with the key `key`.
    #[inline(always)]
    pub(crate) fn take<O: Owner>(
        &mut self,
        key: usize,
        link: &mut ShmLink,
        outbox: &mut Outbox,
        seen: PublishedSlot,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        self.last_was_short = seen.head.kind() == INLINE;
        if self.last_was_short {
            self.take_inline(key, link, seen, owner)
        } else {
            self.take_other(key, link, outbox, seen, owner)
        }
    }

    #[inline(always)]
    fn take_inline<O: Owner>(
        &mut self,
        key: usize,
        link: &mut ShmLink,
        seen: PublishedSlot,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        let len = seen.head.len();
        if len > INLINE_BYTES {
            return Err(LinkViolation("it sent a short message that is too long"));
        }
        let (kind, src, flags) = kind_of(seen, link);
        let (tag, data) = seen.with_body(|body| {
            // SAFETY: a body has these words; volatile, for the other process may write to them.
            unsafe {
                (
                    body.read_volatile(),
                    match flags.is_empty() {
                        true => 0,
                        false => body.add(INLINE_DATA_WORD).read_volatile(),
                    },
                )
            }
        });
        let message = Beginning {
            kind,
            arrived: self.arrived((src, flags), tag, len as u64, data),
            from: seen.with_body(|body| body.wrapping_add(1).cast::<u8>()),
            len,
            rest: None,
        };
        let copy = |_: &mut Self, _: &mut ShmLink, owner: &mut O, matched: &Matched| {
            let fit = len.min(matched.buf.len);
            match matched.piece.is_of_list() {
                // SAFETY: the slot has `INLINE_BYTES` there; the poster of the receive vouched for
                // its buffer.
                false => unsafe { copy_short(message.from, matched.buf.as_mut_ptr(), fit) },
                // SAFETY: as above.
                true => unsafe { deliver(owner, matched, 0, message.from, fit) },
            }
        };
        // SAFETY: the slot has `INLINE_BYTES` there.
        unsafe { self.take_whole((key, link), &message, 0, owner, copy) }
    }

    #[inline(never)]
    fn take_other<O: Owner>(
        &mut self,
        key: usize,
        link: &mut ShmLink,
        outbox: &mut Outbox,
        seen: PublishedSlot,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        match seen.head.kind() {
            EAGER => self.take_eager(key, link, seen, owner),
            CHUNK => self.take_chunk(link, seen, owner),
            START => self.take_start(key, link, seen, owner),
            SHORT => self.take_short(key, link, seen, owner),
            GO => {
                let words = seen.words();
                link.consume(0, &mut self.stats);
                link.go(words, outbox, owner)
            }
            DELIVERED => {
                let [id, refused] = seen.words();
                link.consume(0, &mut self.stats);
                link.delivered((id as u32, refused != 0), outbox, owner)
            }
            CLOSE => {
                let what = CloseMessage::read(seen)?;
                link.consume(0, &mut self.stats);
                link.receive_close(what)
            }
            _ => Err(LinkViolation("it sent a slot of no known kind")),
        }
    }

    #[inline(always)]
    fn take_eager<O: Owner>(
        &mut self,
        key: usize,
        link: &mut ShmLink,
        seen: PublishedSlot,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        let len = seen.head.len();
        let [tag, offset, data] = seen.words();
        let from = link.receiver().record(offset as u32, len)?;
        let (kind, src, flags) = kind_of(seen, link);
        let message = Beginning {
            kind,
            arrived: self.arrived((src, flags), tag, len as u64, data),
            from,
            len,
            rest: None,
        };
        let copy = |this: &mut Self, link: &mut ShmLink, owner: &mut O, matched: &Matched| {
            let (into, fit) = (matched.buf.as_mut_ptr(), len.min(matched.buf.len));
            let trial =
                (len >= paths::LEAST && link.times(len)).then(|| this.deliveries.begin_trial());
            match (matched.piece.is_of_list(), link.takes_turns(len)) {
                // SAFETY: the record was checked; the poster of the receive vouched for its
                // buffer.
                (false, true) => unsafe { copy_soon(from, into, fit) },
                // SAFETY: as above.
                (false, false) => unsafe { copy_bulk(from, into, fit) },
                // SAFETY: as above.
                (true, _) => unsafe { deliver(owner, matched, 0, from, fit) },
            }
            if let Some(trial) = trial {
                this.deliveries.count_ring_bytes(len);
                this.deliveries.end_trial(link, &trial, len, 1);
            }
        };
        // SAFETY: the record was checked.
        unsafe { self.take_whole((key, link), &message, len, owner, copy) }
    }

    /// The description of a message for the receive context; counts the message.
    #[inline(always)]
    fn arrived(&mut self, (src, flags): (FiAddr, Flags), tag: u64, len: u64, data: u64) -> Arrived {
        self.stats.received += 1;
        self.stats.received_bytes += len;
        Arrived {
            src,
            tag,
            len,
            data: if flags.is_empty() { 0 } else { data },
            flags,
        }
    }

    /// Takes a complete message: `copy` copies it into a receive that matches. The message occupies
    /// `record_bytes` of the ring.
    ///
    /// # Safety
    ///
    /// The message's bytes are valid for reads.
    #[inline(always)]
    unsafe fn take_whole<O: Owner>(
        &mut self,
        (key, link): (usize, &mut ShmLink),
        message: &Beginning,
        record_bytes: usize,
        owner: &mut O,
        copy: impl FnOnce(&mut Self, &mut ShmLink, &mut O, &Matched),
    ) -> Result<(), LinkViolation> {
        let Beginning { kind, arrived, .. } = message;
        match owner.srx().arrive(*kind, arrived) {
            Some(matched) => {
                copy(self, link, owner, &matched);
                link.consume(record_bytes, &mut self.stats);
                owner.complete_recv(*kind, &matched, arrived, || Some(link.native()));
                if kind.is_part() {
                    link.part_came((*kind, arrived.tag), true, matched.is_refused(), owner)?;
                }
            }
            None => {
                // SAFETY: the caller's contract.
                unsafe { self.keep_unexpected(key, link, message, owner)? };
                link.consume(record_bytes, &mut self.stats);
            }
        }
        Ok(())
    }

    /// Reads messages of a link's peer by CMA, for a while. Returns the number of reads.
    #[cold]
    pub(crate) fn read<O: Owner>(
        &mut self,
        link: &mut ShmLink,
        owner: &mut O,
    ) -> Result<usize, LinkViolation> {
        self.deliveries.read(link, owner, &mut self.stats)
    }

    /// Keeps a message that no receive matches. Returns its number.
    ///
    /// # Safety
    ///
    /// The message's bytes are valid for reads.
    #[cold]
    unsafe fn keep_unexpected<O: Owner>(
        &mut self,
        key: usize,
        link: &mut ShmLink,
        message: &Beginning,
        owner: &mut O,
    ) -> Result<usize, LinkViolation> {
        if !link.receiver().obeys_back_pressure() {
            return Err(LinkViolation(
                "it sent far more unexpected messages than its quota permits",
            ));
        }
        self.stats.unexpected += 1;
        // SAFETY: the caller's contract.
        let (number, taken) = unsafe { self.unexpected.keep(key, message) };
        let is_whole = message.rest.is_none() && message.len != 0;
        link.receiver().count_unexpected(taken, is_whole);
        self.update_back_pressure(link);
        let token = Token {
            transport: self.number,
            value: number as u64,
        };
        owner.srx().queue(message.kind, message.arrived, token);
        Ok(number)
    }

    /// Requests envelopes only if the unexpected messages of the peer, or of all peers, exceed the
    /// quota; lifts that request when there is room again.
    pub(crate) fn update_back_pressure(&mut self, link: &mut ShmLink) {
        link.update_back_pressure(self.unexpected.is_over(), &mut self.stats);
    }

    /// Whether there is room again for messages of all links. The caller must call
    /// [`Self::update_back_pressure`] for each link.
    #[inline]
    pub(crate) fn take_relief(&mut self) -> bool {
        self.unexpected.take_relief()
    }

    /// The key of the link of an unexpected message; `NO_LINK` if the link is gone.
    pub(crate) fn link_of(&self, token: Token) -> usize {
        self.unexpected.link_of(token.value)
    }

    /// Whether this is an unexpected message of this transport that came over this link, or over an
    /// ended link with `name`.
    pub(crate) fn is_from(&self, token: Token, link: Option<usize>, name: &NativeAddr) -> bool {
        token.transport == self.number && self.unexpected.is_from(token.value, link, name)
    }

    /// Whether this is an unexpected message of this transport that is lost with its link.
    pub(crate) fn is_lost_with(&self, token: Token, link: usize) -> bool {
        token.transport == self.number && self.unexpected.is_lost_with(token.value, link)
    }

    /// Whether there are messages whose link is gone.
    pub(crate) fn has_linkless(&self) -> bool {
        self.unexpected.has_linkless()
    }

    /// The number of messages on their way into receives; the number of unexpected messages, the
    /// number of those without a link, and the memory of all of them.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn table_sizes(&self) -> (usize, (usize, usize, crate::link::Used)) {
        (self.deliveries.len(), self.unexpected.sizes())
    }

    /// An unexpected message was delivered or dropped: frees its memory.
    fn release(&mut self, link: Option<&mut ShmLink>, message: UnexpectedMessage) {
        let delivered_id = message.delivered_id;
        let freed = self.unexpected.release(message);
        let Some(link) = link else { return };
        link.receiver().release(freed);
        self.update_back_pressure(link);
        if let Some(id) = delivered_id {
            link.receiver().incoming().set(id, IncomingState::Free);
            let refused = false;
            link.answer(AnswerSlot::Delivered { id, refused }, &mut self.stats);
        }
    }

    /// Delivers an unexpected message into the receive that has matched it.
    ///
    /// # Safety
    ///
    /// The receive's buffer is valid for writes.
    pub(crate) unsafe fn start<O: Owner>(
        &mut self,
        link: Option<&mut ShmLink>,
        start: Start,
        owner: &mut O,
    ) {
        let Some(message) = self.unexpected.take(start.token.value) else {
            return;
        };
        let len = message.bytes.len();
        // SAFETY: `bytes` has `len` bytes; the buffer is the caller's contract.
        unsafe { deliver(owner, &start.matched, 0, message.bytes.as_ptr(), len) };
        match (message.rest, link) {
            (Some(rest), Some(link)) => {
                let met = MatchedMessage {
                    kind: start.kind,
                    matched: start.matched,
                    arrived: start.arrived,
                };
                (self.deliveries).begin(link, met, len, rest, &mut self.stats);
                // The receive may want no more bytes. (The id is one that `begin` has just filled.)
                let _ = (self.deliveries).delivered(link, rest.id, 0, owner, &mut self.stats);
                self.release(Some(link), message);
            }
            (None, link) => {
                let sender = match &link {
                    Some(link) => Some(link.native()),
                    None => message.sender.as_deref().copied(),
                };
                self.release(link, message);
                owner.complete_recv(start.kind, &start.matched, &start.arrived, || sender);
            }
            (Some(_), None) => {
                self.release(None, message);
                owner.fail_recv(
                    start.kind,
                    &start.matched,
                    &start.arrived,
                    Errno::ECONNRESET,
                    0,
                    "the sender is gone",
                );
            }
        }
    }

    /// Drops an unexpected message.
    pub(crate) fn discard<O: Owner>(
        &mut self,
        link: Option<&mut ShmLink>,
        kind: MsgKind,
        token: Token,
        owner: &mut O,
    ) {
        let Some(message) = self.unexpected.take(token.value) else {
            return;
        };
        let got = message.bytes.len();
        match (message.rest, link) {
            (Some(rest), Some(link)) => {
                let nowhere = Matched {
                    buf: IoBuf::EMPTY,
                    desc: MrDesc::NONE,
                    context: 0,
                    flags: Flags::empty(),
                    piece: Piece::NONE,
                };
                let arrived = Arrived {
                    src: link.addr(),
                    tag: 0,
                    len: rest.total,
                    data: 0,
                    flags: Flags::empty(),
                };
                let met = MatchedMessage {
                    kind,
                    matched: nowhere,
                    arrived,
                };
                (self.deliveries).begin(link, met, got, rest, &mut self.stats);
                self.deliveries.drop_message(link, rest.id);
                let _ = (self.deliveries).delivered(link, rest.id, 0, owner, &mut self.stats);
                self.release(Some(link), message);
            }
            (_, link) => self.release(link, message),
        }
    }

    /// A link has ended: complete unexpected messages from it can still be received.
    pub(crate) fn detach_link(&mut self, key: usize, link: &ShmLink) {
        self.unexpected.detach_link(key, link.native());
    }

    /// A link has ended: incomplete unexpected messages from it are lost.
    pub(crate) fn forget_partial(&mut self, key: usize) {
        self.unexpected.forget_partial(key);
    }

    /// Takes out the receives of writes that still come through a ring, by their contexts: the rest
    /// of the bytes goes nowhere.
    pub(crate) fn refuse_writes(&mut self, contexts: &[u64]) -> Vec<Unfinished> {
        self.deliveries.refuse_writes(contexts)
    }

    /// A link fails: takes out the receives that wait for more of a message.
    pub(crate) fn take_unfinished(&mut self, link: &mut ShmLink) -> Vec<Unfinished> {
        self.deliveries.take_unfinished(link)
    }
}
