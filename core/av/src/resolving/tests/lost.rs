//! Lost endpoints, and the next ones at their socket addresses (`docs/adr/0087`).

use super::*;
use crate::follow::TableFollower;

const KINDS: [(AvType, bool); 4] = [
    (AvType::Map, false),
    (AvType::Table, false),
    (AvType::Map, true),
    (AvType::Table, true),
];

fn served(av_type: AvType, symmetric: bool) -> AvTable {
    let table = table_of(av_type, symmetric);
    table.set_served();
    table.set_patience(Duration::from_secs(60));
    table
}

/// Inserts a socket address, at which an endpoint listens.
fn insert_listening(table: &AvTable, at: SocketAddr, listens: NativeAddr) -> FiAddr {
    let addr = insert(table, at).unwrap().addr;
    assert_eq!(answer(table, listens).new, Some(addr));
    addr
}

/// The outcome of the only attempt that is to be made.
fn answer(table: &AvTable, listens: NativeAddr) -> AttemptOutcome {
    let batch = table.next_batch().unwrap();
    assert_eq!(batch.all.len(), 1);
    table.complete_attempt(&batch.all[0], Ok(listens))
}

/// Covers: AV-15, AV-17, AV-23
#[test]
fn the_next_endpoint_comes_in_place_of_a_lost_one() {
    for (av_type, symmetric) in KINDS {
        let table = served(av_type, symmetric);
        let addr = insert_listening(&table, at(1, 9), name(1));
        assert!(table.note_lost(addr, false));
        assert_eq!(table.lookup(addr), None);
        assert!(line(&table).is_empty(), "nobody uses it yet");
        let Some(Unresolved::Resolving(waits)) = table.resolve_for_send(addr) else {
            panic!("it is being resolved");
        };
        // It is lost once more before that is over.
        assert!(table.note_lost(addr, false));
        let refound = RefoundEndpoint {
            addr,
            is_replaced: true,
        };
        let outcome = answer(&table, name(2));
        assert!(outcome.is_awaited);
        assert_eq!((outcome.new, outcome.refound), (None, vec![refound]));
        // Transports may not have left the former one yet.
        let is_waiting = Some(Unresolved::Resolving(waits));
        assert_eq!(table.outcome(addr, waits), is_waiting);
        assert_eq!(table.resolve_for_send(addr), is_waiting);
        assert_eq!(table.lookup(addr), None);
        assert_eq!(table.note_refound(addr), Some(name(2)));
        assert_eq!(table.outcome(addr, waits), Some(Unresolved::Resolved));
        assert_eq!(table.lookup(addr), Some(name(2)));
        assert_eq!(table.socket(addr), Some(at(1, 9)));
        assert_eq!(table.find(&name(2)), addr);
        assert_eq!(table.find(&name(1)), FiAddr::NOTAVAIL);
        assert_eq!((table.len(), line(&table).len()), (1, 0));
        table.remove(addr).unwrap();
        let next = insert(&table, at(1, 9)).unwrap().addr;
        assert_eq!(next == addr, av_type == AvType::Table);
    }
}

/// A peer that is there still keeps its entry; one at whose address nobody answers is lost until
/// its next use.
#[test]
fn a_lost_endpoint_may_be_there_still_or_nobody() {
    for (av_type, symmetric) in KINDS {
        let table = served(av_type, symmetric);
        let addr = insert_listening(&table, at(1, 9), name(1));
        let mut follower = TableFollower::new(&table);
        assert!(table.note_lost(addr, false));
        table.set_patience(Duration::ZERO);
        let Some(Unresolved::Resolving(waits)) = table.resolve_for_send(addr) else {
            panic!("it is being resolved");
        };
        let batch = table.next_batch().unwrap();
        let refused = Error::new(Errno::ECONNREFUSED, "resolve", "nobody");
        let outcome = table.complete_attempt(&batch.all[0], Err(refused));
        assert!(outcome.is_awaited);
        let failed = Some(Unresolved::Failed(Errno::ECONNREFUSED));
        assert_eq!(table.outcome(addr, waits), failed);
        assert_eq!(table.lookup(addr), None);
        // A message from an unknown source, who may be the next one.
        table.complete_batch(&batch);
        assert_eq!(table.find(&name(5)), FiAddr::NOTAVAIL);
        assert_eq!(line(&table), [addr.0 as u32]);
        assert_eq!(insert(&table, at(1, 9)), Ok(Placed { addr, new: false }));
        let refound = RefoundEndpoint {
            addr,
            is_replaced: false,
        };
        assert_eq!(answer(&table, name(1)).refound, [refound]);
        assert_eq!(table.note_refound(addr), Some(name(1)));
        assert_eq!(table.lookup(addr), Some(name(1)));
        assert_eq!(follower.changes(&table).replaced, []);
    }
}

/// Only a socket address says where the next endpoint is.
#[test]
fn an_endpoint_without_a_socket_address_is_not_lost() {
    for (av_type, symmetric) in KINDS {
        let table = served(av_type, symmetric);
        let first = table.insert(&name(1)).unwrap().addr;
        assert!(!table.note_lost(first, false));
        let alias = insert(&table, at(1, 9)).unwrap().addr;
        assert_eq!(answer(&table, name(1)).new, None);
        let same = Some(Unresolved::Same(first));
        assert_eq!(table.resolve_for_send(alias), same);
        // The other address of the same endpoint is resolved anew.
        assert!(!table.note_lost(first, false));
        assert_eq!(table.lookup(first), Some(name(1)));
        assert!(is_resolving(table.resolve_for_send(alias)));
        assert_eq!(answer(&table, name(2)).new, Some(alias));
        // And where the next endpoint of an address is in by another one.
        assert!(table.note_lost(alias, false));
        assert!(is_resolving(table.resolve_for_send(alias)));
        assert!(answer(&table, name(1)).refound[0].is_replaced);
        assert_eq!(table.note_refound(alias), None);
        assert_eq!(table.resolve_for_send(alias), same);
        assert_eq!(table.find(&name(2)), FiAddr::NOTAVAIL);
    }
}

/// All holders of a named table get the next endpoint, by the address of before, with its ID.
///
/// Covers: AV-4, AV-17
#[test]
fn the_next_endpoint_in_a_named_table_is_all_holders() {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = AvAttr {
            av_type: Some(av_type),
            user_ids: true,
            name: Some(format!("lost-{av_type:?}-{}", std::process::id())),
            ..AvAttr::default()
        };
        let [one, other] = [(); 2].map(|()| AvTable::open(&attr, "tests").unwrap());
        one.set_served();
        one.set_patience(Duration::from_secs(60));
        let addr = insert_listening(&one, at(1, 9), name(1));
        other.set_user_id(addr, FiAddr(77)).unwrap();
        let mut follower = TableFollower::new(&other);
        for incarnation in 2..600 {
            assert!(one.note_lost(addr, false));
            assert!(is_resolving(one.resolve_for_send(addr)));
            assert!(answer(&one, name(incarnation)).refound[0].is_replaced);
            one.note_refound(addr);
            let changes = follower.changes(&other);
            assert_eq!(changes.replaced, [addr]);
            assert_eq!(changes.removed, []);
            assert_eq!(changes.inserted, [(addr, name(incarnation))]);
            for (entry, generation) in changes.changed {
                other.forget_earlier(entry, generation);
            }
            assert_eq!(other.lookup(addr), Some(name(incarnation)));
            assert_eq!(other.reported(addr), FiAddr(77));
        }
        other.remove(addr).unwrap();
        assert_eq!(one.lookup(addr), None);
        assert!(!one.note_lost(addr, false));
    }
}

/// An address is lost again while sends wait for room in its transport: they wait for the next
/// endpoint, whatever failed before.
///
/// Covers: AV-15
#[test]
fn sends_wait_for_an_address_that_is_lost_again() {
    for (av_type, symmetric) in KINDS {
        for failed_before in [false, true] {
            let table = served(av_type, symmetric);
            let addr = insert_listening(&table, at(1, 9), name(1));
            assert!(table.note_lost(addr, false));
            if failed_before {
                table.set_patience(Duration::ZERO);
                assert!(is_resolving(table.resolve_for_send(addr)));
                let batch = table.next_batch().unwrap();
                let refused = Error::new(Errno::ECONNREFUSED, "resolve", "nobody");
                assert!(
                    table
                        .complete_attempt(&batch.all[0], Err(refused))
                        .is_awaited
                );
                table.set_patience(Duration::from_secs(60));
            }
            let Some(Unresolved::Resolving(waits)) = table.resolve_for_send(addr) else {
                panic!("it is being resolved");
            };
            assert!(answer(&table, name(2)).refound.len() == 1);
            table.note_refound(addr);
            assert!(table.note_lost(addr, false));
            assert!(line(&table).is_empty(), "nobody has used it yet");
            let Some(Unresolved::Resolving(waits)) = table.outcome(addr, waits) else {
                panic!("sends wait for it");
            };
            assert!(answer(&table, name(3)).refound.len() == 1);
            table.note_refound(addr);
            assert_eq!(table.outcome(addr, waits), Some(Unresolved::Resolved));
            assert_eq!(table.lookup(addr), Some(name(3)));
        }
    }
}

/// The same where the loss starts the resolution, because unknown sources are there, and nobody
/// listens: the sends learn of its end.
#[test]
fn sends_wait_for_a_resolution_that_nobody_waited_for() {
    for (av_type, symmetric) in KINDS {
        let table = served(av_type, symmetric);
        let addr = insert_listening(&table, at(1, 9), name(1));
        assert!(table.note_lost(addr, false));
        let Some(Unresolved::Resolving(waits)) = table.resolve_for_send(addr) else {
            panic!("it is being resolved");
        };
        assert!(answer(&table, name(2)).refound.len() == 1);
        table.note_refound(addr);
        assert!(table.note_lost(addr, true));
        table.set_patience(Duration::ZERO);
        let Some(Unresolved::Resolving(waits)) = table.outcome(addr, waits) else {
            panic!("sends wait for it");
        };
        let batch = table.next_batch().unwrap();
        let refused = Error::new(Errno::ECONNREFUSED, "resolve", "nobody");
        let outcome = table.complete_attempt(&batch.all[0], Err(refused));
        assert!(outcome.is_awaited);
        let failed = Some(Unresolved::Failed(Errno::ECONNREFUSED));
        assert_eq!(table.outcome(addr, waits), failed);
    }
}

/// Another process removes a lost address, and another address gets its entry.
///
/// Covers: AV-17
#[test]
fn the_next_address_in_the_entry_of_a_lost_one_is_resolved() {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = AvAttr {
            av_type: Some(av_type),
            name: Some(format!("next-{av_type:?}-{}", std::process::id())),
            ..AvAttr::default()
        };
        let [one, other] = [(); 2].map(|()| AvTable::open(&attr, "tests").unwrap());
        one.set_served();
        one.set_patience(Duration::from_secs(60));
        let addr = insert_listening(&one, at(1, 9), name(1));
        assert!(one.note_lost(addr, false));
        assert!(is_resolving(one.resolve_for_send(addr)));
        other.remove(addr).unwrap();
        assert_eq!(one.next_batch().unwrap().all.len(), 0);
        let next = insert(&other, at(1, 8)).unwrap().addr;
        assert_eq!(
            one.model.entry(next),
            one.model.entry(addr),
            "the same entry"
        );
        assert!(is_resolving(one.resolve_for_send(next)));
        assert_eq!(answer(&one, name(2)).new, Some(next));
        assert_eq!(one.resolve_for_send(next), Some(Unresolved::Resolved));
    }
}

/// The next endpoint has sent before the loss is noticed: nobody uses its address, and it is found.
#[test]
fn an_endpoint_that_has_sent_before_the_loss_is_found() {
    for (av_type, symmetric) in KINDS {
        let table = served(av_type, symmetric);
        let addr = insert_listening(&table, at(1, 9), name(1));
        assert_eq!(table.find(&name(2)), FiAddr::NOTAVAIL);
        assert!(table.note_lost(addr, true));
        assert!(answer(&table, name(2)).refound[0].is_replaced);
        assert_eq!(table.note_refound(addr), Some(name(2)));
        assert_eq!(table.find(&name(2)), addr);
    }
}

/// Transports get a lost address neither by itself nor by the name of its endpoint.
#[test]
fn a_lost_endpoint_is_an_unknown_source() {
    for (av_type, symmetric) in KINDS {
        let table = served(av_type, symmetric);
        let addr = insert_listening(&table, at(1, 9), name(1));
        assert_eq!(table.find(&name(1)), addr);
        assert!(table.note_lost(addr, false));
        assert_eq!(table.find(&name(1)), FiAddr::NOTAVAIL);
        // It says that it is there.
        assert!(!answer(&table, name(1)).refound[0].is_replaced);
        assert_eq!(table.note_refound(addr), Some(name(1)));
        assert_eq!(table.find(&name(1)), addr);
    }
}

/// Unknown sources come, and a peer that has gone for good is asked for less and less often; a use
/// asks at once.
#[test]
fn a_departed_peer_is_seldom_asked_for() {
    for (av_type, symmetric) in KINDS {
        let table = served(av_type, symmetric);
        table.set_patience(Duration::ZERO);
        let addr = insert_listening(&table, at(1, 9), name(1));
        let mut earlier = Instant::now();
        assert!(table.note_lost(addr, true));
        for round in 1..6 {
            let batch = table.next_batch().unwrap();
            let refused = Error::new(Errno::ECONNREFUSED, "resolve", "nobody");
            table.complete_attempt(&batch.all[0], Err(refused));
            table.complete_batch(&batch);
            for source in 100..110 {
                table.find(&name(source));
            }
            let state = table.unresolved.state.lock();
            let queues = state.queues.iter().flat_map(BTreeMap::keys);
            let due: Vec<_> = queues.map(|(due, _)| *due).collect();
            assert_eq!(due.len(), 1, "round {round}");
            let pause = due[0].duration_since(earlier);
            assert!(pause >= Duration::from_millis(50 << round), "{pause:?}");
            assert!(due[0] < Instant::now() + Duration::from_secs(60));
            earlier = due[0];
        }
        table.set_patience(Duration::from_secs(60));
        assert!(is_resolving(table.resolve_for_recv(addr)));
        let state = table.unresolved.state.lock();
        let (due, _) = *state.queues[1].keys().next().unwrap();
        assert!(due <= Instant::now() + LONGEST_PAUSE);
        drop(state);
        assert!(answer(&table, name(1)).refound.len() == 1);
    }
}

/// The next endpoint is in by another address, so the entry is empty: its removal is followed.
///
/// Covers: AV-17
#[test]
fn the_removal_of_an_emptied_entry_is_followed() {
    let attr = AvAttr {
        av_type: Some(AvType::Map),
        name: Some(format!("emptied-{}", std::process::id())),
        ..AvAttr::default()
    };
    let [one, other] = [(); 2].map(|()| AvTable::open(&attr, "tests").unwrap());
    one.set_served();
    one.set_patience(Duration::from_secs(60));
    one.insert(&name(2)).unwrap();
    let addr = insert_listening(&one, at(1, 9), name(1));
    let mut follower = TableFollower::new(&other);
    assert!(one.note_lost(addr, true));
    assert!(answer(&one, name(2)).refound[0].is_replaced);
    assert_eq!(follower.changes(&other).replaced, [addr]);
    one.remove(addr).unwrap();
    assert_eq!(follower.changes(&other).removed, [addr]);
}

/// The endpoint of a lost address answers at another socket address.
#[test]
fn an_endpoint_that_answers_elsewhere_is_not_lost() {
    for (av_type, symmetric) in KINDS {
        let table = served(av_type, symmetric);
        let addr = insert_listening(&table, at(1, 9), name(1));
        assert!(table.note_lost(addr, false));
        let alias = insert(&table, at(2, 9)).unwrap().addr;
        let refound = RefoundEndpoint {
            addr,
            is_replaced: false,
        };
        let outcome = answer(&table, name(1));
        assert_eq!((outcome.new, outcome.refound), (None, vec![refound]));
        let Some(Unresolved::Resolving(waits)) = table.resolve_for_send(alias) else {
            panic!("transports do not use the endpoint yet");
        };
        assert!(is_resolving(table.outcome(alias, waits)));
        assert_eq!(table.note_refound(addr), Some(name(1)));
        let same = Some(Unresolved::Same(addr));
        assert_eq!(table.outcome(alias, waits), same);
        assert_eq!(table.resolve_for_send(alias), same);
    }
}

/// A step of the model.
#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u16),
    Remove(u16),
    /// Another endpoint listens.
    Restart(u16),
    Lose(u16),
    Use(u16),
    /// Attempts are made that are due, and transports follow.
    Resolve,
}

fn any_step() -> impl Strategy<Value = Step> {
    let port = 1..5u16;
    prop_oneof![
        port.clone().prop_map(Step::Insert),
        port.clone().prop_map(Step::Remove),
        port.clone().prop_map(Step::Restart),
        port.clone().prop_map(Step::Lose),
        port.prop_map(Step::Use),
        Just(Step::Resolve),
    ]
}

/// What the model knows of an address.
#[derive(Clone, Copy, Debug)]
struct Known {
    addr: FiAddr,
    /// The endpoint in its entry.
    name: Option<u64>,
    is_lost: bool,
    is_asked: bool,
}

fn run_steps((av_type, symmetric): (AvType, bool), steps: Vec<Step>) {
    let table = served(av_type, symmetric);
    let mut known: BTreeMap<u16, Known> = BTreeMap::new();
    let mut listening: BTreeMap<u16, u64> = (1..5).map(|port| (port, u64::from(port))).collect();
    let mut last = 100;
    for step in steps {
        match step {
            Step::Insert(port) => {
                let placed = insert(&table, at(1, port)).unwrap();
                assert_eq!(placed.new, !known.contains_key(&port));
                let one = known.entry(port).or_insert(Known {
                    addr: placed.addr,
                    name: None,
                    is_lost: false,
                    is_asked: true,
                });
                assert_eq!(one.addr, placed.addr);
                one.is_asked |= one.is_lost;
            }
            Step::Remove(port) => {
                if let Some(one) = known.remove(&port) {
                    table.remove(one.addr).unwrap();
                    assert_eq!(table.lookup(one.addr), None);
                }
            }
            Step::Restart(port) => {
                last += 1;
                listening.insert(port, last);
            }
            Step::Lose(port) => {
                if let Some(one) = known.get_mut(&port) {
                    assert_eq!(table.note_lost(one.addr, false), one.name.is_some());
                    one.is_lost = one.name.is_some();
                }
            }
            Step::Use(port) => {
                if let Some(one) = known.get_mut(&port) {
                    let used = table.resolve_for_send(one.addr);
                    match one.name.filter(|_| !one.is_lost) {
                        Some(_) => assert_eq!(used, Some(Unresolved::Resolved)),
                        None => assert!(is_resolving(used), "{used:?}"),
                    }
                    one.is_asked |= one.is_lost;
                }
            }
            Step::Resolve => {
                let asked = known.values().filter(|one| one.is_asked).count();
                assert_eq!(line(&table).len(), asked);
                if asked != 0 {
                    let batch = table.next_batch().unwrap();
                    for attempt in &batch.all {
                        let listens = name(listening[&attempt.request.at.port()]);
                        let outcome = table.complete_attempt(attempt, Ok(listens));
                        for found in outcome.refound {
                            table.note_refound(found.addr);
                        }
                    }
                    table.complete_batch(&batch);
                }
                for (port, one) in known.iter_mut().filter(|(_, one)| one.is_asked) {
                    one.name = Some(listening[port]);
                    (one.is_lost, one.is_asked) = (false, false);
                }
            }
        }
        for (port, one) in &known {
            let there = one.name.map(name);
            let found = there.filter(|_| !one.is_lost);
            assert_eq!(table.lookup(one.addr), found, "{port}");
            assert_eq!(table.name(one.addr), there);
            assert_eq!(table.socket(one.addr), Some(at(1, *port)));
            if let Some(there) = there {
                assert_eq!(table.addr(&there), one.addr);
            }
        }
        let resolved = known.values().filter(|one| one.name.is_some()).count();
        assert_eq!((table.len(), table.iter().count()), (resolved, resolved));
    }
}

proptest! {
    /// Covers: AV-2, AV-15, AV-17, AV-23
    #[test]
    fn lost_endpoints_do_as_in_a_plain_map(
        kind in 0..KINDS.len(),
        steps in proptest::collection::vec(any_step(), 0..80),
    ) {
        run_steps(KINDS[kind], steps);
    }
}
