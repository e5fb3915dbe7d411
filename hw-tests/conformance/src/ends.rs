//! Endpoints as the scenarios use them: with a queue and a counter for each direction, and memory
//! that outlives them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{
    Av, Cntr, CntrAttr, Cq, CqAttr, Domain, Endpoint, EndpointConfig,
};

use crate::memory::MessageMemory;
use crate::region_memory::EndMemory;

/// A wait that takes so long hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A completion of either sort.
pub type CompletionResult = Result<Completion, CqError>;

/// An entry for a read to overwrite.
pub const BLANK: Completion = Completion::BLANK;

/// An endpoint with a queue and a counter for each direction.
pub struct QueuedEndpoint {
    // Closed before the memory that it may still be using.
    /// The endpoint itself.
    pub endpoint: Arc<dyn Endpoint>,
    /// Its address vector, which nobody else uses.
    pub av: Arc<dyn Av>,
    /// Where sends complete.
    pub tx: CountedQueue,
    /// Where receives complete.
    pub rx: CountedQueue,
    /// Buffers of sends and receives, kept for as long as the endpoint lives.
    pub(crate) memory: Mutex<Vec<EndMemory>>,
    kept: Mutex<Vec<MessageMemory>>,
    contexts: AtomicU64,
}

/// A completion queue, its counter, and the entries that were read from the queue and not taken
/// yet.
pub struct CountedQueue {
    /// The queue.
    pub cq: Arc<dyn Cq>,
    /// The counter of the same operations.
    pub cntr: Arc<dyn Cntr>,
    events: Mutex<VecDeque<CompletionResult>>,
}

impl CountedQueue {
    fn open(domain: &dyn Domain) -> Self {
        Self {
            cq: domain.open_cq(&CqAttr::default()).unwrap(),
            cntr: domain.open_cntr(&CntrAttr::default()).unwrap(),
            events: Mutex::default(),
        }
    }

    /// Drives the domain and keeps what completes.
    pub fn pump(&self) {
        let mut out = [BLANK; 8];
        loop {
            match self.cq.read(&mut out) {
                Ok(n) => self
                    .events
                    .lock()
                    .unwrap()
                    .extend(out[..n].iter().copied().map(Ok)),
                Err(OpError::Again) => return,
                Err(OpError::Failed(Errno::EAVAIL)) => {
                    let error = self.cq.read_error().unwrap().unwrap();
                    self.events.lock().unwrap().push_back(Err(error));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The next that completes, with nobody else driven.
    pub fn next_alone(&self) -> CompletionResult {
        let until = Instant::now() + PATIENCE;
        loop {
            self.pump();
            if let Some(event) = self.take() {
                return event;
            }
            assert!(Instant::now() < until, "nothing completes");
            std::thread::yield_now();
        }
    }

    /// The next completion.
    pub fn take(&self) -> Option<CompletionResult> {
        self.events.lock().unwrap().pop_front()
    }

    /// The oldest that completed with this context.
    pub fn take_of(&self, context: u64) -> Option<CompletionResult> {
        let mut events = self.events.lock().unwrap();
        let at = events.iter().position(|e| context_of(e) == context)?;
        events.remove(at)
    }

    /// How many completions of this context have come and were not taken.
    fn count_of(&self, context: u64) -> usize {
        self.pump();
        let events = self.events.lock().unwrap();
        events.iter().filter(|e| context_of(e) == context).count()
    }

    /// The counts so far: successes and errors.
    pub fn counts(&self) -> (u64, u64) {
        (self.cntr.read().unwrap(), self.cntr.read_errors().unwrap())
    }
}

/// The context of the operation that completed.
pub fn context_of(event: &CompletionResult) -> u64 {
    match event {
        Ok(completion) => completion.context,
        Err(error) => error.completion.context,
    }
}

/// Whether this is an error of operations with a peer that has closed. A network that loses packets
/// may lose the peer's last one: then the peer seems to have vanished, or does not acknowledge.
pub fn is_gone(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ECONNRESET | Errno::ESHUTDOWN | Errno::EHOSTUNREACH
    )
}

/// Whether a cancellation that comes too late may look like one that is in time.
static LATE_CANCELS_SUCCEED: AtomicBool = AtomicBool::new(false);

/// From now on a cancellation in this process may succeed for a receive that is over, as fi_cancel
/// of fi_endpoint(3) does. Then it must have no effect.
pub fn let_late_cancels_succeed() {
    LATE_CANCELS_SUCCEED.store(true, Ordering::Relaxed);
}

/// Whether [`let_late_cancels_succeed`] was called.
pub(crate) fn may_late_cancels_succeed() -> bool {
    LATE_CANCELS_SUCCEED.load(Ordering::Relaxed)
}

/// A receive for anything tagged.
pub fn any_tagged(context: u64) -> RecvOp {
    RecvOp {
        kind: MsgKind::Tagged,
        src: FiAddr::UNSPEC,
        tag: 0,
        ignore: u64::MAX,
        desc: MrDesc::NONE,
        context,
        flags: Flags::COMPLETION,
    }
}

impl QueuedEndpoint {
    /// Drives the endpoint; returns the sends and the receives that have completed.
    pub fn take_all(&self) -> (Vec<CompletionResult>, Vec<CompletionResult>) {
        self.tx.pump();
        self.rx.pump();
        [&self.tx, &self.rx]
            .map(|queue| std::iter::from_fn(|| queue.take()).collect())
            .into()
    }

    /// An endpoint with everything of its own.
    pub fn open(domain: &dyn Domain) -> Self {
        Self::open_with(domain, &AvAttr::default(), |_| {})
    }

    /// As `open`, with an address vector of these attributes, and with the changes that `differ`
    /// makes.
    pub fn open_with(
        domain: &dyn Domain,
        av: &AvAttr,
        differ: impl FnOnce(&mut EndpointConfig),
    ) -> Self {
        let av = domain.open_av(av).unwrap();
        let (tx, rx) = (CountedQueue::open(domain), CountedQueue::open(domain));
        let mut config = EndpointConfig {
            tx_cq: tx.cq.clone(),
            tx_cntr: Some(tx.cntr.clone()),
            rx_cntr: Some(rx.cntr.clone()),
            ..EndpointConfig::new(&av, &rx.cq)
        };
        differ(&mut config);
        let endpoint = domain.open_endpoint(config).unwrap();
        Self {
            endpoint,
            av,
            tx,
            rx,
            memory: Mutex::default(),
            kept: Mutex::default(),
            contexts: AtomicU64::new(1),
        }
    }

    /// A number that no operation had before.
    pub fn context(&self) -> u64 {
        self.contexts.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until these operations with a peer that has closed have ended, in success or not.
    pub(crate) fn outlive_peer(&self, mut open: Vec<u64>) {
        let until = Instant::now() + PATIENCE;
        while !open.is_empty() {
            self.tx.pump();
            open.retain(|&context| match self.tx.take_of(context) {
                Some(Err(error)) => {
                    assert!(is_gone(error.errno), "{error:?}");
                    false
                }
                Some(Ok(_)) => false,
                None => true,
            });
            assert!(Instant::now() < until, "{open:?} have not ended");
            std::thread::yield_now();
        }
    }

    /// Memory of `len` bytes that lives as long as the endpoint, all of them `fill`.
    pub fn memory(&self, len: usize, fill: u8) -> IoBuf {
        let memory = EndMemory::new(len, fill);
        let buf = memory.buf();
        self.memory.lock().unwrap().push(memory);
        buf
    }

    /// The content of `len` bytes of such memory.
    pub fn bytes(&self, addr: usize, len: usize) -> Vec<u8> {
        let memory = self.memory.lock().unwrap();
        let whole = (memory.iter().map(EndMemory::buf))
            .find(|all| all.addr <= addr && addr + len <= all.addr + all.len)
            .expect("memory of this endpoint");
        let part = whole.part(addr - whole.addr, len);
        // Others write there behind the compiler's back.
        let start = std::hint::black_box(part.as_ptr());
        // SAFETY: the memory is this endpoint's, and nothing is under way in it.
        unsafe { std::slice::from_raw_parts(start, len) }.to_vec()
    }

    /// Sends, as soon as it can be, a message filled with `fill`.
    pub fn send(&self, peer: &Self, op: SendOp, len: usize, fill: u8) {
        self.send_while(op, len, fill, || peer.rx.pump());
    }

    /// As `send`, with nobody else driven.
    pub fn send_alone(&self, op: SendOp, len: usize, fill: u8) {
        self.send_while(op, len, fill, || {});
    }

    fn send_while(&self, op: SendOp, len: usize, fill: u8, drive: impl Fn()) {
        let iov = [self.memory(len, fill)];
        let until = Instant::now() + PATIENCE;
        // SAFETY: the memory lives as long as the endpoint.
        while let Err(error) = unsafe { self.endpoint.send(&op, &iov) } {
            assert_eq!(error, OpError::Again);
            self.tx.pump();
            drive();
            assert!(Instant::now() < until, "no room for a send");
        }
    }

    /// Posts a receive into memory of `self`, or does something else that looks like one.
    pub fn recv(&self, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        // SAFETY: callers pass memory of this endpoint, which outlives it.
        unsafe { self.endpoint.recv(op, iov) }
    }

    /// Cancels a receive that is over, which has no effect.
    pub fn cancel_late(&self, context: u64) {
        let before = self.rx.count_of(context);
        match self.endpoint.cancel(context) {
            Err(error) => assert_eq!(error, OpError::Failed(Errno::ENOENT)),
            Ok(()) => assert!(may_late_cancels_succeed(), "receive {context} is cancelled"),
        }
        assert_eq!(self.rx.count_of(context), before, "receive {context}");
    }

    /// The next receive that completes, with nobody else driven.
    pub fn next_alone(&self) -> CompletionResult {
        self.rx.next_alone()
    }

    /// Does it, and returns the completion, which is there at once.
    pub fn probe(&self, op: &RecvOp) -> CompletionResult {
        self.recv(op, &[]).unwrap();
        self.rx.pump();
        self.rx
            .take_of(op.context)
            .expect("a probe completes before the call returns")
    }
}

/// Two endpoints that know each other.
pub struct QueuedPair {
    /// Mostly the sender.
    pub a: QueuedEndpoint,
    /// Mostly the receiver.
    pub b: QueuedEndpoint,
    /// `a` in the address vector of `b`.
    pub to_a: FiAddr,
    /// `b` in the address vector of `a`.
    pub to_b: FiAddr,
}

impl QueuedPair {
    /// Opens and connects them. On two domains, one side's reading does not drive the other.
    pub fn open(domain_a: &dyn Domain, domain_b: &dyn Domain) -> Self {
        Self::connect(
            QueuedEndpoint::open(domain_a),
            QueuedEndpoint::open(domain_b),
        )
    }

    /// Connects two endpoints.
    pub fn connect(a: QueuedEndpoint, b: QueuedEndpoint) -> Self {
        let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
        let to_a = b.av.insert(&a.endpoint.name().to_bytes()).unwrap();
        let pair = Self { a, b, to_a, to_b };
        pair.barrier();
        pair
    }

    /// A tagged send from `a` to `b`.
    pub fn tagged(&self, tag: u64) -> SendOp {
        SendOp {
            kind: MsgKind::Tagged,
            dest: self.to_b,
            tag,
            data: 0,
            desc: MrDesc::NONE,
            context: self.a.context(),
            flags: Flags::COMPLETION,
        }
    }

    /// Sends from `a` if there is room. The caller keeps the buffers until the operation is over.
    pub(crate) fn try_send(&self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        // SAFETY: callers keep the buffers until the send has completed, or see it refused.
        unsafe { self.a.endpoint.send(op, iov) }
    }

    /// Sends from `a` as soon as it can be.
    pub(crate) fn send_list(&self, op: &SendOp, iov: &[IoBuf]) {
        self.until("no room for a send", || match self.try_send(op, iov) {
            Ok(()) => Some(()),
            Err(OpError::Again) => None,
            Err(error) => panic!("{error}: {op:?}"),
        });
    }

    /// Keeps memory for as long as there are endpoints.
    pub(crate) fn keep<const N: usize>(&self, memory: [MessageMemory; N]) {
        self.b.kept.lock().unwrap().extend(memory);
    }

    /// Drives both sides.
    pub fn drive(&self) {
        for queue in [&self.a.tx, &self.a.rx, &self.b.tx, &self.b.rx] {
            queue.pump();
        }
    }

    /// Drives both sides until there is an answer.
    pub fn until<R>(&self, what: &str, mut answer: impl FnMut() -> Option<R>) -> R {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = answer() {
                return answer;
            }
            self.drive();
            assert!(Instant::now() < until, "{what}");
            std::thread::yield_now();
        }
    }

    /// The next that completes in a queue.
    pub fn next(&self, queue: &CountedQueue) -> CompletionResult {
        self.until("nothing completes", || queue.take())
    }

    /// The completion of one operation.
    pub fn wait(&self, queue: &CountedQueue, context: u64) -> CompletionResult {
        self.until("an operation does not complete", || queue.take_of(context))
    }

    /// Everything that `a` has sent so far is known to `b` at return: an untagged message follows
    /// it, and is received.
    pub fn barrier(&self) {
        let recv = RecvOp {
            kind: MsgKind::Msg,
            ..any_tagged(self.b.context())
        };
        self.b.recv(&recv, &[]).unwrap();
        let send = SendOp {
            kind: MsgKind::Msg,
            ..self.tagged(0)
        };
        self.a.send(&self.b, send, 0, 0);
        self.wait(&self.b.rx, recv.context).unwrap();
        self.wait(&self.a.tx, send.context).unwrap();
    }
}
