//! The exports of librdmacm. An event follows its call at once.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of};

use libc::sockaddr;

use ferrofabric_verbs_sys::{
    ibv_gid, ibv_sa_path_rec, rdma_addrinfo, rdma_cm_event, rdma_cm_event_type as Kind, rdma_cm_id,
    rdma_conn_param, rdma_event_channel, rdma_port_space, sockaddr_ib,
};

use crate::control::{Answer, RecordRequest};
use crate::state::{Event, state};

/// The address family of ports.
const AF_IB: u16 = 27;

/// An identifier, and the parts that only this library sees.
#[repr(C)]
struct Identifier {
    id: rdma_cm_id,
    request: RecordRequest,
    record: ibv_sa_path_rec,
}

/// -1 and errno.
fn failed(errno: c_int) -> c_int {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    // SAFETY: takes nothing of ours. Each event raises its count by one, each reader takes one.
    let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
    let channel = Box::into_raw(Box::new(rdma_event_channel { fd }));
    let mut state = state();
    state.live.channels += 1;
    state.events.insert(channel as usize, VecDeque::new());
    channel
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let mut state = state();
    state.live.channels -= 1;
    state.events.remove(&(channel as usize));
    // SAFETY: it came from a box, and the caller gives it back once.
    unsafe {
        libc::close((*channel).fd);
        drop(Box::from_raw(channel));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    // SAFETY: a structure of plain numbers and pointers, for which zeroes are fine.
    let mut new: Identifier = unsafe { MaybeUninit::zeroed().assume_init() };
    new.id.channel = channel;
    new.id.context = context;
    new.id.ps = ps;
    state().live.identifiers += 1;
    // SAFETY: the caller gave a place to write to.
    unsafe { id.write(Box::into_raw(Box::new(new)).cast()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    let mut state = state();
    state.live.identifiers -= 1;
    // SAFETY: it came from a box, and the caller gives it back once.
    let gone = unsafe { Box::from_raw(id.cast::<Identifier>()) };
    if let Some(events) = state.events.get_mut(&(gone.id.channel as usize)) {
        events.retain(|event| event.id != id as usize);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut sockaddr,
    to: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's addresses are as long as their families say.
    let ends = unsafe { (port(from), port(to)) };
    let (Some((from, pkey)), Some((to, _))) = ends else {
        return failed(libc::EAFNOSUPPORT);
    };
    // SAFETY: the identifier is one of ours.
    unsafe { (*id.cast::<Identifier>()).request = RecordRequest { from, to, pkey } };
    // SAFETY: as above.
    unsafe { happens(id, Kind::RDMA_CM_EVENT_ADDR_RESOLVED, 0) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: the identifier is one of ours, and this call has it alone.
    let this = unsafe { &mut *id.cast::<Identifier>() };
    let answer = {
        let mut state = state();
        state.requests.push(this.request);
        state.next_answer()
    };
    let (kind, status) = match answer {
        Some(answer) if answer.errno == 0 => {
            this.record = record(&answer, &this.request);
            this.id.route.path_rec = &raw mut this.record;
            this.id.route.num_paths = 1;
            (Kind::RDMA_CM_EVENT_ROUTE_RESOLVED, 0)
        }
        Some(answer) => (Kind::RDMA_CM_EVENT_ROUTE_ERROR, -answer.errno),
        None => (Kind::RDMA_CM_EVENT_ROUTE_ERROR, -libc::EINVAL),
    };
    // SAFETY: as above.
    unsafe { happens(id, kind, status) };
    0
}

/// The GID and the partition of a port's address; `None` if it is no port's.
///
/// # Safety
///
/// `address` can be read, as far as its family says.
unsafe fn port(address: *const sockaddr) -> Option<([u8; 16], u16)> {
    // SAFETY: the caller's promise.
    unsafe {
        let at = |offset: usize| address.cast::<u8>().add(offset);
        let family = at(offset_of!(sockaddr_ib, sib_family)).cast::<u16>().read();
        (family == AF_IB).then(|| {
            let gid = at(offset_of!(sockaddr_ib, sib_addr))
                .cast::<[u8; 16]>()
                .read();
            let pkey = at(offset_of!(sockaddr_ib, sib_pkey)).cast::<u16>().read();
            (gid, u16::from_be(pkey))
        })
    }
}

fn record(answer: &Answer, request: &RecordRequest) -> ibv_sa_path_rec {
    /// The value is exactly this.
    const EXACTLY: u8 = 2;
    ibv_sa_path_rec {
        dgid: ibv_gid { raw: request.to },
        sgid: ibv_gid { raw: request.from },
        dlid: answer.lid.to_be(),
        flow_label: answer.flow_label.to_be(),
        hop_limit: answer.hop_limit,
        traffic_class: answer.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: request.pkey.to_be(),
        sl: answer.service_level,
        mtu_selector: EXACTLY,
        mtu: answer.mtu,
        rate_selector: EXACTLY,
        rate: answer.rate,
        ..Default::default()
    }
}

/// # Safety
///
/// The identifier is one of ours.
unsafe fn happens(id: *mut rdma_cm_id, kind: Kind, status: c_int) {
    // SAFETY: the caller's promise; the channel lives as long as its identifiers.
    let (channel, fd) = unsafe { ((*id).channel, (*(*id).channel).fd) };
    let event = Event {
        id: id as usize,
        kind,
        status,
    };
    let mut state = state();
    state
        .events
        .entry(channel as usize)
        .or_default()
        .push_back(event);
    let one = 1_u64;
    // SAFETY: reads eight bytes of ours.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    into: *mut *mut rdma_cm_event,
) -> c_int {
    let mut count = 0_u64;
    // SAFETY: the channel is open; writes eight bytes of ours.
    if unsafe { libc::read((*channel).fd, (&raw mut count).cast(), 8) } != 8 {
        return -1;
    }
    let mut state = state();
    let Some(event) = (state.events.get_mut(&(channel as usize))).and_then(VecDeque::pop_front)
    else {
        // It went with its identifier.
        return failed(libc::EAGAIN);
    };
    state.live.events += 1;
    let taken = rdma_cm_event {
        id: event.id as *mut rdma_cm_id,
        event: event.kind,
        status: event.status,
        ..Default::default()
    };
    // SAFETY: the caller gave a place to write to.
    unsafe { into.write(Box::into_raw(Box::new(taken))) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    state().live.events -= 1;
    // SAFETY: it came from a box, and the caller gives it back once.
    drop(unsafe { Box::from_raw(event) });
    0
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(_event: Kind) -> *const c_char {
    c"an event".as_ptr()
}

/// Calls that a search for a path does not need.
macro_rules! refused {
    ($($name:ident($($argument:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($(_: $argument),*) -> c_int {
                failed(libc::EOPNOTSUPP)
            }
        )*
    };
}

refused! {
    rdma_bind_addr(*mut rdma_cm_id, *mut sockaddr);
    rdma_listen(*mut rdma_cm_id, c_int);
    rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param);
    rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param);
    rdma_reject(*mut rdma_cm_id, *const c_void, u8);
    rdma_disconnect(*mut rdma_cm_id);
    rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel);
    rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize);
    rdma_getaddrinfo(*const c_char, *const c_char, *const rdma_addrinfo, *mut *mut rdma_addrinfo);
}

#[unsafe(no_mangle)]
extern "C" fn rdma_freeaddrinfo(_list: *mut rdma_addrinfo) {}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_src_port(_id: *mut rdma_cm_id) -> u16 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_dst_port(_id: *mut rdma_cm_id) -> u16 {
    0
}
