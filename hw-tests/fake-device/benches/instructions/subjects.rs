//! The counted subjects: operations between two endpoints of one thread, each on a domain of its
//! own.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::atomics::{
    AtomicBuffers, AtomicForm, AtomicOp, AtomicOperator, Datatype,
};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{
    FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, RmaKind, RmaOp, SendOp,
};
use ferrofabric_fake_device::control::{FakeDevice, ROCE};
use ferrofabric_runtime::fabric::{
    Cq, CqAttr, Domain, Endpoint, EndpointConfig, Mr, MrAttr, Provider,
};
use ferrofabric_shm::ShmProvider;
use ferrofabric_verbs::VerbsProvider;

use crate::client::Libfabric;
use crate::{MESSAGES, ofi};

/// By transport and operation, in the order in which they are counted.
pub(crate) const SUBJECTS: [&str; 28] = [
    "shm/inject",
    "shm/send",
    "shm/receive",
    "shm/unexpected",
    "verbs/inject",
    "verbs/send",
    "verbs/receive",
    "verbs/unexpected",
    "verbs/put",
    "verbs/get",
    "shm-ring/put",
    "shm-ring/get",
    "shm-ring/add",
    "verbs-ud/inject",
    "verbs-ud/receive",
    "verbs-ud/turn",
    "paired/inject",
    "paired/receive",
    "shm/idle",
    "verbs/idle",
    "shm/window",
    "verbs/window",
    "shm/burst",
    "verbs/burst",
    "ofi/inject",
    "ofi/receive",
    "ofi-verbs/inject",
    "ofi-verbs/receive",
];

/// Names the one subject to run; all of them where it is not set.
pub(crate) const ONLY: &str = "FERRO_COUNTED_ONLY";

/// Receives posted at a time, where a window of them is.
const WINDOW: usize = 64;

/// Messages of a burst, and completions that are read at a time.
const BURST: usize = 32;
const READ: usize = 16;

/// Length of the messages.
pub(crate) const BYTES: usize = 8;

/// Their tag.
pub(crate) const TAG: u64 = 5;

/// The key of the memory that is written and read.
const KEY: u64 = 7;

/// Here numbers that nobody can guess are always the same: hash tables look the same each time.
/// This stands in for the C library's function.
///
/// # Safety
///
/// As getrandom(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(into: *mut c_void, len: usize, _flags: u32) -> isize {
    static STATE: AtomicU64 = AtomicU64::new(0);
    for at in 0..len {
        let state = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // SAFETY: the caller has room for `len` bytes.
        unsafe { into.cast::<u8>().add(at).write((mixed >> 56) as u8) };
    }
    len as isize
}

/// 0, or the time at which the clocks stand, in ns.
static STOPPED_AT: AtomicI64 = AtomicI64::new(0);

/// Stops the clocks, or starts them: with clocks that go, periodic work would be in one count and
/// not in another.
fn stop_clocks(stop: bool) {
    let now = if stop {
        clock(libc::CLOCK_MONOTONIC)
    } else {
        0
    };
    STOPPED_AT.store(now, Ordering::Relaxed);
}

/// A clock's real time in ns.
fn clock(clock: i32) -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: there is room for the time.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Stands in for the C library's function.
///
/// # Safety
///
/// As clock_gettime(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(which: i32, into: *mut libc::timespec) -> i32 {
    let ns = match STOPPED_AT.load(Ordering::Relaxed) {
        0 => clock(which),
        at => at,
    };
    let time = libc::timespec {
        tv_sec: ns / 1_000_000_000,
        tv_nsec: ns % 1_000_000_000,
    };
    // SAFETY: the caller has room for the time.
    unsafe { into.write(time) };
    0
}

/// All code that runs in here is counted; valgrind finds this function by its name.
#[inline(never)]
pub(crate) fn count_this(work: &mut dyn FnMut()) {
    work();
}

/// Valgrind writes down what was counted since it was called last.
#[inline(never)]
fn write_counts() {
    std::hint::black_box(());
}

/// Runs the subjects, in valgrind.
pub(crate) fn run() {
    let only = std::env::var(ONLY).ok();
    let _device = FakeDevice::take();
    let transports = [
        "shm",
        "shm-ring",
        "verbs",
        "verbs-ud",
        "paired",
        "ofi",
        "ofi-verbs",
    ];
    for transport in transports {
        let wanted = |subject: &&str| {
            only.as_deref().is_none_or(|only| only == *subject)
                && subject.split('/').next() == Some(transport)
        };
        let subjects: Vec<&str> = SUBJECTS.into_iter().filter(wanted).collect();
        if subjects.is_empty() {
            continue;
        }
        stop_clocks(false);
        let Some(mut once) = open(transport) else {
            continue;
        };
        stop_clocks(true);
        for subject in subjects {
            let what = subject.split('/').nth(1).unwrap();
            for counted in [false, true] {
                for _ in 0..MESSAGES {
                    once(what, counted);
                }
            }
            println!("{subject}");
            write_counts();
        }
        // The close of a region waits a while for a peer.
        stop_clocks(false);
    }
}

/// Sends one message, and counts the named operation of it if the flag is set.
type Once = Box<dyn FnMut(&str, bool)>;

/// Opens two endpoints over a transport, and returns a function that sends messages between them;
/// `None` where the transport is missing.
fn open(transport: &str) -> Option<Once> {
    if !transport.starts_with("ofi") {
        let mut pair = SubjectPair::open(transport);
        return Some(Box::new(move |what, counted| pair.once(what, counted)));
    }
    let shm = if transport == "ofi" { "on" } else { "off" };
    // SAFETY: other threads (of endpoints opened before) do not read the environment.
    unsafe { std::env::set_var("FERRO_SHM", shm) };
    let libfabric = Box::leak(Box::new(Libfabric::load()?));
    let mut pair = ofi::OfiPair::open(libfabric, transport);
    Some(Box::new(move |what, counted| pair.once(what, counted)))
}

/// Memory of an element of 64 bits.
#[repr(align(8))]
struct Room([u8; BYTES]);

/// An endpoint and what it is bound to.
struct SubjectEndpoint {
    endpoint: Arc<dyn Endpoint>,
    cq: Arc<dyn Cq>,
    peer: FiAddr,
    room: Box<Room>,
    /// The room as a region, if it is one.
    region: Option<Arc<dyn Mr>>,
}

struct SubjectPair {
    from: SubjectEndpoint,
    to: SubjectEndpoint,
    /// Whether a window of receives is posted.
    windowed: bool,
    /// Messages of the next burst.
    gathered: usize,
}

impl SubjectPair {
    fn open(transport: &str) -> Self {
        let (shm, provider): (_, &dyn Provider) = match transport {
            "shm" | "shm-ring" => ("on", &ShmProvider::new()),
            "paired" => ("on", &VerbsProvider::new()),
            _ => ("off", &VerbsProvider::new()),
        };
        let settings = Settings::read(|name| {
            let value = match name {
                "FERRO_SHM" => shm,
                "FERRO_DEVICE" => ROCE,
                // Its thread stands still while valgrind waits for the reports of that thread.
                "FERRO_MR_CACHE" => "off",
                "FERRO_LANE" if transport == "verbs-ud" => "ud",
                "FERRO_SHM_CMA" if transport == "shm-ring" => "off",
                _ => return None,
            };
            Some(value.to_owned())
        })
        .unwrap();
        let open = || {
            let found = provider.discover(&settings);
            // SAFETY: one thread makes all calls.
            let domain = unsafe { provider.open_serialized(&found.candidates[0], &settings) };
            let domain: Arc<dyn Domain> = domain.unwrap();
            let av = domain.open_av(&AvAttr::default()).unwrap();
            let cq = domain.open_cq(&CqAttr::default()).unwrap();
            let config = EndpointConfig::new(&av, &cq);
            (domain.open_endpoint(config).unwrap(), cq, av, domain)
        };
        let ((from, from_cq, from_av, of_from), (to, to_cq, to_av, of_to)) = (open(), open());
        let party = |endpoint, cq, peer| SubjectEndpoint {
            endpoint,
            cq,
            peer,
            room: Box::new(Room([0; BYTES])),
            region: None,
        };
        let peer_of_to = to_av.insert(&from.name().to_bytes()).unwrap();
        let peer_of_from = from_av.insert(&to.name().to_bytes()).unwrap();
        let mut this = Self {
            from: party(from, from_cq, peer_of_from),
            to: party(to, to_cq, peer_of_to),
            windowed: false,
            gathered: 0,
        };
        this.from.register(&*of_from, Flags::empty());
        (this.to).register(&*of_to, Flags::REMOTE_READ | Flags::REMOTE_WRITE);
        // The first message connects.
        this.to.post();
        this.from.send(Flags::COMPLETION);
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            assert!(Instant::now() < deadline, "no connection over {transport}");
            sent |= this.from.read();
            received |= this.to.read();
        }
        this
    }

    /// Sends one message, and counts the operation `what` of it if `counted`.
    fn once(&mut self, what: &str, counted: bool) {
        if what == "window" && !self.windowed {
            // They stay: each message takes the oldest.
            (1..WINDOW).for_each(|_| self.to.post());
            self.windowed = true;
        }
        let (from, to) = (&self.from, &self.to);
        let run = |on: bool, work: &mut dyn FnMut()| match on && counted {
            true => count_this(work),
            false => work(),
        };
        match what {
            // The send and a look at its queue, which takes back what it has borrowed.
            "inject" | "send" => {
                let flags = match what {
                    "inject" => Flags::INJECT,
                    _ => Flags::COMPLETION,
                };
                to.post();
                let mut reported = false;
                run(true, &mut || {
                    from.send(flags);
                    reported = from.read();
                });
                assert_eq!(reported, what == "send");
                assert!(to.read());
            }
            // The operation, and the looks at both queues until it is complete. The target has to
            // take those that go as messages, as the first ones over verbs do.
            "put" | "get" | "add" => run(true, &mut || {
                match what {
                    "put" => from.rma(RmaKind::Write),
                    "get" => from.rma(RmaKind::Read),
                    _ => from.add(),
                }
                while !from.read() {
                    assert!(!to.read());
                }
            }),
            // The receive is posted (in a window: behind others), the message comes, the queue is
            // read.
            "receive" | "window" => {
                run(true, &mut || to.post());
                from.send(Flags::INJECT);
                from.read();
                let mut received = false;
                run(true, &mut || received = to.read());
                assert!(received);
            }
            // A look at the queue finds a message that nobody waits for; then the receive comes,
            // and the queue is read.
            "unexpected" => {
                from.send(Flags::INJECT);
                from.read();
                let mut received = false;
                run(true, &mut || {
                    assert!(!to.read());
                    to.post();
                    received = to.read();
                });
                assert!(received);
            }
            // A message, and the answer to it, at the side that begins.
            "turn" => {
                to.post();
                run(true, &mut || {
                    from.post();
                    from.send(Flags::INJECT);
                });
                assert!(to.read());
                to.send(Flags::INJECT);
                let mut received = false;
                run(true, &mut || received = from.read());
                assert!(received);
                assert!(!to.read());
            }
            // So many receives are posted, so many messages come, then the queue is read.
            "burst" => {
                self.gathered += 1;
                if self.gathered < BURST {
                    return;
                }
                self.gathered = 0;
                run(true, &mut || (0..BURST).for_each(|_| to.post()));
                (0..BURST).for_each(|_| from.send(Flags::INJECT));
                from.read();
                let mut received = 0;
                run(true, &mut || {
                    while received < BURST {
                        received += to.read_some::<READ>();
                    }
                });
            }
            "idle" => {
                let mut read = false;
                run(true, &mut || read = to.read());
                assert!(!read);
            }
            _ => unreachable!("{what}"),
        }
    }
}

impl SubjectEndpoint {
    fn register(&mut self, domain: &dyn Domain, rights: Flags) {
        let request = MrAttr {
            key: Some(KEY),
            ..MrAttr::new(self.room(), rights | Flags::READ | Flags::WRITE)
        };
        // SAFETY: the room lives as long as the region.
        self.region = Some(unsafe { domain.register_region(&request) }.unwrap());
    }

    #[inline]
    fn send(&self, flags: Flags) {
        let op = SendOp {
            kind: MsgKind::Tagged,
            dest: self.peer,
            tag: TAG,
            data: 0,
            desc: MrDesc::NONE,
            context: 1,
            flags,
        };
        // SAFETY: the room lives as long as the endpoint, and nothing writes it while it is sent.
        unsafe { self.endpoint.send(&op, &[self.room()]) }.unwrap();
    }

    #[inline]
    fn rma(&self, kind: RmaKind) {
        let op = RmaOp {
            kind,
            dest: self.peer,
            key: KEY,
            place: 0,
            data: 0,
            desc: self.region.as_ref().map_or(MrDesc::NONE, |mr| mr.desc()),
            context: 3,
            flags: Flags::COMPLETION,
        };
        // SAFETY: as above.
        unsafe { self.endpoint.rma(&op, &[self.room()]) }.unwrap();
    }

    #[inline]
    fn add(&self) {
        let op = AtomicOp {
            form: AtomicForm::Fetch,
            operator: AtomicOperator::Sum,
            datatype: Datatype::Uint64,
            dest: self.peer,
            key: KEY,
            place: 0,
            desc: MrDesc::NONE,
            context: 4,
            flags: Flags::COMPLETION,
        };
        let room = [self.room()];
        let buffers = AtomicBuffers {
            operands: &room,
            compares: &[],
            results: &room,
        };
        // SAFETY: as above.
        unsafe { self.endpoint.atomic(&op, &buffers) }.unwrap();
    }

    #[inline]
    fn post(&self) {
        let op = RecvOp {
            kind: MsgKind::Tagged,
            src: FiAddr::UNSPEC,
            tag: TAG,
            ignore: 0,
            desc: MrDesc::NONE,
            context: 2,
            flags: Flags::COMPLETION,
        };
        // SAFETY: as above; a message comes before the next receive is posted.
        unsafe { self.endpoint.recv(&op, &[self.room()]) }.unwrap();
    }

    fn room(&self) -> IoBuf {
        IoBuf::new(self.room.0.as_ptr(), BYTES)
    }

    /// Whether something was complete.
    #[inline]
    fn read(&self) -> bool {
        self.read_some::<1>() != 0
    }

    /// Reads what is complete, up to `N` of it. Returns how much.
    #[inline]
    fn read_some<const N: usize>(&self) -> usize {
        let mut into = [Completion::BLANK; N];
        self.cq.read(&mut into).unwrap_or(0)
    }
}
