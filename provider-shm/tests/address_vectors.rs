//! Address vectors under traffic: named ones that two domains share, users' own IDs (fi_av(3)).

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::time::Instant;

use ferrofabric_conformance::limits::{PATIENCE, settings};
use ferrofabric_core::addr::NativeAddr;
use ferrofabric_core::av::{AvAttr, AvType};
use ferrofabric_core::error::{Errno, OpError};
use ferrofabric_core::fabric::{Domain, Provider};
use ferrofabric_core::owning::{Buffer, OwningEndpoint};
use ferrofabric_core::peer::Completion;
use ferrofabric_core::types::FiAddr;
use ferrofabric_shm::ShmProvider;

fn domain() -> Arc<dyn Domain> {
    let (provider, settings) = (ShmProvider::new(), settings(&[]));
    let found = provider.discover(&settings);
    let info = found.candidates.first().unwrap();
    provider.open(info, &settings).unwrap()
}

fn buffer() -> Buffer {
    Buffer::new(8).unwrap()
}

/// A message from one to the other; returns the receiver's completion.
fn exchange(from: &mut OwningEndpoint, to: FiAddr, at: &mut OwningEndpoint) -> Completion {
    at.trecv(buffer(), FiAddr::UNSPEC, 1, 0, 0).unwrap();
    from.tsend(buffer(), 8, to, 1, 0).unwrap();
    let until = Instant::now() + PATIENCE;
    let (mut sent, mut received) = (false, None);
    while !sent || received.is_none() {
        sent |= from
            .poll()
            .unwrap()
            .map(|done| done.outcome.unwrap())
            .is_some();
        if let Some(done) = at.poll().unwrap() {
            received = Some(done.outcome.unwrap());
        }
        assert!(Instant::now() < until, "sent {sent}, received {received:?}");
    }
    received.unwrap()
}

fn refused(from: &mut OwningEndpoint, to: FiAddr) -> OpError {
    from.tsend(buffer(), 8, to, 1, 0)
        .map_err(|(why, _)| why)
        .unwrap_err()
}

/// Each has an endpoint on a domain of its own; what one inserts the other sends to, and what one removes the other does not
/// reach any more, also where both have spoken before.
///
/// Covers: AV-4, AV-17
#[test]
fn who_shares_an_address_vector_sends_to_what_the_other_inserts() {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = AvAttr {
            av_type: Some(av_type),
            name: Some(format!("shm {av_type:?} {}", std::process::id())),
            ..AvAttr::default()
        };
        let (mine, yours) = (domain(), domain());
        let mut a = OwningEndpoint::open(&*mine, &attr).unwrap();
        let mut b = OwningEndpoint::open(&*yours, &attr).unwrap();
        let nobody = Err(Errno::EINVAL);
        let lookup = |at: &OwningEndpoint, addr| at.av().lookup(addr).map_err(|e| e.errno());
        let mut last = None;
        for _ in 0..3 {
            let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
            let to_a = a.av().insert(&a.name().to_bytes()).unwrap();
            assert_eq!(b.av().insert(&a.name().to_bytes()).unwrap(), to_a);
            if let Some((stale_b, _)) = last.replace((to_b, to_a)) {
                assert_eq!(stale_b == to_b, av_type == AvType::Table);
            }
            // Nobody has inserted anything at b.
            assert_eq!(exchange(&mut b, to_a, &mut a).src, to_b);
            assert_eq!(exchange(&mut a, to_b, &mut b).src, to_a);
            b.av().remove(to_b).unwrap();
            assert_eq!(lookup(&a, to_b), nobody);
            let gone = OpError::Failed(Errno::EADDRNOTAVAIL);
            assert_eq!(refused(&mut a, to_b), gone);
            assert_eq!(exchange(&mut b, to_a, &mut a).src, FiAddr::NOTAVAIL);
            a.av().remove(to_a).unwrap();
            assert_eq!(refused(&mut b, to_a), gone);
        }
    }
}

/// An ID that is given to an address is there, also when another process has just put that in an entry of which this one knows another
/// address.
///
/// Covers: AV-4, AV-20
#[test]
fn an_id_is_of_what_another_process_has_just_inserted() {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = AvAttr {
            av_type: Some(av_type),
            name: Some(format!("shm IDs {av_type:?} {}", std::process::id())),
            user_ids: true,
            ..AvAttr::default()
        };
        let (mine, yours) = (domain(), domain());
        let mut a = OwningEndpoint::open(&*mine, &attr).unwrap();
        let mut b = OwningEndpoint::open(&*yours, &attr).unwrap();
        let other = OwningEndpoint::open(&*yours, &attr).unwrap();
        let before = a.av().insert(&other.name().to_bytes()).unwrap();
        b.av().remove(before).unwrap();
        let to_b = b.av().insert(&b.name().to_bytes()).unwrap();
        assert_eq!(to_b.0 as u32, before.0 as u32);
        let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
        a.av().set_user_id(to_b, FiAddr(4711)).unwrap();
        assert_eq!(exchange(&mut b, to_a, &mut a).src, FiAddr(4711));
    }
}

/// Endpoints of one node lie in symmetric address vectors by their numbers alone; messages go both ways and tell their sources.
///
/// Covers: AV-9, AV-17
#[test]
fn endpoints_find_each_other_in_symmetric_address_vectors() {
    for av_type in [AvType::Map, AvType::Table] {
        let symmetric = AvAttr {
            av_type: Some(av_type),
            symmetric: true,
            ..AvAttr::default()
        };
        let domain = domain();
        let mut hub = OwningEndpoint::open(&*domain, &symmetric).unwrap();
        let mut peers: Vec<_> = (0..8)
            .map(|_| OwningEndpoint::open(&*domain, &symmetric).unwrap())
            .collect();
        let name = hub.name();
        assert_eq!(name.shm, Some(name.incarnation));
        for round in 0..2 {
            for peer in &mut peers {
                let to_hub = peer.av().insert(&name.to_bytes()).unwrap();
                let to_peer = hub.av().insert(&peer.name().to_bytes()).unwrap();
                assert_eq!(hub.av().lookup(to_peer).unwrap(), peer.name());
                assert_eq!(exchange(peer, to_hub, &mut hub).src, to_peer);
                assert_eq!(exchange(&mut hub, to_peer, peer).src, to_hub);
                hub.av().remove(to_peer).unwrap();
                let gone = OpError::Failed(Errno::EADDRNOTAVAIL);
                assert_eq!(refused(&mut hub, to_peer), gone, "round {round}");
                assert_eq!(exchange(peer, to_hub, &mut hub).src, FiAddr::NOTAVAIL);
            }
        }
    }
}

/// What is told of many addresses at once is what is told of each: who is there, who is no more, who never was.
///
/// Covers: AV-18
#[test]
fn many_addresses_are_looked_up_by_one_call() {
    for (av_type, symmetric) in [
        (AvType::Map, false),
        (AvType::Table, false),
        (AvType::Map, true),
        (AvType::Table, true),
    ] {
        let domain = domain();
        let av = domain.open_av(&AvAttr {
            av_type: Some(av_type),
            symmetric,
            ..AvAttr::default()
        });
        let av = av.unwrap();
        let name = |n| NativeAddr {
            incarnation: n,
            node: 1,
            shm: Some(n),
            verbs: None,
        };
        let mut addrs: Vec<_> = (0..100)
            .map(|n| av.insert(&name(n).to_bytes()).unwrap())
            .collect();
        for gone in addrs.iter().step_by(7) {
            av.remove(*gone).unwrap();
        }
        addrs.extend([FiAddr(4711), FiAddr::NOTAVAIL]);
        let mut found = Vec::new();
        av.lookup_all(&addrs, &mut |number, one| {
            assert_eq!(number, found.len());
            found.push(one.map_err(|e| e.errno()));
        })
        .unwrap();
        let expected: Vec<_> = (0..102)
            .map(|n| match n < 100 && n % 7 != 0 {
                true => Ok(name(n)),
                false => Err(Errno::EINVAL),
            })
            .collect();
        assert_eq!(found, expected);
        av.lookup_all(&[], &mut |_, _| panic!("nothing was asked for"))
            .unwrap();
    }
}

/// Covers: AV-20
#[test]
fn completions_report_the_users_ids() {
    let domain = domain();
    let with = AvAttr {
        user_ids: true,
        ..AvAttr::default()
    };
    let mut hub = OwningEndpoint::open(&*domain, &with).unwrap();
    let mut peer = OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
    let to_hub = peer.av().insert(&hub.name().to_bytes()).unwrap();
    let to_peer = hub.av().insert(&peer.name().to_bytes()).unwrap();
    assert_eq!(exchange(&mut peer, to_hub, &mut hub).src, FiAddr::NOTAVAIL);
    let av = hub.av().clone();
    av.set_user_id(to_peer, FiAddr(4711)).unwrap();
    assert_eq!(exchange(&mut peer, to_hub, &mut hub).src, FiAddr(4711));
    // The address is what everything else takes.
    assert_eq!(av.lookup(to_peer).unwrap(), peer.name());
    assert_eq!(
        refused(&mut hub, FiAddr(4711)),
        OpError::Failed(Errno::EADDRNOTAVAIL)
    );
    assert_eq!(exchange(&mut hub, to_peer, &mut peer).src, to_hub);
    // The ID goes with the address.
    av.remove(to_peer).unwrap();
    let again = av.insert(&peer.name().to_bytes()).unwrap();
    assert_eq!(exchange(&mut peer, to_hub, &mut hub).src, FiAddr::NOTAVAIL);
    let errno = |e: ferrofabric_core::error::Error| e.errno();
    let stale = av.set_user_id(to_peer, FiAddr(1)).map_err(errno);
    assert_eq!(stale, Err(Errno::EINVAL));
    let both = av.tag_inserted(again, FiAddr(1)).map_err(errno);
    assert_eq!(both, Err(Errno::EINVAL));
    let plain = peer.av().set_user_id(to_hub, FiAddr(1)).map_err(errno);
    assert_eq!(plain, Err(Errno::EINVAL));
    peer.av().tag_inserted(to_hub, FiAddr(12)).unwrap();
    assert_eq!(exchange(&mut hub, again, &mut peer).src, FiAddr(12));
}
