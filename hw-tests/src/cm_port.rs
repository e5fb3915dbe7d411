//! The connection manager as any program has it, for tests.

use std::net::SocketAddr;
use std::ptr;

use ferrofabric_contracts::addr::{AddrFormat, Address};
use ferrofabric_verbs_sys::{
    Rdmacm, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};

/// An event channel with one identifier for datagrams.
pub struct CmPort {
    /// The library.
    pub cm: &'static Rdmacm,
    channel: *mut rdma_event_channel,
    /// The identifier.
    pub id: *mut rdma_cm_id,
}

impl CmPort {
    /// A new one.
    pub fn new() -> Self {
        let cm = Rdmacm::load().unwrap();
        let mut id = ptr::null_mut();
        // SAFETY: a fresh channel, a fresh identifier.
        let channel = unsafe { (cm.rdma_create_event_channel)() };
        assert!(!channel.is_null(), "{}", std::io::Error::last_os_error());
        // SAFETY: the channel is live.
        let rc = unsafe {
            (cm.rdma_create_id)(
                channel,
                &raw mut id,
                ptr::null_mut(),
                rdma_port_space::RDMA_PS_UDP,
            )
        };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        Self { cm, channel, id }
    }

    /// Takes the next event.
    pub fn next<R>(&self, read: impl FnOnce(&rdma_cm_event) -> R) -> R {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is live.
        let rc = unsafe { (self.cm.rdma_get_cm_event)(self.channel, &raw mut event) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        let event = CmEvent { cm: self.cm, event };
        // SAFETY: the event is live until it is acknowledged.
        read(unsafe { &*event.event })
    }

    /// Takes the next event, which must be of this kind.
    pub fn event<R>(&self, kind: rdma_cm_event_type, read: impl FnOnce(&rdma_cm_event) -> R) -> R {
        self.next(|event| {
            assert_eq!(event.event, kind, "status {}", event.status);
            read(event)
        })
    }

    /// Listens at an address of this host, at any port that is free, and says which.
    pub fn listen(&self, at: SocketAddr) -> SocketAddr {
        let mut bytes = sockaddr(&at);
        // SAFETY: the identifier is live, and the address is one.
        let port = unsafe {
            let to = bytes.as_mut_ptr().cast();
            assert_eq!((self.cm.rdma_bind_addr)(self.id, to), 0);
            assert_eq!((self.cm.rdma_listen)(self.id, 4), 0);
            u16::from_be((self.cm.rdma_get_src_port)(self.id))
        };
        assert_ne!(port, 0);
        SocketAddr::new(at.ip(), port)
    }

    /// Finds the way to an address.
    pub fn resolve(&self, to: SocketAddr) {
        let mut bytes = sockaddr(&to);
        // SAFETY: the identifier is live, and the address is one.
        unsafe {
            let to = bytes.as_mut_ptr().cast();
            let rc = (self.cm.rdma_resolve_addr)(self.id, ptr::null_mut(), to, 10_000);
            assert_eq!(rc, 0);
            self.event(rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED, |_| ());
            assert_eq!((self.cm.rdma_resolve_route)(self.id, 10_000), 0);
            self.event(rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED, |_| ());
        }
    }

    /// Sends the listener there a question with this private data.
    pub fn ask(&self, private_data: &[u8]) {
        let mut parameters = rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            private_data_len: u8::try_from(private_data.len()).unwrap(),
            ..Default::default()
        };
        // SAFETY: the identifier is live, and the private data outlives the call.
        let rc = unsafe { (self.cm.rdma_connect)(self.id, &raw mut parameters) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }

    /// Takes the next event, which must be somebody's request.
    pub fn request(&self, read: impl FnOnce(&rdma_cm_event)) -> CmRequest {
        self.event(rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST, |event| {
            read(event);
            CmRequest {
                cm: self.cm,
                id: event.id,
            }
        })
    }
}

/// An event that is acknowledged in the end, a test's failure included: the destruction of its
/// identifier waits for that.
struct CmEvent {
    cm: &'static Rdmacm,
    event: *mut rdma_cm_event,
}

impl Drop for CmEvent {
    fn drop(&mut self) {
        // SAFETY: the event came from the channel, and is acknowledged once.
        unsafe { (self.cm.rdma_ack_cm_event)(self.event) };
    }
}

/// Somebody's request.
pub struct CmRequest {
    cm: &'static Rdmacm,
    id: *mut rdma_cm_id,
}

impl CmRequest {
    /// Answers it.
    pub fn answer(self, qpn: u32, private_data: &[u8]) {
        let mut parameters = rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            private_data_len: u8::try_from(private_data.len()).unwrap(),
            qp_num: qpn,
            ..Default::default()
        };
        // SAFETY: the identifier came with an event that is acknowledged, and is ours alone.
        unsafe {
            assert_eq!((self.cm.rdma_accept)(self.id, &raw mut parameters), 0);
            assert_eq!((self.cm.rdma_destroy_id)(self.id), 0);
        }
    }
}

impl Default for CmPort {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for CmPort {
    fn drop(&mut self) {
        // SAFETY: both are live, and all events are acknowledged.
        unsafe {
            (self.cm.rdma_destroy_id)(self.id);
            (self.cm.rdma_destroy_event_channel)(self.channel);
        }
    }
}

fn sockaddr(at: &SocketAddr) -> Vec<u8> {
    Address::from(*at).to_bytes(AddrFormat::SOCKADDR).unwrap()
}
