//! Two DGRAM endpoints that have each other's addresses, and datagrams with distinct contents.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{Domain, EndpointConfig, Mr};

use crate::ends::{CompletionResult, PATIENCE, QueuedEndpoint};
use crate::fabric::Fabric;
use crate::memory::MessageMemory;

/// So long what must not come is waited for.
const QUIET: Duration = Duration::from_millis(20);

/// Memory of an operation: whose descriptor, if it is registered, and how it is handed over.
pub(super) struct OperationBuffer {
    // Goes before the memory that it covers.
    region: Option<Arc<dyn Mr>>,
    pub(super) memory: MessageMemory,
    pieces: usize,
}

impl OperationBuffer {
    /// A list of `pieces` buffers is not registered: it has one descriptor.
    pub(super) fn new(
        domain: &dyn Domain,
        memory: MessageMemory,
        pieces: usize,
        registered: bool,
    ) -> Self {
        // Of nothing there is no region.
        let registered = registered && memory.whole().len > 0;
        let region = registered.then(|| {
            // SAFETY: the memory goes after the region, by the order of the fields.
            unsafe { domain.register(memory.whole(), Flags::SEND | Flags::RECV) }.unwrap()
        });
        Self {
            region,
            memory,
            pieces,
        }
    }

    pub(super) fn desc(&self) -> MrDesc {
        self.region
            .as_ref()
            .map_or(MrDesc::NONE, |region| region.desc())
    }

    /// With `prefix` bytes at the start of the first.
    pub(super) fn list(&self, prefix: usize) -> Vec<IoBuf> {
        let whole = self.memory.whole();
        if self.pieces < 2 {
            return vec![whole];
        }
        let rest = whole.len - prefix;
        let mut from = 0;
        let ends = (1..=self.pieces).map(|n| prefix + rest * n * n / (self.pieces * self.pieces));
        ends.map(|to| {
            let piece = whole.part(from, to - from);
            from = to;
            piece
        })
        .collect()
    }
}

/// How a datagram is sent: fi_send, fi_sendv, fi_senddata, fi_inject, fi_injectdata, fi_sendmsg.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramForm {
    pub(super) flags: Flags,
    pub(super) pieces: usize,
    pub(super) registered: bool,
}

/// fi_send.
pub(super) const SEND: DatagramForm = DatagramForm {
    flags: Flags::COMPLETION,
    pieces: 1,
    registered: false,
};

/// fi_senddata.
pub(super) const SENDDATA: DatagramForm = DatagramForm {
    flags: Flags::COMPLETION.union(Flags::REMOTE_CQ_DATA),
    ..SEND
};

/// The buffer of a receive: `len` bytes behind the prefix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) len: usize,
    pub(super) pieces: usize,
    pub(super) registered: bool,
}

impl Room {
    pub(super) fn of(len: usize) -> Self {
        Self {
            len,
            pieces: 1,
            registered: false,
        }
    }
}

/// A receive that is posted.
pub(super) struct PostedReceive {
    pub(super) context: u64,
    pub(super) buffer: OperationBuffer,
}

/// A receive that is over.
pub(super) struct ReceivedDatagram {
    pub(super) event: CompletionResult,
    pub(super) posted: PostedReceive,
    /// Of the datagram that was sent for it.
    pub(super) number: usize,
}

/// The operation of a form.
pub(super) fn send_op(form: DatagramForm, dest: FiAddr, context: u64, number: usize) -> SendOp {
    SendOp {
        kind: MsgKind::Msg,
        dest,
        tag: 0,
        data: data_of(number),
        desc: MrDesc::NONE,
        context,
        flags: form.flags,
    }
}

/// CQ data by which a datagram is known.
pub(super) fn data_of(number: usize) -> u64 {
    0xda7a_0000 ^ number as u64
}

/// The number of the datagram with such CQ data.
fn number_of(data: u64) -> usize {
    (data ^ data_of(0)) as usize
}

/// An untagged receive from anybody.
pub(super) fn any(context: u64) -> RecvOp {
    RecvOp {
        kind: MsgKind::Msg,
        src: FiAddr::UNSPEC,
        tag: 0,
        ignore: 0,
        desc: MrDesc::NONE,
        context,
        flags: Flags::COMPLETION,
    }
}

/// Two endpoints on domains of their own.
pub(super) struct DatagramPair<'a> {
    pub(super) fabric: &'a Fabric,
    /// The sender.
    pub(super) a: QueuedEndpoint,
    /// The receiver.
    pub(super) b: QueuedEndpoint,
    pub(super) to_a: FiAddr,
    pub(super) to_b: FiAddr,
    /// Bytes that buffers start with for the provider.
    pub(super) prefix: usize,
    /// Longest datagram in bytes.
    pub(super) longest: usize,
    numbers: Cell<usize>,
    // Gone after the endpoints that may use it.
    kept: RefCell<Vec<OperationBuffer>>,
}

impl<'a> DatagramPair<'a> {
    pub(super) fn open(fabric: &'a Fabric) -> Self {
        Self::open_with(fabric, |_| {})
    }

    /// As `open`, where the receiver differs.
    pub(super) fn open_with(fabric: &'a Fabric, differ: impl FnOnce(&mut EndpointConfig)) -> Self {
        let a = QueuedEndpoint::open(fabric.domain(0));
        let b = QueuedEndpoint::open_with(fabric.domain(1), &AvAttr::default(), differ);
        let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
        let to_a = b.av.insert(&a.endpoint.name().to_bytes()).unwrap();
        let info = fabric.info();
        Self {
            fabric,
            a,
            b,
            to_a,
            to_b,
            prefix: info.ep.msg_prefix_size,
            longest: info.ep.max_msg_size,
            numbers: Cell::new(0),
            kept: RefCell::default(),
        }
    }

    pub(super) fn drive(&self) {
        for queue in [&self.a.tx, &self.a.rx, &self.b.tx, &self.b.rx] {
            queue.pump();
        }
    }

    /// Drives both sides until there is an answer.
    pub(super) fn until<R>(&self, what: &str, mut answer: impl FnMut() -> Option<R>) -> R {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = answer() {
                return answer;
            }
            self.drive();
            assert!(Instant::now() < until, "{}: {what}", self.fabric.name);
            std::thread::yield_now();
        }
    }

    /// A number that no datagram had before.
    pub(super) fn number(&self) -> usize {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// A datagram with a number, as a form has it.
    pub(super) fn message(&self, form: DatagramForm, number: usize, len: usize) -> OperationBuffer {
        let memory = MessageMemory::of_message_behind(self.prefix, number, len);
        OperationBuffer::new(self.fabric.domain(0), memory, form.pieces, form.registered)
    }

    /// Sends from `a`, as soon as it can be. The memory of an inject is spoilt.
    pub(super) fn send(&self, form: DatagramForm, number: usize, len: usize) -> u64 {
        let out = self.message(form, number, len);
        let op = SendOp {
            desc: out.desc(),
            ..send_op(form, self.to_b, self.a.context(), number)
        };
        let list = out.list(self.prefix);
        self.until("no room for a send", || {
            // SAFETY: the buffer is kept for as long as there is the endpoint.
            match unsafe { self.a.endpoint.send(&op, &list) } {
                Ok(()) => Some(()),
                Err(OpError::Again) => None,
                Err(error) => panic!("{error}: {op:?}"),
            }
        });
        if form.flags.contains(Flags::INJECT) {
            out.memory.spoil();
        }
        self.keep(out);
        op.context
    }

    /// Waits until a send is over.
    pub(super) fn sent(&self, context: u64) -> Completion {
        let event = self.until("a send is not over", || self.a.tx.take_of(context));
        let completion = event.unwrap();
        assert_eq!(completion.flags, Flags::MSG | Flags::SEND);
        completion
    }

    /// Posts a receive at `b`.
    pub(super) fn post(&self, room: Room) -> PostedReceive {
        let memory = MessageMemory::for_receive(self.prefix + room.len);
        let domain = self.fabric.domain(1);
        let buffer = OperationBuffer::new(domain, memory, room.pieces, room.registered);
        let context = self.b.context();
        let posted = PostedReceive { context, buffer };
        self.until("no room for a receive", || match self.try_post(&posted) {
            Ok(()) => Some(()),
            Err(OpError::Again) => None,
            Err(error) => panic!("{error}: {room:?}"),
        });
        posted
    }

    fn try_post(&self, posted: &PostedReceive) -> Result<(), OpError> {
        let op = RecvOp {
            desc: posted.buffer.desc(),
            ..any(posted.context)
        };
        self.b.recv(&op, &posted.buffer.list(self.prefix))
    }

    /// Keeps memory for as long as there are endpoints.
    pub(super) fn keep(&self, buffer: OperationBuffer) {
        self.kept.borrow_mut().push(buffer);
    }

    /// `a` sends a datagram of so many bytes, into a receive of `b` that is posted for it; again if
    /// the network loses it.
    pub(super) fn deliver(&self, form: DatagramForm, len: usize, room: Room) -> ReceivedDatagram {
        // Datagrams that are left of earlier sends must not find this receive.
        self.fall_silent();
        let first = self.numbers.get() + 1;
        let mut posted = self.post(room);
        let until = Instant::now() + PATIENCE;
        loop {
            let number = self.number();
            let context = self.send(form, number, len);
            if form.flags.contains(Flags::COMPLETION) {
                self.sent(context);
            }
            let patience = self.fabric.silence.unwrap_or(PATIENCE);
            let since = Instant::now();
            while since.elapsed() < patience {
                self.drive();
                let Some(event) = self.b.rx.take_of(posted.context) else {
                    continue;
                };
                let named = (len >= MessageMemory::NAMED_BYTES
                    && room.len >= MessageMemory::NAMED_BYTES)
                    .then(|| {
                        posted
                            .buffer
                            .memory
                            .message(self.prefix, MessageMemory::NAMED_BYTES)
                    });
                // An earlier one may come late. One without room for its number has it as CQ data.
                let number = match (named, &event) {
                    _ if self.fabric.silence.is_none() => number,
                    (Some(Ok(Some(number))), _) => number,
                    (None, Ok(c)) if c.flags.contains(Flags::REMOTE_CQ_DATA) => number_of(c.data),
                    _ => number,
                };
                assert!(number <= self.numbers.get(), "{event:?} was never sent");
                if number < first {
                    // Very late.
                    self.keep(posted.buffer);
                    posted = self.post(room);
                    continue;
                }
                return ReceivedDatagram {
                    event,
                    posted,
                    number,
                };
            }
            assert!(
                self.fabric.silence.is_some() && Instant::now() < until,
                "{}: {len} bytes do not arrive: {form:?}, {room:?}",
                self.fabric.name
            );
        }
    }

    /// Until nothing is under way any more, on a network where that may be.
    pub(super) fn fall_silent(&self) {
        if let Some(silence) = self.fabric.silence {
            let since = Instant::now();
            while since.elapsed() < silence {
                self.drive();
            }
        }
    }

    /// Nothing completes at either side.
    pub(super) fn quiet(&self) {
        let until = Instant::now() + self.fabric.silence.unwrap_or(QUIET);
        while Instant::now() < until {
            self.drive();
            for queue in [&self.a.tx, &self.a.rx, &self.b.tx, &self.b.rx] {
                if let Some(event) = queue.take() {
                    panic!("{}: {event:?} though nothing was to come", self.fabric.name);
                }
            }
        }
    }

    /// Checks that the whole datagram arrived as it was sent, from `a`.
    pub(super) fn check(&self, arrival: &ReceivedDatagram, form: DatagramForm, len: usize) {
        let what = format!("{}: {len} bytes, {form:?}", self.fabric.name);
        let ReceivedDatagram {
            event,
            posted,
            number,
        } = arrival;
        let c = event.as_ref().expect(&what);
        assert_eq!((c.context, c.src), (posted.context, self.to_a), "{what}");
        assert_eq!(c.len, self.prefix + len, "{what}");
        let memory = &posted.buffer.memory;
        let buf = match posted.buffer.pieces {
            1 => memory.addr(),
            _ => 0,
        };
        assert_eq!(c.buf, buf, "{what}");
        let data = match form.flags.contains(Flags::REMOTE_CQ_DATA) {
            true => (Flags::REMOTE_CQ_DATA, data_of(*number)),
            false => (Flags::empty(), 0),
        };
        let flags = c.flags - Flags::MSG - Flags::RECV;
        assert!(c.flags.contains(Flags::MSG | Flags::RECV), "{what}: {c:?}");
        assert_eq!((flags, c.data), data, "{what}");
        let name = (len >= MessageMemory::NAMED_BYTES).then_some(*number);
        assert_eq!(memory.message(self.prefix, len), Ok(name), "{what}");
        assert_eq!(memory.untouched_behind(self.prefix + len), Ok(()), "{what}");
    }
}
