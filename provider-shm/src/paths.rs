//! The two paths of a large message: through the ring, or read out of its sender's memory (CMA).
//!
//! The faster path differs from machine to machine, and on one machine with the distance of the two
//! processors, by factors. The receiver of a link times both paths on real messages, for each size
//! class. Each `GO` carries its advice: the classes that it would rather read. The sender follows
//! the advice, and takes the other path now and then, so that the receiver can compare both.

use std::time::{Duration, Instant};

use crate::config::Cma;

/// The two paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessagePath {
    /// Two copies, through the ring.
    Ring,
    /// One copy, by the kernel.
    Cma,
}

/// The bytes and the time that all links of an endpoint have spent so far. Messages share the ring,
/// and a message that is being read delays others; so the time from a message's start to its end
/// says nothing by itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Bytes that came through rings.
    pub(crate) ring_bytes: u64,
    /// Time that went into reading messages.
    pub(crate) reading: Duration,
}

/// A message through the ring that is timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    since: Instant,
    before: Moved,
}

impl Trial {
    pub(crate) fn begin(before: Moved) -> Self {
        Self {
            since: Instant::now(),
            before,
        }
    }

    /// The bytes that came through rings since the trial began, and the time that they took.
    fn end(&self, now: Instant, moved: Moved) -> (u64, Duration) {
        let took = now.saturating_duration_since(self.since);
        let reading = moved.reading.saturating_sub(self.before.reading);
        let bytes = moved.ring_bytes - self.before.ring_bytes;
        (bytes, took.saturating_sub(reading))
    }
}

/// Messages from this length on have a choice, in bytes.
pub(crate) const LEAST: usize = 1 << FIRST_CLASS;

/// Class `n` has the lengths from 2ⁿ to below 2ⁿ⁺¹ bytes; the last class has all longer ones, too.
const FIRST_CLASS: u32 = 13;
const CLASSES: usize = 19;

/// While a class goes through the ring, the receiver times one of this number of messages.
const TIMED_OF: u32 = 16;

/// Number of timed messages that an estimate starts from.
const FIRST_TIMED: u32 = RUN;

/// Messages in a row that try a path: the first meets cold caches, and the kernel's code is cold,
/// too.
const RUN: u32 = 4;
/// Number of messages after which the sender tries the other path again; doubled each time that the
/// advice stays the same.
const FIRST_RETRY: u32 = 32;
const LAST_RETRY: u32 = 2048;

fn class_of(len: usize) -> usize {
    (len.max(LEAST).ilog2() - FIRST_CLASS).min(CLASSES as u32 - 1) as usize
}

/// The paths of a link's messages, of both directions.
pub(crate) struct MessagePaths {
    setting: Cma,
    /// Messages that go through the ring before another one is offered for reading, after the peer
    /// did not read one; and the number of such refusals in a row.
    ring_left: u32,
    refusals: u32,
    /// Made as soon as a message has a choice: most links carry short messages only.
    classes: Option<Box<SizeClasses>>,
}

#[derive(Default)]
struct SizeClasses {
    costs: [Cost; CLASSES],
    schedules: [Schedule; CLASSES],
    /// The peer's latest advice.
    advice: u64,
}

/// Receiver: the cost of each path.
#[derive(Clone, Copy, Default)]
struct Cost {
    by_path: [Estimate; 2],
    messages: u32,
}

/// The cost of one path, estimated from timed messages: in picoseconds for a byte, or in another
/// unit, but always the same.
#[derive(Clone, Copy, Default)]
pub(crate) struct Estimate {
    cost: u32,
    timed: u32,
}

/// Sender: when to try the other path.
#[derive(Clone, Copy, Default)]
pub(crate) struct Schedule {
    messages: u32,
    retry_at: u32,
    retry_after: u32,
}

impl MessagePaths {
    pub(crate) fn new(setting: Cma) -> Self {
        Self {
            setting,
            ring_left: 0,
            refusals: 0,
            classes: None,
        }
    }

    fn classes(&mut self) -> &mut SizeClasses {
        self.classes.get_or_insert_default()
    }

    /// Sender: the path of a message of `len` bytes that the peer could read.
    pub(crate) fn choose(&mut self, len: usize) -> MessagePath {
        if len < LEAST {
            return MessagePath::Ring;
        }
        if self.ring_left > 0 {
            self.ring_left -= 1;
            return MessagePath::Ring;
        }
        match self.setting {
            Cma::On => MessagePath::Cma,
            Cma::Off => MessagePath::Ring,
            Cma::Auto => self.classes().choose(class_of(len)),
        }
    }

    /// Sender: takes over the peer's advice.
    pub(crate) fn follow(&mut self, advice: u64) {
        if self.classes.is_some() || advice != 0 {
            self.classes().follow(advice);
        }
    }

    /// Sender: the peer refused to read a message and takes it through the ring. It may be unable
    /// to read this message, or any: the next try comes after more messages each time.
    #[cold]
    pub(crate) fn refused(&mut self) {
        // Refusals of messages that were offered before the first refusal arrived do not count.
        if self.ring_left == 0 {
            self.ring_left = (FIRST_RETRY << self.refusals.min(16)).min(LAST_RETRY);
            self.refusals += 1;
        }
    }

    /// Sender: the peer has read a message.
    #[inline]
    pub(crate) fn was_read(&mut self) {
        self.refusals = 0;
    }

    /// Receiver: whether it reads messages that are offered for reading.
    pub(crate) fn reads(&self) -> bool {
        self.setting != Cma::Off
    }

    /// Receiver: whether to time this message, which comes through the ring.
    #[inline]
    pub(crate) fn times(&mut self, len: usize) -> bool {
        len >= LEAST && self.setting == Cma::Auto && {
            let cost = &mut self.classes().costs[class_of(len)];
            cost.messages = cost.messages.wrapping_add(1);
            cost.prefers_reads() || cost.messages <= RUN || cost.messages % TIMED_OF == 0
        }
    }

    /// Receiver: a timed message of `len` bytes has come whole, in `pieces`. The sender copied the
    /// first of them before the trial began, and its time counts as well.
    pub(crate) fn has_come(&mut self, trial: &Trial, len: usize, pieces: usize, moved: Moved) {
        let (bytes, took) = trial.end(Instant::now(), moved);
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX).max(1);
        self.learn(MessagePath::Ring, len, bytes, took + took / pieces);
    }

    /// Receiver: it has read `bytes` of a message of `len` bytes.
    pub(crate) fn has_read(&mut self, len: usize, bytes: u64, took: Duration) {
        if self.setting == Cma::Auto {
            self.learn(MessagePath::Cma, len, bytes, took);
        }
    }

    fn learn(&mut self, path: MessagePath, len: usize, bytes: u64, took: Duration) {
        if bytes != 0 && len >= LEAST {
            let ps_per_byte = took.as_nanos().saturating_mul(1000) / u128::from(bytes);
            let ps_per_byte = u32::try_from(ps_per_byte).unwrap_or(u32::MAX).max(1);
            self.classes().costs[class_of(len)].by_path[path as usize].learn(ps_per_byte);
        }
    }

    /// Receiver: a bit for each power of two is set if messages of that length, up to the next
    /// power, are better read.
    pub(crate) fn advice(&self) -> u64 {
        match (self.setting, &self.classes) {
            (Cma::On, _) => u64::MAX,
            (Cma::Auto, Some(classes)) => classes.advice(),
            _ => 0,
        }
    }
}

impl SizeClasses {
    fn advice(&self) -> u64 {
        let bit = |(class, cost): (usize, &Cost)| u64::from(cost.prefers_reads()) << class;
        self.costs.iter().enumerate().map(bit).sum::<u64>() << FIRST_CLASS
    }

    fn choose(&mut self, class: usize) -> MessagePath {
        let advised = match (self.advice >> (class as u32 + FIRST_CLASS)) & 1 {
            0 => MessagePath::Ring,
            _ => MessagePath::Cma,
        };
        self.schedules[class].choose(advised)
    }

    fn follow(&mut self, advice: u64) {
        let changed = (self.advice ^ advice) >> FIRST_CLASS;
        self.advice = advice;
        for (class, schedule) in self.schedules.iter_mut().enumerate() {
            if (changed >> class) & 1 != 0 {
                schedule.start_anew();
            }
        }
    }
}

impl Cost {
    fn prefers_reads(&self) -> bool {
        let [ring, cma] = &self.by_path;
        ring.is_known() && cma.is_known() && cma.cost < ring.cost
    }
}

impl Estimate {
    /// Whether a message was timed.
    pub(crate) fn is_known(&self) -> bool {
        self.timed != 0
    }

    /// The cost, 0 if no message was timed.
    pub(crate) fn cost(&self) -> u32 {
        self.cost
    }

    /// The first messages meet memory that no cache has, so the least of them counts. A later
    /// message raises the estimate by an eighth at most, since one delayed message says little,
    /// however long the delay; it lowers the estimate by a quarter at most.
    pub(crate) fn learn(&mut self, now: u32) {
        let last = self.cost;
        self.cost = match self.timed {
            0 => now,
            1..FIRST_TIMED => last.min(now),
            _ => now.clamp(last - last / 4, last.saturating_add(last / 8 + 1)),
        };
        self.timed = self.timed.saturating_add(1);
    }
}

impl Schedule {
    /// The first run goes through the ring, the second run is read; later runs of the other path
    /// become ever rarer.
    pub(crate) fn choose(&mut self, advised: MessagePath) -> MessagePath {
        if self.retry_after == 0 {
            self.start_anew();
        }
        let other = match advised {
            MessagePath::Ring => MessagePath::Cma,
            MessagePath::Cma => MessagePath::Ring,
        };
        let number = self.messages;
        self.messages = number.wrapping_add(1);
        if number < 2 * RUN {
            return [MessagePath::Ring, MessagePath::Cma][(number / RUN) as usize];
        }
        match number.wrapping_sub(self.retry_at) {
            0..RUN => {
                if number == self.retry_at.wrapping_add(RUN - 1) {
                    self.retry_after = (self.retry_after * 2).min(LAST_RETRY);
                    self.retry_at = number.wrapping_add(self.retry_after);
                }
                other
            }
            _ => advised,
        }
    }

    pub(crate) fn start_anew(&mut self) {
        self.retry_after = FIRST_RETRY;
        self.retry_at = self.messages.wrapping_add(FIRST_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64 << 10;

    /// A link with its two ends: a stream of messages of `LEN` bytes, with the time of each path.
    /// Returns the number of messages that were read.
    fn stream(
        sender: &mut MessagePaths,
        receiver: &mut MessagePaths,
        messages: usize,
        ring_ns: u64,
        cma_ns: u64,
    ) -> usize {
        let mut read = 0;
        for _ in 0..messages {
            let path = sender.choose(LEN);
            let took = Duration::from_nanos([ring_ns, cma_ns][path as usize]);
            match path {
                MessagePath::Ring if receiver.times(LEN) => {
                    receiver.learn(path, LEN, LEN as u64, took);
                }
                MessagePath::Ring => {}
                MessagePath::Cma => {
                    read += 1;
                    receiver.learn(path, LEN, LEN as u64, took);
                    sender.follow(receiver.advice());
                }
            }
        }
        read
    }

    fn ends() -> (MessagePaths, MessagePaths) {
        (MessagePaths::new(Cma::Auto), MessagePaths::new(Cma::Auto))
    }

    #[test]
    fn the_faster_way_is_taken_and_the_slower_one_tried_ever_less() {
        let (mut sender, mut receiver) = ends();
        let read = stream(&mut sender, &mut receiver, 10_000, 1_400, 5_300);
        assert!((20..=60).contains(&read), "{read} of 10000 by CMA");
        let (mut sender, mut receiver) = ends();
        let read = stream(&mut sender, &mut receiver, 10_000, 8_700, 3_600);
        assert!((9_930..=9_980).contains(&read), "{read} of 10000 by CMA");
    }

    #[test]
    fn a_change_of_distance_is_noticed_both_ways() {
        let (mut sender, mut receiver) = ends();
        stream(&mut sender, &mut receiver, 5_000, 1_400, 5_300);
        let read = stream(&mut sender, &mut receiver, 10_000, 8_700, 3_600);
        assert!(read > 8_000, "{read} of 10000 by CMA once the ring is slow");
        let read = stream(&mut sender, &mut receiver, 10_000, 1_400, 5_300);
        assert!(read < 3_000, "{read} of 10000 by CMA once it is fast again");
    }

    #[test]
    fn one_slow_message_changes_nothing() {
        let (mut sender, mut receiver) = ends();
        stream(&mut sender, &mut receiver, 100, 1_400, 5_300);
        // Another task had the processor in between.
        receiver.learn(
            MessagePath::Ring,
            LEN,
            LEN as u64,
            Duration::from_millis(20),
        );
        assert_eq!(receiver.advice(), 0);
    }

    /// A peer may state any length.
    #[test]
    fn a_message_may_have_more_pieces_than_32_bits_count() {
        let (mut paths, moved) = (MessagePaths::new(Cma::Auto), Moved::default());
        paths.has_come(&Trial::begin(moved), LEN << 32, 1 << 32, moved);
        assert_eq!(paths.advice(), 0);
    }

    #[test]
    fn short_messages_and_refused_ones_have_no_choice() {
        let mut paths = MessagePaths::new(Cma::On);
        assert_eq!(paths.choose(LEAST - 1), MessagePath::Ring);
        assert_eq!(paths.choose(LEAST), MessagePath::Cma);
        assert_eq!(paths.choose(usize::MAX), MessagePath::Cma);
        paths.refused();
        assert_eq!(paths.choose(LEAST), MessagePath::Ring);
        let tries = (0..FIRST_RETRY).filter(|_| paths.choose(LEAST) == MessagePath::Cma);
        assert_eq!(tries.count(), 1, "it is tried again later");
        // Each try comes later, except for messages under way; and soon again after a success.
        let until_next = |paths: &mut MessagePaths| {
            paths.refused();
            paths.refused();
            (0..).find(|_| paths.choose(LEAST) == MessagePath::Cma)
        };
        let waits: Vec<_> = (0..8).filter_map(|_| until_next(&mut paths)).collect();
        assert_eq!(waits, [64, 128, 256, 512, 1024, 2048, 2048, 2048]);
        paths.was_read();
        assert_eq!(until_next(&mut paths), Some(FIRST_RETRY as i32));
        let (mut off, reads) = (
            MessagePaths::new(Cma::Off),
            MessagePaths::new(Cma::Off).reads(),
        );
        off.follow(u64::MAX);
        assert_eq!(
            (off.choose(LEN), off.advice(), reads),
            (MessagePath::Ring, 0, false)
        );
    }

    /// A peer may send any advice: bits without a class are ignored.
    #[test]
    fn advice_is_of_classes() {
        let mut paths = MessagePaths::new(Cma::Auto);
        paths.follow(u64::MAX);
        paths.follow(1 << 14);
        let chosen: Vec<MessagePath> = [LEAST, 2 * LEAST, 4 * LEAST]
            .into_iter()
            .map(|len| {
                (0..2 * RUN).for_each(|_| _ = paths.choose(len));
                paths.choose(len)
            })
            .collect();
        assert_eq!(
            chosen,
            [MessagePath::Ring, MessagePath::Cma, MessagePath::Ring]
        );
    }

    /// Messages of 1 MiB, `count` of them under way at a time. The ring moves 256 KiB of each in
    /// turn, and while one is read all others wait. Returns how many of 2000 were read.
    fn shared_stream(count: usize, ring_ns: u64, cma_ns: u64) -> usize {
        const LEN: u64 = 1 << 20;
        let ((mut sender, mut receiver), mut moved) = (ends(), Moved::default());
        let mut now = Instant::now();
        let mut under_way: Vec<(Option<Trial>, MessagePath, u64)> = Vec::new();
        let (mut by_cma, mut turn) = (0, 0);
        for _ in 0..2000 {
            while under_way.len() < count {
                let path = sender.choose(LEN as usize);
                by_cma += usize::from(path == MessagePath::Cma);
                let timed = path == MessagePath::Ring && receiver.times(LEN as usize);
                let trial = timed.then_some(Trial {
                    since: now,
                    before: moved,
                });
                under_way.push((trial, path, LEN));
            }
            loop {
                turn = (turn + 1) % under_way.len();
                let (_, path, left) = &mut under_way[turn];
                match path {
                    MessagePath::Ring => {
                        now += Duration::from_nanos(ring_ns / 4);
                        moved.ring_bytes += LEN / 4;
                        *left -= LEN / 4;
                    }
                    MessagePath::Cma => {
                        now += Duration::from_nanos(cma_ns);
                        moved.reading += Duration::from_nanos(cma_ns);
                        receiver.has_read(LEN as usize, LEN, Duration::from_nanos(cma_ns));
                        sender.follow(receiver.advice());
                        *left = 0;
                    }
                }
                if *left == 0 {
                    let (trial, ..) = under_way.remove(turn);
                    if let Some(trial) = trial {
                        let (bytes, took) = trial.end(now, moved);
                        receiver.learn(MessagePath::Ring, LEN as usize, bytes, took);
                    }
                    break;
                }
            }
        }
        by_cma
    }

    #[test]
    fn messages_that_share_the_ring_do_not_make_it_look_slow() {
        for count in [1, 2, 4, 16] {
            let cma = shared_stream(count, 20_000, 72_000);
            assert!(cma < 100, "{cma} of 2000 by CMA, {count} at a time");
            let cma = shared_stream(count, 72_000, 20_000);
            assert!(cma > 1850, "{cma} of 2000 by CMA, {count} at a time");
        }
    }
}
