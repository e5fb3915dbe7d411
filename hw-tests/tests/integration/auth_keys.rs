//! Authorization keys on a device: datagrams and messages with the right key arrive, others do not;
//! an endpoint with several keys has a queue pair for each.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::{AvAttr, InsertRequest, Services};
use ferrofabric_conformance::ends::BLANK;
use ferrofabric_contracts::addr::{AddrFormat, Address, AuthKey, KeyedAddr, MAX_EP_AUTH_KEYS};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{AV_AUTH_KEY, EpType, Info};
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::sockets::{hints, offer, own, resolved};
use ferrofabric_runtime::eq::EventQueue;
use ferrofabric_runtime::fabric::{Av, Cq, CqAttr, Domain, Endpoint, EndpointConfig, Provider};
use ferrofabric_verbs::VerbsProvider;
use serial_test::file_serial;

/// A wait that takes so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long what must not come is waited for.
const QUIET: Duration = Duration::from_millis(300);

const ROOM: usize = 64;

/// The type of a test's endpoints, and whether they reach peers of this node through shared memory.
#[derive(Clone, Copy, Debug)]
struct KeyedEndpointKind {
    ep_type: EpType,
    shm: bool,
}

const KINDS: [KeyedEndpointKind; 3] = [
    KeyedEndpointKind {
        ep_type: EpType::Dgram,
        shm: false,
    },
    KeyedEndpointKind {
        ep_type: EpType::Rdm,
        shm: false,
    },
    KeyedEndpointKind {
        ep_type: EpType::Rdm,
        shm: true,
    },
];

impl KeyedEndpointKind {
    fn settings(self) -> Settings {
        let shm = if self.shm { "on" } else { "off" };
        Settings::read(|name| match name {
            "FERRO_SHM" => Some(shm.to_owned()),
            // No peer takes a message whose key it lacks: the close would wait for it.
            "FERRO_CLOSE_TIMEOUT" => Some("100ms".to_owned()),
            _ => std::env::var(name).ok(),
        })
        .unwrap()
    }

    fn info(self, by_vector: bool) -> Info {
        let found = VerbsProvider::new().discover(&self.settings());
        let wanted = |info: &Info| {
            let keyed = info.domain.auth_key_size == AV_AUTH_KEY;
            info.ep.ep_type == self.ep_type && info.mode.is_empty() && keyed == by_vector
        };
        let mut all = found.candidates.into_iter();
        all.find(wanted).expect("an offer")
    }

    fn open(self, info: &Info) -> Arc<dyn Domain> {
        VerbsProvider::new().open(info, &self.settings()).unwrap()
    }
}

fn key(qkey: u32) -> AuthKey {
    AuthKey::new(0xffff, qkey).unwrap()
}

/// An endpoint, and what it has received.
struct KeyedEndpoint {
    // It goes before its buffers do.
    endpoint: Arc<dyn Endpoint>,
    av: Arc<dyn Av>,
    cq: Arc<dyn Cq>,
    handles: Vec<FiAddr>,
    rooms: RefCell<Vec<Box<[u8]>>>,
    done: RefCell<VecDeque<Result<Completion, CqError>>>,
}

impl KeyedEndpoint {
    /// One with the keys of its address vector.
    fn open(domain: &dyn Domain, keys: &[AuthKey]) -> Self {
        let av = domain.open_av(&AvAttr::default()).unwrap();
        let insert = |key: &AuthKey| av.insert_auth_key(&key.to_bytes()).unwrap();
        let handles = keys.iter().map(insert).collect();
        let cq = domain.open_cq(&CqAttr::default()).unwrap();
        Self::around(domain, av, cq, handles, |_| ())
    }

    /// One with the keys of its address vector that wants to know who sends without being known.
    fn curious(domain: &dyn Domain, attr: &AvAttr, keys: &[AuthKey]) -> Self {
        let av = domain.open_av(attr).unwrap();
        let insert = |key: &AuthKey| av.insert_auth_key(&key.to_bytes()).unwrap();
        let handles = keys.iter().map(insert).collect();
        let cq = domain.open_cq(&CqAttr::default()).unwrap();
        Self::around(domain, av, cq, handles, |config| config.source_err = true)
    }

    /// One with a key of its own, or the domain's; found at a port, where there is one.
    fn plain(domain: &dyn Domain, key: Option<AuthKey>, port: Option<u16>) -> Self {
        let av = domain.open_av(&AvAttr::default()).unwrap();
        let cq = domain.open_cq(&CqAttr::default()).unwrap();
        Self::around(domain, av, cq, Vec::new(), |config| {
            config.auth_key = key;
            config.source = port.map(|port| SocketAddr::new(own(domain).ip(), port));
        })
    }

    fn around(
        domain: &dyn Domain,
        av: Arc<dyn Av>,
        cq: Arc<dyn Cq>,
        handles: Vec<FiAddr>,
        configure: impl FnOnce(&mut EndpointConfig),
    ) -> Self {
        let mut config = EndpointConfig::new(&av, &cq);
        configure(&mut config);
        Self {
            endpoint: domain.open_endpoint(config).unwrap(),
            av,
            cq,
            handles,
            rooms: RefCell::default(),
            done: RefCell::default(),
        }
    }

    fn knows(&self, peer: &Self, handle: FiAddr) -> FiAddr {
        let name = keyed_name(&*peer.endpoint).to_bytes();
        insert(&*self.av, &name, handle).unwrap()
    }

    fn post(&self, src: FiAddr, flags: Flags, context: u64) -> Result<(), OpError> {
        let mut room = vec![0; ROOM].into_boxed_slice();
        let buf = IoBuf::new(room.as_mut_ptr(), ROOM);
        self.rooms.borrow_mut().push(room);
        let op = RecvOp {
            kind: MsgKind::Msg,
            src,
            tag: 0,
            ignore: 0,
            desc: MrDesc::NONE,
            context,
            flags: flags | Flags::COMPLETION,
        };
        // SAFETY: the room stays as long as the endpoint, and nobody looks at it.
        unsafe { self.endpoint.recv(&op, &[buf]) }
    }

    /// Sends so many bytes, which are the application's again at once.
    fn send(&self, to: FiAddr, len: usize) -> Result<(), OpError> {
        let bytes = [7u8; ROOM];
        let op = SendOp {
            kind: MsgKind::Msg,
            dest: to,
            tag: 0,
            data: 0,
            desc: MrDesc::NONE,
            context: 0,
            flags: Flags::INJECT,
        };
        let until = Instant::now() + PATIENCE;
        loop {
            let buf = IoBuf::new(bytes.as_ptr().cast_mut(), len);
            // SAFETY: the bytes are there until the return.
            match unsafe { self.endpoint.send(&op, &[buf]) } {
                Err(OpError::Again) => self.pump(),
                other => return other,
            }
            assert!(Instant::now() < until, "a send finds no room");
        }
    }

    fn pump(&self) {
        let mut out = [BLANK; 1];
        let mut done = self.done.borrow_mut();
        match self.cq.read(&mut out) {
            Ok(_) => done.push_back(Ok(out[0])),
            Err(OpError::Again) => {}
            Err(_) => done.extend(self.cq.read_error().unwrap().map(Err)),
        }
    }
}

fn keyed_name(endpoint: &dyn Endpoint) -> KeyedAddr {
    match endpoint.address() {
        Address::Keyed(name) => name,
        other => panic!("{other}"),
    }
}

fn insert(av: &dyn Av, name: &[u8], handle: FiAddr) -> Result<FiAddr, Errno> {
    let mut inserted = Err(Errno::EOTHER);
    let mut names = std::iter::once((name, handle));
    av.insert_all_with_keys(&mut names, &mut |_, one| {
        inserted = one.map_err(|error| error.errno());
    })
    .map_err(|error| error.errno())?;
    inserted
}

/// The next completion at the first of these.
fn next(parties: &[&KeyedEndpoint], what: &str) -> Result<Completion, CqError> {
    let until = Instant::now() + PATIENCE;
    loop {
        parties.iter().for_each(|party| party.pump());
        if let Some(done) = parties[0].done.borrow_mut().pop_front() {
            return done;
        }
        assert!(Instant::now() < until, "{what} is not over in time");
        std::thread::yield_now();
    }
}

fn received(parties: &[&KeyedEndpoint], what: &str) -> Completion {
    next(parties, what).unwrap_or_else(|error| panic!("{what}: {error:?}"))
}

/// Nothing comes to an end at any of these.
fn quiet(parties: &[&KeyedEndpoint], what: &str) {
    let until = Instant::now() + QUIET;
    while Instant::now() < until {
        for party in parties {
            party.pump();
            let done = party.done.borrow_mut().pop_front();
            assert!(done.is_none(), "{what}: {done:?}");
        }
        std::thread::yield_now();
    }
}

/// Covers: AV-21, AV-25
#[test]
#[file_serial(verbs)]
fn only_datagrams_with_the_right_key_arrive() {
    if Rig::open().is_none() {
        return;
    }
    for kind in KINDS {
        let domain = kind.open(&kind.info(true));
        let a = KeyedEndpoint::open(&*domain, &[key(1), key(2)]);
        let b = KeyedEndpoint::open(&*domain, &[key(3), key(1)]);
        let b_with_1 = a.knows(&b, a.handles[0]);
        let b_with_2 = a.knows(&b, a.handles[1]);
        assert_ne!(b_with_1, b_with_2, "{kind:?}");
        assert_eq!(a.knows(&b, a.handles[0]), b_with_1, "{kind:?}");
        b.post(FiAddr::UNSPEC, Flags::empty(), 1).unwrap();
        b.post(FiAddr::UNSPEC, Flags::empty(), 2).unwrap();
        a.send(b_with_2, 5).unwrap();
        quiet(&[&b, &a], "a key that b has not");
        a.send(b_with_1, 6).unwrap();
        let first = received(&[&b, &a], "the right key");
        assert_eq!((first.context, first.len), (1, 6), "{kind:?}");
        assert_eq!(first.src, FiAddr::NOTAVAIL, "{kind:?}: b does not know a");
        // Known with another key is not known.
        b.knows(&a, b.handles[0]);
        let a_with_1 = b.knows(&a, b.handles[1]);
        a.send(b_with_1, 7).unwrap();
        let second = received(&[&b, &a], "a known sender");
        assert_eq!((second.context, second.len), (2, 7), "{kind:?}");
        assert_eq!(second.src, a_with_1, "{kind:?}");
        // And back.
        a.post(b_with_1, Flags::empty(), 3).unwrap();
        b.send(a_with_1, 8).unwrap();
        let third = received(&[&a, &b], "the answer");
        assert_eq!((third.context, third.src), (3, b_with_1), "{kind:?}");
    }
}

/// The error for an unknown sender names the key that the message came with, by handle or by the
/// application's own ID for it. The sender's address, inserted with exactly the values of the
/// error, is a peer with that key and no other.
///
/// Covers: AV-20, AV-21, AV-25
#[test]
#[file_serial(verbs)]
fn an_unknown_sender_is_named_with_its_key() {
    if Rig::open().is_none() {
        return;
    }
    for kind in KINDS {
        let domain = kind.open(&kind.info(true));
        for user_ids in [false, true] {
            let what = format!("{kind:?}, with IDs: {user_ids}");
            let attr = AvAttr {
                user_ids,
                ..AvAttr::default()
            };
            let a = KeyedEndpoint::open(&*domain, &[key(1), key(2)]);
            let b = KeyedEndpoint::curious(&*domain, &attr, &[key(2), key(1)]);
            let to_b = [0, 1].map(|n| a.knows(&b, a.handles[n]));
            let stranger = |with: usize| {
                b.post(FiAddr::UNSPEC, Flags::empty(), 1).unwrap();
                a.send(to_b[with], 5).unwrap();
                let error = next(&[&b, &a], &what).expect_err(&what);
                assert_eq!(error.errno, Errno::EADDRNOTAVAIL, "{what}: {error:?}");
                assert_eq!((error.completion.context, error.completion.len), (1, 5));
                error
            };
            let reported = match user_ids {
                false => [b.handles[1], b.handles[0]],
                true => {
                    assert_eq!(stranger(0).completion.src, FiAddr::NOTAVAIL, "{what}");
                    let ids = [FiAddr(4712), FiAddr(4711)];
                    b.av.set_auth_key_user_id(b.handles[1], ids[0]).unwrap();
                    b.av.set_auth_key_user_id(b.handles[0], ids[1]).unwrap();
                    ids
                }
            };
            for (with, reported) in reported.into_iter().enumerate() {
                let error = stranger(with);
                assert_eq!(error.completion.src, reported, "{what}");
                let name = error.sender.unwrap().to_bytes();
                // Key 1 of a is the second of b.
                let addr = insert(&*b.av, &name, b.handles[1 - with]).unwrap();
                if user_ids {
                    b.av.set_user_id(addr, FiAddr(addr.0 + 100)).unwrap();
                }
                b.post(FiAddr::UNSPEC, Flags::empty(), 2).unwrap();
                a.send(to_b[with], 6).unwrap();
                let known = received(&[&b, &a], &what).src;
                let id = FiAddr(addr.0 + if user_ids { 100 } else { 0 });
                assert_eq!(known, id, "{what}");
                assert_eq!(stranger(1 - with).errno, Errno::EADDRNOTAVAIL);
                b.av.remove(addr).unwrap();
            }
        }
    }
}

/// Covers: AV-21
#[test]
#[file_serial(verbs)]
fn a_receive_takes_what_comes_with_its_key() {
    if Rig::open().is_none() {
        return;
    }
    for kind in KINDS {
        let domain = kind.open(&kind.info(true));
        let keys = [key(11), key(12), key(13)];
        let (a, b) = (
            KeyedEndpoint::open(&*domain, &keys),
            KeyedEndpoint::open(&*domain, &keys),
        );
        let to_b: Vec<_> = a.handles.iter().map(|h| a.knows(&b, *h)).collect();
        let by_key = Flags::AUTH_KEY;
        b.post(b.handles[2], by_key, 2).unwrap();
        b.post(FiAddr::UNSPEC, by_key, 0).unwrap();
        b.post(b.handles[1], by_key, 1).unwrap();
        // The second takes any key, and is older than the third.
        for (from, len, taken) in [(0, 20, 0), (1, 21, 1), (2, 22, 2)] {
            a.send(to_b[from], len).unwrap();
            let done = received(&[&b, &a], "a message");
            assert_eq!((done.context, done.len), (taken, len), "{kind:?}");
        }
        // A number that is no key of the endpoint's, and one that is none at all.
        let later = b.av.insert_auth_key(&key(99).to_bytes()).unwrap();
        for wrong in [later, to_b[0]] {
            let refused = b.post(wrong, by_key, 9);
            assert_eq!(refused, Err(OpError::Failed(Errno::ENOKEY)), "{kind:?}");
        }
        if kind.ep_type == EpType::Rdm {
            // They may be here before their receives are.
            a.send(to_b[1], 31).unwrap();
            a.send(to_b[2], 32).unwrap();
            b.post(b.handles[2], by_key, 5).unwrap();
            let done = received(&[&b, &a], "the later message");
            assert_eq!((done.context, done.len), (5, 32), "{kind:?}");
            b.post(FiAddr::UNSPEC, Flags::empty(), 6).unwrap();
            let done = received(&[&b, &a], "the earlier message");
            assert_eq!((done.context, done.len), (6, 31), "{kind:?}");
        }
    }
}

/// Handles come with names of nodes and services as with addresses, one for each endpoint: an
/// endpoint with several keys by its text, one with a single key by host and port. At once, and by
/// events.
///
/// Covers: AV-15, AV-16, AV-21
#[test]
#[file_serial(verbs)]
fn names_of_nodes_and_services_take_keys() {
    if Rig::open().is_none() {
        return;
    }
    for ep_type in [EpType::Rdm, EpType::Dgram] {
        let kind = KeyedEndpointKind {
            ep_type,
            shm: false,
        };
        let domain = kind.open(&kind.info(true));
        let a = KeyedEndpoint::open(&*domain, &[key(1), key(2)]);
        let b = KeyedEndpoint::open(&*domain, &[key(2)]);
        let text = Services::one(&keyed_name(&*b.endpoint).to_string(), None).unwrap();
        let services = |services: &Services, handles: &[FiAddr]| {
            let mut inserted = Vec::new();
            let count =
                a.av.insert_services_with_keys(services, handles, &mut |_, one| {
                    inserted.push(one.map_err(|error| error.errno()));
                });
            let good = inserted.iter().filter(|one| one.is_ok()).count();
            assert_eq!(count.unwrap(), good);
            inserted
        };
        let by_text = services(&text, &a.handles[1..]);
        assert_eq!(by_text, [Ok(a.knows(&b, a.handles[1]))], "{kind:?}");
        assert_eq!(
            services(&text, &[by_text[0].unwrap()]),
            [Err(Errno::EINVAL)]
        );
        assert_eq!(services(&text, &[]), [Err(Errno::EINVAL)]);

        // A listener has one key, and is reached with that key.
        let mut info = offer(&hints(ep_type, AddrFormat::SOCKADDR_IN), &[]).unwrap();
        info.domain.auth_key = Some(key(1));
        let listening = kind.open(&info);
        let at = own(&*listening).ip().to_string();
        let there = [5081, 5083].map(|port| {
            let plain = KeyedEndpoint::plain(&*listening, None, Some(port));
            plain.post(FiAddr::UNSPEC, Flags::empty(), 1).unwrap();
            plain
        });
        let range = Services::range(&at, 1, "5081", 3).unwrap();
        let [one, two] = [a.handles[0], a.handles[1]];
        let found = services(&range, &[one, one, one]);
        let nobody = found[1].unwrap();
        assert_eq!(a.av.lookup_auth_key(nobody).unwrap(), key(1), "unresolved");
        assert_eq!(
            resolved(&a.av, nobody),
            Err(Errno::ECONNREFUSED),
            "{kind:?}"
        );
        for (at, plain) in [(0, &there[0]), (2, &there[1])] {
            let addr = found[at].unwrap();
            assert_eq!(resolved(&a.av, addr), Ok(plain.endpoint.name()));
            assert_eq!(a.av.lookup_auth_key(addr).unwrap(), key(1));
            a.send(addr, 9).unwrap();
            assert_eq!(received(&[plain, &a], "by port").len, 9, "{kind:?}");
        }
        let other = services(&range, &[two, one, two]);
        assert_ne!(other[0], found[0], "another key is another entry");
        assert_eq!(a.av.lookup_auth_key(other[0].unwrap()).unwrap(), key(2));
        assert_eq!(
            services(&range, &[one, two]).last(),
            Some(&Err(Errno::EINVAL))
        );

        // The same by events.
        let attr = AvAttr {
            events: true,
            ..AvAttr::default()
        };
        let later = domain.open_av(&attr).unwrap();
        let handle = later.insert_auth_key(&key(1).to_bytes()).unwrap();
        let events = Arc::new(EventQueue::new());
        later.bind_events(events.clone(), 1).unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        later
            .insert_later_with_keys(
                InsertRequest::Services(range),
                &[handle, handle, FiAddr(0)],
                42,
                Box::new(move |_, one| tx.send(one).unwrap()),
            )
            .unwrap();
        let one = rx.recv_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(resolved(&later, one), Ok(there[0].endpoint.name()));
        assert_eq!(later.lookup_auth_key(one).unwrap(), key(1));
        assert!(
            rx.recv_timeout(PATIENCE).unwrap().is_ok(),
            "nobody need listen"
        );
        let last = rx.recv_timeout(PATIENCE).unwrap();
        assert_eq!(last, Err(Errno::EINVAL));
    }
}

/// Covers: AV-18, AV-20, AV-21
#[test]
#[file_serial(verbs)]
fn keys_are_those_of_the_enabling_and_stay_as_long() {
    if Rig::open().is_none() {
        return;
    }
    for kind in [KINDS[0], KINDS[1]] {
        let info = kind.info(true);
        assert_eq!(info.domain.max_ep_auth_key, MAX_EP_AUTH_KEYS);
        let domain = kind.open(&info);
        let av = domain.open_av(&AvAttr::default()).unwrap();
        let cq = domain.open_cq(&CqAttr::default()).unwrap();
        let enable = || domain.open_endpoint(EndpointConfig::new(&av, &cq));
        let errno = |refused: Result<_, ferrofabric_contracts::error::Error>| {
            refused.map(|_: Arc<dyn Endpoint>| ()).unwrap_err().errno()
        };
        assert_eq!(errno(enable()), Errno::EINVAL, "without a key");
        let all: Vec<_> = (0..=MAX_EP_AUTH_KEYS as u32)
            .map(|n| av.insert_auth_key(&key(n + 1).to_bytes()).unwrap())
            .collect();
        assert_eq!(errno(enable()), Errno::EINVAL, "with too many");
        let (last, rest) = all.split_last().unwrap();
        av.remove_auth_key(*last).unwrap();
        let endpoint = enable().unwrap();
        let name = keyed_name(&*endpoint);
        assert_eq!(name.count(), MAX_EP_AUTH_KEYS);
        let remove = |handle| av.remove_auth_key(handle).map_err(|e| e.errno());
        assert!(rest.iter().all(|h| remove(*h) == Err(Errno::EBUSY)));
        // One that came later belongs to addresses, and to no endpoint.
        let later = av.insert_auth_key(&key(77).to_bytes()).unwrap();
        let addr = insert(&*av, &name.to_bytes(), later).unwrap();
        assert_eq!(av.lookup_auth_key(addr).unwrap(), key(77));
        assert_eq!(av.lookup_auth_key(later).unwrap(), key(77));
        assert_eq!(av.address(addr).unwrap(), Address::Keyed(name));
        let op = SendOp {
            kind: MsgKind::Msg,
            dest: addr,
            tag: 0,
            data: 0,
            desc: MrDesc::NONE,
            context: 0,
            flags: Flags::empty(),
        };
        // SAFETY: there is nothing to send.
        let sent = unsafe { endpoint.send(&op, &[]) };
        assert_eq!(sent, Err(OpError::Failed(Errno::ENOKEY)), "{kind:?}");
        remove(later).unwrap();
        // The address stays, and knows its key.
        assert_eq!(av.lookup_auth_key(addr).unwrap(), key(77));
        // A call that needs a key is refused without one, and with a malformed one.
        let bytes = name.to_bytes();
        assert_eq!(av.insert(&bytes).unwrap_err().errno(), Errno::EINVAL);
        assert_eq!(insert(&*av, &bytes, later), Err(Errno::EINVAL));
        assert_eq!(insert(&*av, &bytes, addr), Err(Errno::EINVAL));
        assert!(av.tag_inserted(addr, FiAddr(5)).is_err());
        drop(endpoint);
        assert!(rest.iter().all(|h| remove(*h) == Ok(())));
    }
}

/// Covers: AV-21
#[test]
#[file_serial(verbs)]
fn domains_without_keys_of_vectors_have_none_of_these() {
    if Rig::open().is_none() {
        return;
    }
    let kind = KINDS[1];
    let domain = kind.open(&kind.info(false));
    let plain = KeyedEndpoint::plain(&*domain, None, None);
    let av = &plain.av;
    let unsupported = Errno::EOPNOTSUPP;
    let inserted = av.insert_auth_key(&key(1).to_bytes());
    assert_eq!(inserted.unwrap_err().errno(), unsupported);
    let handle = FiAddr(0xffff_0000);
    assert_eq!(av.lookup_auth_key(handle).unwrap_err().errno(), unsupported);
    assert_eq!(av.remove_auth_key(handle).unwrap_err().errno(), unsupported);
    let id = av.set_auth_key_user_id(handle, FiAddr(1));
    assert_eq!(id.unwrap_err().errno(), unsupported);
    let name = plain.endpoint.name().to_bytes();
    assert_eq!(insert(&**av, &name, handle), Err(unsupported));
    let posted = plain.post(handle, Flags::AUTH_KEY, 1);
    assert_eq!(posted, Err(OpError::Failed(Errno::EBADFLAGS)));
    // An address of many keys says nothing without one.
    let keyed = kind.open(&kind.info(true));
    let other = KeyedEndpoint::open(&*keyed, &[key(1)]);
    let many = keyed_name(&*other.endpoint).to_bytes();
    assert_eq!(av.insert(&many).unwrap_err().errno(), Errno::EINVAL);
}

/// Covers: AV-21
#[test]
#[file_serial(verbs)]
fn one_key_of_a_domain_or_of_an_endpoint() {
    if Rig::open().is_none() {
        return;
    }
    for kind in KINDS {
        let mut info = kind.info(false);
        info.domain.auth_key = Some(key(0x0123_4567));
        let domain = kind.open(&info);
        let [a, b] = [(); 2].map(|()| KeyedEndpoint::plain(&*domain, None, None));
        let other = KeyedEndpoint::plain(&*domain, Some(key(5)), None);
        let like_other = KeyedEndpoint::plain(&*domain, Some(key(5)), None);
        let know = |who: &KeyedEndpoint, whom: &KeyedEndpoint| {
            let name = whom.endpoint.name();
            who.av.insert(&name.to_bytes()).unwrap()
        };
        for (from, to) in [(&a, &b), (&other, &like_other)] {
            to.post(FiAddr::UNSPEC, Flags::empty(), 1).unwrap();
            from.send(know(from, to), 9).unwrap();
            let done = received(&[to, from], "the same key");
            assert_eq!((done.context, done.len), (1, 9), "{kind:?}");
        }
        b.post(FiAddr::UNSPEC, Flags::empty(), 2).unwrap();
        other.send(know(&other, &b), 9).unwrap();
        match kind.ep_type {
            EpType::Dgram => quiet(&[&b, &other], "another key"),
            _ => {
                let error = next(&[&other, &b], "another key").unwrap_err();
                assert_eq!(error.errno, Errno::EKEYREJECTED, "{kind:?}: {error:?}");
                quiet(&[&b, &other], "another key");
            }
        }
    }
}

/// Covers: AV-21
#[test]
#[file_serial(verbs)]
fn a_partition_that_the_port_is_not_in_is_named() {
    let Some(rig) = Rig::open() else { return };
    let kind = KINDS[0];
    let absent = AuthKey::new(0x8123, 1).unwrap();
    let mut info = kind.info(false);
    info.domain.auth_key = Some(absent);
    let refused = VerbsProvider::new().open(&info, &kind.settings());
    let error = refused.map(drop).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(error.to_string().contains("0x8123"), "{error}");
    let domain = kind.open(&kind.info(true));
    let av = domain.open_av(&AvAttr::default()).unwrap();
    let cq = domain.open_cq(&CqAttr::default()).unwrap();
    av.insert_auth_key(&absent.to_bytes()).unwrap();
    let refused = domain.open_endpoint(EndpointConfig::new(&av, &cq));
    assert_eq!(refused.map(drop).unwrap_err().errno(), Errno::EINVAL);
    // A second partition takes a NIC and its subnet manager, or administrator.
    let context = rig.pd.context();
    let slots = rig.port.pkey_slots;
    let mut table = (0..slots).map(|slot| context.pkey(rig.port.number, slot).unwrap());
    let Some(second) = table.find(|pkey| !matches!(pkey & 0x7fff, 0 | 0x7fff)) else {
        eprintln!("SKIP: the port is in the default partition alone [NIC]");
        return;
    };
    for kind in KINDS {
        let domain = kind.open(&kind.info(true));
        let keys = [AuthKey::new(second, 1).unwrap(), key(1)];
        let (a, b) = (
            KeyedEndpoint::open(&*domain, &keys),
            KeyedEndpoint::open(&*domain, &keys[..1]),
        );
        b.post(FiAddr::UNSPEC, Flags::empty(), 1).unwrap();
        let (there, elsewhere) = (a.knows(&b, a.handles[0]), a.knows(&b, a.handles[1]));
        a.send(elsewhere, 3).unwrap();
        quiet(&[&b, &a], "another partition");
        a.send(there, 4).unwrap();
        assert_eq!(received(&[&b, &a], "the same partition").len, 4);
    }
}
