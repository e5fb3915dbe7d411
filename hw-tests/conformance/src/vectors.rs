//! Address vectors of one process, as fi_av(3) describes them: types, growth, insertions, and texts
//! of addresses. Every scenario also sends messages, so that an entry counts as right only if its
//! messages arrive and name their source.

use std::sync::Mutex;

use ferrofabric_av::{AvAttr, Services};
use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{AvType, FiAddr, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{Av, Domain};

use crate::ends::{QueuedEndpoint, QueuedPair, any_tagged};

/// In one packet, in several, and too long for that.
pub(crate) const SIZES: [usize; 3] = [8, 9000, 120_000];

pub(crate) const TYPES: [AvType; 2] = [AvType::Map, AvType::Table];

pub(crate) fn of_type(av_type: AvType) -> AvAttr {
    AvAttr {
        av_type: Some(av_type),
        ..AvAttr::default()
    }
}

pub(crate) fn with_av(domain: &dyn Domain, attr: &AvAttr) -> QueuedEndpoint {
    QueuedEndpoint::open_with(domain, attr, |_| {})
}

/// The address of an endpoint, as an application has it.
pub(crate) fn name_of(end: &QueuedEndpoint) -> Vec<u8> {
    end.endpoint.name().to_bytes().to_vec()
}

/// Well-formed addresses that no endpoint has, made of a real one.
pub(crate) fn invented(like: &QueuedEndpoint, count: u64) -> Vec<Vec<u8>> {
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
    pub(crate) pair: QueuedPair,
    messages: Mutex<u64>,
}

impl Talk {
    pub(crate) fn between(a: QueuedEndpoint, b: QueuedEndpoint) -> Self {
        Self {
            pair: QueuedPair {
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
        pair: &QueuedPair,
        from: &QueuedEndpoint,
        at: &QueuedEndpoint,
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

pub(crate) fn send_op(from: &QueuedEndpoint, dest: FiAddr, kind: MsgKind, tag: u64) -> SendOp {
    SendOp {
        kind,
        dest,
        tag,
        data: 0,
        desc: MrDesc::NONE,
        context: from.context(),
        flags: Flags::COMPLETION,
    }
}

/// The error of a send to an address, if it is refused.
pub(crate) fn refusal(from: &QueuedEndpoint, dest: FiAddr) -> Option<OpError> {
    let op = send_op(from, dest, MsgKind::Tagged, 0);
    let buf = from.memory(8, 0);
    // SAFETY: the memory lives as long as the endpoint.
    unsafe { from.endpoint.send(&op, &[buf]) }.err()
}

pub(crate) const NOBODY: Option<OpError> = Some(OpError::Failed(Errno::EADDRNOTAVAIL));

/// Each type opens with each sort of size, and says which type it is where the provider chooses. A
/// size is a hint: messages reach entries far beyond it. Impossible attributes are refused.
///
/// Covers: AV-1, AV-2, AV-3
pub fn attributes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let b = QueuedEndpoint::open(domain_b);
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
        let talk = Talk::between(with_av(domain_a, &attr), QueuedEndpoint::open(domain_b));
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
        let talk = Talk::between(with_av(domain_a, &attr), QueuedEndpoint::open(domain_b));
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
pub(crate) fn malformed(good: &[u8]) -> Vec<Vec<u8>> {
    vec![
        good[..good.len() - 1].to_vec(),
        [good, &[0]].concat(),
        Vec::new(),
        vec![7; good.len()],
    ]
}

/// A malformed address fails alone, at any place of a call, and the others of the call are peers
/// at once. In a table it leaves a hole, which the next insertion fills. A call may have no
/// address. An address that is there keeps what it is.
///
/// Covers: AV-10, AV-11, AV-12, AV-23
pub fn malformed_addresses(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for av_type in TYPES {
        let talk = Talk::between(
            with_av(domain_a, &of_type(av_type)),
            QueuedEndpoint::open(domain_b),
        );
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

/// The text of an address says all of it: parsed or inserted by it, it is the same endpoint, also
/// one that was never inserted. A service beside such a text is refused.
///
/// Covers: AV-15, AV-19, AV-23
pub fn texts(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for av_type in TYPES {
        let talk = Talk::between(
            with_av(domain_a, &of_type(av_type)),
            QueuedEndpoint::open(domain_b),
        );
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

/// A domain that was opened without keys of address vectors refuses every call with one.
pub fn without_keys(domain: &dyn Domain) {
    let end = QueuedEndpoint::open(domain);
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
