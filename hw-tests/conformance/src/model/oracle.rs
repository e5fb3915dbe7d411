//! Which outcomes are allowed: a plain sequential matcher, and a search for an order of arrivals
//! under which it does what was seen.
//!
//! The calls and reads of a receiver have one order; the arrivals in between have none. Messages of
//! one sender arrive in the order in which they were sent (`FI_ORDER_SAS`, fi_endpoint(3)), after
//! they were sent; those of different senders in any order. Each arrival takes the receive that was
//! posted first among those that match, each receive takes the message that arrived first
//! (fi_msg(3), fi_tagged(3)).

pub mod atomics;
mod elements;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use ferrofabric_contracts::types::{FiAddr, MsgKind};

pub(crate) use elements::elements;

use super::history::{
    MessageFacts, ProbeFate, ReceiveHistory, ReceiveOutcome, ReceiverEvent, ReceiverHistory,
    SentMessage,
};

/// States that a search looks at, at most.
const MAX_STATES: usize = 200_000;

/// Left of a multi-receive buffer, below this it takes no more (`FI_OPT_MIN_MULTI_RECV`), in bytes.
const MIN_MULTI_RECV: usize = 64;

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OracleVerdict {
    /// There is an order of arrivals that explains everything.
    Allowed,
    /// There is none; this is how far the best one went.
    Forbidden(String),
    /// It would take too long to find out.
    Undecided,
}

/// Whether what a receiver saw is allowed.
pub fn judge(receiver: &ReceiverHistory) -> OracleVerdict {
    let senders = receiver.messages.iter().map(|m| m.from + 1).max();
    let mut by_sender = vec![Vec::new(); senders.unwrap_or(0)];
    for (at, message) in receiver.messages.iter().enumerate() {
        by_sender[message.from].push(at);
    }
    let mut sent_at = vec![usize::MAX; receiver.messages.len()];
    let mut nodes = by_sender.len();
    for (at, event) in receiver.events.iter().enumerate() {
        match event {
            ReceiverEvent::Sent(message) => sent_at[*message] = at,
            ReceiverEvent::Inserted(node, _)
            | ReceiverEvent::Removed(node)
            | ReceiverEvent::SenderClosed(node) => {
                nodes = nodes.max(node + 1);
            }
            _ => {}
        }
    }
    let mut search = ArrivalSearch {
        receiver,
        by_sender,
        sent_at,
        failed: HashSet::new(),
        hasher: RandomState::new(),
        states: 0,
        furthest: 0,
        why: String::new(),
    };
    let start = MatcherState {
        time: 0,
        next: vec![0; search.by_sender.len()],
        addrs: vec![FiAddr::NOTAVAIL; nodes],
        closed: vec![false; nodes],
        posted: Vec::new(),
        waiting: Vec::new(),
        claimed: Vec::new(),
        used: vec![0; receiver.receives.len()],
    };
    if search.explains(&start) {
        return OracleVerdict::Allowed;
    }
    match search.states < MAX_STATES {
        true => OracleVerdict::Forbidden(search.why),
        false => OracleVerdict::Undecided,
    }
}

/// The matcher, at some point.
#[derive(Clone, Hash)]
struct MatcherState {
    /// Events that are over.
    time: usize,
    /// Of each sender, its messages that have arrived.
    next: Vec<usize>,
    /// The address of each sender in the address vector.
    addrs: Vec<FiAddr>,
    closed: Vec<bool>,
    posted: Vec<OpenReceive>,
    waiting: Vec<Waiting>,
    /// Claims, each with its message.
    claimed: Vec<(u64, Waiting)>,
    /// Of each receive, a bit for each outcome that is explained.
    used: Vec<u128>,
}

#[derive(Clone, Hash)]
struct OpenReceive {
    receive: usize,
    /// Bytes that messages have taken of a multi-receive.
    taken: usize,
}

#[derive(Clone, Hash)]
struct Waiting {
    message: usize,
    src: FiAddr,
}

struct ArrivalSearch<'a> {
    receiver: &'a ReceiverHistory,
    by_sender: Vec<Vec<usize>>,
    sent_at: Vec<usize>,
    failed: HashSet<u64>,
    hasher: RandomState,
    states: usize,
    furthest: usize,
    why: String,
}

/// Something that was seen does not follow.
type NextState = Result<MatcherState, String>;

impl ArrivalSearch<'_> {
    /// Whether what was seen from here on can follow.
    fn explains(&mut self, state: &MatcherState) -> bool {
        self.states += 1;
        if self.states >= MAX_STATES || !self.failed.insert(self.hasher.hash_one(state)) {
            return false;
        }
        let forward = match self.receiver.events.get(state.time) {
            None => match self.rest(state) {
                None => return true,
                Some(why) => Err(why),
            },
            Some(event) => self.happens(state, event),
        };
        match forward {
            Ok(next) => {
                if self.explains(&next) {
                    return true;
                }
            }
            Err(why) => {
                if state.time >= self.furthest {
                    self.furthest = state.time;
                    self.why = format!("event {}: {why}", state.time);
                }
            }
        }
        for sender in 0..self.by_sender.len() {
            let Some(&message) = self.by_sender[sender].get(state.next[sender]) else {
                continue;
            };
            if self.sent_at[message] >= state.time {
                continue;
            }
            let mut next = state.clone();
            next.next[sender] += 1;
            if self.receiver.messages[message].may_be_lost && self.explains(&next) {
                return true;
            }
            if let Ok(next) = self.arrives(next, message) {
                if self.explains(&next) {
                    return true;
                }
            }
        }
        for at in 0..state.waiting.len() {
            if self.receiver.messages[state.waiting[at].message].may_be_lost {
                let mut next = state.clone();
                next.waiting.remove(at);
                if self.explains(&next) {
                    return true;
                }
            }
        }
        false
    }

    /// The first unexplained fact at the end, if there is one.
    fn rest(&self, state: &MatcherState) -> Option<String> {
        if self.receiver.closed {
            return None;
        }
        for (sender, messages) in self.by_sender.iter().enumerate() {
            if let Some(&left) = messages.get(state.next[sender]) {
                return Some(format!("never came: {:?}", self.receiver.messages[left]));
            }
        }
        if let Some(left) = state.waiting.first() {
            let left = &self.receiver.messages[left.message];
            return Some(format!("came and was not seen: {left:?}"));
        }
        for posted in &state.posted {
            let receive = &self.receiver.receives[posted.receive];
            if !receive.outcomes.contains(&ReceiveOutcome::Broken) {
                return Some(format!("still posted: {receive:?}"));
            }
        }
        None
    }

    fn happens(&self, state: &MatcherState, event: &ReceiverEvent) -> NextState {
        let mut next = state.clone();
        next.time += 1;
        match event {
            ReceiverEvent::Sent(_) => Ok(next),
            ReceiverEvent::Delivered(message) => {
                let claimed = next.claimed.iter().map(|(_, waiting)| waiting);
                let mut here = next.waiting.iter().chain(claimed);
                let came = self.by_sender[self.receiver.messages[*message].from]
                    .iter()
                    .take_while(|m| *m <= message)
                    .count();
                let sender = self.receiver.messages[*message].from;
                let is_taken = next.next[sender] >= came && here.all(|w| w.message != *message);
                match is_taken {
                    true => Ok(next),
                    false => Err(format!(
                        "it is delivered and nobody has it: {:?}",
                        self.receiver.messages[*message]
                    )),
                }
            }
            ReceiverEvent::Posted(receive) => self.posts(next, *receive),
            ReceiverEvent::Cancel { receive, found } => {
                let at = next.posted.iter().position(|p| p.receive == *receive);
                let outcomes = &self.receiver.receives[*receive].outcomes;
                let broken = outcomes.contains(&ReceiveOutcome::Broken);
                // The end says it where the call does not.
                let cancelled = || outcomes.contains(&ReceiveOutcome::Cancelled);
                let found = found.unwrap_or_else(cancelled);
                match (at, found) {
                    (Some(at), true) => drop(next.posted.remove(at)),
                    (Some(at), false) if broken => drop(next.posted.remove(at)),
                    (None, false) => {}
                    (Some(_), false) => return Err("cancel says it is not posted".into()),
                    (None, true) => return Err("cancel takes back what has matched".into()),
                }
                Ok(next)
            }
            ReceiverEvent::Probed {
                kind,
                src,
                tag,
                ignore,
                fate,
                found,
            } => {
                let at = next.waiting.iter().position(|w| {
                    let message = &self.receiver.messages[w.message];
                    message.kind == *kind && takes((*src, *tag, *ignore), message, w.src)
                });
                let (at, told) = match (at, found) {
                    (None, None) => return Ok(next),
                    (Some(at), Some(told)) => (at, told),
                    (None, Some(told)) => return Err(format!("a probe finds {told:?}")),
                    (Some(at), None) => {
                        let message = &self.receiver.messages[next.waiting[at].message];
                        return Err(format!("a probe does not find {message:?}"));
                    }
                };
                let waiting = next.waiting[at].clone();
                let message = &self.receiver.messages[waiting.message];
                if !tells(told, message, waiting.src) {
                    return Err(format!("a probe finds {told:?}, there is {message:?}"));
                }
                match fate {
                    ProbeFate::Stays => {}
                    ProbeFate::Dropped => drop(next.waiting.remove(at)),
                    ProbeFate::Claimed(claim) => {
                        next.waiting.remove(at);
                        next.claimed.push((*claim, waiting));
                    }
                }
                Ok(next)
            }
            ReceiverEvent::Claimed {
                claim,
                receive,
                found,
            } => {
                let at = next.claimed.iter().position(|(c, _)| c == claim);
                let at = at.ok_or("what is claimed is not there")?;
                let (_, waiting) = next.claimed.remove(at);
                let message = &self.receiver.messages[waiting.message];
                match (receive, found) {
                    (Some(receive), _) => self.matches(&mut next, *receive, 0, &waiting)?,
                    (None, Some(told)) if tells(told, message, waiting.src) => {}
                    (None, None) if message.may_be_lost => {}
                    _ => return Err(format!("a claim of {message:?} finds {found:?}")),
                }
                Ok(next)
            }
            ReceiverEvent::Completed { receive, outcome } => {
                let of = &self.receiver.receives[*receive];
                let is_message = matches!(of.outcomes[*outcome], ReceiveOutcome::Message { .. });
                match is_message && (next.used[*receive] >> outcome) & 1 == 0 {
                    true => Err(format!("it completes and has not matched: {of:?}")),
                    false => Ok(next),
                }
            }
            ReceiverEvent::Inserted(node, addr) => {
                next.addrs[*node] = *addr;
                self.resolves(next, *node, *addr)
            }
            ReceiverEvent::Removed(node) => {
                let addr = std::mem::replace(&mut next.addrs[*node], FiAddr::NOTAVAIL);
                let claimed = next.claimed.iter_mut().map(|(_, waiting)| waiting);
                for waiting in next.waiting.iter_mut().chain(claimed) {
                    if waiting.src == addr {
                        waiting.src = FiAddr::NOTAVAIL;
                    }
                }
                Ok(next)
            }
            ReceiverEvent::SenderClosed(node) => {
                next.closed[*node] = true;
                Ok(next)
            }
        }
    }

    /// A message comes in.
    fn arrives(&self, mut state: MatcherState, message: usize) -> NextState {
        let waiting = Waiting {
            message,
            src: state.addrs[self.receiver.messages[message].from],
        };
        match self.meets(&state, &waiting) {
            Some(at) => self.fills(&mut state, at, &waiting)?,
            None => state.waiting.push(waiting),
        }
        Ok(state)
    }

    /// The receive that a message goes to, by its place among those posted.
    fn meets(&self, state: &MatcherState, waiting: &Waiting) -> Option<usize> {
        let message = &self.receiver.messages[waiting.message];
        state.posted.iter().position(|posted| {
            let receive = &self.receiver.receives[posted.receive];
            // Nobody knows when exactly it failed after its sender had closed.
            let failed =
                state.closed[message.from] && receive.outcomes.contains(&ReceiveOutcome::Broken);
            receive.kind == message.kind
                && takes(selector(receive), message, waiting.src)
                && (!failed || message.may_be_lost)
        })
    }

    /// A message goes into a receive that is posted.
    fn fills(&self, state: &mut MatcherState, at: usize, waiting: &Waiting) -> Result<(), String> {
        let OpenReceive { receive, taken } = state.posted[at];
        let of = &self.receiver.receives[receive];
        self.matches(state, receive, taken, waiting)?;
        let len = self.receiver.messages[waiting.message].len;
        let left = (of.room - taken).checked_sub(len);
        match left {
            Some(left) if of.multi && left >= MIN_MULTI_RECV => state.posted[at].taken += len,
            _ => drop(state.posted.remove(at)),
        }
        Ok(())
    }

    /// A receive takes a message: one of its completions must describe this message.
    fn matches(
        &self,
        state: &mut MatcherState,
        receive: usize,
        taken: usize,
        waiting: &Waiting,
    ) -> Result<(), String> {
        let of = &self.receiver.receives[receive];
        let message = &self.receiver.messages[waiting.message];
        let unused = |at: &usize| (state.used[receive] >> at) & 1 == 0;
        let whole = (0..of.outcomes.len())
            .filter(unused)
            .find(|&at| match &of.outcomes[at] {
                ReceiveOutcome::Message {
                    told,
                    truncated,
                    offset,
                } => {
                    *offset == taken
                        && *truncated == (message.len > of.room - taken)
                        && tells(told, message, waiting.src)
                }
                _ => false,
            });
        let broken = || {
            (0..of.outcomes.len())
                .filter(unused)
                .find(|&at| message.may_be_lost && of.outcomes[at] == ReceiveOutcome::Broken)
        };
        match whole.or_else(broken) {
            Some(at) => {
                state.used[receive] |= 1 << at;
                Ok(())
            }
            None if self.receiver.closed && of.outcomes.is_empty() => Ok(()),
            None if self.receiver.closed && of.multi => Ok(()),
            None => Err(format!("{message:?} goes to {of:?} at byte {taken}")),
        }
    }

    /// A receive is posted.
    fn posts(&self, mut state: MatcherState, receive: usize) -> NextState {
        state.posted.push(OpenReceive { receive, taken: 0 });
        let last = state.posted.len() - 1;
        let of = &self.receiver.receives[receive];
        while let Some(at) = state.waiting.iter().position(|w| {
            let message = &self.receiver.messages[w.message];
            message.kind == of.kind && takes(selector(of), message, w.src)
        }) {
            let waiting = state.waiting.remove(at);
            self.fills(&mut state, last, &waiting)?;
            if state.posted.len() == last {
                break;
            }
        }
        Ok(state)
    }

    /// Messages whose sender was unknown are that one's, and may meet receives that wait for it.
    fn resolves(&self, mut state: MatcherState, node: usize, addr: FiAddr) -> NextState {
        for (_, waiting) in &mut state.claimed {
            if self.receiver.messages[waiting.message].from == node {
                waiting.src = addr;
            }
        }
        let mut at = 0;
        while at < state.waiting.len() {
            let unknown = !state.waiting[at].src.is_some();
            if !unknown || self.receiver.messages[state.waiting[at].message].from != node {
                at += 1;
                continue;
            }
            state.waiting[at].src = addr;
            let waiting = state.waiting[at].clone();
            match self.meets(&state, &waiting) {
                Some(posted) => {
                    state.waiting.remove(at);
                    self.fills(&mut state, posted, &waiting)?;
                }
                None => at += 1,
            }
        }
        Ok(state)
    }
}

fn selector(receive: &ReceiveHistory) -> (FiAddr, u64, u64) {
    (receive.src, receive.tag, receive.ignore)
}

/// Whether a selector takes a message, which is from `src` as far as anybody knows.
fn takes((from, tag, ignore): (FiAddr, u64, u64), message: &SentMessage, src: FiAddr) -> bool {
    let sender = from == FiAddr::UNSPEC || (src.is_some() && from == src);
    let tag = message.kind == MsgKind::Msg || (tag ^ message.tag) & !ignore == 0;
    sender && tag
}

/// Whether a completion describes this message.
fn tells(told: &MessageFacts, message: &SentMessage, src: FiAddr) -> bool {
    told.src == src
        && (told.tag, told.len, told.data) == (message.tag, message.len, message.data)
        && told.number.is_none_or(|number| number == message.number)
}

#[cfg(test)]
mod tests;
