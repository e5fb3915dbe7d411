//! Counters (fi_cntr(3)): they count operations or bytes, and the application may write them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{
    Cntr, CntrAttr, CntrEvents, CqAttr, Domain, Endpoint, EndpointConfig,
};

use crate::ends::{PATIENCE, QueuedEndpoint, any_tagged};
use crate::memory::MessageMemory;

/// An endpoint whose counters count bytes.
struct ByteCountingEndpoint {
    // Closed before the memory that it may still be using.
    endpoint: Arc<dyn Endpoint>,
    end: QueuedEndpoint,
    sent: Arc<dyn Cntr>,
    received: Arc<dyn Cntr>,
    kept: Vec<MessageMemory>,
}

impl ByteCountingEndpoint {
    /// With the queues and the address vector of an endpoint that does nothing.
    fn open(domain: &dyn Domain) -> Self {
        let end = QueuedEndpoint::open(domain);
        let attr = CntrAttr {
            events: CntrEvents::Bytes,
        };
        let open = || domain.open_cntr(&attr).unwrap();
        let (sent, received) = (open(), open());
        let endpoint = domain.open_endpoint(EndpointConfig {
            tx_cntr: Some(sent.clone()),
            rx_cntr: Some(received.clone()),
            ..EndpointConfig::new(&end.av, &domain.open_cq(&CqAttr::default()).unwrap())
        });
        Self {
            endpoint: endpoint.unwrap(),
            end,
            sent,
            received,
            kept: Vec::new(),
        }
    }

    fn insert(&self, peer: &Self) -> FiAddr {
        let av = &self.end.av;
        av.insert(&peer.endpoint.name().to_bytes()).unwrap()
    }

    /// Bytes sent, sends that failed, bytes received, receives that failed.
    fn counts(&self) -> [u64; 4] {
        let [sent, received] = [&self.sent, &self.received]
            .map(|cntr| (cntr.read().unwrap(), cntr.read_errors().unwrap()));
        [sent.0, sent.1, received.0, received.1]
    }

    fn recv(&mut self, kind: MsgKind, prefix: usize, len: usize, flags: Flags) {
        let room = MessageMemory::for_receive(prefix + len);
        let op = RecvOp {
            kind,
            flags,
            ..any_tagged(1)
        };
        // SAFETY: the memory is kept as long as the endpoint.
        unsafe { self.endpoint.recv(&op, &[room.whole()]) }.unwrap();
        self.kept.push(room);
    }

    fn send(&mut self, kind: MsgKind, to: FiAddr, iov: &[IoBuf], flags: Flags, peer: &Self) {
        let op = SendOp {
            kind,
            dest: to,
            tag: 0,
            data: 7,
            desc: MrDesc::NONE,
            context: 1,
            flags,
        };
        let until = Instant::now() + PATIENCE;
        // SAFETY: callers keep the memory as long as the endpoint.
        while let Err(error) = unsafe { self.endpoint.send(&op, iov) } {
            assert_eq!(error, OpError::Again);
            self.counts();
            peer.counts();
            assert!(Instant::now() < until, "no room for a send");
        }
    }
}

/// Counters of bytes (`FI_CNTR_EVENTS_BYTES`) count what messages hold, without CQ data and
/// prefixes, of every size and form of send, with completions and without; a failure counts as one
/// error. Datagrams too.
///
/// Where both ends are verbs domains with shared memory, the peer provider counts on the owner's
/// counters.
pub fn of_bytes(ours: &dyn Domain, theirs: &dyn Domain) {
    let (mut a, mut b) = (
        ByteCountingEndpoint::open(ours),
        ByteCountingEndpoint::open(theirs),
    );
    let (to_b, _) = (a.insert(&b), b.insert(&a));
    let info = ours.info().clone();
    let prefix = info.ep.msg_prefix_size;
    let kinds = match info.caps.contains(Flags::TAGGED) {
        true => &[MsgKind::Msg, MsgKind::Tagged][..],
        false => &[MsgKind::Msg],
    };
    let (mut bytes, mut errors) = (0, 0);
    for &kind in kinds {
        for len in [0, 1, 100, 2000, 9000, 300_000] {
            if len > info.ep.max_msg_size {
                continue;
            }
            for flags in [
                Flags::empty(),
                Flags::COMPLETION | Flags::REMOTE_CQ_DATA,
                Flags::INJECT,
            ] {
                if flags.contains(Flags::INJECT) && len > info.tx.inject_size {
                    continue;
                }
                let out = MessageMemory::of_message_behind(prefix, 1, len);
                b.recv(kind, prefix, len + 10, flags & Flags::COMPLETION);
                a.send(kind, to_b, &[out.whole()], flags, &b);
                a.kept.push(out);
                bytes += len as u64;
                reach(&a, &b, [bytes; 2], errors);
            }
        }
        let out = MessageMemory::of_message_behind(prefix, 1, 50);
        b.recv(kind, prefix, 20, Flags::COMPLETION);
        a.send(kind, to_b, &[out.whole()], Flags::empty(), &b);
        a.kept.push(out);
        errors += 1;
        // The sender has sent all of it, the receiver has none of it.
        reach(&a, &b, [bytes + 50, bytes], errors);
        a.sent.set(bytes).unwrap();
    }
    // A read returns the value that the application wrote.
    a.sent.add(5).unwrap();
    a.sent.add_errors(3).unwrap();
    assert_eq!(a.counts()[..2], [bytes + 5, 3]);
    a.sent.set_errors(0).unwrap();
    a.sent.set(u64::MAX).unwrap();
    assert_eq!(a.counts()[..2], [u64::MAX, 0]);
    assert_eq!(b.received.wait(bytes, Some(PATIENCE)), Ok(bytes));
    let short = Some(Duration::from_millis(2));
    let over = b.received.wait(bytes + 1, short);
    assert_eq!(over, Err(OpError::Again));
}

/// Waits until `a` has counted `sent` bytes, and `b` has counted `received` bytes and `errors`
/// errors.
fn reach(
    a: &ByteCountingEndpoint,
    b: &ByteCountingEndpoint,
    [sent, received]: [u64; 2],
    errors: u64,
) {
    let until = Instant::now() + PATIENCE;
    loop {
        let (ours, theirs) = (a.counts(), b.counts());
        if (ours, theirs) == ([sent, 0, 0, 0], [0, 0, received, errors]) {
            return;
        }
        let late = Instant::now() > until;
        assert!(
            !late,
            "{sent} and {received} bytes, {errors} errors: {ours:?} {theirs:?}"
        );
        std::thread::yield_now();
    }
}
