//! librdmacm through our bindings: an IP address and port become handle attributes, queue pair number and key (service ID
//! resolution).

#![allow(missing_docs, clippy::unwrap_used)]

use std::mem;
use std::ptr;

use ferrofabric_hw_tests::Rig;
use ferrofabric_verbs::device::{Gid, GidScope};
use ferrofabric_verbs_sys::{
    RDMA_UDP_QKEY, Rdmacm, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space,
};
use serial_test::file_serial;

/// An event channel with one identifier.
struct Port {
    cm: &'static Rdmacm,
    channel: *mut rdma_event_channel,
    id: *mut rdma_cm_id,
}

impl Port {
    fn new(cm: &'static Rdmacm) -> Self {
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

    /// Takes the next event, which must be of this kind.
    fn event<R>(&self, kind: rdma_cm_event_type, read: impl FnOnce(&rdma_cm_event) -> R) -> R {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is live; the event is until it is acknowledged.
        unsafe {
            assert_eq!((self.cm.rdma_get_cm_event)(self.channel, &raw mut event), 0);
            assert_eq!((*event).event, kind, "status {}", (*event).status);
            let result = read(&*event);
            assert_eq!((self.cm.rdma_ack_cm_event)(event), 0);
            result
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: both are live, and all events are acknowledged.
        unsafe {
            (self.cm.rdma_destroy_id)(self.id);
            (self.cm.rdma_destroy_event_channel)(self.channel);
        }
    }
}

#[test]
#[file_serial(verbs)]
fn an_ip_address_resolves_to_a_datagram_queue_pair() {
    let Some(rig) = Rig::open() else { return };
    let GidScope::Ipv4(ip) = rig.gid.scope() else {
        println!("SKIP: the port has no IPv4 address");
        return;
    };
    let cm = Rdmacm::load().unwrap();
    let (server, client) = (Port::new(cm), Port::new(cm));
    let mut address: libc::sockaddr_in = no_address();
    address.sin_family = libc::AF_INET as libc::sa_family_t;
    address.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
    let socket_address =
        |address: &mut libc::sockaddr_in| ptr::from_mut(address).cast::<libc::sockaddr>();

    // SAFETY: identifiers are live, addresses and parameters outlive the calls.
    unsafe {
        assert_eq!(
            (cm.rdma_bind_addr)(server.id, socket_address(&mut address)),
            0
        );
        assert_eq!((cm.rdma_listen)(server.id, 4), 0);
        address.sin_port = (cm.rdma_get_src_port)(server.id);
        assert_ne!(address.sin_port, 0);
        let rc = (cm.rdma_resolve_addr)(
            client.id,
            ptr::null_mut(),
            socket_address(&mut address),
            10_000,
        );
        assert_eq!(rc, 0);
        client.event(rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED, |_| ());
        assert_eq!((cm.rdma_resolve_route)(client.id, 10_000), 0);
        client.event(rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED, |_| ());
        assert_eq!(u32::from((*client.id).port_num), u32::from(rig.port.number));

        let question = *b"who?";
        let mut parameters = rdma_conn_param {
            private_data: question.as_ptr().cast(),
            private_data_len: 4,
            ..Default::default()
        };
        assert_eq!((cm.rdma_connect)(client.id, &raw mut parameters), 0);
        let asked = server.event(rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST, |event| {
            let data = event.param.ud.private_data.cast::<[u8; 4]>();
            assert_eq!((event.listen_id, *data), (server.id, question));
            event.id
        });
        let mut answer = rdma_conn_param {
            qp_num: 0x4711,
            ..Default::default()
        };
        assert_eq!((cm.rdma_accept)(asked, &raw mut answer), 0);
        client.event(rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED, |event| {
            let ud = &event.param.ud;
            assert_eq!((ud.qp_num, ud.qkey), (0x4711, RDMA_UDP_QKEY));
            assert_eq!(
                (ud.ah_attr.is_global, ud.ah_attr.port_num),
                (1, rig.port.number)
            );
            assert_eq!(Gid::from(ud.ah_attr.grh.dgid), rig.gid);
            assert_eq!(ud.ah_attr.grh.sgid_index, rig.gid_index);
        });
        assert_eq!((cm.rdma_destroy_id)(asked), 0);
    }
}

fn no_address() -> libc::sockaddr_in {
    // SAFETY: a C structure of numbers.
    unsafe { mem::zeroed() }
}
