//! Endpoints that share a queue and an address vector, or are their own peer.

use std::sync::Arc;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf};
use ferrofabric_runtime::fabric::{CqAttr, Endpoint, EndpointConfig};

use super::pair::{DatagramForm, SEND, any, send_op};
use crate::ends::{BLANK, PATIENCE, QueuedEndpoint};
use crate::fabric::Fabric;
use crate::memory::MessageMemory;

const INJECT: DatagramForm = DatagramForm {
    flags: Flags::INJECT,
    ..SEND
};

/// A datagram that an endpoint sends to itself arrives, with the endpoint as its source.
///
/// Covers: AV-25
pub fn an_endpoint_sends_to_itself(fabric: &Fabric) {
    let prefix = fabric.info().ep.msg_prefix_size;
    let end = QueuedEndpoint::open(fabric.domain(0));
    let own = end.av.insert(&end.endpoint.name().to_bytes()).unwrap();
    for number in 0..20 {
        let len = 8 + number;
        let room = MessageMemory::for_receive(prefix + len);
        let recv = any(end.context());
        end.recv(&recv, &[room.whole()]).unwrap();
        let out = MessageMemory::of_message_behind(prefix, number, len);
        // SAFETY: an inject is copied.
        unsafe {
            end.endpoint
                .send(&send_op(INJECT, own, 0, 0), &[out.whole()])
        }
        .unwrap();
        let c = end.next_alone().unwrap();
        assert_eq!((c.context, c.src, c.len), (recv.context, own, prefix + len));
        assert_eq!(room.message(prefix, len), Ok(Some(number)));
    }
}

/// Many endpoints share one queue and one address vector, and each sends to each: all datagrams
/// arrive, each once, with the right source.
///
/// Covers: AV-24, AV-25
pub fn many_on_one_queue(fabric: &Fabric) {
    const PEERS: usize = 12;
    let prefix = fabric.info().ep.msg_prefix_size;
    let domain = fabric.domain(0);
    let av = domain.open_av(&AvAttr::default()).unwrap();
    let cq = domain.open_cq(&CqAttr::default()).unwrap();
    let open = || domain.open_endpoint(EndpointConfig::new(&av, &cq)).unwrap();
    let insert = |peer: &Arc<dyn Endpoint>| av.insert(&peer.name().to_bytes()).unwrap();
    // The first half is in the address vector before the second half is there.
    let mut peers: Vec<Arc<dyn Endpoint>> = (0..PEERS / 2).map(|_| open()).collect();
    let mut addrs: Vec<FiAddr> = peers.iter().map(insert).collect();
    let late: Vec<Arc<dyn Endpoint>> = (PEERS / 2..PEERS).map(|_| open()).collect();
    addrs.extend(late.iter().map(insert));
    peers.extend(late);
    let rooms: Vec<MessageMemory> = (0..PEERS * PEERS)
        .map(|_| MessageMemory::for_receive(prefix + 8))
        .collect();
    for (at, room) in rooms.iter().enumerate() {
        // SAFETY: the memory stays until all completions are read, below.
        unsafe { peers[at / PEERS].recv(&any(at as u64), &[room.whole()]) }.unwrap();
    }
    let until = std::time::Instant::now() + PATIENCE;
    let mut got = Vec::new();
    let read = |got: &mut Vec<_>| {
        let mut out = [BLANK; 16];
        if let Ok(count) = cq.read(&mut out) {
            got.extend_from_slice(&out[..count]);
        }
        assert!(std::time::Instant::now() < until, "{} arrive", got.len());
    };
    for (from, peer) in peers.iter().enumerate() {
        for (to, addr) in addrs.iter().enumerate() {
            let out = MessageMemory::of_message_behind(prefix, from * PEERS + to, 8);
            let list: [IoBuf; 1] = [out.whole()];
            // SAFETY: an inject is copied.
            while unsafe { peer.send(&send_op(INJECT, *addr, 0, 0), &list) }.is_err() {
                read(&mut got);
            }
        }
    }
    while got.len() < PEERS * PEERS {
        read(&mut got);
    }
    let mut seen = [false; PEERS * PEERS];
    for c in got {
        let at = c.context as usize;
        let number = rooms[at].message(prefix, 8).unwrap().unwrap();
        let (from, to) = (number / PEERS, number % PEERS);
        assert_eq!((to, c.src), (at / PEERS, addrs[from]));
        assert!(
            !std::mem::replace(&mut seen[number], true),
            "{number} twice"
        );
    }
}
