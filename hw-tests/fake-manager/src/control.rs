//! The test's end of the manager.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use ferrofabric_verbs_sys::{Rdmacm, bindings::fns};

use crate::state::state;

/// File name of the library.
const LIBRARY: &str = "libferrofabric_fake_manager.so";

/// The answer of the subnet manager to a request for a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Answer {
    /// 0, or the error in place of a record; `ETIMEDOUT` if the manager does not answer.
    pub errno: i32,
    /// The LID to send to.
    pub lid: u16,
    /// Service level.
    pub service_level: u8,
    /// Rate, as `ibv_rate` has it.
    pub rate: u8,
    /// MTU, as `ibv_mtu` has it.
    pub mtu: u8,
    /// Routers that a packet may pass.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
}

/// A request for a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct RecordRequest {
    /// The GID of the requesting port.
    pub from: [u8; 16],
    /// The GID of the other port.
    pub to: [u8; 16],
    /// The partition.
    pub pkey: u16,
}

/// How many objects there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LiveObjects {
    /// Event channels.
    pub channels: u32,
    /// Identifiers.
    pub identifiers: u32,
    /// Events that were taken and not acknowledged.
    pub events: u32,
}

/// The library's scripting calls.
struct Api {
    script: unsafe extern "C" fn(*const Answer, usize),
    requests: unsafe extern "C" fn(*mut RecordRequest, usize) -> usize,
    live: unsafe extern "C" fn(*mut LiveObjects),
}

/// Scripts the answers, and forgets the requests so far.
///
/// # Safety
///
/// `answers` has as many as is said.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_manager_script(answers: *const Answer, count: usize) {
    // SAFETY: the caller's promise.
    let answers = unsafe { std::slice::from_raw_parts(answers, count) };
    let mut state = state();
    state.answers = answers.iter().copied().collect();
    state.requests.clear();
}

/// Copies the requests so far; returns their number.
///
/// # Safety
///
/// `into` has room for as many as is said.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_manager_requests(into: *mut RecordRequest, room: usize) -> usize {
    let state = state();
    for (at, request) in state.requests.iter().take(room).enumerate() {
        // SAFETY: the caller's promise.
        unsafe { into.add(at).write(*request) };
    }
    state.requests.len()
}

/// # Safety
///
/// `into` can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_manager_live(into: *mut LiveObjects) {
    // SAFETY: the caller's promise.
    unsafe { into.write(state().live) };
}

/// The manager, held by one test at a time.
pub struct FakeManager {
    api: &'static Api,
    _turn: MutexGuard<'static, ()>,
}

impl FakeManager {
    /// Loads the manager, if this is the first time, and takes it; it knows no path.
    ///
    /// # Panics
    ///
    /// When the library was not built beside this program, or another librdmacm was loaded before.
    pub fn take() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let this = Self {
            api: load(),
            _turn: turn,
        };
        this.script(&[]);
        this
    }

    /// The answers to the next requests; the last one is that to all later ones. None: the manager
    /// knows no path.
    pub fn script(&self, answers: &[Answer]) {
        // SAFETY: the length is right.
        unsafe { (self.api.script)(answers.as_ptr(), answers.len()) };
    }

    /// The requests since the last script.
    pub fn requests(&self) -> Vec<RecordRequest> {
        let mut requests = vec![RecordRequest::default(); 1 << 10];
        // SAFETY: there is room for as many as is said.
        let count = unsafe { (self.api.requests)(requests.as_mut_ptr(), requests.len()) };
        requests.truncate(count);
        requests
    }

    /// The objects that there are.
    pub fn live(&self) -> LiveObjects {
        let mut live = LiveObjects::default();
        // SAFETY: it can be written.
        unsafe { (self.api.live)(&raw mut live) };
        live
    }
}

fn load() -> &'static Api {
    static LOADED: OnceLock<Api> = OnceLock::new();
    LOADED.get_or_init(|| {
        let path = built();
        // SAFETY: the library's initialisers do nothing.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let manager = Rdmacm::load().unwrap_or_else(|error| panic!("{error}"));
        let create: fns::rdma_create_id = symbol(&library, "rdma_create_id");
        assert_eq!(
            create as usize, manager.rdma_create_id as usize,
            "another librdmacm was loaded before the fake manager"
        );
        let api = Api {
            script: symbol(&library, "ferro_fake_manager_script"),
            requests: symbol(&library, "ferro_fake_manager_requests"),
            live: symbol(&library, "ferro_fake_manager_live"),
        };
        std::mem::forget(library);
        api
    })
}

fn symbol<F: Copy>(library: &Library, name: &str) -> F {
    // SAFETY: each caller names a function of this library, with its signature.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    *found.unwrap_or_else(|error| panic!("{LIBRARY}: {error}"))
}

/// Where cargo puts what tests are linked with, it puts the library itself.
fn built() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
    let built = program.with_file_name(LIBRARY);
    assert!(built.is_file(), "{} was not built", built.display());
    built
}
