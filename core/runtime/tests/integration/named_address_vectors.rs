//! Named address vectors with several holders (fi_av(3)).

use ferrofabric_av::{AvAttr, AvTable};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, Result};
use ferrofabric_contracts::peer::PeerAv;
use ferrofabric_contracts::types::{AvType, FiAddr};

const DOMAIN: &str = "test";

fn attr(name: &str, av_type: Option<AvType>) -> AvAttr {
    AvAttr {
        av_type,
        name: Some(format!("{name}-{}", std::process::id())),
        ..AvAttr::default()
    }
}

fn reading(attr: &AvAttr) -> AvAttr {
    AvAttr {
        read_only: true,
        ..attr.clone()
    }
}

fn refused(opened: Result<AvTable>) -> Errno {
    match opened {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.errno(),
    }
}

/// Every word of the name contains its number.
fn name(n: u64) -> NativeAddr {
    NativeAddr {
        incarnation: n,
        node: n ^ 0x5555,
        shm: Some(n.wrapping_mul(3)),
        verbs: None,
    }
}

/// Covers: AV-4, AV-6
#[test]
fn every_holder_has_an_inserted_address() {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = attr("shared", Some(av_type));
        let first = AvTable::open(&attr, DOMAIN).unwrap();
        let second = AvTable::open(&attr, DOMAIN).unwrap();
        let elsewhere = AvTable::open(&attr, "another domain").unwrap();
        let known: Vec<_> = (0..1000)
            .map(|n| first.insert(&name(n)).unwrap().addr)
            .collect();
        for (n, addr) in (0..).zip(&known) {
            assert_eq!(second.lookup(*addr), Some(name(n)));
            assert_eq!(second.find(&name(n)), *addr);
            assert_eq!(elsewhere.find(&name(n)), FiAddr::NOTAVAIL);
        }
        second.remove(known[7]).unwrap();
        assert_eq!(first.lookup(known[7]), None);
        assert_eq!(first.find(&name(7)), FiAddr::NOTAVAIL);
        assert_eq!(first.remove(known[7]).unwrap_err().errno(), Errno::EINVAL);
        // The first holder closes; later ones find everything.
        drop(first);
        let third = AvTable::open(&attr, DOMAIN).unwrap();
        assert_eq!(third.len(), 999);
        assert_eq!(third.find(&name(8)), known[8]);
        assert_eq!(third.map_addr(), second.map_addr());
        drop((second, third));
        assert!(AvTable::open(&attr, DOMAIN).unwrap().is_empty());
    }
}

/// Covers: AV-5
#[test]
fn a_reader_changes_nothing_and_makes_nothing() {
    let attr = attr("read", None);
    assert_eq!(
        refused(AvTable::open(&reading(&attr), DOMAIN)),
        Errno::ENOENT
    );
    let nameless = AvAttr {
        name: None,
        ..reading(&attr)
    };
    assert_eq!(refused(AvTable::open(&nameless, DOMAIN)), Errno::EINVAL);
    // As MPICH does: a reader looks for the vector, then makes it.
    let writer = AvTable::open(&attr, DOMAIN).unwrap();
    let reader = AvTable::open(&reading(&attr), DOMAIN).unwrap();
    let addr = writer.insert(&name(1)).unwrap().addr;
    assert_eq!(reader.lookup(addr), Some(name(1)));
    let denied = Err(Errno::EACCES);
    let errno = |e: ferrofabric_contracts::error::Error| e.errno();
    assert_eq!(reader.insert(&name(2)).map(|_| ()).map_err(errno), denied);
    assert_eq!(reader.remove(addr).map(|_| ()).map_err(errno), denied);
    assert_eq!(reader.reserve(1).map(|_| ()).map_err(errno), denied);
    assert_eq!(writer.lookup(addr), Some(name(1)));
    // A reader keeps the vector alive, too.
    drop(writer);
    assert_eq!(AvTable::open(&reading(&attr), DOMAIN).unwrap().len(), 1);
    drop(reader);
    assert_eq!(
        refused(AvTable::open(&reading(&attr), DOMAIN)),
        Errno::ENOENT
    );
}

/// Covers: AV-1, AV-6
#[test]
fn type_and_mapping_are_those_of_the_first() {
    let first_attr = AvAttr {
        map_addr: 0x7000_0000_0000,
        ..attr("typed", Some(AvType::Map))
    };
    let first = AvTable::open(&first_attr, DOMAIN).unwrap();
    let other = AvAttr {
        av_type: Some(AvType::Table),
        ..first_attr.clone()
    };
    assert_eq!(refused(AvTable::open(&other, DOMAIN)), Errno::EINVAL);
    let open = AvAttr {
        av_type: None,
        map_addr: 0,
        ..first_attr.clone()
    };
    let second = AvTable::open(&open, DOMAIN).unwrap();
    assert_eq!(second.av_type(), AvType::Map);
    assert_eq!(
        (first.map_addr(), second.map_addr()),
        (0x7000_0000_0000, 0x7000_0000_0000)
    );
    drop((first, second));
    assert_ne!(AvTable::open(&open, DOMAIN).unwrap().map_addr(), 0);
}

/// The addresses of a named vector have the bits that its first opener chose. An opener that needs
/// more bits for receive contexts is refused.
///
/// Covers: AV-3, AV-4
#[test]
fn bits_for_receive_contexts_are_those_that_the_first_leaves() {
    let with_bits = |av_type, rx_ctx_bits| AvAttr {
        rx_ctx_bits,
        ..attr("context bits", av_type)
    };
    for (of_first, left, too_many) in [(0, 8, 9), (12, 12, 13), (24, 24, 25)] {
        let first = AvTable::open(&with_bits(Some(AvType::Map), of_first), DOMAIN).unwrap();
        for av_type in [Some(AvType::Map), None] {
            assert!(AvTable::open(&with_bits(av_type, left), DOMAIN).is_ok());
            let second = AvTable::open(&with_bits(av_type, too_many), DOMAIN);
            assert_eq!(
                refused(second),
                Errno::EINVAL,
                "{too_many} after {of_first}"
            );
        }
        drop(first);
    }
    let indices = AvTable::open(&with_bits(Some(AvType::Table), 0), DOMAIN).unwrap();
    assert!(AvTable::open(&with_bits(Some(AvType::Table), 32), DOMAIN).is_ok());
    drop(indices);
}
