//! Polls links: takes messages that came, and pushes sends that wait.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::Owner;

use super::ShmTransport;

/// Messages of one link that are taken before the next link gets its turn.
const BATCH: usize = 32;
/// Polls that a call adds to the first while short messages come and go.
const SPIN_LOOKS: usize = 7;
/// Calls without a message after which a link is polled in turns only.
const IDLE_CALLS: u32 = 10_000;

impl ShmTransport {
    /// Polls a few times more for the next message of an exchange of short messages, on the link
    /// of the last one: this finds it sooner than another call would.
    #[inline(always)]
    pub(super) fn spin<O: Owner>(&mut self, owner: &mut O) -> usize {
        let Some(key) = self.poll_order.first() else {
            return 0;
        };
        let Some(link) = self.links.get(key) else {
            return 0;
        };
        for _ in 0..SPIN_LOOKS {
            poll_delay();
            if link.peek().is_some() {
                return self.poll(key, owner);
            }
        }
        poll_delay();
        0
    }

    /// Polls one link. Returns the number of steps taken.
    #[inline(always)]
    pub(super) fn poll<O: Owner>(&mut self, key: usize, owner: &mut O) -> usize {
        let Some(link) = self.links.get_mut(key) else {
            return 0;
        };
        let link = &mut **link;
        let mut did = 0;
        while let Some(seen) = link.peek() {
            link.prefetch();
            if let Err(broken) = self.receiver.take(key, link, &mut self.outbox, seen, owner) {
                self.fail_link(key, Errno::EPROTO, broken.0, owner);
                return did + 1;
            }
            did += 1;
            if did == BATCH {
                break;
            }
        }
        match did {
            0 => link.found_nothing(self.receiver.stats_mut()),
            _ => link.found_messages(),
        }
        if link.is_busy() {
            return did + self.push(key, owner);
        }
        did
    }

    #[inline(never)]
    pub(super) fn push<O: Owner>(&mut self, key: usize, owner: &mut O) -> usize {
        let Some(link) = self.links.get_mut(key) else {
            return 0;
        };
        if link.has_close_message() {
            return self.answer_close(key, owner);
        }
        let read = match link.receiver().has_reads() {
            true => self.receiver.read(link, owner),
            false => Ok(0),
        };
        let pushed = read
            .and_then(|n| Ok(n + link.push(&mut self.outbox, owner, self.receiver.stats_mut())?));
        pushed.unwrap_or_else(|broken| {
            self.fail_link(key, Errno::EPROTO, broken.0, owner);
            1
        })
    }

    #[cold]
    pub(super) fn disarm(&mut self) {
        self.armed = false;
        self.shared.wakes_up();
        for (_, link) in &self.links {
            link.own_status().awake();
        }
    }

    /// Polls one of the idle links, and lets links with traffic join those of each call.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_others<O: Owner>(&mut self, owner: &mut O) -> usize {
        let links = &self.links;
        let is_warm = |key: usize| links[key].is_busy() || links[key].idle_calls() < IDLE_CALLS;
        let Some((at, key)) = self.poll_order.next_other(is_warm) else {
            return 0;
        };
        let did = self.poll(key, owner);
        if did > 0 {
            self.poll_order.warm_up(at, key);
        }
        did
    }

    /// Wakes sleeping threads of the domain if there is something to push now: they sleep until
    /// messages come, not until there is work to push.
    #[inline]
    pub(super) fn wake_progress(&self, key: usize) {
        if self.armed && self.links.get(key).is_some_and(|link| link.is_busy()) {
            self.shared.ring(self.id);
        }
    }
}

/// Waits some nanoseconds, with no load under way. A processor that finds nothing runs ahead and
/// loads the same line several times at once. Loads that the sender's store overtakes are undone,
/// and take the line from the sender once more (`docs/adr/0012-delay-between-polls.md`). If the
/// last message had a record, running ahead is a gain: slot and record come over together.
#[inline(always)]
fn poll_delay() {
    #[cfg(target_arch = "x86_64")]
    for _ in 0..2 {
        // SAFETY: every x86-64 processor has it.
        unsafe { std::arch::x86_64::_mm_lfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::spin_loop();
}
