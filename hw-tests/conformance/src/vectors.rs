//! Address vectors of one process, as fi_av(3) describes them: types, growth, insertions of each
//! sort, texts of addresses, and user IDs. Every scenario also sends messages, so that an entry
//! counts as right only if its messages arrive and name their source.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use ferrofabric_core::addr::{Address, NativeAddr};
use ferrofabric_core::av::{AvAttr, AvType, Services, Wanted};
use ferrofabric_core::eq::{AV_COMPLETE, Done, EqError, EventQueue, Reading};
use ferrofabric_core::error::{Errno, Error, OpError};
use ferrofabric_core::fabric::{Av, Domain, RecvOp};
use ferrofabric_core::flags::Flags;
use ferrofabric_core::peer::Completion;
use ferrofabric_core::types::{FiAddr, MsgKind, SendOp};
use zerocopy::FromBytes;

use crate::ends::{End, PATIENCE, Pair, any_tagged};

/// In one packet, in several, and too long for that.
const SIZES: [usize; 3] = [8, 9000, 120_000];

const TYPES: [AvType; 2] = [AvType::Map, AvType::Table];

fn of_type(av_type: AvType) -> AvAttr {
    AvAttr {
        av_type: Some(av_type),
        ..AvAttr::default()
    }
}

fn with_av(domain: &dyn Domain, attr: &AvAttr) -> End {
    End::open_with(domain, attr, |_| {})
}

/// The address of an endpoint, as an application has it.
pub(crate) fn name_of(end: &End) -> Vec<u8> {
    end.endpoint.name().to_bytes().to_vec()
}

/// Well-formed addresses that no endpoint has, made of a real one.
pub(crate) fn invented(like: &End, count: u64) -> Vec<Vec<u8>> {
    let own = like.endpoint.name();
    let name = |n| NativeAddr {
        incarnation: own.incarnation.wrapping_add(n),
        ..own
    };
    (1..=count).map(|n| name(n).to_bytes().to_vec()).collect()
}

/// Inserts addresses by one call. The result of each address is in the order of the call.
fn insert_all(av: &dyn Av, names: &[Vec<u8>]) -> Vec<Result<FiAddr, Errno>> {
    let mut results = Vec::new();
    let mut names = names.iter().map(Vec::as_slice);
    let inserted = av.insert_all(&mut names, &mut |number, one| {
        assert_eq!(number, results.len(), "results come in order");
        results.push(one.map_err(|error| error.errno()));
    });
    let good = results.iter().filter(|one| one.is_ok()).count();
    assert_eq!(inserted.unwrap(), good);
    results
}

/// Inserts one endpoint by the text of its address.
fn insert_text(av: &dyn Av, text: &str) -> Result<FiAddr, Errno> {
    let one = Services::one(text, None).map_err(|error| error.errno())?;
    let mut inserted = Err(Errno::EINVAL);
    av.insert_services(&one, &mut |_, one| {
        inserted = one.map_err(|error| error.errno());
    })
    .map_err(|error| error.errno())?;
    inserted
}

pub(crate) fn errno_of<T>(result: Result<T, Error>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

/// Two endpoints with a message from `a` to `b` at a time.
pub(crate) struct Talk {
    pub(crate) pair: Pair,
    messages: Mutex<u64>,
}

impl Talk {
    pub(crate) fn between(a: End, b: End) -> Self {
        Self {
            pair: Pair {
                a,
                b,
                to_a: FiAddr::NOTAVAIL,
                to_b: FiAddr::NOTAVAIL,
            },
            messages: Mutex::new(0),
        }
    }

    /// Sends a message from `a` to an address, and returns the completion of the receive at `b`.
    pub(crate) fn there(&self, to: FiAddr, kind: MsgKind, len: usize) -> Completion {
        Self::one(
            &self.pair,
            &self.pair.a,
            &self.pair.b,
            to,
            kind,
            len,
            &self.messages,
        )
    }

    /// The same from `b` to `a`.
    pub(crate) fn back(&self, to: FiAddr, kind: MsgKind, len: usize) -> Completion {
        Self::one(
            &self.pair,
            &self.pair.b,
            &self.pair.a,
            to,
            kind,
            len,
            &self.messages,
        )
    }

    fn one(
        pair: &Pair,
        from: &End,
        at: &End,
        dest: FiAddr,
        kind: MsgKind,
        len: usize,
        messages: &Mutex<u64>,
    ) -> Completion {
        let number = {
            let mut messages = messages.lock().unwrap();
            *messages += 1;
            *messages
        };
        let fill = number as u8 | 1;
        let recv = RecvOp {
            kind,
            ..any_tagged(at.context())
        };
        let into = at.memory(len, 0);
        at.recv(&recv, &[into]).unwrap();
        let send = send_op(from, dest, kind, number);
        from.send(at, send, len, fill);
        let came = pair.wait(&at.rx, recv.context).unwrap();
        pair.wait(&from.tx, send.context).unwrap();
        assert_eq!(came.len, len);
        assert_eq!(at.bytes(into.addr, len), vec![fill; len]);
        came
    }
}

fn send_op(from: &End, dest: FiAddr, kind: MsgKind, tag: u64) -> SendOp {
    SendOp {
        kind,
        dest,
        tag,
        data: 0,
        desc: 0,
        context: from.context(),
        flags: Flags::COMPLETION,
    }
}

/// What a send to an address is refused with.
pub(crate) fn refusal(from: &End, dest: FiAddr) -> Option<OpError> {
    let op = send_op(from, dest, MsgKind::Tagged, 0);
    let buf = from.memory(8, 0);
    // SAFETY: the memory lives as long as the endpoint.
    unsafe { from.endpoint.send(&op, &[buf]) }.err()
}

const NOBODY: Option<OpError> = Some(OpError::Failed(Errno::EADDRNOTAVAIL));

/// Each type opens with each sort of size, and says which type it is where the provider chooses.
/// A size is a hint: messages go to entries far beyond it. What is impossible is refused.
///
/// Covers: AV-1, AV-2, AV-3
pub fn attributes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let b = End::open(domain_b);
    for av_type in [Some(AvType::Map), Some(AvType::Table), None] {
        for (count, ep_per_node, rx_ctx_bits, symmetric) in [
            (0, 0, 0, false),
            (1, 0, 24, false),
            (1000, 16, 8, true),
            (0, 7, 0, true),
        ] {
            let attr = AvAttr {
                av_type,
                count,
                ep_per_node,
                rx_ctx_bits,
                symmetric,
                ..AvAttr::default()
            };
            let av = domain_a.open_av(&attr).unwrap();
            let chosen = av.av_type();
            assert!(av_type.is_none_or(|asked| asked == chosen));
            let indices: Vec<_> = insert_all(&*av, &invented(&b, 50));
            let in_order = (0..50).map(|n| Ok(FiAddr(n)));
            // Indices of a table come in order, addresses of a map are opaque, and all differ.
            if chosen == AvType::Table {
                assert!(indices.iter().copied().eq(in_order), "{attr:?}");
            }
            let mut values: Vec<_> = indices.iter().map(|one| one.unwrap().0).collect();
            values.sort_unstable();
            values.dedup();
            assert_eq!(values.len(), 50, "{attr:?}");
        }
    }
    for (av_type, rx_ctx_bits, count, errno) in [
        (AvType::Map, 25, 0, Errno::EINVAL),
        (AvType::Table, 33, 0, Errno::EINVAL),
        (AvType::Map, 0, usize::MAX / 2, Errno::ENOMEM),
        (AvType::Table, 0, usize::MAX / 2, Errno::ENOMEM),
    ] {
        let attr = AvAttr {
            rx_ctx_bits,
            count,
            ..of_type(av_type)
        };
        assert_eq!(errno_of(domain_a.open_av(&attr)), Some(errno), "{attr:?}");
    }
}

/// An address vector grows in the middle of a conversation, by entries that one call inserts and by
/// entries one at a time: every earlier entry keeps its address, and messages go on.
///
/// Covers: AV-2
pub fn growth(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    /// Far more than the vector is opened for, and more than a chunk of a table holds.
    const MORE: u64 = 3000;
    for (av_type, count, ep_per_node, symmetric) in [
        (AvType::Map, 2, 0, false),
        (AvType::Table, 0, 0, false),
        (AvType::Map, 16, 16, true),
        (AvType::Table, 1, 3, true),
    ] {
        let attr = AvAttr {
            count,
            ep_per_node,
            symmetric,
            ..of_type(av_type)
        };
        let talk = Talk::between(with_av(domain_a, &attr), End::open(domain_b));
        let (a, b) = (&talk.pair.a, &talk.pair.b);
        let to_b = a.av.insert(&name_of(b)).unwrap();
        let to_a = b.av.insert(&name_of(a)).unwrap();
        let names = invented(b, MORE);
        let mut known = Vec::new();
        for (round, some) in names.chunks(MORE as usize / 6).enumerate() {
            match round % 2 {
                0 => known.extend(insert_all(&*a.av, some).into_iter().map(Result::unwrap)),
                _ => known.extend(some.iter().map(|name| a.av.insert(name).unwrap())),
            }
            assert_eq!(
                talk.there(to_b, MsgKind::Tagged, SIZES[round % 3]).src,
                to_a
            );
            assert_eq!(talk.back(to_a, MsgKind::Msg, 8).src, to_b);
            for (addr, name) in known.iter().zip(&names) {
                assert_eq!(a.av.lookup(*addr).unwrap().to_bytes()[..], name[..]);
            }
            assert_eq!(a.av.lookup(to_b).unwrap(), b.endpoint.name());
        }
        assert_eq!(known.len() as u64, MORE);
        if av_type == AvType::Table {
            assert!(
                (1..)
                    .map(FiAddr)
                    .zip(&known)
                    .all(|(index, addr)| index == *addr)
            );
        }
    }
}

/// An address with receive context 0 in its high bits is the endpoint's; any other context is
/// nobody: a send says so, and no message goes anywhere.
///
/// Covers: AV-3
pub fn receive_contexts(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for (av_type, bits) in [(AvType::Map, 8), (AvType::Map, 24), (AvType::Table, 8)] {
        let attr = AvAttr {
            rx_ctx_bits: bits,
            ..of_type(av_type)
        };
        let talk = Talk::between(with_av(domain_a, &attr), End::open(domain_b));
        let (a, b) = (&talk.pair.a, &talk.pair.b);
        let to_b = a.av.insert(&name_of(b)).unwrap();
        let to_a = b.av.insert(&name_of(a)).unwrap();
        assert_eq!(to_b.0 >> (64 - bits), 0, "the bits are the application's");
        assert_eq!(to_b.rx_addr(0, bits), to_b);
        assert_eq!(to_b.rx_addr(1, 0), to_b);
        assert_eq!(FiAddr::NOTAVAIL.rx_addr(1, bits), FiAddr::NOTAVAIL);
        for index in [1, 2, (1 << bits) - 1] {
            let context = to_b.rx_addr(index, bits);
            assert_ne!(context, to_b);
            assert_eq!(
                refusal(a, context),
                NOBODY,
                "context {index} of {bits} bits"
            );
        }
        assert_eq!(talk.there(to_b.rx_addr(0, bits), MsgKind::Msg, 8).src, to_a);
    }
}

/// Addresses that are none: too short, too long, empty, or of no known layout.
fn malformed(good: &[u8]) -> Vec<Vec<u8>> {
    vec![
        good[..good.len() - 1].to_vec(),
        [good, &[0]].concat(),
        Vec::new(),
        vec![7; good.len()],
    ]
}

/// A malformed address fails alone, at any place of a call, and the others of the call are peers
/// at once. In a table it leaves a hole, which the next insertion fills. A call may have no address.
/// An address that is there keeps what it is.
///
/// Covers: AV-10, AV-11, AV-12, AV-23
pub fn malformed_addresses(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for av_type in TYPES {
        let talk = Talk::between(with_av(domain_a, &of_type(av_type)), End::open(domain_b));
        let (a, b) = (&talk.pair.a, &talk.pair.b);
        let to_a = b.av.insert(&name_of(a)).unwrap();
        assert_eq!(insert_all(&*a.av, &[]), []);
        let other = invented(b, 3);
        let bad = malformed(&name_of(b));
        let mut names = vec![bad[0].clone(), other[0].clone()];
        names.extend_from_slice(&bad[1..]);
        names.extend([name_of(b), other[0].clone()]);
        let results = insert_all(&*a.av, &names);
        let fails: Vec<_> = results.iter().map(|one| one.err()).collect();
        let no = Some(Errno::EINVAL);
        assert_eq!(fails, [no, None, no, no, no, None, None]);
        let (to_other, to_b) = (results[1].unwrap(), results[5].unwrap());
        assert_eq!(results[6], Ok(to_other), "an address that is there");
        assert_eq!(talk.there(to_b, MsgKind::Tagged, 8).src, to_a);
        assert_eq!(talk.back(to_a, MsgKind::Tagged, 9000).src, to_b);
        // All fail.
        assert_eq!(insert_all(&*a.av, &bad), vec![Err(Errno::EINVAL); 4]);
        let next: Vec<_> = other[1..]
            .iter()
            .map(|name| a.av.insert(name).unwrap())
            .collect();
        if av_type == AvType::Table {
            assert_eq!((to_other, to_b), (FiAddr(1), FiAddr(5)));
            assert_eq!(next, [FiAddr(0), FiAddr(2)], "the lowest holes come first");
            for hole in [3, 4, 6].map(FiAddr) {
                assert_eq!(errno_of(a.av.lookup(hole)), no);
                assert_eq!(refusal(a, hole), NOBODY);
            }
        }
        assert_eq!(talk.there(to_b, MsgKind::Msg, 8).src, to_a);
    }
}

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

type Results = Arc<Mutex<Vec<Option<Result<FiAddr, Errno>>>>>;

/// Begins an asynchronous call, whose results are there when its end is.
fn begin(av: &dyn Av, wanted: Wanted, count: usize, context: u64) -> (Results, Option<Errno>) {
    let results: Results = Arc::new(Mutex::new(vec![None; count]));
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

/// Asynchronous insertions: nothing before a queue is bound, and one queue alone. Of each call there
/// is one error for each address that failed, then one end with the number of the others, also
/// where all fail and where there is none; each address is reported once. What was inserted is a
/// peer.
///
/// Covers: AV-7, AV-8, AV-11
pub fn asynchronous_insertions(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for av_type in TYPES {
        let attr = AvAttr {
            events: true,
            ..of_type(av_type)
        };
        let talk = Talk::between(with_av(domain_a, &attr), End::open(domain_b));
        let (a, b) = (&talk.pair.a, &talk.pair.b);
        let to_a = b.av.insert(&name_of(a)).unwrap();
        let text = Services::one(&b.endpoint.address().to_string(), None).unwrap();
        let (events, other) = (Arc::new(EventQueue::new()), Arc::new(EventQueue::new()));
        for wanted in [
            Wanted::Listed(vec![name_of(b)]),
            Wanted::Listed(Vec::new()),
            Wanted::Services(text.clone()),
        ] {
            let (results, refused) = begin(&*a.av, wanted, 1, 1);
            assert_eq!(refused, Some(Errno::ENOEQ));
            assert_eq!(*results.lock().unwrap(), [None], "nothing was begun");
        }
        a.av.bind_events(&events, 77).unwrap();
        assert_eq!(errno_of(a.av.bind_events(&other, 78)), Some(Errno::EINVAL));
        // What waits for its result is for address vectors of the other sort.
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
            let listed = Wanted::Listed(names.clone());
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
        let (by_text, refused) = begin(&*a.av, Wanted::Services(text), 1, 200);
        assert_eq!(refused, None);
        let (errors, done) = until_done(&events);
        assert_eq!((errors.len(), done.context, done.data), (0, 200, 1));
        assert_eq!(*by_text.lock().unwrap(), [Some(Ok(to_b))]);
    }
}

/// An address vector that closes with calls under way: each of them ends all the same, by one event,
/// and an address that was not inserted was cancelled. The events stay in their queue.
///
/// Covers: AV-7, AV-22
pub fn events_outlive_their_vector(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const CALLS: usize = 50;
    const ADDRESSES: usize = 40;
    let like = End::open(domain_b);
    for av_type in TYPES {
        let attr = AvAttr {
            events: true,
            ..of_type(av_type)
        };
        let av = domain_a.open_av(&attr).unwrap();
        let events = Arc::new(EventQueue::new());
        av.bind_events(&events, 5).unwrap();
        let names = invented(&like, (CALLS * ADDRESSES) as u64);
        let calls: Vec<_> = (names.chunks(ADDRESSES).enumerate())
            .map(|(call, names)| {
                let listed = Wanted::Listed(names.to_vec());
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

/// The text of an address says all of it: parsed or inserted by it, it is the same endpoint, also
/// one that was never inserted. A service beside such a text is refused.
///
/// Covers: AV-15, AV-19, AV-23
pub fn texts(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for av_type in TYPES {
        let talk = Talk::between(with_av(domain_a, &of_type(av_type)), End::open(domain_b));
        let (a, b) = (&talk.pair.a, &talk.pair.b);
        let to_a = b.av.insert(&name_of(a)).unwrap();
        let text = Address::Native(b.endpoint.name()).to_string();
        let parsed: Address = text.parse().unwrap();
        assert_eq!(parsed, Address::Native(b.endpoint.name()));
        let to_b = insert_text(&*a.av, &text).unwrap();
        assert_eq!(a.av.insert(&name_of(b)).unwrap(), to_b);
        assert_eq!(insert_text(&*a.av, &text), Ok(to_b));
        assert_eq!(a.av.lookup(to_b).unwrap(), b.endpoint.name());
        assert_eq!(talk.there(to_b, MsgKind::Tagged, 8).src, to_a);
        assert_eq!(talk.back(to_a, MsgKind::Tagged, 8).src, to_b);
        for name in invented(b, 20) {
            let name = NativeAddr::from_bytes(&name).unwrap();
            let text = Address::Native(name).to_string();
            assert_eq!(text.parse(), Ok(Address::Native(name)));
            let addr = insert_text(&*a.av, &text).unwrap();
            assert_eq!(a.av.lookup(addr).unwrap(), name);
        }
        assert_eq!(
            errno_of(Services::one(&text, Some("1"))),
            Some(Errno::EINVAL)
        );
        for none in [text.replace("://", ""), text.replace("://", "://?")] {
            assert!(none.parse::<Address>().is_err(), "{none}");
            assert_eq!(insert_text(&*a.av, &none), Err(Errno::EINVAL), "{none}");
        }
    }
}

/// With IDs of the application's, completions, errors, peeks and pieces of a multi-receive report
/// the ID of their source: `FI_ADDR_NOTAVAIL` until there is one. Sends, directed receives, lookups and
/// removals take the address and never the ID. Where IDs come with the insertion, no other call
/// sets them.
///
/// Covers: AV-20
pub fn user_ids(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for av_type in TYPES {
        let attr = AvAttr {
            user_ids: true,
            ..of_type(av_type)
        };
        let talk = Talk::between(End::open(domain_a), with_av(domain_b, &attr));
        let (a, b) = (&talk.pair.a, &talk.pair.b);
        let to_b = a.av.insert(&name_of(b)).unwrap();
        let to_a = b.av.insert(&name_of(a)).unwrap();
        b.endpoint.set_min_multi_recv(1).unwrap();
        for (id, set) in [
            (FiAddr::NOTAVAIL, false),
            (FiAddr(4711), true),
            (FiAddr(u64::MAX - 2), true),
            // IDs are opaque: an ID may be 0, or look like an address of somebody else's.
            (FiAddr(0), true),
        ] {
            if set {
                b.av.set_user_id(to_a, id).unwrap();
            }
            for kind in [MsgKind::Msg, MsgKind::Tagged] {
                for len in SIZES {
                    assert_eq!(talk.there(to_b, kind, len).src, id, "{kind:?} of {len}");
                }
            }
            reports(&talk.pair, to_a, to_b, id);
        }
        let id = FiAddr(4711);
        b.av.set_user_id(to_a, id).unwrap();
        assert_eq!(errno_of(b.av.lookup(id)), Some(Errno::EINVAL));
        assert_eq!(errno_of(b.av.remove(id)), Some(Errno::EINVAL));
        assert_eq!(
            errno_of(b.av.set_user_id(id, FiAddr(1))),
            Some(Errno::EINVAL)
        );
        assert_eq!(refusal(b, id), NOBODY);
        assert_eq!(talk.back(to_a, MsgKind::Msg, 8).src, to_b);
        // One sort of IDs excludes the other.
        let no = Some(Errno::EINVAL);
        assert_eq!(errno_of(b.av.tag_inserted(to_a, FiAddr(1))), no);
        assert_eq!(errno_of(a.av.set_user_id(to_b, FiAddr(1))), no);
        a.av.tag_inserted(to_b, FiAddr(12)).unwrap();
        assert_eq!(talk.back(to_a, MsgKind::Tagged, 9000).src, FiAddr(12));
        // An ID goes with its address.
        b.av.remove(to_a).unwrap();
        let again = b.av.insert(&name_of(a)).unwrap();
        assert_eq!(talk.there(to_b, MsgKind::Tagged, 8).src, FiAddr::NOTAVAIL);
        b.av.remove(again).unwrap();
        assert_eq!(errno_of(b.av.set_user_id(again, id)), no);
    }
}

/// Directed receives, truncations, peeks and multi-receives of a message from `a`.
fn reports(pair: &Pair, to_a: FiAddr, to_b: FiAddr, id: FiAddr) {
    let (a, b) = (&pair.a, &pair.b);
    let send = |tag, len| {
        let op = send_op(a, to_b, MsgKind::Tagged, tag);
        a.send(b, op, len, 3);
        op.context
    };
    let directed = |src, tag| RecvOp {
        src,
        tag,
        ignore: 0,
        ..any_tagged(b.context())
    };
    // A receive from the ID is one from nobody: its message goes to the receive behind it.
    let from_id = directed(FiAddr(4711), 5);
    b.recv(&from_id, &[b.memory(8, 0)]).unwrap();
    let from_a = directed(to_a, 5);
    b.recv(&from_a, &[b.memory(8, 0)]).unwrap();
    let sent = send(5, 8);
    assert_eq!(pair.wait(&b.rx, from_a.context).unwrap().src, id);
    pair.wait(&a.tx, sent).unwrap();
    b.endpoint.cancel(from_id.context).unwrap();
    let cancelled = pair.wait(&b.rx, from_id.context).unwrap_err();
    assert_eq!(cancelled.errno, Errno::ECANCELED);

    let short = directed(to_a, 6);
    b.recv(&short, &[b.memory(4, 0)]).unwrap();
    let sent = send(6, 8);
    let error = pair.wait(&b.rx, short.context).unwrap_err();
    assert_eq!((error.errno, error.completion.src), (Errno::ETRUNC, id));
    pair.wait(&a.tx, sent).unwrap();

    let sent = send(7, 8);
    let found = pair.until("a message does not come", || {
        let peek = RecvOp {
            flags: Flags::PEEK | Flags::COMPLETION,
            ..directed(to_a, 7)
        };
        b.probe(&peek).ok()
    });
    assert_eq!(found.src, id);
    let multi = RecvOp {
        flags: Flags::MULTI_RECV | Flags::COMPLETION,
        ..directed(to_a, 7)
    };
    b.recv(&multi, &[b.memory(8, 0)]).unwrap();
    assert_eq!(pair.wait(&b.rx, multi.context).unwrap().src, id);
    pair.wait(&a.tx, sent).unwrap();
}

/// A domain that was opened without keys of address vectors refuses every call with one.
///
/// Covers: AV-21
pub fn without_keys(domain: &dyn Domain) {
    let end = End::open(domain);
    let own = end.av.insert(&name_of(&end)).unwrap();
    let no = Some(Errno::EOPNOTSUPP);
    let key = [0x11; 16];
    for len in [0, 8, 16] {
        assert_eq!(errno_of(end.av.insert_auth_key(&key[..len])), no);
    }
    for addr in [own, FiAddr(0), FiAddr::NOTAVAIL] {
        assert_eq!(errno_of(end.av.lookup_auth_key(addr)), no);
        assert_eq!(errno_of(end.av.remove_auth_key(addr)), no);
        assert_eq!(errno_of(end.av.set_auth_key_user_id(addr, FiAddr(1))), no);
    }
    let name = name_of(&end);
    let mut keyed = std::iter::once((&name[..], own));
    let inserted = end.av.insert_all_with_keys(&mut keyed, &mut |_, _| {});
    assert_eq!(errno_of(inserted), no);
    let recv = RecvOp {
        src: own,
        flags: Flags::COMPLETION | Flags::AUTH_KEY,
        ..any_tagged(end.context())
    };
    let posted = end.recv(&recv, &[end.memory(8, 0)]);
    assert_eq!(posted, Err(OpError::Failed(Errno::EBADFLAGS)));
    assert_eq!(end.av.lookup(own).unwrap(), end.endpoint.name());
}
