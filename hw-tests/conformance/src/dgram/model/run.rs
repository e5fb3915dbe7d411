//! Runs a program on a fabric, in one thread.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, RecvOp, SendOp};

use super::program::DatagramStep;
use crate::dgram::pair::{DatagramForm, OperationBuffer, any, data_of, send_op};
use crate::ends::QueuedEndpoint;
use crate::fabric::Fabric;
use crate::memory::MessageMemory;
use crate::model::history::NodeNumber;
use crate::model::program::RankProgram;
use crate::model::runner::{Runner, Wrong};

/// So long without a sign, everything that moves by itself has moved, mostly.
const QUIET: Duration = Duration::from_micros(500);
/// How often an operation is tried that finds no room.
const TRIES: usize = 4;

pub(super) struct DatagramRun<'a> {
    pub(super) fabric: &'a Fabric,
    pub(super) prefix: usize,
    /// The endpoint of each rank.
    current: Vec<NodeNumber>,
    pub(super) nodes: Vec<DatagramNode>,
    pub(super) messages: Vec<SentDatagram>,
    contexts: u64,
    /// Counts what happens.
    pub(super) clock: usize,
}

pub(super) struct DatagramNode {
    rank: usize,
    // Closed before the memory below goes.
    pub(super) end: Option<QueuedEndpoint>,
    name: Vec<u8>,
    /// Addresses of the peers in its address vector, and those that peers had before they were
    /// removed.
    peers: HashMap<NodeNumber, FiAddr>,
    stale: HashMap<NodeNumber, FiAddr>,
    /// When it came to know a peer by this address, or by none.
    pub(super) known: Vec<(usize, NodeNumber, FiAddr)>,
    pub(super) receives: Vec<DatagramReceive>,
    /// By context, the message.
    pub(super) sends: HashMap<u64, usize>,
    pub(super) sent: (u64, u64),
    pub(super) received: (u64, u64),
    /// The endpoint cancels a receive that the device may hold: datagrams that arrive meanwhile are
    /// lost.
    resets: bool,
}

pub(super) struct DatagramReceive {
    pub(super) context: u64,
    pub(super) buffer: OperationBuffer,
    pub(super) list: bool,
    pub(super) room: usize,
    pub(super) cancelled: bool,
    pub(super) over: bool,
}

pub(super) struct SentDatagram {
    pub(super) from: NodeNumber,
    pub(super) to: NodeNumber,
    pub(super) len: usize,
    pub(super) data: Option<u64>,
    pub(super) buffer: OperationBuffer,
    pub(super) injected: bool,
    pub(super) quiet: bool,
    /// Its send has completed.
    pub(super) done: bool,
    /// The address that it was sent to was removed meanwhile.
    pub(super) removed: bool,
    /// It had a receive of its own waiting, and nothing may lose it.
    pub(super) due: bool,
    pub(super) arrived: bool,
    pub(super) sent_at: usize,
}

/// Runs a program.
///
/// # Errors
///
/// A violation: an operation that does not end, or ends twice, or with the wrong content.
pub(super) fn run(fabric: &Fabric, program: &RankProgram<DatagramStep>) -> Result<(), Wrong> {
    let mut run = DatagramRun {
        fabric,
        prefix: fabric.info().ep.msg_prefix_size,
        current: Vec::new(),
        nodes: Vec::new(),
        messages: Vec::new(),
        contexts: 0,
        clock: 0,
    };
    run.run(program)
}

impl Runner for DatagramRun<'_> {
    type Step = DatagramStep;

    fn current(&self) -> &[NodeNumber] {
        &self.current
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn open(&mut self, rank: usize) {
        let end = QueuedEndpoint::open(self.fabric.domain(rank));
        let node = self.nodes.len();
        self.nodes.push(DatagramNode {
            rank,
            name: end.endpoint.name().to_bytes().to_vec(),
            end: Some(end),
            peers: HashMap::new(),
            stale: HashMap::new(),
            known: Vec::new(),
            receives: Vec::new(),
            sends: HashMap::new(),
            sent: (0, 0),
            received: (0, 0),
            resets: false,
        });
        match self.current.get_mut(rank) {
            Some(current) => *current = node,
            None => self.current.push(node),
        }
    }

    fn insert(&mut self, at: usize, peer: usize) {
        let (at, peer) = (self.current[at], self.current[peer]);
        let addr = self.end(at).av.insert(&self.nodes[peer].name).unwrap();
        let now = self.tick();
        let live = &mut self.nodes[at];
        if live.peers.insert(peer, addr).is_none() {
            live.known.push((now, peer, addr));
        }
    }

    fn remove(&mut self, at: NodeNumber, peer: NodeNumber) {
        let Some(addr) = self.nodes[at].peers.remove(&peer) else {
            return;
        };
        self.end(at).av.remove(addr).unwrap();
        let now = self.tick();
        let live = &mut self.nodes[at];
        live.stale.insert(peer, addr);
        live.known.push((now, peer, FiAddr::NOTAVAIL));
        for message in &mut self.messages {
            if (message.from, message.to) == (at, peer) && !message.arrived {
                message.removed |= !message.done;
                message.due = false;
            }
        }
    }

    /// Each receiver has the way to the sender at hand from now on.
    fn warm_up(&mut self) -> Result<(), Wrong> {
        let ranks = self.current.len() as u8;
        for from in 0..ranks {
            for to in 0..ranks {
                self.receive(self.node(to), 0, 1, false)?;
                self.send(&DatagramStep::Send {
                    from,
                    to,
                    size: 0,
                    inject: true,
                    data: true,
                    quiet: false,
                    pieces: 1,
                    registered: false,
                })?;
            }
        }
        self.settle()
    }

    fn step(&mut self, step: &DatagramStep) -> Result<(), Wrong> {
        match *step {
            DatagramStep::Send { .. } => self.send(step),
            DatagramStep::Receive {
                at,
                room,
                pieces,
                registered,
            } => self.receive(self.node(at), room, pieces, registered),
            DatagramStep::Cancel { at, which } => {
                let at = self.node(at);
                let receives = self.nodes[at].receives.iter().enumerate();
                let mut open = receives.filter(|(_, r)| !r.over && !r.cancelled);
                match open.nth(which).map(|(place, _)| place) {
                    Some(place) => self.cancel(at, place),
                    None => Ok(()),
                }
            }
            DatagramStep::Progress { at } => self.pump(self.node(at)).map(drop),
            DatagramStep::Settle => self.settle(),
            DatagramStep::Remove { at, peer } => {
                self.remove(self.node(at), self.node(peer));
                Ok(())
            }
            DatagramStep::Insert { at, peer } => {
                self.insert(self.rank(at), self.rank(peer));
                Ok(())
            }
            DatagramStep::Reopen { at } => self.reopen(self.rank(at)),
        }
    }

    fn finish(&mut self) -> Result<(), Wrong> {
        self.settle()?;
        for at in self.current.clone() {
            for place in 0..self.nodes[at].receives.len() {
                let receive = &self.nodes[at].receives[place];
                if !receive.over && !receive.cancelled {
                    self.cancel(at, place)?;
                }
            }
        }
        self.until("receives do not end", |run| {
            let mut receives = run.nodes.iter().flat_map(|live| &live.receives);
            receives.all(|receive| receive.over)
        })?;
        self.settle()?;
        for live in &self.nodes {
            let Some(end) = &live.end else { continue };
            for (what, counted, seen) in [
                ("receives", end.rx.counts(), live.received),
                ("failed sends", (0, end.tx.counts().1), (0, live.sent.1)),
            ] {
                if counted != seen {
                    return Err(format!("{what}: counted {counted:?}, seen {seen:?}"));
                }
            }
        }
        self.still_works()
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

impl DatagramRun<'_> {
    fn end(&self, node: NodeNumber) -> &QueuedEndpoint {
        let end = self.nodes[node].end.as_ref();
        end.expect("steps are done by endpoints that are open")
    }

    fn context(&mut self) -> u64 {
        self.contexts += 1;
        self.contexts
    }

    fn tick(&mut self) -> usize {
        self.clock += 1;
        self.clock
    }

    fn send(&mut self, step: &DatagramStep) -> Result<(), Wrong> {
        let DatagramStep::Send {
            from,
            to,
            size,
            inject,
            data,
            quiet,
            pieces,
            registered,
        } = *step
        else {
            return Ok(());
        };
        let (from, to) = (self.node(from), self.node(to));
        let (dest, is_stale) = match (
            self.nodes[from].peers.get(&to),
            self.nodes[from].stale.get(&to),
        ) {
            (Some(&addr), _) => (addr, false),
            (None, Some(&addr)) => (addr, true),
            (None, None) => return Ok(()),
        };
        let info = self.fabric.info();
        let limit = match inject {
            true => info.tx.inject_size.min(info.ep.max_msg_size),
            false => info.ep.max_msg_size,
        };
        let number = self.messages.len();
        let data = data || size < MessageMemory::NAMED_BYTES;
        let form = DatagramForm {
            flags: [
                (Flags::INJECT, inject),
                (Flags::COMPLETION, !quiet),
                (Flags::REMOTE_CQ_DATA, data),
            ]
            .into_iter()
            .filter_map(|(flag, wanted)| wanted.then_some(flag))
            .fold(Flags::empty(), Flags::union),
            pieces: pieces.min(info.tx.iov_limit),
            registered,
        };
        let domain = self.fabric.domain(self.nodes[from].rank);
        let memory = MessageMemory::of_message_behind(self.prefix, number, size);
        let buffer = OperationBuffer::new(domain, memory, form.pieces, registered && pieces == 1);
        let context = self.context();
        let op = SendOp {
            desc: buffer.desc(),
            ..send_op(form, dest, context, number)
        };
        let list = buffer.list(self.prefix);
        for _ in 0..TRIES {
            // SAFETY: the buffer is kept until the run is over.
            match unsafe { self.end(from).endpoint.send(&op, &list) } {
                Ok(()) if !is_stale && size <= limit => {
                    if inject {
                        buffer.memory.spoil();
                    }
                    let due = self.is_due(to);
                    if !due {
                        // It may come before the others, and take a receive of theirs.
                        self.nothing_is_due(to);
                    }
                    let sent_at = self.tick();
                    self.nodes[from].sends.insert(context, number);
                    self.messages.push(SentDatagram {
                        from,
                        to,
                        len: size,
                        data: data.then_some(data_of(number)),
                        buffer,
                        injected: inject,
                        quiet,
                        done: false,
                        removed: false,
                        due,
                        arrived: false,
                        sent_at,
                    });
                    return Ok(());
                }
                Err(OpError::Failed(Errno::EADDRNOTAVAIL)) if is_stale => return Ok(()),
                Err(OpError::Failed(Errno::EMSGSIZE)) if size > limit => return Ok(()),
                Err(OpError::Again) if !is_stale && size <= limit => drop(self.pump(from)?),
                said => {
                    let address = if is_stale { "a removed" } else { "an" };
                    return Err(format!(
                        "a send of {size} bytes to {address} address says {said:?}: {op:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether the next datagram to this endpoint finds a receive whatever becomes of those that
    /// are under way.
    fn is_due(&self, to: NodeNumber) -> bool {
        let live = &self.nodes[to];
        let open = live.receives.iter().filter(|r| !r.over && !r.cancelled);
        let to_it = self.messages.iter().filter(|message| message.to == to);
        let under_way = to_it.filter(|message| self.may_arrive(message));
        // The slot of one that was taken back may still take a datagram, also before receives that
        // were posted later (docs/datagrams.md).
        let taken_back = live.receives.iter().any(|r| r.cancelled);
        let certain = self.fabric.silence.is_none() && !live.resets && !taken_back;
        certain && open.count() > under_way.count()
    }

    /// Whether a datagram may still be under way. How old it is says nothing: its sender may wait
    /// for an address handle, and the device for a processor. But where nothing is lost, none
    /// arrives after one that its sender sent to the same endpoint behind it.
    fn may_arrive(&self, message: &SentDatagram) -> bool {
        let overtaken = |other: &SentDatagram| {
            let same_way = (other.from, other.to) == (message.from, message.to);
            same_way && other.arrived && other.sent_at > message.sent_at
        };
        !message.arrived && !self.messages.iter().any(overtaken)
    }

    fn receive(
        &mut self,
        at: NodeNumber,
        room: usize,
        pieces: usize,
        registered: bool,
    ) -> Result<(), Wrong> {
        let pieces = pieces.min(self.fabric.info().rx.iov_limit);
        let memory = MessageMemory::for_receive(self.prefix + room);
        let domain = self.fabric.domain(self.nodes[at].rank);
        let buffer = OperationBuffer::new(domain, memory, pieces, registered && pieces == 1);
        let context = self.context();
        let op = RecvOp {
            desc: buffer.desc(),
            ..any(context)
        };
        let list = buffer.list(self.prefix);
        for _ in 0..TRIES {
            match self.end(at).recv(&op, &list) {
                Ok(()) => {
                    self.nodes[at].receives.push(DatagramReceive {
                        context,
                        buffer,
                        list: list.len() > 1,
                        room,
                        cancelled: false,
                        over: false,
                    });
                    return Ok(());
                }
                // A queue pair that is reset takes none meanwhile.
                Err(OpError::Again) => drop(self.pump(at)?),
                Err(why) => return Err(format!("a receive is refused: {why}: {op:?}")),
            }
        }
        Ok(())
    }

    fn cancel(&mut self, at: NodeNumber, place: usize) -> Result<(), Wrong> {
        let context = self.nodes[at].receives[place].context;
        let found = match self.end(at).endpoint.cancel(context) {
            Ok(()) => true,
            // It has completed, and nobody has read that yet.
            Err(OpError::Failed(Errno::ENOENT)) => false,
            Err(error) => return Err(format!("cancel says {error}")),
        };
        if found {
            self.nodes[at].receives[place].cancelled = true;
            self.nodes[at].resets = true;
            self.nothing_is_due(at);
        }
        Ok(())
    }

    fn nothing_is_due(&mut self, to: NodeNumber) {
        for message in self.messages.iter_mut().filter(|message| message.to == to) {
            message.due = false;
        }
    }

    fn reopen(&mut self, rank: usize) -> Result<(), Wrong> {
        let node = self.current[rank];
        self.pump(node)?;
        self.nodes[node].end = None;
        for message in &mut self.messages {
            if message.from == node {
                message.done = true;
            }
            if message.from == node || message.to == node {
                message.due = false;
            }
        }
        for receive in &mut self.nodes[node].receives {
            receive.over = true;
        }
        self.replace(rank, node);
        Ok(())
    }

    pub(super) fn until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), Wrong> {
        let mut moved = Instant::now();
        while !done(self) {
            // Taken before the look: on a busy machine much time may pass between two.
            let late = moved.elapsed() > self.fabric.patience;
            if self.pump_all()? > 0 {
                moved = Instant::now();
            } else if late && !done(self) {
                return Err(format!("{what}: {}", self.state()));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Drives all until every send is over and all has arrived that must, and then for a while.
    fn settle(&mut self) -> Result<(), Wrong> {
        self.until("sends are not over", |run| {
            let all = run
                .messages
                .iter()
                .all(|message| message.done || message.quiet);
            all && run
                .counts_of_sends()
                .all(|(counted, taken)| counted == taken)
        })?;
        self.until("what had a receive does not arrive", |run| {
            run.messages
                .iter()
                .all(|message| message.arrived || !message.due)
        })?;
        self.until("receives are not taken back", |run| {
            let mut receives = run.nodes.iter().flat_map(|live| &live.receives);
            receives.all(|receive| receive.over || !receive.cancelled)
        })?;
        for live in &mut self.nodes {
            live.resets = false;
        }
        let since = Instant::now();
        while since.elapsed() < self.fabric.silence.unwrap_or(QUIET) {
            self.pump_all()?;
        }
        Ok(())
    }

    /// Of each open endpoint, how many sends were counted and how many there were.
    fn counts_of_sends(&self) -> impl Iterator<Item = (u64, u64)> {
        let open = self
            .nodes
            .iter()
            .filter_map(|live| Some((live, live.end.as_ref()?)));
        open.map(|(live, end)| {
            let (ok, errors) = end.tx.counts();
            (ok + errors, live.sends.len() as u64)
        })
    }

    /// Each rank gets a datagram of another, at the latest the hundredth.
    fn still_works(&mut self) -> Result<(), Wrong> {
        let ranks = self.current.len() as u8;
        for to in 0..ranks {
            let (from, node) = ((to + 1) % ranks, self.node(to));
            self.insert(usize::from(from), usize::from(to));
            self.receive(node, 100, 1, to % 2 == 0)?;
            let place = self.nodes[node].receives.len() - 1;
            for _ in 0..100 {
                self.send(&DatagramStep::Send {
                    from,
                    to,
                    size: 64,
                    inject: false,
                    data: true,
                    quiet: false,
                    pieces: 1,
                    registered: false,
                })?;
                self.settle()?;
                if self.nodes[node].receives[place].over {
                    break;
                }
            }
            if !self.nodes[node].receives[place].over {
                return Err(format!("nothing arrives any more: {}", self.state()));
            }
        }
        Ok(())
    }

    /// Operations that are still open, in words.
    fn state(&self) -> String {
        let mut text = String::new();
        for (at, live) in self.nodes.iter().enumerate() {
            let Some(end) = &live.end else { continue };
            let (rank, sends) = (live.rank, live.sends.len());
            let counted = end.tx.counts();
            text +=
                &format!("\nrank {rank} (node {at}): {sends} sends, counted {counted:?}; open:");
            for receive in live.receives.iter().filter(|receive| !receive.over) {
                let DatagramReceive {
                    context,
                    room,
                    cancelled,
                    ..
                } = receive;
                text += &format!(" receive {context} of {room} (cancelled: {cancelled})");
            }
            let sent = self.messages.iter().enumerate();
            for (number, m) in
                sent.filter(|(_, m)| m.from == at && (!m.done || m.due && !m.arrived))
            {
                text += &format!(" datagram {number} of {} to node {}", m.len, m.to);
                text += &format!(
                    " (done: {}, due: {}, arrived: {})",
                    m.done, m.due, m.arrived
                );
            }
        }
        text
    }
}
