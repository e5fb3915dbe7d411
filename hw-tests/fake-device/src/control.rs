//! The test's end of the device.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ferrofabric_verbs_sys::{Verbs, fns, ibv_event_type};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub use crate::fault::{
    Crossed, Fault, FaultEffect, FaultPoint, HandleView, LiveObjects, NetworkFaults, PathView,
    QueuePairView, RegionView,
};

/// Completion vectors of a device.
pub const VECTORS: u32 = 4;

/// Name of the RoCE device.
pub const ROCE: &str = "fake_roce0";

/// Name of the InfiniBand device.
pub const INFINIBAND: &str = "fake_ib0";

/// The LID of the router between the subnets of InfiniBand, in each of them.
pub const ROUTER_LID: u16 = 0x99;

/// File name of the library.
const LIBRARY: &str = "libferrofabric_fake_device.so";

macro_rules! api {
    ($($name:ident: $symbol:literal, fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The library's scripting calls.
        struct Api {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn of(library: &Library) -> Self {
                Self {
                    $($name: {
                        // SAFETY: the library has each of these with this signature (module
                        // `script`).
                        let symbol = unsafe { library.get($symbol.as_bytes()) };
                        *symbol.unwrap_or_else(|error| panic!("{LIBRARY}: {error}"))
                    },)*
                }
            }
        }
    };
}

api! {
    reset: "ferro_fake_reset", fn();
    hold: "ferro_fake_hold", fn(bool);
    flood: "ferro_fake_flood", fn(u32);
    network: "ferro_fake_network", fn(*const NetworkFaults);
    crossed: "ferro_fake_crossed", fn(*mut Crossed);
    subnet: "ferro_fake_subnet", fn(*const [u8; 8]);
    profile: "ferro_fake_profile", fn(*const u8, usize) -> bool;
    control_calls: "ferro_fake_control_calls", fn(u64, Option<extern "C" fn(u64)>);
    tamper: "ferro_fake_tamper", fn(Option<extern "C" fn(*mut u8, usize)>);
    stop_polls: "ferro_fake_stop_polls", fn(i32);
    poll_stands: "ferro_fake_poll_stands", fn() -> bool;
    fault: "ferro_fake_fault", fn(u32, u32, u64, u32, u32, u32) -> bool;
    faults_left: "ferro_fake_faults_left", fn() -> usize;
    fail_call: "ferro_fake_fail_call", fn(*const u8, usize, u32, u32, i32);
    calls: "ferro_fake_calls", fn(*const u8, usize) -> u64;
    overrun: "ferro_fake_overrun", fn(u32) -> bool;
    raise: "ferro_fake_raise", fn(u32, u32) -> bool;
    break_qp: "ferro_fake_break", fn(u32) -> bool;
    queue_pairs: "ferro_fake_queue_pairs", fn(*mut QueuePairView, usize) -> usize;
    shared_receives: "ferro_fake_shared_receives", fn(u64) -> usize;
    handles: "ferro_fake_handles", fn(*mut HandleView, usize) -> usize;
    vectors: "ferro_fake_vectors", fn(*mut u32, usize) -> usize;
    regions: "ferro_fake_regions", fn(*mut RegionView, usize) -> usize;
    live: "ferro_fake_live", fn(*mut LiveObjects);
    misuse: "ferro_fake_misuse", fn(*mut u8, usize) -> usize;
}

/// The device, held by one test at a time.
pub struct FakeDevice {
    api: &'static Api,
    _turn: MutexGuard<'static, ()>,
}

impl FakeDevice {
    /// Loads the device, if this is the first time, and takes it with no faults scripted.
    ///
    /// # Panics
    ///
    /// When the library was not built beside this program, or another libibverbs was loaded before.
    pub fn take() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let this = Self {
            api: load(),
            _turn: turn,
        };
        this.reset();
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        *holder() = Some((test, Instant::now()));
        static WATCH: Once = Once::new();
        WATCH.call_once(|| drop(std::thread::spawn(watch)));
        this
    }

    /// Removes all faults, releases held requests, clears the records of calls and misuse, and
    /// makes the network quiet.
    pub fn reset(&self) {
        // SAFETY: takes nothing.
        unsafe { (self.api.reset)() };
    }

    /// Enters a fault.
    pub fn script(&self, fault: Fault) {
        let (effect, value) = fault.effect.to_code();
        // SAFETY: takes numbers.
        let known = unsafe {
            (self.api.fault)(
                fault.point as u32,
                effect,
                value,
                fault.qp,
                fault.after,
                fault.count,
            )
        };
        assert!(known, "the library is of another version: {fault:?}");
    }

    /// Has the calls of a name fail with an errno, `count` times (`u32::MAX`: from now on) once
    /// `after` have succeeded.
    pub fn fail_call(&self, name: &str, after: u32, count: u32, errno: i32) {
        // SAFETY: the name is as long as is said.
        unsafe { (self.api.fail_call)(name.as_ptr(), name.len(), after, count, errno) };
    }

    /// Faults and failing calls that have not struck, or not as often as they are to.
    pub fn faults_left(&self) -> usize {
        // SAFETY: takes nothing.
        unsafe { (self.api.faults_left)() }
    }

    /// How often a call was made since the device was taken.
    pub fn calls(&self, name: &str) -> u64 {
        // SAFETY: the name is as long as is said.
        unsafe { (self.api.calls)(name.as_ptr(), name.len()) }
    }

    /// Holds back what is posted to connections, until they are destroyed, or lets it go.
    pub fn hold(&self, held: bool) {
        // SAFETY: takes a truth value.
        unsafe { (self.api.hold)(held) };
    }

    /// Floods a queue pair with meaningless datagrams: each poll of its completion queue finds as
    /// many completions as fit. `None` ends the flood.
    pub fn flood(&self, qp: Option<u32>) {
        // SAFETY: takes a number.
        unsafe { (self.api.flood)(qp.unwrap_or(0)) };
    }

    /// Has datagrams cross this network from now on. Datagrams under way on the previous one
    /// are lost.
    pub fn network(&self, network: &NetworkFaults) {
        // SAFETY: it can be read.
        unsafe { (self.api.network)(network) };
    }

    /// Moves the InfiniBand port to a subnet, for all who open the device from now on. Others reach
    /// it from their subnet through a router ([`ROUTER_LID`]).
    pub fn move_to_subnet(&self, prefix: [u8; 8]) {
        // SAFETY: there are eight bytes.
        unsafe { (self.api.subnet)(&raw const prefix) };
    }

    /// Makes the device a NIC of another kind ([`crate::profile`]) until it is reset. Domains that
    /// are open are not to be used any more.
    ///
    /// # Panics
    ///
    /// When there is no profile of that name.
    pub fn become_nic(&self, profile: &str) {
        // SAFETY: the name is as long as is said.
        let known = unsafe { (self.api.profile)(profile.as_ptr(), profile.len()) };
        assert!(known, "no profile is named {profile}");
    }

    /// Has each call that makes, changes or ends a queue pair take so many microseconds, by the
    /// clock of `sleep`, which each such call calls. `None`: the time that the kind of NIC takes.
    pub fn control_calls(&self, micros: u64, sleep: Option<extern "C" fn(u64)>) {
        // SAFETY: takes a number and a function of this program.
        unsafe { (self.api.control_calls)(micros, sleep) };
    }

    /// Has a function change the bytes of each message of a connection on its way, as a hostile
    /// sender would write them. It must not call the device.
    pub fn tamper(&self, tamper: Option<extern "C" fn(*mut u8, usize)>) {
        // SAFETY: takes a function of this program.
        unsafe { (self.api.tamper)(tamper) };
    }

    /// Counts of the datagrams on the network.
    pub fn crossed(&self) -> Crossed {
        let mut crossed = Crossed::default();
        // SAFETY: there is room for it.
        unsafe { (self.api.crossed)(&raw mut crossed) };
        crossed
    }

    /// Stops the thread of this number (gettid(2)) in its next poll of a completion queue; `None`
    /// lets it go on. A thread that polls for an endpoint has the lock of its domain.
    pub fn stop_polls(&self, thread: Option<i32>) {
        // SAFETY: takes a number.
        unsafe { (self.api.stop_polls)(thread.unwrap_or(0)) };
    }

    /// Whether the thread stands in a poll.
    pub fn poll_stands(&self) -> bool {
        // SAFETY: takes nothing.
        unsafe { (self.api.poll_stands)() }
    }

    /// Overruns the completion queue of a queue pair.
    pub fn overrun(&self, qp: u32) {
        // SAFETY: takes a number.
        assert!(unsafe { (self.api.overrun)(qp) }, "no queue pair {qp:#x}");
    }

    /// Breaks a queue pair.
    pub fn break_queue_pair(&self, qp: u32) {
        // SAFETY: takes a number.
        assert!(unsafe { (self.api.break_qp)(qp) }, "no queue pair {qp:#x}");
    }

    /// Raises an asynchronous event of a queue pair (or of the queue that it uses, if the event is
    /// about one), or with `None` of every device that is open (on port 1).
    pub fn raise(&self, kind: ibv_event_type, qp: Option<u32>) {
        // SAFETY: takes numbers.
        let raised = unsafe { (self.api.raise)(kind.0, qp.unwrap_or(0)) };
        assert!(raised, "no queue pair {qp:?}");
    }

    /// All queue pairs there are, by number.
    pub fn queue_pairs(&self) -> Vec<QueuePairView> {
        queue_pairs(self.api)
    }

    /// All memory regions, and the rights that a guess of their keys gives.
    pub fn regions(&self) -> Vec<RegionView> {
        let mut views = vec![RegionView::default(); 1 << 12];
        // SAFETY: there is room for as many as is said.
        let count = unsafe { (self.api.regions)(views.as_mut_ptr(), views.len()) };
        views.truncate(count);
        views
    }

    /// The completion vectors of all completion queues.
    pub fn vectors(&self) -> Vec<u32> {
        let mut vectors = vec![0; 1 << 12];
        // SAFETY: there is room for as many as is said.
        let count = unsafe { (self.api.vectors)(vectors.as_mut_ptr(), vectors.len()) };
        vectors.truncate(count);
        vectors
    }

    /// Receives that are posted to the shared queues of a protection domain, as
    /// [`QueuePairView::pd`] names it.
    pub fn shared_receives(&self, pd: u64) -> usize {
        // SAFETY: takes a number.
        unsafe { (self.api.shared_receives)(pd) }
    }

    /// All address handles there are.
    pub fn handles(&self) -> Vec<HandleView> {
        let mut views = vec![HandleView::default(); 1 << 12];
        // SAFETY: there is room for as many as is said.
        let count = unsafe { (self.api.handles)(views.as_mut_ptr(), views.len()) };
        views.truncate(count);
        views
    }

    /// The objects there are.
    pub fn live(&self) -> LiveObjects {
        let mut live = LiveObjects::default();
        // SAFETY: there is room for it.
        unsafe { (self.api.live)(&raw mut live) };
        live
    }

    /// Misuse of the device, one line for each case.
    pub fn misuse(&self) -> String {
        let mut text = vec![0; 1 << 16];
        // SAFETY: there is room for as many bytes as is said.
        let len = unsafe { (self.api.misuse)(text.as_mut_ptr(), text.len()) };
        text.truncate(len);
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        *holder() = None;
    }
}

/// A test that has had the device for so long hangs, most likely.
const HANGS_AFTER: Duration = Duration::from_secs(300);

/// The test that has the device, and since when.
fn holder() -> MutexGuard<'static, Option<(String, Instant)>> {
    static HOLDER: Mutex<Option<(String, Instant)>> = Mutex::new(None);
    HOLDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Names each test that hangs, and prints the requests that the device has under way then.
fn watch() {
    let mut told = None;
    loop {
        std::thread::sleep(Duration::from_secs(10));
        let held = holder().clone();
        let Some((test, since)) = held.filter(|(_, since)| since.elapsed() > HANGS_AFTER) else {
            continue;
        };
        if told.replace(since) != Some(since) {
            eprintln!("{test} has had the fake device for {:?}", since.elapsed());
            let views = queue_pairs(load());
            let waiting = views.iter().filter(|qp| qp.waiting > 0);
            waiting.for_each(|qp| eprintln!("requests wait: {qp:?}"));
        }
    }
}

fn queue_pairs(api: &Api) -> Vec<QueuePairView> {
    let mut views = vec![QueuePairView::default(); 1 << 12];
    // SAFETY: there is room for as many as is said.
    let count = unsafe { (api.queue_pairs)(views.as_mut_ptr(), views.len()) };
    views.truncate(count);
    views
}

fn load() -> &'static Api {
    static LOADED: OnceLock<Api> = OnceLock::new();
    LOADED.get_or_init(|| {
        let path = library();
        // SAFETY: the library's initialisers do nothing.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let verbs = Verbs::load().unwrap_or_else(|error| panic!("{error}"));
        // SAFETY: the library has this symbol with this signature.
        let list = unsafe { library.get::<fns::ibv_get_device_list>(b"ibv_get_device_list") };
        let list = *list.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            list as usize, verbs.ibv_get_device_list as usize,
            "another libibverbs was loaded before the fake device"
        );
        let api = Api::of(&library);
        std::mem::forget(library);
        api
    })
}

/// Where cargo puts what tests and benchmarks are linked with, it puts the library itself.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
    let built = program.with_file_name(LIBRARY);
    assert!(built.is_file(), "{} was not built", built.display());
    built
}
