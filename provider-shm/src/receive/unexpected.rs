//! Messages that arrived before their receive, of all links of an endpoint: their bytes, and the
//! memory that all of them take.

use ferrofabric_contracts::addr::NativeAddr;
use slab::Slab;

use super::message::{Beginning, Rest};
use crate::copy::copy_bulk;
use crate::link::{Quota, SPARE_BUFFERS, SPARE_BYTES, Used};
use crate::ring::LinkViolation;

/// The key in place of a link's, for a message whose link has ended.
pub(super) const NO_LINK: usize = usize::MAX;

/// An unexpected message.
pub(super) struct UnexpectedMessage {
    /// The key of its link, or [`NO_LINK`].
    link: usize,
    /// Its bytes so far.
    pub(super) bytes: Vec<u8>,
    /// The description of the rest, while the message is incomplete.
    pub(super) rest: Option<Rest>,
    /// Its id, if it is complete and its sender awaits `DELIVERED`.
    pub(super) delivered_id: Option<u32>,
    /// Its sender, if the link is gone.
    pub(super) sender: Option<Box<NativeAddr>>,
}

impl UnexpectedMessage {
    /// Whether it is lost when its link ends.
    fn is_partial(&self) -> bool {
        self.rest.is_some()
    }
}

/// The unexpected messages, by the number in their tokens.
pub(super) struct UnexpectedMessages {
    messages: Slab<UnexpectedMessage>,
    /// Number of messages that have outlived their link.
    linkless: usize,
    /// The memory of all messages, and its limit. Above the limit, peers may send envelopes only,
    /// until half of it is free.
    used: Used,
    quota: Quota,
    is_over: bool,
    /// The limit is not exceeded any more, and the links' back-pressure has not been lifted yet.
    is_relieved: bool,
    /// Buffers for later messages.
    spare: Vec<Vec<u8>>,
}

impl UnexpectedMessages {
    pub(super) fn new(quota: Quota) -> Self {
        Self {
            messages: Slab::new(),
            linkless: 0,
            used: Used::default(),
            quota,
            is_over: false,
            is_relieved: false,
            spare: Vec::new(),
        }
    }

    /// Keeps a message of the link with the key `link`. Returns its number and its memory.
    ///
    /// # Safety
    ///
    /// The message's bytes are valid for reads.
    #[inline]
    pub(super) unsafe fn keep(&mut self, link: usize, message: &Beginning) -> (usize, Used) {
        // Room for all bytes that come before the first `GO` is taken, and counted, at once.
        let room = message.rest.map_or(message.len, |rest| rest.before_go);
        let mut bytes = match room {
            1..=SPARE_BYTES => self.spare.pop().unwrap_or_default(),
            _ => Vec::new(),
        };
        bytes.reserve_exact(room);
        // SAFETY: the caller's contract.
        unsafe { append(&mut bytes, message.from, message.len) };
        let taken = Used::of(bytes.capacity());
        self.used.add(taken);
        self.is_over |= self.quota.is_exceeded(self.used);
        let number = self.messages.insert(UnexpectedMessage {
            link,
            bytes,
            rest: message.rest,
            delivered_id: None,
            sender: None,
        });
        (number, taken)
    }

    /// The next piece of a message has come.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads of `len` bytes.
    pub(super) unsafe fn append(
        &mut self,
        number: u32,
        from: *const u8,
        len: usize,
    ) -> Result<(), LinkViolation> {
        let message = &mut self.messages[number as usize];
        // A complete message keeps its id until it is delivered if its sender awaits `DELIVERED`.
        let missing = message
            .rest
            .map_or(0, |rest| rest.before_go.saturating_sub(message.bytes.len()));
        if len == 0 || len > missing {
            return Err(LinkViolation(
                "it sent more of a message than the receiver requested",
            ));
        }
        // SAFETY: the caller's contract.
        unsafe { append(&mut message.bytes, from, len) };
        Ok(())
    }

    /// Whether all of a message is here now and its id is free again. The id is not free while the
    /// sender awaits `DELIVERED`.
    pub(super) fn frees_id(&mut self, number: u32, id: u32) -> bool {
        let message = &mut self.messages[number as usize];
        if message
            .rest
            .is_none_or(|rest| message.bytes.len() as u64 != rest.total)
        {
            return false;
        }
        match message.rest.take() {
            // The sender keeps the id until `DELIVERED` arrives.
            Some(rest) if rest.wants_delivered => {
                message.delivered_id = Some(id);
                false
            }
            _ => true,
        }
    }

    /// Takes a message out.
    #[inline]
    pub(super) fn take(&mut self, number: u64) -> Option<UnexpectedMessage> {
        let message = self.messages.try_remove(number as usize)?;
        self.linkless -= usize::from(message.link == NO_LINK);
        Some(message)
    }

    /// Frees a message that was taken out. Returns the memory that it took.
    #[inline]
    pub(super) fn release(&mut self, mut message: UnexpectedMessage) -> Used {
        let freed = Used::of(message.bytes.capacity());
        self.give_back(freed);
        if self.spare.len() < SPARE_BUFFERS && message.bytes.capacity() <= SPARE_BYTES {
            message.bytes.clear();
            self.spare.push(message.bytes);
        }
        freed
    }

    /// Counts memory as free.
    fn give_back(&mut self, freed: Used) {
        self.used.take(freed);
        if self.is_over && self.quota.is_half_free(self.used) {
            self.is_over = false;
            self.is_relieved = true;
        }
    }

    /// Whether the messages of all links together exceed the limit.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether there is room again for messages of all links, and the links' back-pressure has not
    /// been lifted yet.
    #[inline]
    pub(super) fn take_relief(&mut self) -> bool {
        std::mem::take(&mut self.is_relieved)
    }

    /// The key of the link of a message.
    pub(super) fn link_of(&self, number: u64) -> usize {
        self.messages
            .get(number as usize)
            .map_or(NO_LINK, |message| message.link)
    }

    /// Whether a message came over this link, or over an ended link with `name`.
    pub(super) fn is_from(&self, number: u64, link: Option<usize>, name: &NativeAddr) -> bool {
        self.messages.get(number as usize).is_some_and(|message| {
            link == Some(message.link) || message.sender.as_deref() == Some(name)
        })
    }

    /// Whether a message is lost with its link.
    pub(super) fn is_lost_with(&self, number: u64, link: usize) -> bool {
        self.messages
            .get(number as usize)
            .is_some_and(|message| message.link == link && message.is_partial())
    }

    /// Whether there are messages whose link is gone.
    pub(super) fn has_linkless(&self) -> bool {
        self.linkless != 0
    }

    /// A link has ended: complete messages from it can still be received.
    pub(super) fn detach_link(&mut self, link: usize, sender: NativeAddr) {
        let whole =
            |message: &&mut UnexpectedMessage| message.link == link && !message.is_partial();
        let messages = self.messages.iter_mut().map(|(_, message)| message);
        for message in messages.filter(whole) {
            message.link = NO_LINK;
            message.sender = Some(Box::new(sender));
            self.linkless += 1;
        }
    }

    /// A link has ended: incomplete messages from it are lost.
    pub(super) fn forget_partial(&mut self, link: usize) {
        let mut lost = Used::default();
        self.messages.retain(|_, message| {
            let stays = message.link != link || !message.is_partial();
            if !stays {
                lost.add(Used::of(message.bytes.capacity()));
            }
            stays
        });
        self.give_back(lost);
    }

    /// The number of messages, the number of those without a link, and the memory of all.
    #[cfg(feature = "fuzzing")]
    pub(super) fn sizes(&self) -> (usize, usize, Used) {
        (self.messages.len(), self.linkless, self.used)
    }
}

/// Appends bytes that another process may be writing to.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes.
unsafe fn append(bytes: &mut Vec<u8>, from: *const u8, len: usize) {
    bytes.reserve(len);
    // SAFETY: there is room for `len` more, which the copy fills.
    unsafe {
        copy_bulk(from, bytes.as_mut_ptr().add(bytes.len()), len);
        bytes.set_len(bytes.len() + len);
    }
}
