//! Endpoints that close, and the next ones at their socket addresses (`docs/adr/0087`).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrofabric_av::{AvAttr, Resolve, Services};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, Error, OpError};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::FakeDevice;
use ferrofabric_runtime::owning::OwningEndpoint;

use crate::endpoints::party::{PATIENCE, domain, endpoint, first, room};

/// Resolves every address to the endpoint that listens.
#[derive(Debug, Default)]
struct Listener(Mutex<Option<NativeAddr>>);

impl Listener {
    fn is(&self, endpoint: &OwningEndpoint) {
        *self.0.lock().unwrap() = Some(endpoint.name());
    }
}

impl Resolve for Listener {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr, Error> {
        let nobody = || Error::new(Errno::ECONNREFUSED, "resolve", at.to_string());
        self.0.lock().unwrap().ok_or_else(nobody)
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }
}

/// An endpoint with a socket address in its vector.
fn client(listener: &Arc<Listener>, pairs: &[(&str, &str)]) -> (OwningEndpoint, FiAddr) {
    let attr = AvAttr {
        resolver: Some(listener.clone()),
        ..AvAttr::default()
    };
    let client = OwningEndpoint::open(&*domain(pairs), &attr).unwrap();
    let one = Services::one("127.0.0.1", Some("7")).unwrap();
    let mut addr = None;
    let mut note = |_, inserted: Result<FiAddr, Error>| addr = Some(inserted.unwrap());
    assert_eq!(client.av().insert_services(&one, &mut note).unwrap(), 1);
    let addr = addr.unwrap();
    (client, addr)
}

/// Sends until a message has arrived; returns the errors of the operations before. A send may
/// complete that the former endpoint got as it closed.
fn send_until_one_arrives(
    from: &mut OwningEndpoint,
    to: FiAddr,
    at: &mut OwningEndpoint,
) -> Vec<Errno> {
    at.trecv(room(8), FiAddr::UNSPEC, 1, 0, 0)
        .map_err(first)
        .unwrap();
    let until = Instant::now() + PATIENCE;
    let (mut errors, mut is_under_way, mut has_arrived) = (Vec::new(), false, false);
    while is_under_way || !has_arrived {
        if !is_under_way && !has_arrived {
            match from.tsend(room(8), 8, to, 1, 0).map_err(first) {
                Ok(()) => is_under_way = true,
                Err(OpError::Again) => {}
                Err(OpError::Failed(errno)) => errors.push(errno),
            }
        }
        if let Some(done) = from.poll().unwrap() {
            is_under_way = false;
            errors.extend(done.outcome.err().map(|error| error.errno));
        }
        has_arrived |= at.poll().unwrap().is_some();
        assert!(
            Instant::now() < until,
            "nothing arrives: {:?}",
            errors.last()
        );
    }
    errors
}

/// An endpoint closes with a message under way to it, which fails. Another one opens at its socket
/// address: later messages go to that one, which never gets the former message.
#[test]
fn sends_reach_the_next_endpoint_at_a_socket_address() {
    const LONG: usize = 1 << 20;
    let device = FakeDevice::take();
    for lane in ["rc", "ud", "auto"] {
        let pairs = [("FERRO_LANE", lane)];
        let listener = Arc::new(Listener::default());
        let (mut a, to_b) = client(&listener, &pairs);
        let mut b = endpoint(&pairs);
        listener.is(&b);
        assert_eq!(send_until_one_arrives(&mut a, to_b, &mut b), []);
        for _ in 0..2 {
            a.tsend(room(LONG), LONG, to_b, 2, 2)
                .map_err(first)
                .unwrap();
            assert!(a.poll().unwrap().is_none());
            drop(b);
            b = endpoint(&pairs);
            listener.is(&b);
            b.trecv(room(LONG), FiAddr::UNSPEC, 2, 0, 2)
                .map_err(first)
                .unwrap();
            let until = Instant::now() + PATIENCE;
            let failed = loop {
                if let Some(done) = a.poll().unwrap() {
                    break done;
                }
                assert!(
                    Instant::now() < until,
                    "{lane}: the long message does not end"
                );
            };
            assert_eq!(failed.token, 2);
            failed.outcome.unwrap_err();
            assert_eq!(send_until_one_arrives(&mut a, to_b, &mut b), [], "{lane}");
            assert_eq!(a.av().lookup(to_b).unwrap(), b.name());
            assert!(b.poll().unwrap().is_none(), "it got a message of another");
        }
    }
    assert_eq!(device.misuse(), "");
}

/// An endpoint is gone without a word before the first message to it: that fails in time, and the
/// next one reaches the endpoint that listens now.
#[test]
fn sends_reach_the_next_endpoint_after_a_silent_one() {
    let device = FakeDevice::take();
    for lane in ["rc", "ud"] {
        let pairs = [("FERRO_LANE", lane), ("FERRO_PEER_TIMEOUT", "1s")];
        let listener = Arc::new(Listener::default());
        let (mut a, to_b) = client(&listener, &pairs);
        let gone = endpoint(&pairs);
        listener.is(&gone);
        let until = Instant::now() + PATIENCE;
        while a.av().lookup(to_b).is_err() {
            assert!(Instant::now() < until, "it is not resolved");
        }
        drop(gone);
        let mut b = endpoint(&pairs);
        listener.is(&b);
        let errors = send_until_one_arrives(&mut a, to_b, &mut b);
        assert_eq!(errors, [Errno::ETIMEDOUT], "{lane}");
    }
    assert_eq!(device.misuse(), "");
}
