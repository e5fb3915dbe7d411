//! Matching: sources, tags, masks, and the order of each sender's messages (fi_msg(3),
//! fi_tagged(3), `FI_ORDER_SAS` of fi_endpoint(3)).

use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{PATIENCE, QueuedEndpoint, any_tagged};
use crate::fabric::Fabric;

/// Short, in a slot or inline; eager; in pieces or read by the receiver.
const SIZES: [usize; 4] = [8, 1000, 8192, 100_000];

/// One receiver and some senders, on domains of their own.
struct HubAndSenders {
    hub: QueuedEndpoint,
    rays: Vec<Ray>,
}

struct Ray {
    end: QueuedEndpoint,
    /// The hub, as it knows it.
    to_hub: FiAddr,
    /// Its address in the hub's address vector.
    addr: FiAddr,
}

impl HubAndSenders {
    fn open(fabric: &Fabric, senders: usize) -> Self {
        let hub = QueuedEndpoint::open(fabric.domain(0));
        let rays = (1..=senders)
            .map(|rank| {
                let end = QueuedEndpoint::open(fabric.domain(rank));
                let addr = hub.av.insert(&end.endpoint.name().to_bytes()).unwrap();
                let to_hub = end.av.insert(&hub.endpoint.name().to_bytes()).unwrap();
                Ray { end, to_hub, addr }
            })
            .collect();
        Self { hub, rays }
    }

    fn op(&self, ray: usize, kind: MsgKind, tag: u64) -> SendOp {
        SendOp {
            kind,
            dest: self.rays[ray].to_hub,
            tag: if kind == MsgKind::Tagged { tag } else { 0 },
            data: tag,
            desc: MrDesc::NONE,
            context: self.rays[ray].end.context(),
            flags: Flags::COMPLETION | Flags::REMOTE_CQ_DATA,
        }
    }

    fn send(&self, ray: usize, kind: MsgKind, tag: u64, len: usize) {
        let op = self.op(ray, kind, tag);
        self.rays[ray].end.send(&self.hub, op, len, tag as u8);
    }

    fn post(&self, recv: &RecvOp, len: usize) {
        let iov = [self.hub.memory(len, 0xff)];
        self.hub.recv(recv, &iov).unwrap();
    }

    fn drive(&self) {
        for end in self.rays.iter().map(|ray| &ray.end).chain([&self.hub]) {
            end.tx.pump();
            end.rx.pump();
        }
    }

    /// The completion of a receive: source and CQ data, once its content is checked.
    fn got(&self, context: u64) -> (FiAddr, u64) {
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.hub.rx.take_of(context) {
                let c = event.unwrap();
                assert_eq!(self.hub.bytes(c.buf, c.len), vec![c.data as u8; c.len]);
                return (c.src, c.data);
            }
            self.drive();
            assert!(
                std::time::Instant::now() < until,
                "receive {context} does not end"
            );
        }
    }

    /// Waits until a message with this tag of a sender lies here unmatched.
    fn until_here(&self, ray: usize, tag: u64) {
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            let peek = RecvOp {
                src: self.rays[ray].addr,
                tag,
                ignore: 0,
                flags: Flags::PEEK,
                ..any_tagged(self.hub.context())
            };
            if self.hub.probe(&peek).is_ok() {
                return;
            }
            self.drive();
            assert!(
                std::time::Instant::now() < until,
                "message {tag} does not come"
            );
        }
    }
}

/// A directed receive takes the messages of its source alone, a wildcard those of any; both in the
/// order of the posts.
///
/// Covers: PEER-8
pub fn directed_and_wildcard_receives(fabric: &Fabric) {
    let star = HubAndSenders::open(fabric, 3);
    let nobody = RecvOp {
        src: FiAddr::NOTAVAIL,
        ..any_tagged(star.hub.context())
    };
    // SAFETY: the buffer has no bytes.
    let refused = unsafe { star.hub.endpoint.recv(&nobody, &[IoBuf::EMPTY]) };
    assert_eq!(refused, Err(OpError::Failed(Errno::EADDRNOTAVAIL)));
    for kind in [MsgKind::Msg, MsgKind::Tagged] {
        for len in fabric.sizes(&SIZES) {
            for early in [true, false] {
                let recv = |src| RecvOp {
                    kind,
                    src,
                    ..any_tagged(star.hub.context())
                };
                // In an order that is not that of the senders.
                let directed = [2, 0, 1].map(|ray| (ray, recv(star.rays[ray].addr)));
                let any = recv(FiAddr::UNSPEC);
                let post = || {
                    for (_, recv) in &directed {
                        star.post(recv, len);
                    }
                    star.post(&any, len);
                };
                if early {
                    post();
                }
                for ray in [0, 1, 2] {
                    star.send(ray, kind, ray as u64 + 1, len);
                }
                if !early {
                    star.drive();
                    post();
                }
                for (ray, recv) in &directed {
                    let from = (star.rays[*ray].addr, *ray as u64 + 1);
                    assert_eq!(star.got(recv.context), from, "{kind:?} of {len}");
                }
                star.send(1, kind, 9, len);
                assert_eq!(star.got(any.context), (star.rays[1].addr, 9));
            }
        }
    }
}

/// Bits of `ignore` do not count, all others do; of several receives that match, the first posted
/// gets the message, of several messages the first sent.
///
/// Covers: PEER-8
pub fn tags_and_masks(fabric: &Fabric) {
    let star = HubAndSenders::open(fabric, 1);
    let recv = |tag, ignore| RecvOp {
        tag,
        ignore,
        ..any_tagged(star.hub.context())
    };
    let high = 1 << 63;
    for len in fabric.sizes(&SIZES) {
        for early in [true, false] {
            // Each takes the one message that those before it leave to it.
            let receives = [
                (recv(high | 5, 0), high | 5),
                (recv(4, 3), 7),
                (recv(0, u64::MAX - 1), 2),
                (recv(0, u64::MAX), 1),
                (recv(1, 0), 1),
            ];
            let post = || receives.iter().for_each(|(recv, _)| star.post(recv, len));
            if early {
                post();
            }
            for tag in [7, 2, 1, 1, high | 5] {
                star.send(0, MsgKind::Tagged, tag, len);
            }
            if !early {
                star.until_here(0, high | 5);
                post();
            }
            for (recv, tag) in &receives {
                assert_eq!(star.got(recv.context).1, *tag, "{recv:?}, first: {early}");
            }
        }
    }
}

/// Messages of one peer meet receives in the order in which they were sent, long ones that wait for
/// their receiver as well as short ones that do not, tagged or not.
///
/// Covers: PEER-9
pub fn order_of_long_and_short_messages(fabric: &Fabric) {
    const COUNT: u64 = 30;
    let star = HubAndSenders::open(fabric, 2);
    let longest = fabric.longest.min(150_000);
    let size = |n: u64| [8, longest, 0, 9000.min(longest), 64, 8192][n as usize % 6];
    for kind in [MsgKind::Msg, MsgKind::Tagged] {
        for early in [true, false] {
            let receives: Vec<Vec<RecvOp>> = star
                .rays
                .iter()
                .map(|ray| {
                    let one = |_| RecvOp {
                        kind,
                        src: ray.addr,
                        ..any_tagged(star.hub.context())
                    };
                    (0..COUNT).map(one).collect()
                })
                .collect();
            let post = || {
                for n in 0..COUNT as usize {
                    receives.iter().for_each(|of| star.post(&of[n], longest));
                }
            };
            if early {
                post();
            }
            for n in 0..COUNT {
                (0..2).for_each(|ray| star.send(ray, kind, n, size(n)));
            }
            if !early {
                star.drive();
                post();
            }
            for (ray, of) in receives.iter().enumerate() {
                for (n, recv) in of.iter().enumerate() {
                    let first = (star.rays[ray].addr, n as u64);
                    assert_eq!(star.got(recv.context), first, "{kind:?}, first: {early}");
                }
            }
        }
    }
}

/// Tagged and untagged messages do not match each other's receives (fi_msg(3), fi_tagged(3)).
///
/// Covers: PEER-8
pub fn tagged_and_untagged_are_apart(fabric: &Fabric) {
    let star = HubAndSenders::open(fabric, 1);
    for len in fabric.sizes(&SIZES) {
        let tagged = any_tagged(star.hub.context());
        let untagged = RecvOp {
            kind: MsgKind::Msg,
            ..any_tagged(star.hub.context())
        };
        star.post(&tagged, len);
        star.send(0, MsgKind::Msg, 1, len);
        star.send(0, MsgKind::Tagged, 2, len);
        star.post(&untagged, len);
        assert_eq!(star.got(tagged.context).1, 2);
        assert_eq!(star.got(untagged.context).1, 1);
    }
}

/// A cancelled receive completes with `FI_ECANCELED` and takes no message: the next receive that
/// matches takes it. A receive that has matched can not be cancelled (fi_cancel of fi_endpoint(3)).
///
/// Covers: PEER-8
pub fn cancelled_receives_take_nothing(fabric: &Fabric) {
    let star = HubAndSenders::open(fabric, 1);
    for kind in [MsgKind::Msg, MsgKind::Tagged] {
        for len in fabric.sizes(&SIZES) {
            let receives = [(); 3].map(|()| RecvOp {
                kind,
                ..any_tagged(star.hub.context())
            });
            receives.iter().for_each(|recv| star.post(recv, len));
            star.hub.endpoint.cancel(receives[0].context).unwrap();
            star.hub.cancel_late(receives[0].context);
            star.send(0, kind, 1, len);
            assert_eq!(star.got(receives[1].context).1, 1);
            star.hub.cancel_late(receives[1].context);
            star.hub.endpoint.cancel(receives[2].context).unwrap();
            for recv in [receives[0], receives[2]] {
                star.hub.rx.pump();
                let error = star.hub.rx.take_of(recv.context).unwrap().unwrap_err();
                assert_eq!(error.errno, Errno::ECANCELED);
                assert_eq!(error.completion.flags, kind.recv_flags());
                assert_eq!((error.completion.len, error.olen), (0, 0));
            }
        }
    }
}

/// Messages of a sender that is not in the address vector have no source and match wildcards alone.
/// Once the sender is inserted, directed receives match them, also receives that were posted
/// meanwhile. After its removal, the sender is an unknown source again.
///
/// Covers: PEER-8, PEER-10, AV-17
pub fn a_sender_that_is_inserted_late(fabric: &Fabric) {
    let star = HubAndSenders::open(fabric, 2);
    let Ray { addr, end, .. } = &star.rays[0];
    let name = end.endpoint.name().to_bytes();
    // Known, it has a connection whatever becomes of its address.
    let first = any_tagged(star.hub.context());
    star.post(&first, 8);
    star.send(0, MsgKind::Tagged, 1, 8);
    assert_eq!(star.got(first.context), (*addr, 1));
    star.hub.av.remove(*addr).unwrap();
    for len in fabric.sizes(&SIZES) {
        let wild = any_tagged(star.hub.context());
        star.post(&wild, len);
        star.send(0, MsgKind::Tagged, 2, len);
        assert_eq!(star.got(wild.context), (FiAddr::NOTAVAIL, 2));
        star.send(0, MsgKind::Tagged, 3, len);
        star.send(1, MsgKind::Tagged, 4, len);
        star.until_here(1, 4);
        let addr = star.hub.av.insert(&name).unwrap();
        let directed = [(); 2].map(|()| RecvOp {
            src: addr,
            ..any_tagged(star.hub.context())
        });
        directed.iter().for_each(|recv| star.post(recv, len));
        assert_eq!(star.got(directed[0].context), (addr, 3));
        star.send(0, MsgKind::Tagged, 5, len);
        assert_eq!(star.got(directed[1].context), (addr, 5));
        let wild = any_tagged(star.hub.context());
        star.post(&wild, len);
        assert_eq!(star.got(wild.context), (star.rays[1].addr, 4));
        star.hub.av.remove(addr).unwrap();
        // Its old address leads nowhere, and says so.
        let nowhere = SendOp {
            dest: addr,
            ..star.op(0, MsgKind::Tagged, 1)
        };
        // SAFETY: no buffer.
        let refused = unsafe { star.hub.endpoint.send(&nowhere, &[]) };
        assert_eq!(refused, Err(OpError::Failed(Errno::EADDRNOTAVAIL)));
    }
}

/// Without `FI_DIRECTED_RECV` the source of a receive is ignored (fi_getinfo(3)): a receive that
/// names one peer takes the message of another, and says whose it is.
///
/// Covers: GI-3
pub fn sources_without_directed_receives(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let hub = QueuedEndpoint::open_with(domain_b, &AvAttr::default(), |config| {
        config.directed_recv = false;
    });
    let (sender, other) = (
        QueuedEndpoint::open(domain_a),
        QueuedEndpoint::open(domain_a),
    );
    let name = |end: &QueuedEndpoint| end.endpoint.name().to_bytes();
    let to_hub = sender.av.insert(&name(&hub)).unwrap();
    let [from, named] = [&sender, &other].map(|end| hub.av.insert(&name(end)).unwrap());
    for kind in [MsgKind::Msg, MsgKind::Tagged] {
        for (len, early) in [(8, true), (8, false), (100_000, true), (100_000, false)] {
            let recv = RecvOp {
                kind,
                src: named,
                ..any_tagged(hub.context())
            };
            let room = [hub.memory(len, 0)];
            if early {
                hub.recv(&recv, &room).unwrap();
            }
            let op = SendOp {
                kind,
                dest: to_hub,
                tag: 0,
                data: 0,
                desc: MrDesc::NONE,
                context: sender.context(),
                flags: Flags::COMPLETION,
            };
            sender.send(&hub, op, len, 0x5a);
            if !early {
                hub.rx.pump();
                hub.recv(&recv, &room).unwrap();
            }
            let until = Instant::now() + PATIENCE;
            let received = loop {
                sender.tx.pump();
                hub.rx.pump();
                if let Some(event) = hub.rx.take_of(recv.context) {
                    break event.unwrap();
                }
                assert!(
                    Instant::now() < until,
                    "{kind:?} of {len} bytes waits for the source that its receive names"
                );
            };
            assert_eq!((received.src, received.len), (from, len), "{kind:?}");
            assert_eq!(hub.bytes(room[0].addr, len), vec![0x5a; len]);
            while sender.tx.take_of(op.context).is_none() {
                sender.tx.pump();
                hub.rx.pump();
                assert!(Instant::now() < until, "a send of {len} bytes does not end");
            }
        }
    }
}
