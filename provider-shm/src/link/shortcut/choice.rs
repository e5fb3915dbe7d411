//! The choice between a copy by this side and messages, for operations that both can carry out.
//!
//! A copy takes a system call. A peer that polls answers a short message sooner than that, and one
//! that computes answers much later. So the link times both, for reads and writes and each power of
//! two of length. The time of a message that waits for long is lost, so copies follow for many
//! times as long: a peer that computes now and then costs a small share of the time at most.

#[cfg(test)]
mod tests;

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
/// A part without an answer for so long may be lost with its link, or was never sent. No wait
/// counts for longer: this side may not have looked.
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
    /// The last operation that is to go as messages, until the first of them has started.
    chosen: Option<ChosenPart>,
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

/// A part that is to go as a message.
#[derive(Clone, Copy)]
struct ChosenPart {
    class: usize,
    /// Most messages of a run of its class.
    run: u32,
    /// When it was chosen, unless a run is timed already.
    since: Option<Instant>,
    beside: u32,
    was_behind: bool,
}

/// Parts that went as messages, one after the other, and whose answers are awaited. The answers of
/// a run come in any order.
#[derive(Clone, Copy)]
struct TimedRun {
    first: AwaitedAnswer,
    last: AwaitedAnswer,
    class: usize,
    since: Instant,
    /// Older messages of the link that share the time: those on their way at the start; of reads,
    /// those whose replies have come since.
    beside: u32,
    /// Messages of the run. The first answer ends its growth.
    messages: u32,
    /// Messages of the class since the run began.
    followed_by: u32,
    /// The last time at which the peer was known to answer.
    alive_at: Instant,
    /// An answer has come after that.
    has_answered: bool,
    /// This side was behind meanwhile, so the answer may have come before it was seen.
    was_behind: bool,
}

/// An answer, and whether it has come.
#[derive(Clone, Copy)]
struct AwaitedAnswer {
    answer: PartAnswer,
    has_come: bool,
}

impl AwaitedAnswer {
    fn of(answer: PartAnswer) -> Self {
        Self {
            answer,
            has_come: false,
        }
    }

    /// An answer has come. Returns whether it is this one, for the first time.
    fn comes(&mut self, answer: PartAnswer) -> bool {
        let is_it = self.answer == answer && !self.has_come;
        self.has_come |= is_it;
        is_it
    }
}

impl TimedRun {
    /// Whether its last message is fixed.
    fn is_fixed(&self) -> bool {
        self.first.has_come || self.last.has_come
    }

    /// The messages that share the time.
    fn sharing(&self) -> u32 {
        let own = if self.is_fixed() { self.messages } else { 1 };
        self.beside.saturating_add(own)
    }
}

impl PartAnswer {
    /// Whether this is the reply to a request that is older than that of another reply. The upper
    /// half of a tag counts the requests of the endpoint.
    fn is_older_than(self, other: Self) -> bool {
        match (self, other) {
            (Self::Reply(one), Self::Reply(other)) => {
                ((one >> 32) as u32).wrapping_sub((other >> 32) as u32) > u32::MAX / 2
            }
            _ => false,
        }
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
    /// Whether to look for answers before the next operation. Each look at a slot that the peer
    /// will write to costs the peer a little, and only a short run needs an exact time.
    #[inline]
    pub(super) fn looks(&self) -> bool {
        let prefers_messages = |timed: &TimedRun| {
            (self.classes.as_deref()).is_some_and(|of| of[timed.class].prefers_messages)
        };
        self.operations % LOOK_OF == LOOK_OF - 1
            || !self.timed.as_ref().is_some_and(prefers_messages)
    }

    /// The path of an operation of `len` bytes, beside as many messages on their way whose answers
    /// are of the same kind. `behind`: so many messages and answers of the peer have come and are
    /// not taken.
    pub(super) fn choose(
        &mut self,
        (kind, len): (RmaKind, usize),
        on_their_way: usize,
        behind: usize,
        clock: impl Fn() -> Instant,
    ) -> MessagePath {
        self.operations = self.operations.wrapping_add(1);
        self.chosen = None;
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
            self.chosen = Some(ChosenPart {
                class,
                run,
                since: self.timed.is_none().then(clock),
                beside: on_their_way.saturating_sub(behind) as u32,
                was_behind: behind != 0,
            });
        }
        path
    }

    /// The operation that was chosen last waits in line, and is not timed.
    pub(super) fn waits_in_line(&mut self) {
        self.chosen = None;
    }

    /// The operation that was chosen last has started, if it goes as messages, and awaits this
    /// answer.
    pub(super) fn started(&mut self, answer: PartAnswer) {
        let Some(chosen) = self.chosen.take() else {
            return;
        };
        match (&mut self.timed, chosen.since) {
            (None, Some(since)) => {
                self.timed = Some(TimedRun {
                    first: AwaitedAnswer::of(answer),
                    last: AwaitedAnswer::of(answer),
                    class: chosen.class,
                    since,
                    beside: chosen.beside,
                    messages: 1,
                    followed_by: 0,
                    alive_at: since,
                    has_answered: false,
                    was_behind: chosen.was_behind,
                });
            }
            (Some(timed), _) if timed.class == chosen.class => {
                timed.followed_by = timed.followed_by.saturating_add(1);
                if !timed.is_fixed() && timed.messages < chosen.run {
                    timed.last = AwaitedAnswer::of(answer);
                    timed.messages += 1;
                }
            }
            _ => {}
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
        if self.operations % LOOK_OF != 0 {
            return false;
        }
        let now = clock();
        if std::mem::take(&mut timed.has_answered) {
            timed.alive_at = now;
        }
        let timed = *timed;
        let waited = now.saturating_duration_since(timed.alive_at);
        if waited > LOST {
            self.timed = None;
            self.has_waited(now, waited);
        } else if now.saturating_duration_since(timed.since) > LOST {
            // The peer answers others.
            self.timed = None;
            return false;
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
        self.copies_until = Some(now + waited.min(LOST) * times);
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
        timed.has_answered = true;
        let is_first = timed.first.comes(answer);
        let is_last = timed.last.comes(answer);
        if !(is_first || is_last) {
            timed.beside += u32::from(answer.is_older_than(timed.first.answer));
            return;
        }
        if !(timed.first.has_come && timed.last.has_come) {
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
            if took > LOST {
                return;
            }
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
