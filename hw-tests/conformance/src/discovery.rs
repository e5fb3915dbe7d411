//! The answers of every provider to questions (fi_getinfo(3)): capabilities bit by bit, flags,
//! versions, addresses as text, and many threads at once.

use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::{Flags, MrMode};
use ferrofabric_contracts::info::{Info, RX_CAPS, SystemResolver, TX_CAPS};
use ferrofabric_runtime::discovery::{DiscoveryQuery, QueryFlags, find};
use ferrofabric_runtime::fabric::Provider;

use crate::limits::{nobody, refused, says, settings};

/// The capabilities that an endpoint has only where hints request them. The bit of
/// `EXACT_DIRECTED_RECV` was `FI_VARIABLE_MSG` before libfabric 2.
const PRIMARY: Flags = Flags::MSG
    .union(Flags::RMA)
    .union(Flags::TAGGED)
    .union(Flags::ATOMIC)
    .union(Flags::MULTICAST)
    .union(Flags::NAMED_RX_CTX)
    .union(Flags::DIRECTED_RECV)
    .union(Flags::EXACT_DIRECTED_RECV)
    .union(Flags::HMEM)
    .union(Flags::COLLECTIVE)
    .union(Flags::AV_USER_ID)
    .union(Flags::PEER)
    .union(Flags::XPU)
    .union(Flags::TAGGED_DIRECTED_RECV);

const SEND_AND_RECV: Flags = Flags::SEND.union(Flags::RECV);
const ACCESSES: Flags = Flags::READ
    .union(Flags::WRITE)
    .union(Flags::REMOTE_READ)
    .union(Flags::REMOTE_WRITE);
const MODIFIERS: Flags = SEND_AND_RECV.union(ACCESSES);

const REACH: Flags = Flags::LOCAL_COMM.union(Flags::REMOTE_COMM);
const SECONDARY: Flags = REACH
    .union(Flags::MULTI_RECV)
    .union(Flags::TAGGED_MULTI_RECV)
    .union(Flags::SOURCE)
    .union(Flags::SOURCE_ERR)
    .union(Flags::RMA_EVENT)
    .union(Flags::RMA_PMEM)
    .union(Flags::SHARED_AV)
    .union(Flags::TRIGGER)
    .union(Flags::FENCE);

/// The capabilities of RDM endpoints over every transport; those of reach differ.
const OFFERED: Flags = Flags::MSG
    .union(Flags::TAGGED)
    .union(SEND_AND_RECV)
    .union(Flags::RMA)
    .union(Flags::ATOMIC)
    .union(ACCESSES)
    .union(Flags::RMA_EVENT)
    .union(Flags::DIRECTED_RECV)
    .union(Flags::MULTI_RECV)
    .union(Flags::SOURCE)
    .union(Flags::SOURCE_ERR)
    .union(Flags::SHARED_AV)
    .union(Flags::AV_USER_ID)
    .union(Flags::PEER)
    .union(Flags::FENCE);

/// Bits from here on are libfabric's and its providers' own.
const PRIVATE: u32 = 60;

fn ask(provider: &dyn Provider, query: &DiscoveryQuery<'_>) -> Result<Vec<Info>, Error> {
    find(&[provider], query, &SystemResolver, &settings(&[])).map(|found| found.infos)
}

fn with(provider: &dyn Provider, hints: &Info) -> Result<Vec<Info>, Error> {
    let query = DiscoveryQuery {
        hints: Some(hints),
        ..DiscoveryQuery::default()
    };
    ask(provider, &query)
}

fn with_caps(provider: &dyn Provider, caps: Flags) -> Result<Vec<Info>, Error> {
    let hints = Info {
        caps,
        ..Info::default()
    };
    with(provider, &hints)
}

/// A capability, and the one that it refines: hints have to request both.
fn with_what_it_refines(flag: Flags) -> Flags {
    flag | match flag {
        Flags::RMA | Flags::ATOMIC | Flags::TAGGED | Flags::COLLECTIVE => Flags::empty(),
        Flags::SOURCE_ERR => Flags::MSG | Flags::SOURCE,
        Flags::RMA_EVENT => Flags::RMA | Flags::REMOTE_WRITE,
        Flags::RMA_PMEM => Flags::RMA,
        _ if ACCESSES.contains(flag) => Flags::RMA,
        _ => Flags::MSG,
    }
}

/// Each of the 64 bits: a requested capability is granted if `OFFERED` has it, or if it is `reach`:
/// the bit of reach that hints may request without the other one. Any other capability fails with
/// `ENODATA`, and a bit that is no capability with `EBADFLAGS`.
///
/// Covers: GI-3, GI-8
pub fn each_capability(provider: &dyn Provider, reach: Flags) {
    let offered = OFFERED | reach;
    for bit in 0..64 {
        let flag = Flags::from_bits_retain(1 << bit);
        let asked = with_what_it_refines(flag);
        let answer = with_caps(provider, asked);
        if !(PRIMARY | MODIFIERS | SECONDARY).contains(flag) {
            let (errno, words) = match bit {
                PRIVATE.. => (Errno::ENODATA, "caps"),
                _ => (Errno::EBADFLAGS, "caps has 0x"),
            };
            says(&refused(answer), errno, &[words]);
        } else if offered.contains(flag) {
            for info in answer.unwrap_or_else(|error| panic!("{flag:?}: {error}")) {
                granted(asked, &info);
            }
        } else {
            says(&refused(answer), Errno::ENODATA, &["caps"]);
        }
    }
    // A capability that refines another is nothing without that.
    let alone = with_caps(provider, Flags::MSG | Flags::SOURCE_ERR);
    says(&refused(alone), Errno::ENODATA, &["FI_SOURCE_ERR"]);
}

/// The answer has the requested capabilities, no other primary one, and of the rest only free ones.
fn granted(asked: Flags, info: &Info) {
    let (what, caps) = (&info.domain.name, info.caps);
    assert!(caps.contains(asked), "{what}: {caps:?} for {asked:?}");
    assert_eq!(caps & PRIMARY, asked & PRIMARY, "{what} for {asked:?}");
    for (capabilities, modifiers) in [
        (Flags::MSG | Flags::TAGGED, SEND_AND_RECV),
        (Flags::RMA | Flags::ATOMIC, ACCESSES),
    ] {
        let directions = match asked & modifiers {
            none if none.is_empty() && asked.intersects(capabilities) => modifiers,
            some => some,
        };
        assert_eq!(caps & modifiers, directions, "{what} for {asked:?}");
    }
    let unasked = caps - asked - MODIFIERS;
    let free = SECONDARY - Flags::SOURCE_ERR;
    assert!(free.contains(unasked), "{what}: {unasked:?} unasked");
    assert_eq!(info.tx.caps, caps & TX_CAPS, "{what} for {asked:?}");
    assert_eq!(info.rx.caps, caps & RX_CAPS, "{what} for {asked:?}");
}

/// Hints that name directions get these alone, hints without a direction get both; hints without a
/// capability get all, and hints without a reach get the domain's.
///
/// Covers: GI-3
pub fn unset_hints(provider: &dyn Provider, reach: Flags) {
    for (asked, directions) in [
        (Flags::MSG, SEND_AND_RECV),
        (Flags::TAGGED, SEND_AND_RECV),
        (Flags::MSG | Flags::SEND, Flags::SEND),
        (Flags::TAGGED | Flags::RECV, Flags::RECV),
        (Flags::MSG | Flags::TAGGED | SEND_AND_RECV, SEND_AND_RECV),
    ] {
        for info in with_caps(provider, asked).unwrap() {
            granted(asked, &info);
            assert_eq!(info.caps & SEND_AND_RECV, directions, "{asked:?}");
            assert_eq!(info.caps & REACH, reach, "{asked:?}");
        }
    }
    for query in [DiscoveryQuery::default(), asking_nothing()] {
        let infos = ask(provider, &query).unwrap();
        assert_eq!(
            infos[0].caps,
            (OFFERED - Flags::SOURCE_ERR - Flags::PEER) | reach
        );
    }
}

fn asking_nothing() -> DiscoveryQuery<'static> {
    static NOTHING: std::sync::LazyLock<Info> = std::sync::LazyLock::new(Info::default);
    DiscoveryQuery {
        hints: Some(&NOTHING),
        ..DiscoveryQuery::default()
    }
}

/// Each of the 64 bits of the flags, a bit that is no capability in each field of capabilities, and
/// texts that are no addresses: errors, and no panic.
///
/// Covers: GI-8
pub fn bad_flags_and_texts(provider: &dyn Provider) {
    for bit in 0..64 {
        let flags = QueryFlags::from_bits_retain(1 << bit);
        let query = DiscoveryQuery {
            flags,
            ..DiscoveryQuery::default()
        };
        let answer = ask(provider, &query);
        match flags {
            // It says what the node is, and there is none.
            QueryFlags::SOURCE => says(&refused(answer), Errno::EINVAL, &["FI_SOURCE"]),
            _ if bit >= 58 || QueryFlags::all().contains(flags) => {
                assert!(!answer.unwrap().is_empty(), "bit {bit}");
            }
            _ => says(&refused(answer), Errno::EBADFLAGS, &["flags has 0x"]),
        }
    }
    let fields: [fn(&mut Info) -> &mut Flags; 4] = [
        |hints| &mut hints.caps,
        |hints| &mut hints.tx.caps,
        |hints| &mut hints.rx.caps,
        |hints| &mut hints.domain.caps,
    ];
    for field in fields {
        let mut hints = Info::default();
        *field(&mut hints) = Flags::MSG | Flags::COMPLETION;
        let error = refused(with(provider, &hints));
        says(&error, Errno::EBADFLAGS, &["caps has 0x1000000"]);
    }
    // Texts without a character are as none.
    let long = "a".repeat(100_000);
    for node in [
        "ferro://",
        "ferro://x",
        "x://y",
        "1.2.3",
        "::::",
        "\u{1f980}",
        &long,
    ] {
        refuses_text(provider, Some(node), None);
    }
    for service in ["-1", "65536", "7x", "\u{1f980}", &long] {
        refuses_text(provider, None, Some(service));
        refuses_text(provider, Some("10.1.0.1"), Some(service));
    }
}

fn refuses_text(provider: &dyn Provider, node: Option<&str>, service: Option<&str>) {
    let query = DiscoveryQuery {
        node,
        service,
        flags: QueryFlags::NUMERICHOST,
        ..DiscoveryQuery::default()
    };
    let errno = ask(provider, &query).map_err(|error| error.errno());
    let expected = [Err(Errno::EINVAL), Err(Errno::ENODATA)];
    let errno = errno.map(|infos| infos.len());
    assert!(
        expected.contains(&errno),
        "{node:?} and {service:?}: {errno:?}"
    );
}

/// Each version is answered with structures as it has them: before 1.5 registration had two names,
/// of which offers have one. A newer one is not answered.
///
/// Covers: GI-9
pub fn versions(provider: &dyn Provider) {
    let version = |major: u32, minor: u32| (major << 16) | minor;
    for (asked, has_names) in [
        (0, false),
        (version(1, 0), true),
        (version(1, 4), true),
        (version(1, 5), false),
        (version(1, 20), false),
        (version(2, 0), false),
        (version(2, 99), false),
    ] {
        let query = DiscoveryQuery {
            version: asked,
            ..asking_nothing()
        };
        for info in ask(provider, &query).unwrap() {
            assert_eq!(info.fabric.api_version, asked);
            let names = [MrMode::BASIC, MrMode::SCALABLE];
            let mode = info.domain.mr_mode;
            assert_eq!(names.contains(&mode), has_names, "{asked:#x}: {mode:?}");
            assert!(has_names || mode.is_empty(), "{asked:#x}: {mode:?}");
        }
    }
    for newer in [version(3, 0), u32::MAX] {
        let query = DiscoveryQuery {
            version: newer,
            ..asking_nothing()
        };
        says(&refused(ask(provider, &query)), Errno::ENOSYS, &[]);
    }
}

/// An address as text is a node on its own: with a service beside it, it is refused.
///
/// Covers: GI-7
pub fn addresses_as_text(provider: &dyn Provider) {
    for own in own_addresses(provider) {
        let peer = nobody(&own, |_| ());
        let text = peer.to_string();
        let asking = |service, flags| DiscoveryQuery {
            node: Some(&text),
            service,
            flags,
            ..DiscoveryQuery::default()
        };
        for flags in [QueryFlags::empty(), QueryFlags::NUMERICHOST] {
            let infos = ask(provider, &asking(None, flags)).unwrap();
            let dest = Some(peer.into());
            assert!(infos.iter().all(|info| info.dest_addr == dest), "{text}");
            for service in ["5", "", "ssh"] {
                let error = refused(ask(provider, &asking(Some(service), flags)));
                assert_eq!(error.errno(), Errno::EINVAL, "{text} and {service:?}");
            }
        }
        let with_service = asking(Some("5"), QueryFlags::SOURCE);
        assert_eq!(refused(ask(provider, &with_service)).errno(), Errno::EINVAL);
    }
}

fn own_addresses(provider: &dyn Provider) -> Vec<NativeAddr> {
    let infos = ask(provider, &asking_nothing()).unwrap();
    let own = infos.iter().map(|info| match info.src_addr {
        Some(Address::Native(own)) => own,
        other => panic!("no native address: {other:?}"),
    });
    own.collect()
}

/// Threads ask at once, each with hints of its own, and each gets what it gets alone.
///
/// Covers: GI-13
pub fn many_threads(provider: &dyn Provider, rounds: usize) {
    let all = [Flags::empty(), Flags::MSG, Flags::TAGGED | Flags::SEND];
    let alone = all.map(|caps| with_caps(provider, caps).unwrap());
    std::thread::scope(|scope| {
        let ask = |thread: usize| {
            for round in 0..rounds {
                let at = (thread + round) % all.len();
                assert_eq!(with_caps(provider, all[at]).unwrap(), alone[at]);
            }
        };
        for thread in 0..8 {
            scope.spawn(move || ask(thread));
        }
    });
}
