//! Messages on their way into receives, of all links of an endpoint: through the ring, or read out
//! of their senders' memory.

use std::time::Instant;

use ferrofabric_contracts::buffers::parts;
use ferrofabric_contracts::peer::{Matched, Owner, PeerSrx, deliver};
use ferrofabric_contracts::types::IoBuf;
use slab::Slab;

use super::message::{MatchedMessage, Rest, Unfinished};
use crate::cma::CopyOutcome;
use crate::incoming::IncomingState;
use crate::link::{AnswerSlot, ShmLink};
use crate::paths::{Moved, Trial};
use crate::ring::LinkViolation;
use crate::stats::ShmStats;

/// Bytes that one call reads of a peer by CMA before other peers get their turn: the domain is
/// locked meanwhile.
const CMA_TURN_BYTES: usize = 256 << 10;

/// A message on its way into a receive.
struct Delivery {
    met: MatchedMessage,
    /// Bytes that have come, and that will come, through the ring.
    delivered: usize,
    expected: usize,
    cma: Option<CmaRead>,
    /// The measurement of the message's path, if there is one.
    trial: Option<Trial>,
    /// No receive wants the message: it is only taken out of the ring.
    dropped: bool,
    /// Its sender awaits `DELIVERED`.
    wants_delivered: bool,
}

struct CmaRead {
    addr: u64,
    next: usize,
    end: usize,
}

/// The messages on their way into receives, by the keys in the links' tables.
#[derive(Default)]
pub(super) struct Deliveries {
    under_way: Slab<Delivery>,
    moved: Moved,
}

impl Deliveries {
    /// Bytes of a message have come through a ring.
    #[inline(always)]
    pub(super) fn count_ring_bytes(&mut self, len: usize) {
        self.moved.ring_bytes += len as u64;
    }

    #[inline]
    pub(super) fn begin_trial(&self) -> Trial {
        Trial::begin(self.moved)
    }

    /// A timed message has come whole, in `pieces`.
    #[inline]
    pub(super) fn end_trial(&self, link: &mut ShmLink, trial: &Trial, len: usize, pieces: usize) {
        link.paths().has_come(trial, len, pieces, self.moved);
    }

    /// Begins to deliver a message into a receive, after `delivered` bytes have come: decides how
    /// the rest comes.
    pub(super) fn begin(
        &mut self,
        link: &mut ShmLink,
        met: MatchedMessage,
        delivered: usize,
        rest: Rest,
        stats: &mut ShmStats,
    ) {
        let mut delivery = Delivery {
            met,
            delivered,
            expected: rest.before_go,
            cma: None,
            trial: None,
            dropped: false,
            wants_delivered: rest.wants_delivered,
        };
        let wanted = (met.matched.buf.len as u64).min(rest.total) as usize;
        match rest.read_from {
            Some(addr) if wanted > 0 && link.reads() => {
                delivery.cma = Some(CmaRead {
                    addr,
                    next: 0,
                    end: wanted,
                });
                link.read_later(rest.id);
            }
            _ => {
                if delivered == 0 && link.times(rest.total as usize) {
                    delivery.trial = Some(self.begin_trial());
                }
                if rest.before_go as u64 != rest.total {
                    delivery.expected = wanted.max(rest.before_go);
                    send_go(link, rest.id, wanted, stats);
                }
            }
        }
        let key = self.under_way.insert(delivery);
        (link.receiver().incoming()).set(rest.id, IncomingState::Matched(key as u32));
    }

    /// Puts the next piece of a message into its receive.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads of `len` bytes; the receive's buffers are valid for writes.
    pub(super) unsafe fn put_piece<O: Owner>(
        &self,
        key: u32,
        from: *const u8,
        len: usize,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        let d = &self.under_way[key as usize];
        if len == 0 || len > d.expected.saturating_sub(d.delivered) {
            return Err(LinkViolation("it sent a piece of no message"));
        }
        // SAFETY: the caller's contract.
        unsafe { deliver(owner, &d.met.matched, d.delivered, from, len) };
        Ok(())
    }

    /// More bytes of a message have been delivered.
    pub(super) fn delivered<O: Owner>(
        &mut self,
        link: &mut ShmLink,
        id: u32,
        len: usize,
        owner: &mut O,
        stats: &mut ShmStats,
    ) -> Result<(), LinkViolation> {
        let Some(key) = link.receiver().delivery(id) else {
            return Err(LinkViolation("it sent a piece of no message"));
        };
        let d = &mut self.under_way[key];
        d.delivered += len;
        if d.delivered < d.expected || d.cma.is_some() {
            return Ok(());
        }
        link.receiver().incoming().set(id, IncomingState::Free);
        let d = self.under_way.remove(key);
        let MatchedMessage {
            kind,
            matched,
            arrived,
        } = &d.met;
        if let Some(trial) = d.trial.as_ref().filter(|_| !d.dropped) {
            self.end_trial(link, trial, arrived.len as usize, link.pieces(d.delivered));
        }
        if !d.dropped {
            owner.complete_recv(*kind, matched, arrived, || Some(link.native()));
            if kind.is_part() {
                link.part_came((*kind, arrived.tag), false, matched.is_refused(), owner)?;
            }
        }
        if d.wants_delivered {
            let refused = matched.is_refused();
            link.answer(AnswerSlot::Delivered { id, refused }, stats);
        }
        Ok(())
    }

    /// No receive wants this message any more.
    pub(super) fn drop_message(&mut self, link: &mut ShmLink, id: u32) {
        if let Some(key) = link.receiver().delivery(id) {
            self.under_way[key].dropped = true;
        }
    }

    /// Takes out the receives of writes that still come through a ring, by their contexts: the rest
    /// of the bytes goes nowhere, and the sender learns that the write was refused. What is read by
    /// CMA comes whatever its sender does.
    #[cold]
    pub(super) fn refuse_writes(&mut self, contexts: &[u64]) -> Vec<Unfinished> {
        let mut refused = Vec::new();
        for (_, d) in &mut self.under_way {
            let MatchedMessage {
                kind,
                matched,
                arrived,
            } = &mut d.met;
            let is_one = kind.is_write() && contexts.contains(&matched.context);
            if is_one && !matched.is_refused() && d.cma.is_none() {
                refused.push((*kind, *matched, *arrived));
                *matched = Matched::REFUSED;
            }
        }
        refused
    }

    /// Reads messages by CMA, for a while. Returns the number of reads.
    #[cold]
    pub(super) fn read<O: Owner>(
        &mut self,
        link: &mut ShmLink,
        owner: &mut O,
        stats: &mut ShmStats,
    ) -> Result<usize, LinkViolation> {
        let (mut did, mut left) = (0, CMA_TURN_BYTES);
        while left > 0 {
            let Some(id) = link.receiver().next_read() else {
                break;
            };
            left -= self.read_some(link, id, left, owner, stats)?;
            did += 1;
        }
        Ok(did)
    }

    /// Reads up to `most` bytes of a message; returns how many. If that fails, the ring takes over.
    fn read_some<O: Owner>(
        &mut self,
        link: &mut ShmLink,
        id: u32,
        most: usize,
        owner: &mut O,
        stats: &mut ShmStats,
    ) -> Result<usize, LinkViolation> {
        let Some(key) = link.receiver().delivery(id) else {
            return Ok(0);
        };
        let d = &mut self.under_way[key];
        let Some(read) = d.cma.as_mut().filter(|_| link.receiver().has_cma()) else {
            return Ok(0);
        };
        let most = most.min(read.end - read.next);
        let matched = &d.met.matched;
        let into = match matched.piece.is_of_list() {
            false => matched.buf.part(read.next, most),
            // One buffer of the receive at a time.
            true => {
                let segments = owner.srx().segments(matched.piece);
                let first = parts(segments, read.next, most).next();
                first.map_or(IoBuf::EMPTY, |(part, _)| part)
            }
        };
        let (since, from) = (Instant::now(), read.addr.wrapping_add(read.next as u64));
        // SAFETY: `part` is within the buffer, for which the poster of the receive vouched.
        let came = unsafe { link.receiver().read_memory(from, into, since) };
        if link.has_peer_closed_by_now() {
            // The bytes may be anything. The receives fail with the link, once the ring is empty.
            link.receiver().cancel_reads();
            return Ok(0);
        }
        match came {
            CopyOutcome::Complete => {}
            // The sender copies the message, and waits itself if it has to.
            CopyOutcome::Missing => {
                self.request_by_ring(link, id, stats);
                return Ok(0);
            }
            CopyOutcome::Refused => {
                link.receiver().give_up_cma();
                self.request_by_ring(link, id, stats);
                while let Some(id) = link.receiver().next_read() {
                    self.request_by_ring(link, id, stats);
                }
                return Ok(0);
            }
        }
        let took = since.elapsed();
        self.moved.reading += took;
        link.paths()
            .has_read(d.met.arrived.len as usize, into.len as u64, took);
        read.next += into.len;
        if read.next < read.end {
            link.receiver().read_on(id);
        } else {
            stats.received_cma += 1;
            d.cma = None;
            send_go(link, id, 0, stats);
            self.delivered(link, id, 0, owner, stats)?;
        }
        Ok(into.len)
    }

    /// Requests a message through the ring that was to be read by CMA.
    fn request_by_ring(&mut self, link: &mut ShmLink, id: u32, stats: &mut ShmStats) {
        let Some(key) = link.receiver().delivery(id) else {
            return;
        };
        let d = &mut self.under_way[key];
        let Some(read) = d.cma.take() else { return };
        d.expected = read.end;
        send_go(link, id, read.end, stats);
    }

    /// A link fails: takes out the receives that wait for more of a message.
    pub(super) fn take_unfinished(&mut self, link: &mut ShmLink) -> Vec<Unfinished> {
        let receiver = link.receiver();
        receiver.cancel_reads();
        (receiver.incoming().drain())
            .filter_map(|incoming| match incoming {
                IncomingState::Matched(key) => {
                    let d = self.under_way.remove(key as usize);
                    let MatchedMessage {
                        kind,
                        matched,
                        arrived,
                    } = d.met;
                    (!d.dropped).then_some((kind, matched, arrived))
                }
                _ => None,
            })
            .collect()
    }

    /// The number of messages on their way.
    #[cfg(feature = "fuzzing")]
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }
}

fn send_go(link: &mut ShmLink, id: u32, until: usize, stats: &mut ShmStats) {
    let until = until as u64;
    link.answer(AnswerSlot::Go { id, until }, stats);
}
