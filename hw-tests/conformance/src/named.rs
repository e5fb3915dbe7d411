//! Named address vectors that two domains of one name share (fi_av(3), `name`, `map_addr` and
//! `FI_READ`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofabric_av::{AvAttr, InsertRequest, Services};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::types::{AvType, FiAddr, MsgKind};
use ferrofabric_runtime::eq::EventQueue;
use ferrofabric_runtime::fabric::Domain;

use crate::ends::QueuedEndpoint;
use crate::vectors::{Talk, errno_of, invented, name_of, refusal};

const GONE: Option<OpError> = Some(OpError::Failed(Errno::EADDRNOTAVAIL));

/// A name that nobody else has.
fn attr(of: &str, av_type: AvType) -> AvAttr {
    static USES: AtomicU64 = AtomicU64::new(0);
    let number = USES.fetch_add(1, Ordering::Relaxed);
    AvAttr {
        av_type: Some(av_type),
        name: Some(format!("{of} {} {number}", std::process::id())),
        ..AvAttr::default()
    }
}

fn reading(attr: &AvAttr) -> AvAttr {
    AvAttr {
        read_only: true,
        ..attr.clone()
    }
}

fn open(domain: &dyn Domain, attr: &AvAttr) -> QueuedEndpoint {
    QueuedEndpoint::open_with(domain, attr, |_| {})
}

/// The array that processes read: the addresses by order of insertion.
fn listed(map_addr: usize, count: usize) -> Vec<u64> {
    assert_ne!(map_addr, 0);
    let array = map_addr as *const u64;
    (0..count)
        .map(|n| {
            // SAFETY: the array is there as long as the vector, and nobody writes meanwhile.
            unsafe { array.add(n).read_volatile() }
        })
        .collect()
}

/// Entries that one end inserts lead both ends to their peers, by the same addresses, and a removal
/// by either end counts for both, also under a connection. The vector lives until its last user has
/// closed, also when its maker closed before, and an endpoint is a user.
///
/// Covers: AV-4, AV-6, AV-17
pub fn shared_entries(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = attr("shared", av_type);
        let missing = errno_of(domain_b.open_av(&reading(&attr)));
        assert_eq!(missing, Some(Errno::ENOENT));
        let talk = Talk::between(open(domain_a, &attr), open(domain_b, &attr));
        let (a, b) = (&talk.pair.a, &talk.pair.b);
        assert_eq!(a.av.map_addr(), b.av.map_addr(), "of one process");
        let mut last = None;
        for _ in 0..2 {
            let to_a = a.av.insert(&name_of(a)).unwrap();
            let to_b = a.av.insert(&name_of(b)).unwrap();
            assert_eq!(listed(b.av.map_addr(), 3), [to_a.0, to_b.0, u64::MAX]);
            if let Some(before) = last.replace(to_b) {
                assert_eq!(before == to_b, av_type == AvType::Table);
            }
            // The other end has inserted nothing.
            assert_eq!(talk.back(to_a, MsgKind::Tagged, 8).src, to_b);
            assert_eq!(talk.there(to_b, MsgKind::Msg, 9000).src, to_a);
            assert_eq!(b.av.insert(&name_of(a)).unwrap(), to_a);
            b.av.remove(to_b).unwrap();
            assert_eq!(errno_of(a.av.lookup(to_b)), Some(Errno::EINVAL));
            assert_eq!(refusal(a, to_b), GONE);
            assert_eq!(talk.back(to_a, MsgKind::Tagged, 8).src, FiAddr::NOTAVAIL);
            a.av.remove(to_a).unwrap();
            assert_eq!(refusal(b, to_a), GONE);
        }
        let to_b = a.av.insert(&name_of(b)).unwrap();
        // The maker goes. Its entries stay, for the other end and for newcomers.
        let Talk { pair, .. } = talk;
        let (a, b) = (pair.a, pair.b);
        drop(a);
        assert_eq!(b.av.lookup(to_b).unwrap(), b.endpoint.name());
        let newcomer = open(domain_a, &attr);
        assert_eq!(newcomer.av.lookup(to_b).unwrap(), b.endpoint.name());
        let to_newcomer = b.av.insert(&name_of(&newcomer)).unwrap();
        let talk = Talk::between(newcomer, b);
        assert_eq!(talk.there(to_b, MsgKind::Tagged, 8).src, to_newcomer);
        let Talk { pair, .. } = talk;
        drop(pair.a);
        // An endpoint holds its address vector, when no handle of that is left.
        let QueuedEndpoint {
            endpoint,
            av,
            tx,
            rx,
            ..
        } = pair.b;
        drop(av);
        let found = domain_a.open_av(&reading(&attr)).unwrap();
        assert_eq!(found.lookup(to_b).unwrap(), endpoint.name());
        drop((found, endpoint, tx, rx));
        let gone = errno_of(domain_a.open_av(&reading(&attr)));
        assert_eq!(gone, Some(Errno::ENOENT));
        // Another vector of the name begins empty.
        let next = domain_a.open_av(&attr).unwrap();
        assert_eq!(errno_of(next.lookup(to_b)), Some(Errno::EINVAL));
    }
}

/// An end that opened a vector for reading uses the entries of others and changes none: each sort
/// of insertion and the removal fail with `EACCES`. It needs a name, and a vector of that name.
///
/// Covers: AV-5
pub fn readers(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = attr("read", av_type);
        let nameless = AvAttr {
            name: None,
            ..reading(&attr)
        };
        assert_eq!(errno_of(domain_a.open_av(&nameless)), Some(Errno::EINVAL));
        let missing = errno_of(domain_a.open_av(&reading(&attr)));
        assert_eq!(missing, Some(Errno::ENOENT));
        let talk = Talk::between(open(domain_a, &attr), {
            let found = domain_a.open_av(&attr).unwrap();
            let reader = open(domain_b, &reading(&attr));
            drop(found);
            reader
        });
        let (a, reader) = (&talk.pair.a, &talk.pair.b);
        let to_a = a.av.insert(&name_of(a)).unwrap();
        let to_reader = a.av.insert(&name_of(reader)).unwrap();
        let denied = Some(Errno::EACCES);
        let unchanged = || {
            assert_eq!(talk.back(to_a, MsgKind::Tagged, 8).src, to_reader);
            assert_eq!(talk.there(to_reader, MsgKind::Tagged, 8).src, to_a);
            let end = listed(a.av.map_addr(), 3)[2];
            assert_eq!(end, u64::MAX, "an entry came");
        };
        unchanged();
        let other = &invented(a, 1)[0];
        let text = Services::one(&reader.endpoint.address().to_string(), None).unwrap();
        assert_eq!(errno_of(reader.av.insert(other)), denied);
        let by_text = reader.av.insert_services(&text, &mut |_, _| {});
        assert_eq!(errno_of(by_text), denied);
        for addr in [to_a, to_reader] {
            assert_eq!(errno_of(reader.av.remove(addr)), denied);
        }
        let asynchronous = domain_b
            .open_av(&AvAttr {
                events: true,
                ..reading(&attr)
            })
            .unwrap();
        let events = Arc::new(EventQueue::new());
        asynchronous.bind_events(events.clone(), 1).unwrap();
        for wanted in [
            InsertRequest::Listed(vec![other.clone()]),
            InsertRequest::Services(text.clone()),
        ] {
            let begun = asynchronous.insert_later(wanted, Vec::new(), 1, Box::new(|_, _| {}));
            assert_eq!(errno_of(begun), denied);
        }
        let mut out = [0; 64];
        let nothing = events.read(&mut out, ferrofabric_runtime::eq::Reading::Take);
        assert_eq!(nothing, Err(OpError::Again));
        unchanged();
    }
}
