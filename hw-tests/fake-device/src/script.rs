//! The functions that the test's end ([`crate::control`]) calls by name.

use ferrofabric_verbs_sys::{ibv_access_flags as Access, ibv_event_type};

use crate::fault::{
    Crossed, Fault, FaultEffect, FaultPoint, HandleView, LiveObjects, NetworkFaults, QueuePairView,
    RegionView,
};
use crate::model::{ControlCalls, model};
use crate::network::Crossing;
use crate::profile::DeviceProfile;

#[unsafe(no_mangle)]
extern "C" fn ferro_fake_reset() {
    model().reset();
}

#[unsafe(no_mangle)]
extern "C" fn ferro_fake_hold(held: bool) {
    model().hold(held);
}

/// Stops the thread of this number in its next poll of a completion queue; 0 lets it go on.
#[unsafe(no_mangle)]
extern "C" fn ferro_fake_stop_polls(thread: i32) {
    crate::gate::stop(thread);
}

/// Floods the queue pair of a number with datagrams; 0: none.
#[unsafe(no_mangle)]
extern "C" fn ferro_fake_flood(qp: u32) {
    model().flooded = qp;
}

/// Has datagrams cross a network from now on.
///
/// # Safety
///
/// `network` can be read.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_network(network: *const NetworkFaults) {
    // SAFETY: the caller's promise.
    model().crossing = Crossing::of(unsafe { network.read() });
}

/// # Safety
///
/// `into` can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_crossed(into: *mut Crossed) {
    // SAFETY: the caller's promise.
    unsafe { into.write(model().crossing.crossed) };
}

/// Moves the InfiniBand port to a subnet. Contexts that are open stay in theirs.
///
/// # Safety
///
/// `prefix` holds eight bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_subnet(prefix: *const [u8; 8]) {
    // SAFETY: the caller's promise.
    model().subnet = unsafe { prefix.read() };
}

/// Makes the device a NIC of the kind of this name. False: there is no such profile.
///
/// # Safety
///
/// `name` holds `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_profile(name: *const u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    let name = unsafe { std::slice::from_raw_parts(name, len) };
    let profile = DeviceProfile::named(&String::from_utf8_lossy(name));
    if let Some(profile) = profile {
        model().set_profile(profile);
    }
    profile.is_some()
}

/// From now on each call that makes, changes or ends a queue pair takes so many microseconds, which
/// `sleep` waits for; without it, such calls take as long as those of the kind of NIC.
#[unsafe(no_mangle)]
extern "C" fn ferro_fake_control_calls(micros: u64, sleep: Option<extern "C" fn(u64)>) {
    model().control_calls = sleep.map(|sleep| ControlCalls { micros, sleep });
}

/// From now on `tamper` changes the bytes of each message of a connection on its way.
#[unsafe(no_mangle)]
extern "C" fn ferro_fake_tamper(tamper: Option<extern "C" fn(*mut u8, usize)>) {
    model().tamper = tamper;
}

/// The completion vectors of all completion queues.
///
/// # Safety
///
/// `into` has room for `room` numbers. Returns how many there are.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_vectors(into: *mut u32, room: usize) -> usize {
    let model = model();
    for (at, queue) in model.completion_queues.values().enumerate().take(room) {
        // SAFETY: the caller's promise.
        unsafe { into.add(at).write(queue.vector) };
    }
    model.completion_queues.len()
}

/// All memory regions, and the rights that a guess of their keys gives.
///
/// # Safety
///
/// `into` has room for `room` views. Returns how many there are.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_regions(into: *mut RegionView, room: usize) -> usize {
    let model = model();
    let numbers: Vec<u32> = model.queue_pairs.keys().copied().collect();
    for (at, (&key, region)) in model.regions.iter().enumerate().take(room) {
        let opens = |right: Access| {
            let mut guesses = numbers.iter();
            guesses.any(|&qp| model.reaches(qp, key, region.addr, 1, right))
        };
        let view = RegionView {
            addr: region.addr,
            len: region.len,
            readable: opens(Access::IBV_ACCESS_REMOTE_READ),
            writable: opens(Access::IBV_ACCESS_REMOTE_WRITE),
        };
        // SAFETY: the caller's promise.
        unsafe { into.add(at).write(view) };
    }
    model.regions.len()
}

/// Whether the thread stands in a poll.
#[unsafe(no_mangle)]
extern "C" fn ferro_fake_poll_stands() -> bool {
    crate::gate::has_stopped_a_thread()
}

/// False for a point or an effect that there is not.
#[unsafe(no_mangle)]
extern "C" fn ferro_fake_fault(
    point: u32,
    effect: u32,
    value: u64,
    qp: u32,
    after: u32,
    count: u32,
) -> bool {
    let (Some(point), Some(effect)) = (
        FaultPoint::from_code(point),
        FaultEffect::from_code(effect, value),
    ) else {
        return false;
    };
    model().add_fault(Fault {
        point,
        effect,
        qp,
        after,
        count,
    });
    true
}

#[unsafe(no_mangle)]
extern "C" fn ferro_fake_faults_left() -> usize {
    model().faults_left()
}

/// # Safety
///
/// `name` holds `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_fail_call(
    name: *const u8,
    len: usize,
    after: u32,
    count: u32,
    errno: i32,
) {
    // SAFETY: the caller's promise.
    let name = unsafe { std::slice::from_raw_parts(name, len) };
    model().fail_call(&String::from_utf8_lossy(name), after, count, errno);
}

/// # Safety
///
/// `name` holds `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_calls(name: *const u8, len: usize) -> u64 {
    // SAFETY: the caller's promise.
    let name = unsafe { std::slice::from_raw_parts(name, len) };
    model().calls(&String::from_utf8_lossy(name))
}

/// Overruns the completion queue that a queue pair's sends complete in. False: there is no such
/// queue pair.
#[unsafe(no_mangle)]
extern "C" fn ferro_fake_overrun(qp: u32) -> bool {
    let mut model = model();
    let Some(queue) = model.queue_pairs.get(&qp).map(|qp| qp.send_cq) else {
        return false;
    };
    model.overrun(queue);
    true
}

/// Raises an event: of the queue pair of a number, or of the queue that the queue pair uses if the
/// event is about one; or with number 0 of every device that is open, on port 1.
#[unsafe(no_mangle)]
extern "C" fn ferro_fake_raise(kind: u32, qp: u32) -> bool {
    let mut model = model();
    let kind = ibv_event_type(kind);
    if qp == 0 {
        let contexts: Vec<usize> = model.contexts.keys().copied().collect();
        for context in contexts {
            model.raise(context, kind, 1);
        }
        return true;
    }
    let found = model.queue_pairs.get(&qp).map(|qp| {
        let subject = match kind {
            ibv_event_type::IBV_EVENT_CQ_ERR => qp.send_cq,
            ibv_event_type::IBV_EVENT_SRQ_ERR | ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED => {
                qp.srq.unwrap_or(0)
            }
            _ => qp.handle,
        };
        (qp.context, subject)
    });
    if let Some((context, subject)) = found {
        model.raise(context, kind, subject);
    }
    found.is_some()
}

/// Moves a queue pair to the error state, as a device that fails does. False: there is none of that
/// number.
#[unsafe(no_mangle)]
extern "C" fn ferro_fake_break(qp: u32) -> bool {
    let mut model = model();
    let found = model.queue_pairs.get(&qp).map(|qp| (qp.context, qp.handle));
    if let Some((context, handle)) = found {
        model.raise(context, ibv_event_type::IBV_EVENT_QP_FATAL, handle);
        model.fail(qp);
        model.run_all();
    }
    found.is_some()
}

/// # Safety
///
/// `into` has room for `room` views. Returns how many there are.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_queue_pairs(into: *mut QueuePairView, room: usize) -> usize {
    let model = model();
    for (at, qp) in model.queue_pairs.values().enumerate().take(room) {
        let view = QueuePairView {
            number: qp.number,
            remote: qp.remote,
            path: qp.path,
            mtu: qp.mtu,
            kind: qp.kind.0,
            state: qp.state.0,
            pd: qp.pd as u64,
            waiting: qp.sends.len() as u32,
            occupied: qp.occupied,
            receives: qp.receives.posted.len() as u32,
            held: u32::from(qp.held.is_some()),
        };
        // SAFETY: the caller's promise.
        unsafe { into.add(at).write(view) };
    }
    model.queue_pairs.len()
}

/// Receives that are posted to the shared queues of a protection domain.
#[unsafe(no_mangle)]
extern "C" fn ferro_fake_shared_receives(pd: u64) -> usize {
    let model = model();
    let queues = model.shared_receive_queues.values();
    let own = queues.filter(|queue| queue.pd as u64 == pd);
    own.map(|queue| queue.posted.len()).sum()
}

/// # Safety
///
/// `into` has room for `room` views. Returns how many there are.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_handles(into: *mut HandleView, room: usize) -> usize {
    let model = model();
    for (at, handle) in model.handles.values().enumerate().take(room) {
        let view = HandleView {
            pd: handle.pd as u64,
            path: handle.path,
        };
        // SAFETY: the caller's promise.
        unsafe { into.add(at).write(view) };
    }
    model.handles.len()
}

/// # Safety
///
/// `into` can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_live(into: *mut LiveObjects) {
    // SAFETY: the caller's promise.
    unsafe { into.write(model().live()) };
}

/// Misuse of the device, one line for each case. Returns the length in bytes.
///
/// # Safety
///
/// `into` has room for `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ferro_fake_misuse(into: *mut u8, room: usize) -> usize {
    let text = model().misuse().join("\n");
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), into, text.len().min(room)) };
    text.len()
}
