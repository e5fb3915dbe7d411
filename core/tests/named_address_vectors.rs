//! Named address vectors between holders and between processes, of which some are killed (fi_av(3)).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferrofabric_core::addr::NativeAddr;
use ferrofabric_core::av::{AvAttr, AvTable, AvType};
use ferrofabric_core::error::{Errno, Result};
use ferrofabric_core::peer::PeerAv;
use ferrofabric_core::types::FiAddr;

/// Set in the processes of the test: their number, and the name of the address vector.
const CHILD: &str = "FERRO_TEST_NAMED_AV";

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

/// Every word of it says which one it is.
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
fn what_one_inserts_the_others_have() {
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
        // The one who made it goes; those who come later find all.
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
    // As MPICH does it: look for it, then make it.
    let writer = AvTable::open(&attr, DOMAIN).unwrap();
    let reader = AvTable::open(&reading(&attr), DOMAIN).unwrap();
    let addr = writer.insert(&name(1)).unwrap().addr;
    assert_eq!(reader.lookup(addr), Some(name(1)));
    let denied = Err(Errno::EACCES);
    let errno = |e: ferrofabric_core::error::Error| e.errno();
    assert_eq!(reader.insert(&name(2)).map(|_| ()).map_err(errno), denied);
    assert_eq!(reader.remove(addr).map(|_| ()).map_err(errno), denied);
    assert_eq!(reader.reserve(1).map(|_| ()).map_err(errno), denied);
    assert_eq!(writer.lookup(addr), Some(name(1)));
    // A reader holds it, too.
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

/// What is in the table is whole, and both ways lead to the same entry.
fn check(av: &AvTable) {
    for (addr, found) in av.iter() {
        assert_eq!(found, name(found.incarnation), "half an entry at {addr:?}");
        let back = av.find(&found);
        // Its owner may have removed it, and inserted it elsewhere, meanwhile.
        if let Some(there) = av.lookup(back) {
            assert!(there == found || back != addr, "{back:?} is of another");
        }
    }
}

/// Inserts and removes names that nobody else uses, and finds exactly those that it should, until it is killed.
#[test]
fn a_process_of_the_others() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let (number, shared) = what.split_once(' ').unwrap();
    let attr = AvAttr {
        name: Some(shared.to_owned()),
        ..AvAttr::default()
    };
    let own = number.parse::<u64>().unwrap() * 1_000_000;
    let av = AvTable::open(&attr, DOMAIN).unwrap();
    println!("ready");
    // The test ends long before.
    let end = Instant::now() + Duration::from_secs(120);
    for round in 0u64.. {
        // Most of its time it changes the table: there it is to be killed.
        let mine = (own..own + 150).filter(|n| (n ^ round) % 3 != 0);
        let mine: BTreeSet<_> = mine.collect();
        let mut call = av.insertion().unwrap();
        for n in &mine {
            assert!(call.place(Ok(name(*n).to_bytes())).unwrap().new);
        }
        drop(call);
        if round % 8 == 0 {
            for n in own..own + 150 {
                assert_eq!(av.find(&name(n)).is_some(), mine.contains(&n), "{n}");
            }
            check(&av);
            assert!(Instant::now() < end, "nobody ended this process");
        }
        for n in mine {
            av.remove(av.find(&name(n))).unwrap();
        }
    }
}

/// Sixteen processes, one after the other killed in the middle of what it does: the rest never sees a half entry, and when all
/// are gone so is the address vector.
///
/// Covers: AV-4
#[test]
fn killed_writers_leave_nothing_half_done() {
    const PROCESSES: u64 = 16;
    let attr = attr("killed", None);
    let shared = attr.name.clone().unwrap();
    let spawn = |number: u64| -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_of_the_others", "--nocapture"])
            .env(CHILD, format!("{number} {shared}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.unwrap() == "ready"),
            "it did not begin"
        );
        child
    };
    let mut children: Vec<_> = (1..=PROCESSES).map(spawn).collect();
    let av = AvTable::open(&reading(&attr), DOMAIN).unwrap();
    for (number, child) in children.iter_mut().enumerate() {
        // The others go on meanwhile: it is a different point each time.
        let until = Instant::now() + Duration::from_millis(20 + 7 * number as u64 % 31);
        while Instant::now() < until {
            check(&av);
        }
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "process {number} ended by itself"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        check(&av);
    }
    // Whoever comes next mends what is left, and can change it.
    let writer = AvTable::open(&attr, DOMAIN).unwrap();
    let left: Vec<_> = writer.iter().collect();
    assert_eq!(left.len(), writer.len());
    for (addr, found) in left {
        assert_eq!(
            (writer.find(&found), found),
            (addr, name(found.incarnation))
        );
        writer.remove(addr).unwrap();
    }
    assert!(writer.is_empty());
    // No index was lost with those who died.
    for n in 0..1000 {
        let addr = writer.insert(&name(n)).unwrap().addr;
        assert_eq!(addr.0 & 0xffff_ffff, n);
    }
    drop((av, writer));
    assert_eq!(
        refused(AvTable::open(&reading(&attr), DOMAIN)),
        Errno::ENOENT
    );
}
