//! Messages that the endpoint could not send or receive, and that others rely on: they are tried
//! again. Each try is in a tick, so an endpoint that refuses all of them is not called for ever.

use std::time::{Duration, Instant};

use super::Engine;
use super::reports::{AwaitedReport, SentReport};
use crate::group_id::GroupId;

/// The time between two tries.
const RETRY_DELAY: Duration = Duration::from_millis(10);

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
    messages: Vec<RetriedMessage>,
    /// The time of the next try. `None`: the next tick.
    due: Option<Instant>,
    last_tick: Option<Instant>,
}

impl Retries {
    /// Has a message be tried again.
    pub(super) fn add(&mut self, message: RetriedMessage) {
        if self.messages.is_empty() {
            self.due = self.last_tick.map(|tick| tick + RETRY_DELAY);
        }
        self.messages.push(message);
    }

    /// The time of the next try, if there is one.
    pub(super) fn next(&self) -> Option<Instant> {
        match self.messages.is_empty() {
            true => None,
            false => self.due.or(self.last_tick),
        }
    }
}

impl Engine {
    /// Tries messages again whose time it is.
    pub(super) fn retry(&mut self, now: Instant) {
        self.retries.last_tick = Some(now);
        if self.retries.due.is_some_and(|due| now < due) {
            return;
        }
        for message in std::mem::take(&mut self.retries.messages) {
            match message {
                RetriedMessage::Report(report) => self.report(report),
                RetriedMessage::Alarm(awaited) => self.await_report_again(awaited),
                RetriedMessage::Discard(group) => self.discard(group),
                RetriedMessage::AnyProbe => self.await_probe(),
            }
        }
    }
}
