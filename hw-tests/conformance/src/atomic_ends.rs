//! Atomic operations that are under way when a region closes, when one of both ends goes or is
//! removed, and when the target's own sends wait.

use ferrofabric_contracts::atomics::{
    AtomicForm, AtomicOperator as Operator, Datatype, MAX_ATOMIC_BYTES,
};
use ferrofabric_contracts::error::Errno;
use ferrofabric_runtime::fabric::Domain;

use crate::atomics::{Initiator, arrays, op, set};
use crate::ends::{QueuedPair, is_gone};
use crate::one_sided::{receive_all, sends_behind_a_fence};
use crate::target::{BOTH, KEY, Target, close_beside};

/// Operations of each form and several lengths that are under way.
fn under_way(initiator: &Initiator<'_, '_>) -> Vec<u64> {
    let forms = [
        (AtomicForm::Base, Operator::Sum),
        (AtomicForm::Fetch, Operator::Sum),
        (AtomicForm::Compare, Operator::CswapNe),
    ];
    (0..60)
        .map(|number| {
            let (form, operator) = forms[number % 3];
            let op = op(form, operator, Datatype::Uint64);
            let len = [8, 400, MAX_ATOMIC_BYTES][number / 3 % 3];
            let arrays = arrays(initiator, &op, &vec![1; len], &vec![2; len]);
            initiator.begin(&op, &arrays)
        })
        .collect()
}

/// A region that closes while operations use it: each ends, and nothing changes after the close.
pub fn regions_that_close_beside(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let initiator = Initiator::of(&target);
    let region = target.register(KEY, BOTH);
    let begun = under_way(&initiator);
    target.pair.drive();
    close_beside(region, initiator.end);
    let after = target.content(0, MAX_ATOMIC_BYTES);
    for context in begun {
        if let Err(error) = initiator.over(context) {
            assert_eq!(error.errno, Errno::EACCES);
        }
    }
    assert_eq!(target.content(0, MAX_ATOMIC_BYTES), after);
}

/// The operations on the memory of a target that is removed end, and of one that closes.
pub fn targets_that_go(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let initiator = Initiator::of(&target);
    let begun = under_way(&initiator);
    initiator.end.av.remove(initiator.dest).unwrap();
    for context in begun {
        if let Err(error) = initiator.over(context) {
            let expected = [Errno::ECANCELED, Errno::EADDRNOTAVAIL];
            assert!(expected.contains(&error.errno), "{error:?}");
        }
    }
    close_beside(region, initiator.end);

    let target = Target::open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let open = under_way(&Initiator::of(&target));
    target.pair.b.rx.pump();
    let (a, b) = (target.pair.a, target.pair.b);
    drop(b.endpoint);
    drop(region);
    a.outlive_peer(open);
}

/// Each operation is carried out though the target removes its initiator while it is under way, and
/// the region closes afterwards.
pub fn initiators_that_are_removed(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const OPS: usize = 60;

    let target = Target::open(domain_a, domain_b);
    let initiator = Initiator::of(&target);
    let QueuedPair { a, b, to_a, .. } = &target.pair;
    let mut to_a = *to_a;
    for round in 0..40 {
        let region = target.register(KEY, BOTH);
        set(&target, 0, &[0; 8]);
        let begun: Vec<_> = (0..OPS)
            .map(|number| {
                let form = [AtomicForm::Base, AtomicForm::Fetch][number % 2];
                let len = [8, 400, MAX_ATOMIC_BYTES][(number + round) % 3];
                let sum = op(form, Operator::Sum, Datatype::Uint64);
                let ones = 1u64.to_le_bytes().repeat(len / 8);
                initiator.begin(&sum, &arrays(&initiator, &sum, &ones, &[]))
            })
            .collect();
        for _ in 0..round % 10 {
            b.rx.pump();
            if round % 2 == 0 {
                a.rx.pump();
            }
        }
        b.av.remove(to_a).unwrap();
        for context in begun {
            initiator.over(context).unwrap();
        }
        close_beside(region, a);
        assert_eq!(target.content(0, 8), (OPS as u64).to_le_bytes());
        to_a = b.av.insert(&a.endpoint.name().to_bytes()).unwrap();
    }
}

/// Operations are answered although the target's own sends to the initiator wait behind a fence for
/// a receive that the initiator posts after them.
pub fn targets_that_are_fenced(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let initiator = Initiator::of(&target);
    let sends = sends_behind_a_fence(&target.pair);
    for form in [AtomicForm::Base, AtomicForm::Fetch] {
        for len in [8, 400, MAX_ATOMIC_BYTES] {
            let sum = op(form, Operator::Sum, Datatype::Uint64);
            for _ in 0..20 {
                initiator.done(&sum, &arrays(&initiator, &sum, &vec![1; len], &[]));
            }
        }
    }
    close_beside(region, initiator.end);
    receive_all(&target.pair, &sends);
}

/// Each operation ends once, and one that has failed changes nothing later: neither its request nor
/// a copy of that is still on its way. `disturb` has sessions end from now on.
pub fn failed_operations_are_over(
    domain_a: &dyn Domain,
    domain_b: &dyn Domain,
    disturb: impl FnOnce(),
) {
    const OPS: usize = 300;
    const LATER: u64 = 20;

    let target = Target::open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let initiator = Initiator::of(&target);
    set(&target, 0, &[0; 8]);
    let word = || {
        let bytes = target.content(0, 8).try_into();
        bytes.map_or(0, u64::from_le_bytes)
    };
    let sum = op(AtomicForm::Fetch, Operator::Sum, Datatype::Uint64);
    let one = arrays(&initiator, &sum, &1u64.to_le_bytes(), &[]);
    disturb();
    let begun: Vec<_> = (0..OPS).map(|_| initiator.begin(&sum, &one)).collect();
    let (mut done, mut failed) = (0, 0);
    for context in begun {
        match initiator.over(context) {
            Ok(_) => done += 1,
            Err(error) => {
                assert!(is_gone(error.errno), "{error:?}");
                failed += 1;
            }
        }
    }
    let before = word();
    assert!((done..=done + failed).contains(&before), "{before}, {done}");
    // They come after all that was sent earlier.
    for _ in 0..LATER {
        initiator.done(&sum, &one);
    }
    assert_eq!(word(), before + LATER, "{failed} have failed");
    close_beside(region, initiator.end);
}
