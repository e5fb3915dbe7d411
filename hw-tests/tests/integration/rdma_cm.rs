//! librdmacm through our bindings: an IP address and port become handle attributes, queue pair
//! number and key (service ID resolution).

use std::net::SocketAddr;

use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::cm_port::CmPort;
use ferrofabric_verbs::device::{Gid, GidScope};
use ferrofabric_verbs_sys::{RDMA_UDP_QKEY, rdma_cm_event_type};
use serial_test::file_serial;

#[test]
#[file_serial(verbs)]
fn an_ip_address_resolves_to_a_datagram_queue_pair() {
    let Some(rig) = Rig::open() else { return };
    let GidScope::Ipv4(ip) = rig.gid.scope() else {
        println!("SKIP: the port has no IPv4 address");
        return;
    };
    let (server, client) = (CmPort::new(), CmPort::new());
    let at = server.listen(SocketAddr::new(ip.into(), 0));
    client.resolve(at);
    // SAFETY: the identifier is live.
    let port = unsafe { (*client.id).port_num };
    assert_eq!(u32::from(port), u32::from(rig.port.number));
    let question = *b"who?";
    client.ask(&question);
    let request = server.request(|event| {
        // SAFETY: a request has private data of at least as many bytes.
        let data = unsafe { *event.param.ud.private_data.cast::<[u8; 4]>() };
        assert_eq!((event.listen_id, data), (server.id, question));
    });
    request.answer(0x4711, &[]);
    client.event(rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED, |event| {
        // SAFETY: of datagrams.
        let ud = unsafe { &event.param.ud };
        assert_eq!((ud.qp_num, ud.qkey), (0x4711, RDMA_UDP_QKEY));
        assert_eq!(
            (ud.ah_attr.is_global, ud.ah_attr.port_num),
            (1, rig.port.number)
        );
        assert_eq!(Gid::from(ud.ah_attr.grh.dgid), rig.gid);
        assert_eq!(ud.ah_attr.grh.sgid_index, rig.gid_index);
    });
}
