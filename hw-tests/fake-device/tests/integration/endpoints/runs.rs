//! Doorbells of runs of sends (fi_msg(3), `FI_MORE`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::{AvAttr, Resolve, Services};
use ferrofabric_conformance::ends::{CompletionResult, QueuedEndpoint, QueuedPair, any_tagged};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::EpType;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs::VerbsProvider;
use ferrofabric_verbs_sys::ibv_wc_status as Status;

use crate::endpoints::nic::has_plain_datagrams;
use crate::endpoints::party::{PATIENCE, domain, endpoint, first, room, run, settings};

const POST: &str = "ibv_post_send";

/// Messages of a run that one doorbell is rung for.
const RUN: u64 = 32;

struct MessageRuns {
    pair: QueuedPair,
    from: IoBuf,
    // Given back last.
    device: FakeDevice,
}

impl MessageRuns {
    fn open() -> Self {
        let device = FakeDevice::take();
        let pair = QueuedPair::open(&*domain(&[]), &*domain(&[]));
        let from = pair.a.memory(2000, 1);
        // Packets of the connection that are still under way must not count as doorbells of the
        // test.
        for _ in 0..3 {
            pair.barrier();
        }
        Self { pair, from, device }
    }

    /// Posts so many receives, and sends as many messages of `bytes`, all but the last with `MORE`.
    /// Returns how many doorbells that rang, and how many the first of them.
    fn run(&self, count: u64, bytes: usize, flags: Flags) -> (u64, u64) {
        for _ in 0..count {
            let recv = any_tagged(self.pair.b.context());
            self.pair
                .b
                .recv(&recv, &[self.pair.b.memory(bytes, 0)])
                .unwrap();
        }
        let before = self.device.calls(POST);
        let mut held = before;
        for n in 1..=count {
            let more = match n == count {
                true => Flags::empty(),
                false => Flags::MORE,
            };
            let op = SendOp {
                flags: flags | more,
                ..self.pair.tagged(n)
            };
            held = self.device.calls(POST);
            // SAFETY: the memory lives as long as the endpoint.
            unsafe { self.pair.a.endpoint.send(&op, &[self.from.part(0, bytes)]) }.unwrap();
        }
        (held - before, self.device.calls(POST) - before)
    }

    /// Both sides come to rest: so many messages have come, and so many sends are over.
    fn ended(&self, received: u64, sent: u64) {
        let begun = Instant::now();
        let (mut came, mut over) = (0, 0);
        while (came, over) != (received, sent) {
            assert!(begun.elapsed() < PATIENCE, "{came} came, {over} are over");
            self.pair.drive();
            while let Some(event) = self.pair.b.rx.take() {
                event.unwrap();
                came += 1;
            }
            while let Some(event) = self.pair.a.tx.take() {
                event.unwrap();
                over += 1;
            }
        }
    }
}

#[test]
fn a_run_rings_once_when_it_ends() {
    let runs = MessageRuns::open();
    for (bytes, flags, told) in [
        (8, Flags::COMPLETION, RUN),
        (8, Flags::INJECT, 0),
        (2000, Flags::COMPLETION, RUN),
    ] {
        assert_eq!(
            runs.run(RUN, bytes, flags),
            (0, 1),
            "{bytes} bytes, {flags:?}"
        );
        runs.ended(RUN, told);
        assert_eq!(runs.run(1, bytes, flags), (0, 1), "one alone");
        runs.ended(1, told.min(1));
        // Longer ones ring for each part.
        assert_eq!(runs.run(2 * RUN, bytes, flags), (1, 2));
        runs.ended(2 * RUN, 2 * told);
    }
    assert_eq!(runs.device.misuse(), "");
}

/// Messages that waited for the connection, or for room, are posted with few doorbells, whether
/// they were sent as a run or not.
#[test]
fn waiting_messages_ring_few_doorbells() {
    let device = FakeDevice::take();
    let (a, b) = (
        QueuedEndpoint::open(&*domain(&[])),
        QueuedEndpoint::open(&*domain(&[])),
    );
    let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
    let from = a.memory(8, 1);
    let waiting = 3 * RUN;
    for tag in 0..waiting {
        b.recv(&any_tagged(b.context()), &[b.memory(8, 0)]).unwrap();
        let op = SendOp {
            kind: ferrofabric_contracts::types::MsgKind::Tagged,
            dest: to_b,
            tag,
            data: 0,
            desc: MrDesc::NONE,
            context: a.context(),
            flags: Flags::INJECT,
        };
        // SAFETY: as above.
        unsafe { a.endpoint.send(&op, &[from]) }.unwrap();
    }
    let begun = Instant::now();
    let mut came = 0;
    while came < waiting {
        assert!(begun.elapsed() < PATIENCE, "{came} came");
        a.tx.pump();
        b.rx.pump();
        while let Some(event) = b.rx.take() {
            assert_eq!(event.unwrap().tag, came);
            came += 1;
        }
    }
    // Those of the handshake and of credit are among them.
    let rung = device.calls(POST);
    assert!(
        rung < waiting / 2,
        "{rung} doorbells for {waiting} messages"
    );
}

/// The doorbell of a run fails, at each of its messages: the lane is replaced, and nothing is lost
/// or comes twice.
#[test]
fn a_run_whose_doorbell_fails() {
    let runs = MessageRuns::open();
    for _ in 0..3 {
        runs.device.fail_call(POST, 0, 1, libc::EIO);
        runs.run(RUN, 8, Flags::COMPLETION);
        runs.ended(RUN, RUN);
        assert_eq!(runs.device.faults_left(), 0);
    }
}

/// The endpoint closes while a run is held back: the run goes out, too, as posted messages do.
#[test]
fn a_run_that_its_endpoint_does_not_outlive() {
    let runs = MessageRuns::open();
    let QueuedPair { a, b, to_b, .. } = runs.pair;
    let recv = any_tagged(b.context());
    b.recv(&recv, &[b.memory(8, 0)]).unwrap();
    let op = SendOp {
        kind: ferrofabric_contracts::types::MsgKind::Tagged,
        dest: to_b,
        tag: 9,
        data: 0,
        desc: MrDesc::NONE,
        context: a.context(),
        flags: Flags::INJECT | Flags::MORE,
    };
    // SAFETY: as above.
    unsafe { a.endpoint.send(&op, &[runs.from.part(0, 8)]) }.unwrap();
    drop(a);
    assert_eq!(b.next_alone().unwrap().tag, 9);
}

fn dgram_domain() -> Arc<dyn Domain> {
    let settings = settings(&[]);
    let found = VerbsProvider::new().discover(&settings);
    let mut infos = found.candidates.iter();
    let info = infos.find(|info| info.ep.ep_type == EpType::Dgram && info.mode.is_empty());
    VerbsProvider::new().open(info.unwrap(), &settings).unwrap()
}

/// Two DGRAM endpoints, the first of which knows the way to the other.
struct DatagramRuns {
    a: QueuedEndpoint,
    b: QueuedEndpoint,
    to_b: FiAddr,
    /// Where the next messages go.
    posted: RefCell<VecDeque<IoBuf>>,
    // Given back last.
    device: FakeDevice,
}

impl DatagramRuns {
    fn open() -> Self {
        Self::open_on(FakeDevice::take())
    }

    fn open_on(device: FakeDevice) -> Self {
        let (a, b) = (
            QueuedEndpoint::open(&*dgram_domain()),
            QueuedEndpoint::open(&*dgram_domain()),
        );
        let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
        let this = Self {
            a,
            b,
            to_b,
            posted: RefCell::default(),
            device,
        };
        this.run(1, 8, Flags::COMPLETION);
        assert_eq!(this.received(1), [1]);
        this.over(1);
        this
    }

    /// As [`MessageRuns::run`]; the bytes of each message are its number.
    fn run(&self, count: u64, bytes: usize, flags: Flags) -> (u64, u64) {
        for _ in 0..count {
            let recv = RecvOp {
                kind: MsgKind::Msg,
                ..any_tagged(self.b.context())
            };
            let room = self.b.memory(bytes, 0);
            self.b.recv(&recv, &[room]).unwrap();
            self.posted.borrow_mut().push_back(room);
        }
        let before = self.device.calls(POST);
        let mut held = before;
        for n in 1..=count {
            let more = match n == count {
                true => Flags::empty(),
                false => Flags::MORE,
            };
            let op = SendOp {
                kind: MsgKind::Msg,
                dest: self.to_b,
                tag: 0,
                data: 0,
                desc: MrDesc::NONE,
                context: self.a.context(),
                flags: flags | more,
            };
            held = self.device.calls(POST);
            let mut message = vec![n as u8; bytes];
            let buf = match flags.contains(Flags::INJECT) {
                true => IoBuf::new(message.as_ptr(), bytes),
                false => self.a.memory(bytes, n as u8),
            };
            // SAFETY: the memory lives as long as the endpoint, but for a message that is free at
            // return.
            unsafe { self.a.endpoint.send(&op, &[buf]) }.unwrap();
            message.fill(0);
        }
        (held - before, self.device.calls(POST) - before)
    }

    /// The numbers of the next `count` messages.
    fn received(&self, count: usize) -> Vec<u8> {
        let next = || {
            self.a.tx.pump();
            self.b.rx.pump();
            self.b.rx.take()
        };
        let number = |_| {
            until(next).unwrap();
            let room = self.posted.borrow_mut().pop_front().unwrap();
            self.b.bytes(room.addr, 1)[0]
        };
        (0..count).map(number).collect()
    }

    /// So many sends are over. Returns what they ended with.
    fn over(&self, count: usize) -> Vec<CompletionResult> {
        let next = || {
            self.a.tx.pump();
            self.a.tx.take()
        };
        (0..count).map(|_| until(next)).collect()
    }
}

fn until(next: impl Fn() -> Option<CompletionResult>) -> CompletionResult {
    let begun = Instant::now();
    loop {
        match next() {
            Some(event) => return event,
            None => assert!(begun.elapsed() < PATIENCE, "nothing completes"),
        }
    }
}

/// A local error stops the send queue alone. It goes on without a reset, which would drop
/// datagrams: one call changes the state of the queue pair.
#[test]
fn a_datagram_that_fails_resets_nothing() {
    let device = FakeDevice::take();
    device.become_nic("mlx5-ib");
    let pair = DatagramRuns::open_on(device);
    let changes = pair.device.calls("ibv_modify_qp");
    let fails = FaultEffect::Fail(Status::IBV_WC_GENERAL_ERR);
    pair.device.script(Fault::new(FaultPoint::Datagram, fails));
    pair.run(1, 8, Flags::COMPLETION);
    assert!(pair.over(1)[0].is_err());
    // The receive of the first is free for the second.
    pair.run(1, 8, Flags::COMPLETION);
    assert_eq!(pair.received(1), [1]);
    assert!(pair.over(1)[0].is_ok());
    assert_eq!(pair.device.calls("ibv_modify_qp") - changes, 1);
}

#[test]
fn a_run_of_datagrams_rings_once_when_it_ends() {
    if !has_plain_datagrams() {
        return;
    }
    let pair = DatagramRuns::open();
    let run: Vec<u8> = (1..=RUN as u8).collect();
    for (bytes, flags) in [
        (8, Flags::COMPLETION),
        (8, Flags::INJECT),
        (2000, Flags::COMPLETION),
    ] {
        let told = match flags.contains(Flags::COMPLETION) {
            true => 1,
            false => 0,
        };
        let what = format!("{bytes} bytes, {flags:?}");
        assert_eq!(pair.run(RUN, bytes, flags), (0, 1), "{what}");
        assert_eq!(pair.received(run.len()), run, "{what}");
        pair.over(told * run.len());
        // Longer ones ring for each part.
        assert_eq!(pair.run(2 * RUN, bytes, flags), (1, 2), "{what}");
        let long: Vec<u8> = (1..=2 * RUN as u8).collect();
        assert_eq!(pair.received(long.len()), long, "{what}");
        pair.over(told * long.len());
    }
    assert_eq!(pair.device.misuse(), "");
}

/// The device does not take a run that was held back: its sends end with that, and the endpoint
/// goes on.
#[test]
fn a_run_of_datagrams_whose_doorbell_fails() {
    if !has_plain_datagrams() {
        return;
    }
    let pair = DatagramRuns::open();
    for _ in 0..3 {
        pair.device.fail_call(POST, 0, 1, libc::EIO);
        pair.run(RUN, 8, Flags::COMPLETION);
        let over = pair.over(RUN as usize);
        let errnos = over.into_iter().map(|event| event.unwrap_err().errno);
        assert!(errnos.eq((0..RUN).map(|_| Errno::EIO)));
        assert_eq!(pair.device.faults_left(), 0);
    }
    // The receives of those that failed are there still.
    pair.run(1, 8, Flags::COMPLETION);
    assert_eq!(pair.received(1), [1]);
    assert_eq!(pair.device.misuse(), "");
}

/// The device fails one datagram, and its queue pair with it: that send ends with the device's
/// reason, and the endpoint goes on with a queue pair that is ready again.
#[test]
fn a_datagram_that_fails_ends_its_own_send() {
    if !has_plain_datagrams() {
        return;
    }
    let pair = DatagramRuns::open();
    for status in [Status::IBV_WC_LOC_PROT_ERR, Status::IBV_WC_LOC_QP_OP_ERR] {
        let fails = FaultEffect::Fail(status);
        pair.device.script(Fault::new(FaultPoint::Datagram, fails));
        pair.run(1, 2000, Flags::COMPLETION);
        let error = pair.over(1).remove(0).unwrap_err();
        assert_eq!(
            (error.errno, error.prov_errno),
            (Errno::EIO, status.0 as i32)
        );
        assert_eq!(pair.device.faults_left(), 0);
        // Its receive is there still, and takes the next message.
        let room = pair.posted.borrow_mut().pop_front().unwrap();
        pair.run(1, 2000, Flags::COMPLETION);
        pair.posted.borrow_mut().push_front(room);
        assert_eq!(pair.received(1), [1]);
        pair.over(1);
    }
    assert_eq!(pair.device.misuse(), "");
}

/// Finds nobody.
#[derive(Debug)]
struct RefusingResolver;

impl Resolve for RefusingResolver {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr, Error> {
        Err(Error::new(Errno::ECONNREFUSED, "resolve", at.to_string()))
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }
}

/// The end of a run waits until its address is resolved; earlier messages of the run go at once.
#[test]
fn the_end_of_a_run_that_waits_holds_nothing_back() {
    let device = FakeDevice::take();
    let attr = AvAttr {
        resolver: Some(Arc::new(RefusingResolver)),
        ..AvAttr::default()
    };
    let mut a = OwningEndpoint::open(&*domain(&[]), &attr).unwrap();
    let mut b = endpoint(&[]);
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    let one = Services::one("127.0.0.1", Some("7")).unwrap();
    let mut nobody = None;
    let mut note = |_, inserted: Result<FiAddr, Error>| nobody = Some(inserted.unwrap());
    assert_eq!(a.av().insert_services(&one, &mut note).unwrap(), 1);
    for tag in 0..3 {
        b.trecv(room(8), FiAddr::UNSPEC, tag, 0, tag)
            .map_err(first)
            .unwrap();
    }
    a.tsend(room(8), 8, to_b, 0, 0).map_err(first).unwrap();
    run(&mut [&mut a, &mut b], 2);
    // The first of them begins to wait, the second one waits behind it.
    for tag in 1..3 {
        let before = device.calls(POST);
        a.set_more(true);
        a.tsend(room(8), 8, to_b, tag, tag).map_err(first).unwrap();
        assert_eq!(device.calls(POST), before, "it is not held back");
        a.set_more(false);
        a.tsend(room(8), 8, nobody.unwrap(), tag, tag)
            .map_err(first)
            .unwrap();
        assert!(device.calls(POST) > before, "it is held back");
    }
}
