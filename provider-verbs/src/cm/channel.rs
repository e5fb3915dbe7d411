//! Event channels and identifiers of the connection manager, as owned values
//! (rdma_create_event_channel(3), rdma_create_id(3)).

use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use ferrofabric_contracts::addr::{AddrFormat, Address};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::forked::Birth;
use ferrofabric_verbs_sys::{
    Rdmacm, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_port_space, sockaddr_ib,
};

use crate::ah::PathRecord;
use crate::device::{Gid, last_errno, not_loaded};

/// The channel on which events of identifiers arrive. It never blocks.
pub(super) struct EventChannel {
    cm: &'static Rdmacm,
    raw: NonNull<rdma_event_channel>,
    birth: Birth,
}

// SAFETY: librdmacm's calls may come from any thread, several at a time.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// Opens a channel.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOSYS`: librdmacm is not there, or too old. `ENODEV`: the kernel has no
    /// connection manager for users.
    pub(super) fn open() -> Result<Arc<Self>> {
        let cm = Rdmacm::load().map_err(not_loaded)?;
        // SAFETY: it takes nothing.
        let raw = unsafe { (cm.rdma_create_event_channel)() };
        let Some(raw) = NonNull::new(raw) else {
            let error = Error::new(Errno(last_errno()), "open", "connection manager");
            return Err(error.mend(
                "load the kernel module rdma_ucm; this user needs read and write access to /dev/infiniband/rdma_cm",
            ));
        };
        let channel = Self {
            cm,
            raw,
            birth: Birth::here(),
        };
        // SAFETY: the descriptor is the channel's own.
        if unsafe { libc::fcntl(channel.raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
            return Err(failed("open", "event channel of the connection manager"));
        }
        Ok(Arc::new(channel))
    }

    /// Whether this process opened the channel and so owns the identifiers on it.
    pub(super) fn is_own(&self) -> bool {
        self.birth.is_this_process()
    }

    fn raw_fd(&self) -> i32 {
        // SAFETY: the channel is open.
        unsafe { self.raw.as_ref().fd }
    }

    /// The next event, if one has come.
    ///
    /// # Errors
    ///
    /// The kernel does not return an event.
    pub(super) fn event(self: &Arc<Self>) -> Result<Option<CmEvent>> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is open.
        if unsafe { (self.cm.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut event) } != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(failed("read", "event of the connection manager")),
            };
        }
        // SAFETY: the event is this function's own until it is acknowledged, and nothing of it is
        // used after that.
        unsafe {
            let copy = Copied::of(&*event);
            (self.cm.rdma_ack_cm_event)(event);
            Ok(Some(copy.owned(self)))
        }
    }
}

impl AsFd for EventChannel {
    /// Readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as `self` is.
        unsafe { BorrowedFd::borrow_raw(self.raw_fd()) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        if !self.is_own() {
            return;
        }
        // SAFETY: identifiers hold it, so there are none; events are acknowledged at once.
        unsafe { (self.cm.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// An event of the connection manager.
pub(super) struct CmEvent {
    /// The identifier of the event: for a request, the listening one.
    pub(super) id: IdKey,
    pub(super) kind: rdma_cm_event_type,
    /// 0, a negative error number, or the status of the peer's answer.
    pub(super) status: i32,
    pub(super) private_data: Vec<u8>,
    /// The identifier of the peer that sent a request.
    pub(super) request: Option<CmId>,
}

struct Copied {
    raw: *mut rdma_cm_id,
    event: CmEvent,
}

impl Copied {
    /// # Safety
    ///
    /// The event is of an identifier for datagrams, and not acknowledged.
    unsafe fn of(event: &rdma_cm_event) -> Self {
        use rdma_cm_event_type as Kind;
        let tells = matches!(
            event.event,
            Kind::RDMA_CM_EVENT_CONNECT_REQUEST | Kind::RDMA_CM_EVENT_ESTABLISHED
        );
        // SAFETY: these two have the datagram's parameters, and private data as long as they say.
        let private_data = unsafe {
            let ud = event.param.ud;
            match tells && !ud.private_data.is_null() {
                true => std::slice::from_raw_parts(
                    ud.private_data.cast::<u8>(),
                    ud.private_data_len.into(),
                )
                .to_vec(),
                false => Vec::new(),
            }
        };
        let asks = event.event == Kind::RDMA_CM_EVENT_CONNECT_REQUEST;
        Self {
            raw: event.id,
            event: CmEvent {
                id: IdKey(match asks {
                    true => event.listen_id as usize,
                    false => event.id as usize,
                }),
                kind: event.event,
                status: event.status,
                private_data,
                request: None,
            },
        }
    }

    /// The event, with the identifier of the requesting peer, which this process owns from now on.
    fn owned(self, channel: &Arc<EventChannel>) -> CmEvent {
        let asks = self.event.kind == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
        let request = NonNull::new(self.raw).filter(|_| asks).map(|raw| CmId {
            raw,
            channel: channel.clone(),
        });
        CmEvent {
            request,
            ..self.event
        }
    }
}

/// Distinguishes identifiers as long as they exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct IdKey(usize);

/// An identifier of the connection manager: for listening, for an own request, or for a peer's
/// request.
pub(super) struct CmId {
    raw: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: as for the channel.
unsafe impl Send for CmId {}
// SAFETY: as above.
unsafe impl Sync for CmId {}

impl CmId {
    /// Creates an identifier for datagrams.
    ///
    /// # Errors
    ///
    /// An error of the system, for example because no descriptor is free.
    pub(super) fn create(channel: &Arc<EventChannel>) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open, and there is room for the pointer.
        let rc = unsafe {
            (channel.cm.rdma_create_id)(
                channel.raw.as_ptr(),
                &raw mut raw,
                ptr::null_mut(),
                rdma_port_space::RDMA_PS_UDP,
            )
        };
        match NonNull::new(raw) {
            Some(raw) if rc == 0 => Ok(Self {
                raw,
                channel: channel.clone(),
            }),
            _ => Err(failed("create", "identifier of the connection manager")),
        }
    }

    pub(super) fn key(&self) -> IdKey {
        IdKey(self.raw.as_ptr() as usize)
    }

    /// Binds the identifier to an address of this host; returns the port.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: another identifier has the address.
    pub(super) fn bind(&self, at: SocketAddr) -> Result<u16> {
        let mut to = Sockaddr::of(&CmAddr::Socket(at));
        // SAFETY: the identifier is live, and the address is one.
        unsafe {
            self.done(
                (self.channel.cm.rdma_bind_addr)(self.raw.as_ptr(), to.as_mut_ptr()),
                "listen at",
                || at.to_string(),
            )?;
            Ok(u16::from_be((self.channel.cm.rdma_get_src_port)(
                self.raw.as_ptr(),
            )))
        }
    }

    /// Makes the identifier listen at the address. The backlog of 0 is the system's own limit.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: another identifier listens there.
    pub(super) fn listen(&self, at: SocketAddr) -> Result<()> {
        // SAFETY: the identifier is live.
        let rc = unsafe { (self.channel.cm.rdma_listen)(self.raw.as_ptr(), 0) };
        self.done(rc, "listen at", || at.to_string())
    }

    /// Starts to look for the route from one address to another.
    ///
    /// # Errors
    ///
    /// `ENETUNREACH`: there is no route.
    pub(super) fn resolve_addr(&self, from: CmAddr, to: CmAddr, timeout: Duration) -> Result<()> {
        let (mut source, mut target) = (Sockaddr::of(&from), Sockaddr::of(&to));
        // SAFETY: the identifier is live, and both addresses are some.
        let rc = unsafe {
            (self.channel.cm.rdma_resolve_addr)(
                self.raw.as_ptr(),
                source.as_mut_ptr(),
                target.as_mut_ptr(),
                milliseconds(timeout),
            )
        };
        self.done(rc, "find a way to", || to.to_string())
    }

    /// Starts to look for the path, once the address is resolved.
    ///
    /// # Errors
    ///
    /// An error of the system, for example because no device is at the address.
    pub(super) fn resolve_route(&self, timeout: Duration) -> Result<()> {
        // SAFETY: the identifier is live.
        let rc = unsafe {
            (self.channel.cm.rdma_resolve_route)(self.raw.as_ptr(), milliseconds(timeout))
        };
        self.done(rc, "find a path for", || "request".to_owned())
    }

    /// The path, once the route is resolved; `None` if the route has none.
    pub(super) fn path_record(&self) -> Option<PathRecord> {
        // SAFETY: the identifier is live. The library fills the route in as it hands out the event
        // that the route is resolved, and then leaves it alone.
        unsafe {
            let route = &self.raw.as_ref().route;
            let has_path = route.num_paths > 0 && !route.path_rec.is_null();
            has_path.then(|| PathRecord::of(&*route.path_rec))
        }
    }

    /// Sends the request to the listener at the address, once the route is known.
    ///
    /// # Errors
    ///
    /// An error of the system, for example because memory is short.
    pub(super) fn ask(&self, question: &[u8]) -> Result<()> {
        let mut parameters = with_private_data(question);
        // SAFETY: the identifier is live, and the private data outlives the call.
        let rc = unsafe { (self.channel.cm.rdma_connect)(self.raw.as_ptr(), &raw mut parameters) };
        self.done(rc, "send", || "request".to_owned())
    }

    /// Accepts a peer's request and names a queue pair to it.
    ///
    /// # Errors
    ///
    /// An error of the system, for example because memory is short.
    pub(super) fn answer(&self, qpn: u32, answer: &[u8]) -> Result<()> {
        let mut parameters = rdma_conn_param {
            qp_num: qpn,
            ..with_private_data(answer)
        };
        // SAFETY: as above.
        let rc = unsafe { (self.channel.cm.rdma_accept)(self.raw.as_ptr(), &raw mut parameters) };
        self.done(rc, "answer", || "request".to_owned())
    }

    /// Refuses a peer's request.
    ///
    /// # Errors
    ///
    /// An error of the system, for example because memory is short.
    pub(super) fn refuse(&self) -> Result<()> {
        // SAFETY: the identifier is live.
        let rc = unsafe { (self.channel.cm.rdma_reject)(self.raw.as_ptr(), ptr::null(), 0) };
        self.done(rc, "refuse", || "request".to_owned())
    }

    fn done(&self, rc: i32, doing: &'static str, object: impl FnOnce() -> String) -> Result<()> {
        match rc {
            0 => Ok(()),
            _ => Err(failed(doing, object())),
        }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if !self.channel.is_own() {
            return;
        }
        // SAFETY: this value is the only owner, and its events are acknowledged as they are read.
        unsafe { (self.channel.cm.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

fn with_private_data(bytes: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: bytes.as_ptr().cast(),
        private_data_len: bytes.len() as u8,
        ..rdma_conn_param::default()
    }
}

/// At least one: 0 would be no time at all.
fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis())
        .unwrap_or(i32::MAX)
        .max(1)
}

/// The error of a call that has just failed.
#[cold]
fn failed(doing: &'static str, object: impl Into<String>) -> Error {
    let error = Error::new(Errno(last_errno()), doing, object);
    match error.errno() {
        Errno::EADDRINUSE => {
            error.mend("another endpoint listens there: choose another port, or 0 for any")
        }
        Errno::EADDRNOTAVAIL | Errno::ENODEV => {
            error.mend("choose an address of an interface with an RDMA device")
        }
        _ => error,
    }
}

/// An address, as the connection manager takes it.
#[derive(Clone, Copy, Debug)]
pub(super) enum CmAddr {
    /// A socket address.
    Socket(SocketAddr),
    /// A port of InfiniBand, in a partition.
    Port { gid: Gid, pkey: u16 },
}

impl std::fmt::Display for CmAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(at) => at.fmt(f),
            Self::Port { gid, .. } => gid.fmt(f),
        }
    }
}

/// The address family of [`sockaddr_ib`].
const AF_IB: u16 = 27;

/// A `sockaddr` for C.
#[repr(C, align(8))]
struct Sockaddr([u8; size_of::<sockaddr_ib>()]);

impl Sockaddr {
    fn of(at: &CmAddr) -> Self {
        let mut this = Self([0; size_of::<sockaddr_ib>()]);
        match *at {
            CmAddr::Socket(at) => {
                let bytes = Address::from(at).to_bytes(AddrFormat::SOCKADDR);
                for (to, byte) in this.0.iter_mut().zip(bytes.unwrap_or_default()) {
                    *to = byte;
                }
            }
            CmAddr::Port { gid, pkey } => {
                let mut put = |at: usize, bytes: &[u8]| {
                    this.0[at..at + bytes.len()].copy_from_slice(bytes);
                };
                put(offset_of!(sockaddr_ib, sib_family), &AF_IB.to_ne_bytes());
                put(offset_of!(sockaddr_ib, sib_pkey), &pkey.to_be_bytes());
                put(offset_of!(sockaddr_ib, sib_addr), &gid.0);
            }
        }
        this
    }

    fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        self.0.as_mut_ptr().cast()
    }
}
