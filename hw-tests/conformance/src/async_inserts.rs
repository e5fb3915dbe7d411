//! Asynchronous insertions and their events (`FI_EVENT` of fi_av(3)).

use std::sync::{Arc, Mutex};
use std::time::Instant;

use ferrofabric_av::{AvAttr, InsertRequest, Services};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::{AV_COMPLETE, Done, EqError};
use ferrofabric_contracts::types::{AvType, FiAddr, MsgKind};
use ferrofabric_runtime::eq::{EventQueue, Reading};
use ferrofabric_runtime::fabric::{Av, Domain};
use zerocopy::FromBytes;

use crate::ends::{PATIENCE, QueuedEndpoint};
use crate::vectors::{TYPES, Talk, errno_of, invented, malformed, name_of, of_type, with_av};

/// The events of a queue up to the end of a call: its errors, and its end.
fn until_done(events: &EventQueue) -> (Vec<EqError>, Done) {
    let until = Instant::now() + PATIENCE;
    let mut errors = Vec::new();
    let mut out = [0; size_of::<Done>()];
    loop {
        match events.read(&mut out, Reading::Take) {
            Ok((number, len)) => {
                assert_eq!((number, len), (AV_COMPLETE, out.len()));
                return (errors, Done::read_from_bytes(&out).unwrap());
            }
            Err(OpError::Failed(Errno::EAVAIL)) => {
                errors.push(events.read_error(Reading::Take).unwrap());
            }
            Err(error) => assert_eq!(error, OpError::Again),
        }
        assert!(Instant::now() < until, "no event");
        std::thread::yield_now();
    }
}

type InsertResults = Arc<Mutex<Vec<Option<Result<FiAddr, Errno>>>>>;

/// Begins an asynchronous call, whose results are there when its end is.
fn begin(
    av: &dyn Av,
    wanted: InsertRequest,
    count: usize,
    context: u64,
) -> (InsertResults, Option<Errno>) {
    let results: InsertResults = Arc::new(Mutex::new(vec![None; count]));
    let report = {
        let results = results.clone();
        Box::new(move |number: usize, one| {
            let before = results.lock().unwrap()[number].replace(one);
            assert!(before.is_none(), "address {number} is reported twice");
        })
    };
    let begun = av.insert_later(wanted, Vec::new(), context, report);
    (results, errno_of(begun))
}

/// Asynchronous insertions: before a queue is bound they are refused, and one queue alone can be
/// bound. Each call reports one error for each address that failed, then one end with the number of
/// the other addresses, also if all addresses fail and if the call has none; each address is
/// reported once. Each inserted address reaches its peer.
///
/// Covers: AV-7, AV-8, AV-11
pub fn events_of_each_call(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for av_type in TYPES {
        let attr = AvAttr {
            events: true,
            ..of_type(av_type)
        };
        let talk = Talk::between(with_av(domain_a, &attr), QueuedEndpoint::open(domain_b));
        let (a, b) = (&talk.pair.a, &talk.pair.b);
        let to_a = b.av.insert(&name_of(a)).unwrap();
        let text = Services::one(&b.endpoint.address().to_string(), None).unwrap();
        let (events, other) = (Arc::new(EventQueue::new()), Arc::new(EventQueue::new()));
        for wanted in [
            InsertRequest::Listed(vec![name_of(b)]),
            InsertRequest::Listed(Vec::new()),
            InsertRequest::Services(text.clone()),
        ] {
            let (results, refused) = begin(&*a.av, wanted, 1, 1);
            assert_eq!(refused, Some(Errno::ENOEQ));
            assert_eq!(*results.lock().unwrap(), [None], "nothing was begun");
        }
        a.av.bind_events(events.clone(), 77).unwrap();
        assert_eq!(
            errno_of(a.av.bind_events(other.clone(), 78)),
            Some(Errno::EINVAL)
        );
        // A call that waits for its result is for address vectors of the other sort.
        assert_eq!(errno_of(a.av.insert(&name_of(b))), Some(Errno::EINVAL));

        let bad = malformed(&name_of(b));
        let some = invented(b, 40);
        let calls = [
            (vec![bad[0].clone(), name_of(b), bad[3].clone()], vec![0, 2]),
            (bad.clone(), vec![0, 1, 2, 3]),
            (Vec::new(), Vec::new()),
            (some.clone(), Vec::new()),
        ];
        let mut begun = Vec::new();
        for ((names, _), context) in calls.iter().zip(100..) {
            let listed = InsertRequest::Listed(names.clone());
            let (results, refused) = begin(&*a.av, listed, names.len(), context);
            assert_eq!(refused, None);
            begun.push(results);
        }
        // Calls may end in any order; the errors of a call are before its end.
        let mut ended = Vec::new();
        let mut errors: Vec<EqError> = Vec::new();
        while ended.len() < calls.len() {
            let (more, done) = until_done(&events);
            errors.extend(more);
            let call = (done.context - 100) as usize;
            assert!(!ended.contains(&call), "call {call} ends twice");
            ended.push(call);
            let (names, failing) = &calls[call];
            let good = names.len() - failing.len();
            assert_eq!((done.source, done.data), (77, good as u64));
            let its = errors.iter().filter(|error| error.context == done.context);
            let mut its: Vec<_> = its.map(|e| (e.source, e.data, e.errno)).collect();
            its.sort_unstable_by_key(|error| error.1);
            let expected = failing.iter().map(|n| (77, *n, Errno::EINVAL));
            assert!(its.iter().copied().eq(expected), "call {call}: {its:?}");
            let results = begun[call].lock().unwrap();
            for (number, one) in results.iter().enumerate() {
                let fails = failing.contains(&(number as u64));
                assert_eq!(one.unwrap().is_err(), fails, "address {number}");
            }
        }
        assert_eq!(errors.len(), 6, "errors that belong to no call");
        let result = |call: usize, number: usize| begun[call].lock().unwrap()[number].unwrap();
        let to_b = result(0, 1).unwrap();
        if av_type == AvType::Table {
            assert_eq!(
                to_b,
                FiAddr(1),
                "a failed address takes an index until its call is over"
            );
        }
        assert_eq!(talk.there(to_b, MsgKind::Tagged, 8).src, to_a);
        assert_eq!(talk.back(to_a, MsgKind::Tagged, 8).src, to_b);
        for (number, name) in some.iter().enumerate() {
            let found = a.av.lookup(result(3, number).unwrap()).unwrap();
            assert_eq!(found.to_bytes()[..], name[..]);
        }
        let (by_text, refused) = begin(&*a.av, InsertRequest::Services(text), 1, 200);
        assert_eq!(refused, None);
        let (errors, done) = until_done(&events);
        assert_eq!((errors.len(), done.context, done.data), (0, 200, 1));
        assert_eq!(*by_text.lock().unwrap(), [Some(Ok(to_b))]);
    }
}

/// An address vector that closes with calls under way: each of them ends all the same, by one
/// event, and an address that was not inserted was cancelled. The events stay in their queue.
///
/// Covers: AV-7, AV-22
pub fn events_outlive_their_vector(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const CALLS: usize = 50;
    const ADDRESSES: usize = 40;
    let like = QueuedEndpoint::open(domain_b);
    for av_type in TYPES {
        let attr = AvAttr {
            events: true,
            ..of_type(av_type)
        };
        let av = domain_a.open_av(&attr).unwrap();
        let events = Arc::new(EventQueue::new());
        av.bind_events(events.clone(), 5).unwrap();
        let names = invented(&like, (CALLS * ADDRESSES) as u64);
        let calls: Vec<_> = (names.chunks(ADDRESSES).enumerate())
            .map(|(call, names)| {
                let listed = InsertRequest::Listed(names.to_vec());
                let (results, refused) = begin(&*av, listed, ADDRESSES, call as u64);
                assert_eq!(refused, None);
                results
            })
            .collect();
        drop(av);
        let mut out = [0; size_of::<Done>()];
        let (mut ended, mut cancelled) = (vec![false; CALLS], vec![0; CALLS]);
        // All of them are there: nobody is left that could write another.
        loop {
            match events.read(&mut out, Reading::Take) {
                Ok(_) => {
                    let done = Done::read_from_bytes(&out).unwrap();
                    let call = done.context as usize;
                    assert!(!std::mem::replace(&mut ended[call], true));
                    assert_eq!(done.data as usize + cancelled[call], ADDRESSES);
                    let results = calls[call].lock().unwrap();
                    let failed = results.iter().filter(|one| one.unwrap().is_err());
                    assert_eq!(failed.count(), cancelled[call]);
                }
                Err(OpError::Failed(Errno::EAVAIL)) => {
                    let error = events.read_error(Reading::Take).unwrap();
                    assert_eq!((error.errno, error.source), (Errno::ECANCELED, 5));
                    cancelled[error.context as usize] += 1;
                }
                Err(error) => break assert_eq!(error, OpError::Again),
            }
        }
        assert!(ended.iter().all(|ended| *ended), "calls that never ended");
    }
}
