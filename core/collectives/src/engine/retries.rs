//! Messages that the endpoint could not send or receive, and that others rely on: they are tried
//! again. Each try is in a tick, so an endpoint that refuses all of them is not called for ever.

use std::time::{Duration, Instant};

use super::Engine;
use super::reports::{AwaitedReport, SentReport};
use crate::group_id::GroupId;

/// The time between two tries.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(10);

/// A message that is to be tried again.
pub(super) enum RetriedMessage {
    Report(SentReport),
    Alarm(AwaitedReport),
    Discard(GroupId),
    AnyProbe,
}

/// The messages that are to be tried again.
#[derive(Default)]
pub(super) struct Retries {
    messages: Vec<DueMessage>,
    last_tick: Option<Instant>,
}

struct DueMessage {
    message: RetriedMessage,
    /// `None`: in the next tick.
    at: Option<Instant>,
}

impl Retries {
    /// Has a message be tried again after a time.
    pub(super) fn add(&mut self, message: RetriedMessage, delay: Duration) {
        let at = self.last_tick.map(|tick| tick + delay);
        self.messages.push(DueMessage { message, at });
    }

    /// The time of the next try, if there is one.
    pub(super) fn next(&self) -> Option<Instant> {
        let times = self.messages.iter();
        times.filter_map(|due| due.at.or(self.last_tick)).min()
    }
}

impl Engine {
    /// Tries messages again whose time it is.
    pub(super) fn retry(&mut self, now: Instant) {
        self.retries.last_tick = Some(now);
        let messages = std::mem::take(&mut self.retries.messages);
        let is_due = |due: &DueMessage| due.at.is_none_or(|at| at <= now);
        let (due, later): (Vec<_>, _) = messages.into_iter().partition(is_due);
        self.retries.messages = later;
        for DueMessage { message, .. } in due {
            match message {
                RetriedMessage::Report(report) => self.report(report),
                RetriedMessage::Alarm(awaited) => self.try_alarm_again(awaited),
                RetriedMessage::Discard(group) => self.discard(group),
                RetriedMessage::AnyProbe => self.await_probe(),
            }
        }
    }
}
