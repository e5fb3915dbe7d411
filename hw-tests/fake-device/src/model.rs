//! All objects of the device, behind one lock: operations of two threads happen one after the
//! other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::completion::{CompletionQueue, FakeChannel, FakeContext};
use crate::fault::{Fault, FaultEffect, FaultPoint, LiveObjects, PathView};
use crate::memory::FakeRegion;
use crate::network::Crossing;
use crate::profile::DeviceProfile;
use crate::queue_pair::{QueuePair, ReceiveQueue};
use crate::route::DatagramRoute;

/// Everything there is. Objects are known by the addresses of their handles.
pub(crate) struct DeviceModel {
    pub(crate) contexts: BTreeMap<usize, FakeContext>,
    /// Protection domains, with their contexts.
    pub(crate) domains: BTreeMap<usize, usize>,
    /// Memory regions by key.
    pub(crate) regions: BTreeMap<u32, FakeRegion>,
    /// Address handles.
    pub(crate) handles: BTreeMap<usize, AddressHandle>,
    pub(crate) channels: BTreeMap<usize, FakeChannel>,
    pub(crate) completion_queues: BTreeMap<usize, CompletionQueue>,
    pub(crate) shared_receive_queues: BTreeMap<usize, ReceiveQueue>,
    pub(crate) queue_pairs: BTreeMap<u32, QueuePair>,
    /// Numbers of queue pairs, by handle.
    pub(crate) numbers: BTreeMap<usize, u32>,
    /// The queue pairs in error that have yet to take their last shared receive.
    pub(crate) failing: BTreeSet<u32>,
    pub(crate) next_key: u32,
    /// Keys of regions that were.
    pub(crate) free_keys: Vec<u32>,
    pub(crate) next_number: u32,
    /// Requests of connections wait until this is over.
    pub(crate) held: bool,
    /// The queue pair of the request that was carried out last.
    pub(crate) moved_last: u32,
    /// The queue pair that datagrams without meaning come to all the time; 0: none.
    pub(crate) flooded: u32,
    /// The datagrams on the network.
    pub(crate) crossing: Crossing,
    /// The kind of NIC; `None`: the one that the environment names.
    profile: Option<&'static DeviceProfile>,
    /// The InfiniBand subnet of the port, for the next one that opens the device.
    pub(crate) subnet: [u8; 8],
    /// The duration of control calls; `None`: that of the kind of NIC.
    pub(crate) control_calls: Option<ControlCalls>,
    /// Changes the bytes of each message of a connection on its way.
    pub(crate) tamper: Option<extern "C" fn(*mut u8, usize)>,
    faults: Vec<Fault>,
    failing_calls: Vec<FailingCall>,
    calls: BTreeMap<&'static str, u64>,
    misuse: Vec<String>,
}

/// An address handle.
pub(crate) struct AddressHandle {
    pub(crate) pd: usize,
    pub(crate) path: PathView,
    /// Where it leads.
    pub(crate) route: DatagramRoute,
}

/// The duration of each call that makes, changes or ends a queue pair, by a clock of the test.
#[derive(Clone, Copy)]
pub(crate) struct ControlCalls {
    pub(crate) micros: u64,
    /// Returns after so many microseconds.
    pub(crate) sleep: extern "C" fn(u64),
}

struct FailingCall {
    name: String,
    after: u32,
    count: u32,
    errno: i32,
}

/// The InfiniBand subnet without a number of its own.
const DEFAULT_SUBNET: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

static MODEL: Mutex<DeviceModel> = Mutex::new(DeviceModel {
    contexts: BTreeMap::new(),
    domains: BTreeMap::new(),
    regions: BTreeMap::new(),
    handles: BTreeMap::new(),
    channels: BTreeMap::new(),
    completion_queues: BTreeMap::new(),
    shared_receive_queues: BTreeMap::new(),
    queue_pairs: BTreeMap::new(),
    numbers: BTreeMap::new(),
    failing: BTreeSet::new(),
    next_key: 0,
    free_keys: Vec::new(),
    next_number: 0,
    held: false,
    moved_last: 0,
    flooded: 0,
    crossing: Crossing::quiet(),
    profile: None,
    subnet: DEFAULT_SUBNET,
    control_calls: None,
    tamper: None,
    faults: Vec::new(),
    failing_calls: Vec::new(),
    calls: BTreeMap::new(),
    misuse: Vec::new(),
});

/// The device, locked.
pub(crate) fn model() -> MutexGuard<'static, DeviceModel> {
    MODEL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceModel {
    /// The kind of NIC.
    pub(crate) fn profile(&mut self) -> &'static DeviceProfile {
        self.profile
            .get_or_insert_with(DeviceProfile::of_environment)
    }

    /// Makes the device another kind of NIC. Objects that are there stay as they are.
    pub(crate) fn set_profile(&mut self, profile: &'static DeviceProfile) {
        self.profile = Some(profile);
    }

    /// Counts a call, and says with which errno it is to fail, if it is.
    pub(crate) fn enter(&mut self, call: &'static str) -> Result<(), i32> {
        *self.calls.entry(call).or_default() += 1;
        for at in 0..self.failing_calls.len() {
            let failing = &mut self.failing_calls[at];
            if failing.name != call {
                continue;
            }
            if failing.after > 0 {
                failing.after -= 1;
                continue;
            }
            let errno = failing.errno;
            if failing.count != u32::MAX {
                failing.count -= 1;
            }
            if failing.count == 0 {
                self.failing_calls.remove(at);
            }
            return Err(errno);
        }
        Ok(())
    }

    /// Has a call fail from now on, or after some that succeed; `u32::MAX` times is for ever.
    pub(crate) fn fail_call(&mut self, name: &str, after: u32, count: u32, errno: i32) {
        self.failing_calls.push(FailingCall {
            name: name.to_owned(),
            after,
            count,
            errno,
        });
    }

    /// How often a call was made.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or(0)
    }

    /// Enters a fault.
    pub(crate) fn add_fault(&mut self, fault: Fault) {
        if fault.count > 0 {
            self.faults.push(fault);
        }
    }

    /// The effect of the fault that strikes this request, if there is one.
    pub(crate) fn strike(&mut self, point: FaultPoint, qp: u32) -> Option<FaultEffect> {
        for at in 0..self.faults.len() {
            let fault = &mut self.faults[at];
            if fault.point != point || (fault.qp != 0 && fault.qp != qp) {
                continue;
            }
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            let effect = fault.effect;
            fault.count -= 1;
            if fault.count == 0 {
                self.faults.remove(at);
            }
            return Some(effect);
        }
        None
    }

    /// Faults and failing calls that have not struck yet.
    pub(crate) fn faults_left(&self) -> usize {
        self.faults.len() + self.failing_calls.len()
    }

    /// Keeps what an application must not do.
    pub(crate) fn misused(&mut self, what: String) {
        self.misuse.push(what);
    }

    pub(crate) fn misuse(&self) -> &[String] {
        &self.misuse
    }

    /// Clears the script and the records of calls and misuse; the objects stay.
    pub(crate) fn reset(&mut self) {
        self.faults.clear();
        self.failing_calls.clear();
        self.calls.clear();
        self.misuse.clear();
        self.flooded = 0;
        self.moved_last = 0;
        self.crossing = Crossing::quiet();
        self.profile = None;
        self.subnet = DEFAULT_SUBNET;
        self.control_calls = None;
        self.tamper = None;
        self.free_keys.clear();
        self.hold(false);
    }

    pub(crate) fn live(&self) -> LiveObjects {
        LiveObjects {
            contexts: self.contexts.len() as u32,
            domains: self.domains.len() as u32,
            regions: self.regions.len() as u32,
            handles: self.handles.len() as u32,
            channels: self.channels.len() as u32,
            completion_queues: self.completion_queues.len() as u32,
            shared_receive_queues: self.shared_receive_queues.len() as u32,
            queue_pairs: self.queue_pairs.len() as u32,
        }
    }
}

/// Puts a handle at an address of its own.
pub(crate) fn place<T>(handle: T) -> *mut T {
    Box::into_raw(Box::new(handle))
}

/// Frees a handle.
///
/// # Safety
///
/// It came from [`place`] of the same type, and is used no more.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(handle) });
}
