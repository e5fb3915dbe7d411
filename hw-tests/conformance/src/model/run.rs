//! Runs a program on a fabric, in one thread, and writes down what happened.

mod between;
mod completions;
mod finish;
mod one_sided;
mod one_sided_counters;
mod one_sided_finish;
mod operations;
mod regions;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{AvType, FiAddr, MrDesc, MsgKind, RecvOp, SendOp};

use super::history::{
    MessageFacts, NodeNumber, ProbeFate, ReceiveHistory, ReceiveOutcome, ReceiverEvent,
    ReceiverHistory, SentMessage,
};
use super::program::{MessageStep, ProbeAction, RankProgram, Wants};
use super::runner::{Runner, Wrong};
use crate::ends::{CompletionResult as Done, QueuedEndpoint, may_late_cancels_succeed};
use crate::fabric::Fabric;
use crate::memory::MessageMemory;
use one_sided::RunOneSided;
use one_sided_counters::OneSidedCounters;
use regions::RunRegion;

/// So long without a sign, everything that moves by itself has moved.
const QUIET: Duration = Duration::from_micros(500);
/// The time in which peers notice the end of a closed endpoint's operations.
const AFTERMATH: Duration = Duration::from_millis(300);
/// How often a send is tried that finds no room.
const TRIES: usize = 4;

pub use between::{LineStream, OtherProcess, Stream, run_between};

/// A run of a program, which records one history for each endpoint.
pub struct MessageRun<'a> {
    fabric: &'a Fabric,
    /// The attributes of the address vectors.
    av: AvAttr,
    /// The endpoint of each rank.
    current: Vec<NodeNumber>,
    nodes: Vec<RunNode>,
    sends: Vec<RunSend>,
    contexts: u64,
    /// Messages whose number was given out.
    messages: usize,
    /// The part of the ranks that is in this process, and the number of parts.
    share: (usize, usize),
    ops: Vec<RunOneSided>,
    /// The regions of each rank. They close after the endpoints.
    regions: Vec<Vec<RunRegion>>,
    /// CQ data that writes of the other process bring, with their length, and where.
    due_notices: Vec<(NodeNumber, (u64, usize))>,
    /// Endpoints count their peers' operations.
    counts_remote: bool,
}

struct RunNode {
    rank: usize,
    /// It is in another process.
    elsewhere: bool,
    name: NativeAddr,
    /// Gone once it is closed; its memory stays, for peers may still be reading it.
    end: Option<QueuedEndpoint>,
    peers: HashMap<NodeNumber, FiAddr>,
    /// Addresses that peers had before they were removed.
    stale: HashMap<NodeNumber, FiAddr>,
    history: ReceiverHistory,
    /// By the context of the operation.
    sends: HashMap<u64, usize>,
    receives: HashMap<u64, usize>,
    posted: Vec<RunReceive>,
    claims: Vec<Claim>,
    /// The completion of the last probe.
    probed: Option<Done>,
    probing: Option<u64>,
    sent: CompletionCounts,
    received: CompletionCounts,
    /// Of one-sided operations, if they are offered; none of an endpoint elsewhere.
    cntrs: Option<OneSidedCounters>,
    /// One-sided operations, by their context.
    ops: HashMap<u64, usize>,
    /// Those whose error was read.
    failed_ops: u64,
    /// CQ data of writes of the other process, with their length.
    notices: Vec<(u64, usize)>,
}

struct RunReceive {
    context: u64,
    memory: MessageMemory,
    /// It is more than one buffer.
    list: bool,
    /// Nothing more will come of it.
    over: bool,
    /// It is worth trying.
    cancellable: bool,
}

#[derive(Clone, Copy)]
struct Claim {
    context: u64,
    kind: MsgKind,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CompletionCounts {
    ok: u64,
    errors: u64,
}

struct RunSend {
    from: NodeNumber,
    to: NodeNumber,
    /// Its place among the receiver's messages.
    message: usize,
    memory: MessageMemory,
    kind: MsgKind,
    injected: bool,
    delivers: bool,
    quiet: bool,
    done: bool,
    /// Its address was removed while it was under way.
    removed: bool,
}

/// Runs a program.
///
/// # Errors
///
/// A violation that no order of arrivals explains: an operation that does not end, or ends twice,
/// or with wrong content.
pub fn run(fabric: &Fabric, program: &RankProgram) -> Result<Vec<ReceiverHistory>, Wrong> {
    let mut run = MessageRun::new(fabric, program);
    run.run(program)?;
    Ok(run.histories())
}

/// Whether this is an error of operations with a peer that has closed.
fn is_gone(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ECONNRESET
            | Errno::ESHUTDOWN
            | Errno::EHOSTUNREACH
            | Errno::EREMOTEIO
            | Errno::ECONNREFUSED
            | Errno::ECONNABORTED
            | Errno::ETIMEDOUT
    )
}

fn kind(tagged: bool) -> MsgKind {
    match tagged {
        true => MsgKind::Tagged,
        false => MsgKind::Msg,
    }
}

fn told(c: &Completion, len: usize, number: Option<usize>) -> MessageFacts {
    MessageFacts {
        src: c.src,
        tag: c.tag,
        len,
        data: c.flags.contains(Flags::REMOTE_CQ_DATA).then_some(c.data),
        number,
    }
}

/// The name of an endpoint in another process, until that says it.
const NOBODY: NativeAddr = NativeAddr {
    incarnation: 0,
    node: 0,
    shm: None,
    verbs: None,
};

impl<'a> MessageRun<'a> {
    fn new(fabric: &'a Fabric, program: &RankProgram) -> Self {
        let av_type = match program.table {
            true => AvType::Table,
            false => AvType::Map,
        };
        Self {
            fabric,
            av: AvAttr {
                av_type: Some(av_type),
                ..AvAttr::default()
            },
            current: Vec::new(),
            nodes: Vec::new(),
            sends: Vec::new(),
            contexts: 0,
            messages: 0,
            share: (0, 1),
            ops: Vec::new(),
            regions: Vec::new(),
            due_notices: Vec::new(),
            counts_remote: program.counts_remote,
        }
    }
}

impl Runner for MessageRun<'_> {
    type Step = MessageStep;

    fn current(&self) -> &[NodeNumber] {
        &self.current
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn open(&mut self, rank: usize) {
        let node = self.nodes.len();
        let (process, processes) = self.share;
        let elsewhere = rank % processes != process;
        if rank == self.regions.len() {
            self.open_regions(rank);
        }
        let domain = (!elsewhere).then(|| self.fabric.domain(rank));
        let counted = domain.filter(|_| self.has_one_sided());
        let cntrs = counted.map(|domain| OneSidedCounters::open(domain, self.counts_remote));
        let end = domain.map(|domain| {
            QueuedEndpoint::open_with(domain, &self.av, |config| {
                if let Some(cntrs) = &cntrs {
                    cntrs.bind(config);
                }
            })
        });
        // A close would wait for receives that the thread of the program posts later, or never.
        if let Some(end) = &end {
            end.endpoint.lose_undelivered();
        }
        self.nodes.push(RunNode {
            rank,
            elsewhere,
            name: end.as_ref().map_or(NOBODY, |end| end.endpoint.name()),
            end,
            peers: HashMap::new(),
            stale: HashMap::new(),
            history: ReceiverHistory {
                closed: elsewhere,
                ..ReceiverHistory::default()
            },
            sends: HashMap::new(),
            receives: HashMap::new(),
            posted: Vec::new(),
            claims: Vec::new(),
            probed: None,
            probing: None,
            sent: CompletionCounts::default(),
            received: CompletionCounts::default(),
            cntrs,
            ops: HashMap::new(),
            failed_ops: 0,
            notices: Vec::new(),
        });
        if rank < self.current.len() {
            self.current[rank] = node;
        } else {
            self.current.push(node);
        }
    }

    fn insert(&mut self, at: usize, peer: usize) {
        let (at, peer) = (self.current[at], self.current[peer]);
        let Some(end) = &self.nodes[at].end else {
            return;
        };
        let addr = end.av.insert(&self.nodes[peer].name.to_bytes()).unwrap();
        let live = &mut self.nodes[at];
        if live.peers.insert(peer, addr).is_none() {
            live.history
                .events
                .push(ReceiverEvent::Inserted(peer, addr));
        }
    }

    fn remove(&mut self, at: NodeNumber, peer: NodeNumber) {
        let live = &mut self.nodes[at];
        let (Some(end), Some(addr)) = (&live.end, live.peers.remove(&peer)) else {
            return;
        };
        end.av.remove(addr).unwrap();
        live.stale.insert(peer, addr);
        live.history.events.push(ReceiverEvent::Removed(peer));
        for send in &mut self.sends {
            send.removed |= send.from == at && send.to == peer && !send.done;
        }
        self.is_removed(at, peer);
    }

    fn warm_up(&mut self) -> Result<(), Wrong> {
        let ranks = self.current.len() as u8;
        for at in 0..ranks {
            for _ in 0..ranks {
                let wants = Wants {
                    tagged: false,
                    from: None,
                    tag: 0,
                    ignore: 0,
                };
                self.receive(at, wants, 0, 1, Flags::empty())?;
            }
        }
        for from in 0..ranks {
            for to in 0..ranks {
                self.send(&MessageStep::Send {
                    from,
                    to,
                    tagged: false,
                    tag: 0,
                    size: 0,
                    inject: false,
                    data: true,
                    quiet: false,
                    pieces: 1,
                    deliver: false,
                    fence: false,
                })?;
            }
        }
        self.until("the ranks do not connect", |run| {
            let mut receives = run.nodes.iter().flat_map(|live| &live.posted);
            Ok(receives.all(|posted| posted.over) && run.is_sent())
        })
    }

    fn step(&mut self, step: &MessageStep) -> Result<(), Wrong> {
        match *step {
            MessageStep::Send { .. } => self.send(step),
            MessageStep::OneSided(ref op) => self.one_sided(op),
            MessageStep::Atomic(ref op) => self.atomics(op),
            MessageStep::Region {
                at,
                size,
                read,
                write,
                is_virtual,
            } => {
                let rights = [(read, Flags::REMOTE_READ), (write, Flags::REMOTE_WRITE)];
                let granted = rights.iter().filter(|(granted, _)| *granted);
                let rights = granted.fold(Flags::empty(), |all, (_, right)| all | *right);
                self.register(self.rank(at), size, rights, is_virtual)
            }
            MessageStep::CloseRegion { at, which } => self.close_region(self.rank(at), which),
            MessageStep::Receive {
                at,
                wants,
                room,
                pieces,
            } => self.receive(at, wants, room, pieces, Flags::empty()),
            MessageStep::Multi { at, wants, room } => {
                self.receive(at, wants, room, 1, Flags::MULTI_RECV)
            }
            MessageStep::Probe { at, wants, and } => {
                self.probe(self.node(at), wants, and).map(drop)
            }
            MessageStep::Claimed { at, which, room } => self.claimed(self.node(at), which, room),
            MessageStep::Cancel { at, which } => {
                let at = self.node(at);
                let open = self.nodes[at].posted.iter().enumerate();
                let mut open = open.filter(|(_, p)| !p.over && p.cancellable);
                match open.nth(which).map(|(place, _)| place) {
                    Some(place) => self.cancel(at, place),
                    None => Ok(()),
                }
            }
            MessageStep::Progress { at } => self.pump(self.node(at)).map(drop),
            MessageStep::Settle => {
                self.settle()?;
                self.ops_are_over()?;
                match self.share.1 {
                    1 => self.check_regions(),
                    // Only the other process has a list of its writes.
                    _ => Ok(()),
                }
            }
            MessageStep::Remove { at, peer } => {
                self.remove(self.node(at), self.node(peer));
                Ok(())
            }
            MessageStep::Insert { at, peer } => {
                self.insert(self.rank(at), self.rank(peer));
                Ok(())
            }
            MessageStep::Reopen { at } => self.reopen(self.rank(at)),
        }
    }

    /// Takes everything out that is still there, and sees to it that everything ends, once.
    fn finish(&mut self) -> Result<(), Wrong> {
        self.until("sends do not end", |run| {
            run.take_all_out()?;
            Ok(run.counted()?.iter().all(|(sent, wanted)| sent == wanted) && run.is_sent())
        })?;
        self.end_one_sided()?;
        let since = Instant::now();
        self.until("messages do not come", |run| {
            run.take_all_out()?;
            let may_be_lost = (0..run.nodes.len()).any(|at| run.may_miss(at));
            let all = (0..run.nodes.len()).all(|at| run.seen(at) >= run.due(at));
            Ok(all && (!may_be_lost || since.elapsed() > AFTERMATH))
        })?;
        self.end_receives()
    }

    fn pump(&mut self, at: NodeNumber) -> Result<usize, Wrong> {
        let Some(end) = &self.nodes[at].end else {
            return Ok(0);
        };
        let (sent, received) = end.take_all();
        let count = sent.len() + received.len();
        for done in sent {
            self.send_is_done(at, done)?;
        }
        for done in received {
            self.receive_is_done(at, done)?;
        }
        Ok(count)
    }
}

impl MessageRun<'_> {
    fn is_closed(&self, node: NodeNumber) -> bool {
        self.nodes[node].end.is_none() && !self.nodes[node].elsewhere
    }

    fn context(&mut self) -> u64 {
        self.contexts += 1;
        self.contexts
    }

    fn end(&self, node: NodeNumber) -> Result<&QueuedEndpoint, Wrong> {
        let end = self.nodes[node].end.as_ref();
        end.ok_or_else(|| format!("node {node} is closed"))
    }

    fn is_sent(&self) -> bool {
        self.sends.iter().all(|send| send.done || send.quiet)
    }

    fn reopen(&mut self, rank: usize) -> Result<(), Wrong> {
        let node = self.current[rank];
        self.close(node)?;
        self.replace(rank, node);
        Ok(())
    }

    fn close(&mut self, node: NodeNumber) -> Result<(), Wrong> {
        // Record the completions up to here; whether the other sends arrive stays unknown.
        self.pump(node)?;
        self.nodes[node].end = None;
        self.nodes[node].history.closed = true;
        for send in self.sends.iter_mut().filter(|s| s.from == node && !s.done) {
            send.done = true;
            self.nodes[send.to].history.messages[send.message].may_be_lost = true;
        }
        self.forget_ops_of(node)?;
        for (other, live) in self.nodes.iter_mut().enumerate() {
            if other != node {
                live.history.events.push(ReceiverEvent::SenderClosed(node));
            }
        }
        Ok(())
    }

    fn histories(self) -> Vec<ReceiverHistory> {
        self.nodes.into_iter().map(|live| live.history).collect()
    }
}
