//! The choice between a copy by this side and messages, for operations that both can carry out.
//!
//! A copy takes a system call. A peer that polls answers a short message sooner than that, and one
//! that computes answers much later. So the link times both, for reads and writes and each power of
//! two of length. The time of a message that waits for long is lost, so copies follow for many
//! times as long: a peer that computes now and then costs a small share of the time at most.

use std::time::{Duration, Instant};

use ferrofabric_contracts::types::RmaKind;

use crate::paths::{Estimate, MessagePath, Schedule};

/// The first class has operations of up to 127 bytes; each other one has a power of two.
const FIRST_CLASS: u32 = 6;
/// The last class has all longer ones, too. Reads and writes have classes of their own.
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
/// Most messages that are timed together, where several are under way at once.
const RUN: u32 = 32;
/// The messages of a run have fewer bytes than this together, or are as few as the least run has.
const RUN_BYTES: usize = 512 << 10;
const LEAST_RUN: u32 = 4;

/// The state of the choice.
#[derive(Default)]
pub(super) struct ShortcutChoice {
    classes: Option<Box<[ClassChoice; 2 * CLASSES]>>,
    timed: Option<TimedRun>,
    /// Copies until then.
    copies_until: Option<Instant>,
    /// Some part has waited for long.
    has_waited: bool,
    operations: u32,
}

#[derive(Clone, Copy, Default)]
struct ClassChoice {
    /// The times in nanoseconds.
    by_path: [Estimate; 2],
    schedule: Schedule,
    prefers_messages: bool,
}

/// The answer to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartAnswer {
    /// `DELIVERED` for the message with this id.
    Delivered(u32),
    /// The reply with this tag.
    Reply(u64),
}

/// Parts that went as messages, one after the other, and whose answers are awaited.
#[derive(Clone, Copy)]
struct TimedRun {
    first: PartAnswer,
    last: PartAnswer,
    class: usize,
    since: Instant,
    /// Messages of the link that were on their way before. Of reads: other replies since.
    beside: u32,
    /// Messages of the run, whose last one is fixed as soon as the first has its answer.
    messages: u32,
    is_begun: bool,
    /// Messages of the class since the run began.
    followed_by: u32,
    /// This side was behind meanwhile, so the answer may have come before it was seen.
    was_behind: bool,
}

impl TimedRun {
    /// The messages that share the time.
    fn sharing(&self) -> u32 {
        let own = if self.is_begun { self.messages } else { 1 };
        self.beside.saturating_add(own)
    }
}

fn class_of(kind: RmaKind, len: usize) -> usize {
    let class = len.max(1).ilog2().saturating_sub(FIRST_CLASS) as usize;
    let first = match kind {
        RmaKind::Read => 0,
        RmaKind::Write => CLASSES,
    };
    first + class.min(CLASSES - 1)
}

impl ShortcutChoice {
    /// Whether to look for answers now. Each look at a slot that the peer will write to costs the
    /// peer a little, and only a short run needs an exact time.
    #[inline]
    pub(super) fn looks(&self) -> bool {
        let prefers_messages = |timed: &TimedRun| {
            (self.classes.as_deref()).is_some_and(|of| of[timed.class].prefers_messages)
        };
        self.operations % LOOK_OF == 0 || !self.timed.as_ref().is_some_and(prefers_messages)
    }

    /// Whether the time is measured by this answer.
    pub(super) fn awaits(&self, answer: PartAnswer) -> bool {
        (self.timed).is_some_and(|timed| [timed.first, timed.last].contains(&answer))
    }

    /// The path of an operation of `len` bytes. If it goes as messages, this is the answer to the
    /// first of them, beside as many messages on their way that have such an answer. `behind`: so
    /// many messages and answers of the peer have come and are not taken.
    pub(super) fn choose(
        &mut self,
        (kind, len): (RmaKind, usize),
        (answer, on_their_way): (PartAnswer, usize),
        behind: usize,
        clock: impl Fn() -> Instant,
    ) -> MessagePath {
        self.operations = self.operations.wrapping_add(1);
        if self.waits(behind != 0, &clock) {
            return MessagePath::Cma;
        }
        let class = class_of(kind, len);
        let run = (RUN_BYTES / len.max(1)).clamp(LEAST_RUN as usize, RUN as usize) as u32;
        let is_tried = (self.timed).is_some_and(|t| t.class == class && t.followed_by < 2 * run);
        let choice = &mut self.classes.get_or_insert_with(no_classes)[class];
        let path = match choice.prefers_messages {
            // A copy would delay the sight of the answers.
            false if is_tried => MessagePath::Ring,
            true => choice.schedule.choose(MessagePath::Ring),
            false => choice.schedule.choose(MessagePath::Cma),
        };
        if path == MessagePath::Ring {
            self.follow((class, run), (answer, on_their_way), behind, clock);
        }
        path
    }

    /// An operation goes as messages.
    fn follow(
        &mut self,
        (class, run): (usize, u32),
        (answer, on_their_way): (PartAnswer, usize),
        behind: usize,
        clock: impl Fn() -> Instant,
    ) {
        match &mut self.timed {
            None => {
                self.timed = Some(TimedRun {
                    first: answer,
                    last: answer,
                    class,
                    since: clock(),
                    beside: on_their_way.saturating_sub(behind) as u32,
                    messages: 1,
                    is_begun: false,
                    followed_by: 0,
                    was_behind: behind != 0,
                });
            }
            Some(timed) if timed.class == class => {
                timed.followed_by = timed.followed_by.saturating_add(1);
                // A message that did not go has the next one's answer.
                if !timed.is_begun && timed.messages < run && timed.last != answer {
                    timed.last = answer;
                    timed.messages += 1;
                }
            }
            Some(_) => {}
        }
    }

    /// Whether messages would wait for a peer that does not poll, as far as is known.
    fn waits(&mut self, is_behind: bool, clock: &impl Fn() -> Instant) -> bool {
        if let Some(until) = self.copies_until {
            if clock() < until {
                return true;
            }
            self.copies_until = None;
        }
        let Some(timed) = &mut self.timed else {
            return false;
        };
        timed.was_behind |= is_behind;
        let timed = *timed;
        if self.operations % LOOK_OF != 0 {
            return false;
        }
        let now = clock();
        let waited = now.saturating_duration_since(timed.since);
        if waited > LOST {
            self.timed = None;
            self.has_waited(now, waited);
        } else if waited > self.patience(&timed) && !is_behind {
            // Until the answer: the next operation looks again.
            self.operations = self.operations.wrapping_sub(1);
        } else {
            return false;
        }
        true
    }

    /// A part has waited for so long. The first time says little: a program prepares its work.
    fn has_waited(&mut self, now: Instant, waited: Duration) {
        let times = match std::mem::replace(&mut self.has_waited, true) {
            true => COPIES_FOLLOW,
            false => 1,
        };
        self.copies_until = Some(now + waited * times);
    }

    /// The time after which a part counts as one that waits.
    fn patience(&self, timed: &TimedRun) -> Duration {
        let copy = |classes: &[ClassChoice; 2 * CLASSES]| {
            classes[timed.class].by_path[MessagePath::Cma as usize].cost()
        };
        let copy = self.classes.as_deref().map_or(0, copy);
        let copies = Duration::from_nanos(copy.into()) * LONG_WAIT;
        copies.max(LEAST_WAIT).saturating_mul(timed.sharing())
    }

    /// A copy took so long.
    pub(super) fn copied(&mut self, (kind, len): (RmaKind, usize), took: Duration) {
        self.learn(class_of(kind, len), MessagePath::Cma, took);
    }

    /// An answer has come.
    pub(super) fn answered(&mut self, answer: PartAnswer, clock: impl Fn() -> Instant) {
        let Some(timed) = &mut self.timed else {
            return;
        };
        if !timed.is_begun && answer == timed.first {
            timed.is_begun = true;
        }
        if !(timed.is_begun && answer == timed.last) {
            let is_read = matches!(answer, PartAnswer::Reply(_));
            timed.beside += u32::from(is_read && !timed.is_begun);
            return;
        }
        let timed = *timed;
        self.timed = None;
        let now = clock();
        let took = now.saturating_duration_since(timed.since);
        if took > self.patience(&timed) {
            if timed.was_behind {
                return;
            }
            self.has_waited(now, took);
        }
        self.learn(timed.class, MessagePath::Ring, took / timed.sharing());
    }

    fn learn(&mut self, class: usize, path: MessagePath, took: Duration) {
        let choice = &mut self.classes.get_or_insert_with(no_classes)[class];
        let took = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        choice.by_path[path as usize].learn(took.max(1));
        let [message, copy] = &choice.by_path;
        // Messages cost the peer time, too.
        let prefers_messages =
            message.is_known() && copy.is_known() && message.cost() < copy.cost() / 16 * 15;
        if prefers_messages != choice.prefers_messages {
            choice.prefers_messages = prefers_messages;
            choice.schedule.start_anew();
        }
    }
}

fn no_classes() -> Box<[ClassChoice; 2 * CLASSES]> {
    Box::new([ClassChoice::default(); 2 * CLASSES])
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;

    use super::*;

    const COPY: Duration = Duration::from_nanos(2500);
    const WRITE: (RmaKind, usize) = (RmaKind::Write, 8);
    const ANSWER: PartAnswer = PartAnswer::Delivered(5);

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
                let path = choose(self);
                let took = match path {
                    MessagePath::Ring => answer(self.now.get()),
                    MessagePath::Cma => COPY,
                };
                self.now.set(self.now.get() + took);
                self.waited += took;
                match path {
                    MessagePath::Ring => self.choice.answered(ANSWER, || self.now.get()),
                    MessagePath::Cma => {
                        self.copies += 1;
                        self.choice.copied(WRITE, took);
                    }
                }
            }
        }
    }

    fn choose(link: &mut Link) -> MessagePath {
        let now = || link.now.get();
        link.choice.choose(WRITE, (ANSWER, 0), 0, now)
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
            messages += usize::from(choose_later(&mut link) == MessagePath::Ring);
        }
        assert!(messages <= 120, "{messages}");
        link.now.set(link.now.get() + LOST * 2);
        assert_eq!(choose_later(&mut link), MessagePath::Cma);
        link.now.set(link.now.get() + LOST * 100);
        for _ in 0..LOOK_OF {
            choose_later(&mut link);
        }
        let again = (0..10).filter(|_| choose_later(&mut link) == MessagePath::Ring);
        assert!(again.count() > 0);

        fn choose_later(link: &mut Link) -> MessagePath {
            link.now.set(link.now.get() + Duration::from_micros(1));
            choose(link)
        }
    }

    /// Operations of an application that looks for completions only when a window of them is under
    /// way. The peer takes `serves` for each message. Returns the number of copies.
    fn stream(kind: RmaKind, len: usize, copy: Duration, serves: Duration, window: usize) -> u32 {
        const POST: Duration = Duration::from_nanos(200);

        let mut choice = ShortcutChoice::default();
        let now = Cell::new(Instant::now());
        let mut answers = VecDeque::new();
        let mut last_at = now.get();
        let mut copies = 0;
        for number in 0..10_000 {
            let seen = (answers.iter()).take_while(|&&(_, at)| at <= now.get());
            for &(answer, _) in seen {
                if choice.awaits(answer) {
                    choice.answered(answer, || now.get());
                }
            }
            let behind = answers.iter().filter(|&&(_, at)| at <= now.get()).count();
            let answer = PartAnswer::Delivered(number);
            let beside = answers.len();
            match choice.choose((kind, len), (answer, beside), behind, || now.get()) {
                MessagePath::Ring => {
                    last_at = last_at.max(now.get() + POST) + serves;
                    answers.push_back((answer, last_at));
                    now.set(now.get() + POST);
                }
                MessagePath::Cma => {
                    copies += 1;
                    now.set(now.get() + copy);
                    choice.copied((kind, len), copy);
                }
            }
            if answers.len() == window {
                now.set(now.get().max(answers[0].1));
                let there = answers.iter().take_while(|(_, at)| *at <= now.get());
                for (answer, _) in answers.drain(..there.count()).collect::<Vec<_>>() {
                    choice.answered(answer, || now.get());
                }
            }
        }
        copies
    }

    /// Streams go the way that has the higher rate, though one message takes longer than one copy.
    #[test]
    fn streams_go_the_way_of_the_higher_rate() {
        const SHORT: Duration = Duration::from_nanos(1500);
        const LONG: Duration = Duration::from_nanos(6500);

        for window in [8, 64, 1000] {
            let copies = stream(RmaKind::Write, 8, SHORT, Duration::from_nanos(300), window);
            assert!(copies < 300, "short {window}: {copies}");
            let copies = stream(RmaKind::Write, 8, SHORT, Duration::from_nanos(1800), window);
            assert!(copies > 9000, "slow {window}: {copies}");
        }
        for (serves, expected) in [(5300, 0..1000), (7000, 9000..10_000)] {
            let serves = Duration::from_nanos(serves);
            let copies = stream(RmaKind::Read, 65_536, LONG, serves, 16);
            assert!(expected.contains(&copies), "{serves:?}: {copies}");
        }
    }

    /// The replies that come before that of a read share its time.
    #[test]
    fn a_read_shares_its_time_with_those_before_it() {
        let mut choice = ShortcutChoice::default();
        let now = Instant::now();
        let read = (RmaKind::Read, 8);
        for _ in 0..100 {
            let own = PartAnswer::Reply(100);
            if choice.choose(read, (own, 0), 0, || now) == MessagePath::Ring {
                for reply in 1..=100 {
                    choice.answered(PartAnswer::Reply(reply), || now + Duration::from_micros(50));
                }
            } else {
                choice.copied(read, COPY);
            }
        }
        let classes = choice.classes.unwrap();
        assert!(classes[class_of(RmaKind::Read, 8)].prefers_messages);
        assert!(!classes[class_of(RmaKind::Write, 8)].prefers_messages);
    }

    /// Answers that this side has not taken are no sign of a peer that waits.
    #[test]
    fn a_side_that_is_behind_does_not_blame_its_peer() {
        let mut link = Link::new();
        link.run(100, |_| Duration::from_nanos(300));
        for is_behind in [true, false] {
            link.now.set(link.now.get() + LEAST_WAIT * 2);
            let paths = (0..2 * LOOK_OF).map(|_| {
                let now = || link.now.get();
                link.choice
                    .choose(WRITE, (ANSWER, 0), usize::from(is_behind), now)
            });
            let copies = paths.filter(|path| *path == MessagePath::Cma).count();
            assert_eq!(copies > RARE, !is_behind, "{copies}");
        }

        /// Copies among messages that try the other path.
        const RARE: usize = 4;
    }

    /// A message behind others of the link is not slow for that.
    #[test]
    fn a_message_shares_its_time_with_those_before_it() {
        let mut choice = ShortcutChoice::default();
        let now = Instant::now();
        for _ in 0..100 {
            if choice.choose(WRITE, (ANSWER, 99), 0, || now) == MessagePath::Ring {
                choice.answered(ANSWER, || now + Duration::from_micros(50));
            } else {
                choice.copied(WRITE, COPY);
            }
        }
        let classes = choice.classes.unwrap();
        assert!(classes[class_of(RmaKind::Write, 8)].prefers_messages);
    }

    #[test]
    fn each_length_has_a_class() {
        let classes =
            [0, 1, 127, 128, 255, 256, usize::MAX].map(|len| class_of(RmaKind::Read, len));
        assert_eq!(classes, [0, 0, 0, 1, 1, 2, CLASSES - 1]);
    }
}
