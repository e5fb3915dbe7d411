use super::*;
use ferrofabric_contracts::addr::{GidKind, VerbsAddr};
use ferrofabric_contracts::peer::PeerAv;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// Addresses of few nodes, and such as share nothing with others; the incarnation is the number.
fn name(n: u32) -> NativeAddr {
    let verbs = VerbsAddr {
        gid: [n as u8 & 4; 16],
        gid_kind: GidKind::RoceV2,
        qpn: n >> 8,
        qkey: 1,
        lid: 0,
        pkey: 0xffff,
        sl: 0,
        port: 1,
        mtu_bytes: 1024,
    };
    let random = n.into();
    match n % 4 {
        0 => NativeAddr::of_new(n.into(), None, true, random),
        1 => NativeAddr::of_new(1, Some(verbs), true, random),
        2 => NativeAddr::of_new(2, Some(verbs), false, random | (1 << 40)),
        _ => NativeAddr {
            shm: Some(random),
            ..NativeAddr::of_new(3, Some(verbs), true, random)
        },
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Kind {
    av_type: AvType,
    symmetric: bool,
}

fn kinds() -> impl Iterator<Item = Kind> {
    let types = [AvType::Map, AvType::Table].into_iter();
    types.flat_map(|av_type| [false, true].map(|symmetric| Kind { av_type, symmetric }))
}

fn attr(kind: Kind) -> AvAttr {
    AvAttr {
        av_type: Some(kind.av_type),
        symmetric: kind.symmetric,
        ..AvAttr::default()
    }
}

fn table(kind: Kind, count: usize) -> AvTable {
    let with = attr(kind);
    AvTable::new(&AvAttr { count, ..with }).unwrap()
}

fn bad() -> Error {
    Error::new(Errno::EINVAL, "insert", "address")
}

/// An address vector as a person would write it down: the addresses by index, and those that are no
/// more.
#[derive(Default)]
struct Plain {
    at: BTreeMap<u64, u32>,
    addrs: BTreeMap<u32, FiAddr>,
    stale: Vec<FiAddr>,
    /// Indices that nobody else gets while something is under way.
    kept: BTreeSet<u64>,
}

impl Plain {
    fn lowest(&self) -> u64 {
        let free = |i: &u64| !self.at.contains_key(i) && !self.kept.contains(i);
        (0..).find(free).unwrap()
    }

    fn enter(&mut self, n: u32, addr: FiAddr) {
        self.at.insert(addr.0 & 0xffff_ffff, n);
        self.addrs.insert(n, addr);
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// One call, with addresses that are none among them.
    Insert(Vec<Option<u8>>),
    Remove(u8),
    Reserve(Vec<Option<u8>>),
    /// The oldest call, or the newest one, whose indices are reserved.
    Complete(bool),
}

fn any_op() -> impl Strategy<Value = Op> {
    let names = || proptest::collection::vec(proptest::option::weighted(0.8, 0u8..30), 0..6);
    prop_oneof![
        names().prop_map(Op::Insert),
        (0u8..30).prop_map(Op::Remove),
        (0u8..30).prop_map(Op::Remove),
        names().prop_map(Op::Reserve),
        any::<bool>().prop_map(Op::Complete),
    ]
}

fn check(av: &AvTable, plain: &Plain, av_type: AvType) {
    assert_eq!(av.len(), plain.addrs.len());
    for (n, addr) in &plain.addrs {
        assert_eq!(av.lookup(*addr), Some(name(*n)));
        assert_eq!(av.find(&name(*n)), *addr);
    }
    let by_index: Vec<_> = av
        .iter()
        .map(|(addr, name)| (addr.0 & 0xffff_ffff, name))
        .collect();
    let expected: Vec<_> = plain.at.iter().map(|(i, n)| (*i, name(*n))).collect();
    assert_eq!(by_index, expected);
    for addr in &plain.stale {
        let reused = av_type == AvType::Table && plain.at.contains_key(&addr.0);
        assert_eq!(av.lookup(*addr).is_some(), reused);
    }
    for kept in &plain.kept {
        assert_eq!(av.lookup(FiAddr(*kept)), None);
    }
    check_batches(av, plain);
}

/// A look-up of many at a time agrees with those of each: of addresses that are there, of those
/// that are no more, and of such as never were.
fn check_batches(av: &AvTable, plain: &Plain) {
    let there = plain.addrs.values().chain(&plain.stale).copied();
    let never = [0, 29, 1 << 20, 1 << 33, u64::MAX].map(FiAddr);
    let addrs: Vec<_> = there.chain(never).collect();
    let mut found = Vec::new();
    av.lookup_all(&addrs, |number, one| found.push((number, one)));
    let single = addrs.iter().map(|addr| av.lookup(*addr)).enumerate();
    assert_eq!(found, single.collect::<Vec<_>>());
    let names: Vec<_> = (0..40).map(name).collect();
    let mut found = Vec::new();
    av.find_all(&names, |number, one| found.push((number, one)));
    let single = names.iter().map(|name| av.find(name)).enumerate();
    assert_eq!(found, single.collect::<Vec<_>>());
}

fn run(kind: Kind, ops: Vec<Op>) {
    let av_type = kind.av_type;
    let av = table(kind, 3);
    let mut plain = Plain::default();
    let mut calls: Vec<(Vec<Option<u8>>, Vec<Reserved>)> = Vec::new();
    for op in ops {
        match op {
            Op::Insert(names) => {
                let mut call = av.insertion().unwrap();
                let mut holes = Vec::new();
                for one in names {
                    let lowest = plain.lowest();
                    let placed = call.place(one.map(|n| name(n.into()).to_bytes()).ok_or_else(bad));
                    match one.map(u32::from) {
                        None => {
                            assert_eq!(placed, Err(bad()));
                            if av_type == AvType::Table {
                                plain.kept.insert(lowest);
                                holes.push(lowest);
                            }
                        }
                        Some(n) => {
                            let Placed { addr, new } = placed.unwrap();
                            assert_eq!(new, !plain.addrs.contains_key(&n));
                            match new {
                                true => assert_eq!(addr.0 & 0xffff_ffff, lowest),
                                false => assert_eq!(addr, plain.addrs[&n]),
                            }
                            assert!(av_type == AvType::Table || !plain.stale.contains(&addr));
                            plain.enter(n, addr);
                        }
                    }
                }
                drop(call);
                for hole in holes {
                    plain.kept.remove(&hole);
                }
            }
            Op::Remove(n) => match plain.addrs.remove(&n.into()) {
                Some(addr) => {
                    av.remove(addr).unwrap();
                    assert_eq!(av.remove(addr).unwrap_err().errno(), Errno::EINVAL);
                    plain.at.remove(&(addr.0 & 0xffff_ffff));
                    plain.stale.push(addr);
                }
                None => assert_eq!(av.find(&name(n.into())), FiAddr::NOTAVAIL),
            },
            Op::Reserve(names) => {
                let reserved = av.reserve(names.len()).unwrap();
                for &Reserved(entry) in &reserved {
                    assert_eq!(u64::from(entry), plain.lowest());
                    plain.kept.insert(entry.into());
                }
                calls.push((names, reserved));
            }
            Op::Complete(oldest) => {
                let Some(last) = calls.len().checked_sub(1) else {
                    continue;
                };
                let (names, reserved) = calls.remove(if oldest { 0 } else { last });
                let mut call = av.insertion().unwrap();
                for (one, Reserved(entry)) in names.iter().zip(&reserved) {
                    let index = u64::from(*entry);
                    let Some(n) = one.map(u32::from) else {
                        call.skip(Reserved(*entry));
                        continue;
                    };
                    let placed = call.place_reserved(name(n).to_bytes(), Reserved(*entry));
                    let Placed { addr, new } = placed.unwrap();
                    assert_eq!(new, !plain.addrs.contains_key(&n));
                    if new {
                        assert_eq!(addr.0 & 0xffff_ffff, index);
                        plain.kept.remove(&index);
                    }
                    plain.enter(n, addr);
                }
                drop(call);
                for Reserved(entry) in reserved {
                    plain.kept.remove(&entry.into());
                }
            }
        }
        check(&av, &plain, av_type);
    }
}

proptest! {
    /// Calls with good and bad addresses, removals, calls that take their indices first and end in
    /// any order.
    ///
    /// Covers: AV-2, AV-11, AV-12, AV-17, AV-23
    #[test]
    fn a_table_does_as_a_plain_map(ops in proptest::collection::vec(any_op(), 0..120)) {
        run(Kind { av_type: AvType::Table, symmetric: false }, ops);
    }

    /// Covers: AV-2, AV-11, AV-12, AV-17, AV-23
    #[test]
    fn a_map_does_as_a_plain_map(ops in proptest::collection::vec(any_op(), 0..120)) {
        run(Kind { av_type: AvType::Map, symmetric: false }, ops);
    }

    /// Covers: AV-2, AV-9, AV-11, AV-12, AV-17, AV-23
    #[test]
    fn a_symmetric_table_does_as_a_plain_map(ops in proptest::collection::vec(any_op(), 0..120)) {
        run(Kind { av_type: AvType::Table, symmetric: true }, ops);
    }

    /// Covers: AV-2, AV-9, AV-11, AV-12, AV-17, AV-23
    #[test]
    fn a_symmetric_map_does_as_a_plain_map(ops in proptest::collection::vec(any_op(), 0..120)) {
        run(Kind { av_type: AvType::Map, symmetric: true }, ops);
    }
}

/// Covers: AV-2, AV-9, AV-11, AV-17
#[test]
fn a_table_grows_far_and_fills_its_gaps_from_below() {
    const N: u32 = 20_000;
    let counts = [0, 1, 100, 4096, N as usize];
    let of_tables = |kind: &Kind| kind.av_type == AvType::Table;
    for (kind, count) in kinds()
        .filter(of_tables)
        .flat_map(|kind| counts.map(|n| (kind, n)))
    {
        let av = table(kind, count);
        for n in 0..N {
            assert_eq!(av.insert(&name(n)).unwrap().addr, FiAddr(n.into()));
        }
        for n in (0..N).filter(|n| n % 7 == 3) {
            av.remove(FiAddr(n.into())).unwrap();
        }
        for n in (0..N).filter(|n| n % 7 == 3) {
            assert_eq!(av.insert(&name(N + n)).unwrap().addr, FiAddr(n.into()));
        }
        assert_eq!(av.len(), N as usize);
        assert_eq!(av.insert(&name(3 * N)).unwrap().addr, FiAddr(N.into()));
        assert_eq!(av.find(&name(N - 1)), FiAddr(u64::from(N) - 1));
    }
}

/// 64 bytes of address, 4 of generation, and 8 for a user's ID that may come to it, within 96 at
/// any fill.
#[test]
fn an_entry_takes_at_most_96_bytes() {
    for n in [100_000, 130_000, 1 << 18] {
        let store = Store::private(n).unwrap();
        for i in 0..n as u32 {
            store.place(&name(i).to_words(), None).unwrap();
        }
        // Entries that are not used take no memory, the index takes all of it.
        let per_entry = store.index_bytes() as f64 / n as f64 + 68.0 + 0.2 + 8.0;
        assert!(per_entry <= 96.0, "{per_entry} at {n}");
    }
}

/// Readers in other threads see each address whole or not at all, while entries come, go, are used
/// again and the table grows.
///
/// Covers: AV-2, AV-9
#[test]
fn readers_never_see_a_half_entry() {
    const N: u32 = 3000;
    for kind in kinds() {
        let av = table(kind, 0);
        let first = av.insert(&name(u32::MAX)).unwrap().addr;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for reader in 0..2 {
                let (av, done) = (&av, &done);
                scope.spawn(move || {
                    let mut seen = 0u64;
                    while !done.load(Ordering::Relaxed) || seen == 0 {
                        // An entry that is there all the time is found all the time, wherever the
                        // index is.
                        assert_eq!(av.find(&name(u32::MAX)), first);
                        // One at a time or many.
                        let mut found = FiAddr::NOTAVAIL;
                        av.find_all(&[0, u32::MAX, 1].map(name), |number, addr| {
                            if number == 1 {
                                found = addr;
                            }
                        });
                        assert_eq!(found, first);
                        let addrs: Vec<_> = (0..64).map(FiAddr).collect();
                        av.lookup_all(&addrs, |_, found| {
                            if let Some(found) = found {
                                assert_eq!(found, name(found.incarnation as u32));
                            }
                        });
                        for index in 1..64 + reader {
                            let Some((read, _)) = av.store.read(index) else {
                                continue;
                            };
                            let whole = NativeAddr::from_bytes(read.as_bytes()).unwrap();
                            assert_eq!(whole, name(whole.incarnation as u32));
                            seen += 1;
                        }
                    }
                });
            }
            for round in 0..20 {
                let placed: Vec<_> = (0..N)
                    .map(|n| av.insert(&name(n ^ round)).unwrap().addr)
                    .collect();
                for addr in placed {
                    av.remove(addr).unwrap();
                }
            }
            av.insert(&name(7)).unwrap();
            done.store(true, Ordering::Relaxed);
        });
    }
}

/// Covers: AV-17
#[test]
fn an_entry_whose_generations_are_used_up_is_never_handed_out_again() {
    for kind in kinds().filter(|kind| kind.av_type == AvType::Map) {
        generations_are_used_up(&AvAttr {
            rx_ctx_bits: 24,
            ..attr(kind)
        });
    }
}

fn generations_are_used_up(attr: &AvAttr) {
    let av = AvTable::new(attr).unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..1000 {
        let addr = av.insert(&name(1)).unwrap().addr;
        assert!(seen.insert(addr), "{addr:?} was handed out twice");
        assert_eq!(addr.0 >> 40, 0);
        av.remove(addr).unwrap();
    }
    assert!(seen.iter().all(|addr| av.lookup(*addr).is_none()));
}

/// Covers: AV-2
#[test]
fn an_impossible_count_is_an_error() {
    for symmetric in [false, true] {
        let attr = AvAttr {
            count: usize::MAX / 2,
            symmetric,
            ..AvAttr::default()
        };
        assert_eq!(AvTable::new(&attr).err().unwrap().errno(), Errno::ENOMEM);
    }
}

/// Covers: AV-1
#[test]
fn a_type_that_is_left_open_is_chosen_and_reported() {
    let open = AvAttr {
        av_type: None,
        ..AvAttr::default()
    };
    assert_eq!(AvTable::new(&open).unwrap().av_type(), AvType::Table);
    for kind in kinds() {
        assert_eq!(table(kind, 0).av_type(), kind.av_type);
    }
}

/// A look-up that compares each entry, beside a writer that does not come to an end, agrees with
/// the index.
///
/// Covers: AV-18
#[test]
fn a_look_up_without_the_index_agrees_with_it() {
    for kind in kinds() {
        let table = table(kind, 0);
        let addrs: Vec<_> = (0..500)
            .map(|n| table.insert(&name(n)).unwrap().addr)
            .collect();
        for addr in addrs.iter().step_by(3) {
            table.remove(*addr).unwrap();
        }
        for n in 0..600 {
            let words = name(n).to_words();
            let found = table.find_by_entries(&words);
            assert_eq!(found, table.store.find(&words).unwrap(), "{n} of {kind:?}");
            assert_eq!(found.is_some(), n < 500 && n % 3 != 0);
        }
        // A look-up does so while another thread is at work all the time.
        let words = name(1).to_words();
        let _writer = table.writers.lock();
        assert_eq!(table.addr_found(&words, Err(Busy)), table.addr(&name(1)));
    }
}
