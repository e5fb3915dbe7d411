//! The end of a run: all that is there is taken out, all that is open ends, all that was counted is
//! right.

use super::*;

impl MessageRun<'_> {
    /// Takes back what is still posted; after that there is nothing to be seen.
    pub(super) fn end_receives(&mut self) -> Result<(), Wrong> {
        for at in 0..self.nodes.len() {
            for place in 0..self.nodes[at].posted.len() {
                let posted = &self.nodes[at].posted[place];
                if self.nodes[at].end.is_some() && !posted.over && posted.cancellable {
                    self.cancel(at, place)?;
                }
            }
        }
        self.until("receives do not end", |run| {
            let mut open = run.nodes.iter().filter(|live| live.end.is_some());
            Ok(open.all(|live| live.posted.iter().all(|posted| posted.over)))
        })?;
        self.settle()?;
        for live in &self.nodes {
            let Some(end) = &live.end else { continue };
            let (ok, errors) = end.rx.counts();
            if (CompletionCounts { ok, errors }) != live.received {
                let seen = live.received;
                return Err(format!("counted {ok} and {errors} receives, seen {seen:?}"));
            }
        }
        Ok(())
    }

    /// Drops the claimed messages and the unexpected ones.
    pub(super) fn take_all_out(&mut self) -> Result<(), Wrong> {
        for at in 0..self.nodes.len() {
            if self.nodes[at].end.is_none() {
                continue;
            }
            while !self.nodes[at].claims.is_empty() {
                self.claimed(at, 0, None)?;
            }
            for tagged in [false, true] {
                let wants = Wants {
                    tagged,
                    from: None,
                    tag: 0,
                    ignore: u64::MAX,
                };
                loop {
                    let before = self.nodes[at].history.events.len();
                    if !self.probe(at, wants, ProbeAction::Discard)? {
                        // That there is none yet says nothing, and there are many of these.
                        self.nodes[at].history.events.remove(before);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Of each open endpoint, how many sends were counted and how many there were.
    pub(super) fn counted(&self) -> Result<Vec<(u64, u64)>, Wrong> {
        let open = self
            .nodes
            .iter()
            .filter_map(|live| Some((live, live.end.as_ref()?)));
        open.map(|(live, end)| {
            let (ok, errors) = end.tx.counts();
            let all = live.sends.len() as u64;
            match ok + errors > all || errors < live.sent.errors || ok < live.sent.ok {
                true => Err(format!(
                    "{ok} and {errors} sends are counted of {all}, seen {:?}",
                    live.sent
                )),
                false => Ok((ok + errors, all)),
            }
        })
        .collect()
    }

    /// Messages that an endpoint must see.
    pub(super) fn due(&self, at: NodeNumber) -> usize {
        let history = &self.nodes[at].history;
        match history.closed {
            true => 0,
            false => history.messages.iter().filter(|m| !m.may_be_lost).count(),
        }
    }

    pub(super) fn may_miss(&self, at: NodeNumber) -> bool {
        let history = &self.nodes[at].history;
        !history.closed && history.messages.iter().any(|m| m.may_be_lost)
    }

    /// Messages that it has seen: received or dropped.
    pub(super) fn seen(&self, at: NodeNumber) -> usize {
        let live = &self.nodes[at];
        let outcomes = live.history.receives.iter().flat_map(|r| &r.outcomes);
        let received = outcomes
            .filter(|o| matches!(o, ReceiveOutcome::Message { .. }))
            .count();
        let dropped = live.history.events.iter().filter(|event| {
            matches!(
                event,
                ReceiverEvent::Probed {
                    fate: ProbeFate::Dropped,
                    found: Some(_),
                    ..
                } | ReceiverEvent::Claimed {
                    receive: None,
                    found: Some(_),
                    ..
                }
            )
        });
        received + dropped.count()
    }

    /// Operations that are still open, in words.
    pub(super) fn state(&self) -> String {
        let mut text = String::new();
        for (at, live) in self.nodes.iter().enumerate() {
            let Some(end) = &live.end else { continue };
            text += &format!(
                "\nrank {} (node {at}): {} of {} messages seen; {} sends, counted {:?}; open:",
                live.rank,
                self.seen(at),
                self.due(at),
                live.sends.len(),
                end.tx.counts(),
            );
            for (context, send) in &live.sends {
                let send = &self.sends[*send];
                if !send.done && !send.quiet {
                    let message = &self.nodes[send.to].history.messages[send.message];
                    text += &format!(" send {context} {message:?}");
                }
            }
            for op in live.ops.values().map(|op| &self.ops[*op]) {
                if op.succeeded.is_none() || (op.data.is_some() && !op.noticed) {
                    text += &format!(" {} ({:?})", op.in_words(), op.succeeded);
                }
            }
            for posted in live.posted.iter().filter(|posted| !posted.over) {
                let receive = &live.history.receives[live.receives[&posted.context]];
                text += &format!(" receive {} {receive:?}", posted.context);
            }
        }
        text
    }
}
