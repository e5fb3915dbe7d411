//! The choice between a copy by this side and messages, for operations that both can carry out.
//!
//! A copy takes a system call. A peer that polls answers a short message sooner than that, and one
//! that computes answers much later. So the link times both, for each power of two of length. The
//! time of a message that waits for long is lost, so copies follow for many times as long: a peer
//! that computes now and then costs a small share of the time at most.

use std::time::{Duration, Instant};

use crate::paths::{Estimate, MessagePath, Schedule};

/// The first class has operations of up to 127 bytes; each other one has a power of two.
const FIRST_CLASS: u32 = 6;
/// The last class has all longer ones, too.
const CLASSES: usize = 20;

/// A part that takes longer than this number of copies waits for a peer that does not poll.
const LONG_WAIT: u32 = 8;
/// The least such time.
const LEAST_WAIT: Duration = Duration::from_micros(20);
/// Copies follow for this number of times as long as the part waited.
const COPIES_FOLLOW: u32 = 15;
/// A part without an answer for so long may be lost with its link, or was never sent.
const LOST: Duration = Duration::from_secs(1);
/// While a part is timed, the clock is read once for this number of operations.
const LOOK_OF: u32 = 8;

/// The state of the choice.
#[derive(Default)]
pub(super) struct ShortcutChoice {
    classes: Option<Box<[ClassChoice; CLASSES]>>,
    timed: Option<TimedPart>,
    /// Copies until then.
    copies_until: Option<Instant>,
    operations: u32,
}

#[derive(Clone, Copy, Default)]
struct ClassChoice {
    /// The times in nanoseconds.
    by_path: [Estimate; 2],
    schedule: Schedule,
    prefers_messages: bool,
}

/// A part that went as a message, and whose answer is awaited.
#[derive(Clone, Copy)]
struct TimedPart {
    id: u32,
    class: usize,
    since: Instant,
    /// Messages of the link on their way, this one among them.
    beside: u32,
}

fn class_of(len: usize) -> usize {
    let class = len.max(1).ilog2().saturating_sub(FIRST_CLASS) as usize;
    class.min(CLASSES - 1)
}

impl ShortcutChoice {
    /// The path of an operation of `len` bytes. If it goes as messages, the first of them gets this
    /// id, beside as many messages on their way.
    pub(super) fn choose(
        &mut self,
        len: usize,
        id: u32,
        on_their_way: usize,
        clock: impl Fn() -> Instant,
    ) -> MessagePath {
        self.operations = self.operations.wrapping_add(1);
        if self.waits(&clock) {
            return MessagePath::Cma;
        }
        let class = class_of(len);
        let choice = &mut self.classes.get_or_insert_default()[class];
        let advised = match choice.prefers_messages {
            true => MessagePath::Ring,
            false => MessagePath::Cma,
        };
        let path = choice.schedule.choose(advised);
        if path == MessagePath::Ring && self.timed.is_none() {
            self.timed = Some(TimedPart {
                id,
                class,
                since: clock(),
                beside: u32::try_from(on_their_way).unwrap_or(u32::MAX - 1) + 1,
            });
        }
        path
    }

    /// The path of a read of `len` bytes. Its request has no answer by which it could be timed, so
    /// writes as long decide.
    pub(super) fn choose_for_read(
        &mut self,
        len: usize,
        clock: impl Fn() -> Instant,
    ) -> MessagePath {
        self.operations = self.operations.wrapping_add(1);
        let prefers_messages = !self.waits(&clock)
            && (self.classes.as_deref())
                .is_some_and(|classes| classes[class_of(len)].prefers_messages);
        match prefers_messages {
            true => MessagePath::Ring,
            false => MessagePath::Cma,
        }
    }

    /// Whether messages would wait for a peer that does not poll, as far as is known.
    fn waits(&mut self, clock: &impl Fn() -> Instant) -> bool {
        if let Some(until) = self.copies_until {
            if clock() < until {
                return true;
            }
            self.copies_until = None;
        }
        let Some(timed) = self.timed else {
            return false;
        };
        if self.operations % LOOK_OF != 0 {
            return false;
        }
        let now = clock();
        let waited = now.saturating_duration_since(timed.since);
        if waited > LOST {
            self.timed = None;
            self.copies_until = Some(now + waited * COPIES_FOLLOW);
        } else if waited > self.patience(&timed) {
            // Until the answer: the next operation looks again.
            self.operations = self.operations.wrapping_sub(1);
        } else {
            return false;
        }
        true
    }

    /// The time after which a part counts as one that waits.
    fn patience(&self, timed: &TimedPart) -> Duration {
        let copy = |classes: &[ClassChoice; CLASSES]| {
            classes[timed.class].by_path[MessagePath::Cma as usize].cost()
        };
        let copy = self.classes.as_deref().map_or(0, copy);
        let copies = Duration::from_nanos(copy.into()) * LONG_WAIT;
        copies.max(LEAST_WAIT).saturating_mul(timed.beside)
    }

    /// A copy of `len` bytes took so long.
    pub(super) fn copied(&mut self, len: usize, took: Duration) {
        self.learn(class_of(len), MessagePath::Cma, took);
    }

    /// The message with an id has got its answer.
    pub(super) fn answered(&mut self, id: u32, clock: impl Fn() -> Instant) {
        let Some(timed) = self.timed.filter(|timed| timed.id == id) else {
            return;
        };
        self.timed = None;
        let now = clock();
        let took = now.saturating_duration_since(timed.since);
        if took > self.patience(&timed) {
            self.copies_until = Some(now + took * COPIES_FOLLOW);
        }
        self.learn(timed.class, MessagePath::Ring, took / timed.beside);
    }

    fn learn(&mut self, class: usize, path: MessagePath, took: Duration) {
        let choice = &mut self.classes.get_or_insert_default()[class];
        let took = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        choice.by_path[path as usize].learn(took.max(1));
        let [message, copy] = &choice.by_path;
        // Messages cost the peer time, too.
        let prefers_messages =
            message.is_known() && copy.is_known() && message.cost() < copy.cost() / 4 * 3;
        if prefers_messages != choice.prefers_messages {
            choice.prefers_messages = prefers_messages;
            choice.schedule.start_anew();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const COPY: Duration = Duration::from_nanos(2500);

    /// A link whose peer answers a message after some time, with a clock of its own.
    struct Link {
        choice: ShortcutChoice,
        now: Cell<Instant>,
        waited: Duration,
        copies: usize,
    }

    impl Link {
        fn new() -> Self {
            Self {
                choice: ShortcutChoice::default(),
                now: Cell::new(Instant::now()),
                waited: Duration::ZERO,
                copies: 0,
            }
        }

        /// Operations one after the other. A message is over when its answer comes.
        fn run(&mut self, operations: usize, answer: impl Fn(Instant) -> Duration) {
            for _ in 0..operations {
                let path = self.choice.choose(8, 5, 0, || self.now.get());
                let took = match path {
                    MessagePath::Ring => answer(self.now.get()),
                    MessagePath::Cma => COPY,
                };
                self.now.set(self.now.get() + took);
                self.waited += took;
                match path {
                    MessagePath::Ring => self.choice.answered(5, || self.now.get()),
                    MessagePath::Cma => {
                        self.copies += 1;
                        self.choice.copied(8, took);
                    }
                }
            }
        }
    }

    #[test]
    fn the_faster_path_is_taken_nearly_always() {
        for (answer, copies) in [(300, 0..200), (5000, 9800..10_000)] {
            let mut link = Link::new();
            link.run(10_000, |_| Duration::from_nanos(answer));
            assert!(copies.contains(&link.copies), "{answer}: {}", link.copies);
        }
    }

    /// A peer that polls for a short time and then computes for long costs a small share more than
    /// copies alone.
    #[test]
    fn a_peer_that_computes_now_and_then_costs_little() {
        const POLLS: Duration = Duration::from_micros(200);
        const ALL: Duration = Duration::from_millis(5);
        const MANY: usize = 400_000;

        let mut link = Link::new();
        let begun = link.now.get();
        link.run(MANY, |now| {
            let at = Duration::from_nanos((now - begun).as_nanos() as u64 % ALL.as_nanos() as u64);
            let answer = Duration::from_nanos(300);
            match at < POLLS {
                true => answer,
                false => ALL - at + answer,
            }
        });
        let by_copies = COPY * MANY as u32;
        assert!(link.waited < by_copies * 11 / 10, "{:?}", link.waited);
    }

    /// While the answer to a part does not come, operations are copies; a part whose answer never
    /// comes is forgotten.
    #[test]
    fn nothing_piles_up_behind_a_part_that_waits() {
        let mut link = Link::new();
        link.run(100, |_| Duration::from_nanos(300));
        let mut messages = 0;
        for _ in 0..1000 {
            messages += usize::from(choose(&mut link) == MessagePath::Ring);
        }
        assert!(messages <= 120, "{messages}");
        link.now.set(link.now.get() + LOST * 2);
        assert_eq!(choose(&mut link), MessagePath::Cma);
        link.now.set(link.now.get() + LOST * 100);
        for _ in 0..LOOK_OF {
            choose(&mut link);
        }
        let again = (0..10).filter(|_| choose(&mut link) == MessagePath::Ring);
        assert!(again.count() > 0);

        fn choose(link: &mut Link) -> MessagePath {
            link.now.set(link.now.get() + Duration::from_micros(1));
            link.choice.choose(8, 5, 0, || link.now.get())
        }
    }

    /// A read is not timed, and takes the way that is the faster one for writes.
    #[test]
    fn reads_follow_the_writes() {
        let mut link = Link::new();
        let read = |link: &mut Link| link.choice.choose_for_read(8, || link.now.get());
        for _ in 0..1000 {
            assert_eq!(read(&mut link), MessagePath::Cma);
        }
        assert!(link.choice.timed.is_none());
        link.run(100, |_| Duration::from_nanos(300));
        assert_eq!(read(&mut link), MessagePath::Ring);
    }

    /// A message behind others of the link is not slow for that.
    #[test]
    fn a_message_shares_its_time_with_those_before_it() {
        let mut choice = ShortcutChoice::default();
        let now = Instant::now();
        for _ in 0..100 {
            if choice.choose(8, 1, 99, || now) == MessagePath::Ring {
                choice.answered(1, || now + Duration::from_micros(50));
            } else {
                choice.copied(8, COPY);
            }
        }
        let classes = choice.classes.unwrap();
        assert!(classes[0].prefers_messages);
    }

    #[test]
    fn each_length_has_a_class() {
        let classes = [0, 1, 127, 128, 255, 256, usize::MAX].map(class_of);
        assert_eq!(classes, [0, 0, 0, 1, 1, 2, CLASSES - 1]);
    }
}
