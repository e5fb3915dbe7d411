//! Sends to an address whose endpoint was lost (`docs/adr/0087`).

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ferrofabric_av::{AvAttr, Closing, Resolve, ResolveRequest, Services};
use ferrofabric_contracts::addr::{AddrFormat, NativeAddr};
use ferrofabric_contracts::error::{OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, SendOp};
use ferrofabric_runtime::fabric::{Av, CqAttr, Endpoint, EndpointConfig};

use crate::recorder::{NODE, Recorder, SharedRecord, domain_of, name};

const PATIENCE: Duration = Duration::from_secs(60);

/// Another endpoint listens at each question.
#[derive(Debug, Default)]
struct Restarting {
    /// The questions whose answers the address vector has.
    answered: Mutex<u64>,
    answers: Condvar,
}

impl Restarting {
    fn wait_for(&self, answers: u64) {
        let answered = self.answered.lock().unwrap();
        let is_short = |answered: &mut u64| *answered < answers;
        let waited = (self.answers)
            .wait_timeout_while(answered, PATIENCE, is_short)
            .unwrap()
            .1;
        assert!(!waited.timed_out(), "the resolver is not asked");
    }
}

impl Resolve for Restarting {
    fn resolve(&self, _at: SocketAddr) -> Result<NativeAddr> {
        Ok(name(NODE, 1 + *self.answered.lock().unwrap()))
    }

    fn resolve_all(
        &self,
        all: &[ResolveRequest],
        _closing: &Closing,
        report: &mut dyn FnMut(usize, Result<NativeAddr>),
    ) {
        for (number, request) in all.iter().enumerate() {
            report(number, self.resolve(request.at));
            *self.answered.lock().unwrap() += 1;
            self.answers.notify_all();
        }
    }
}

fn insert(av: &Arc<dyn Av>) -> FiAddr {
    let one = Services::one("127.0.0.1", Some("7")).unwrap();
    let mut addr = FiAddr::NOTAVAIL;
    av.insert_services(&one, &mut |_, inserted| addr = inserted.unwrap())
        .unwrap();
    addr
}

fn send(endpoint: &Arc<dyn Endpoint>, dest: FiAddr) {
    let op = SendOp {
        kind: MsgKind::Msg,
        dest,
        tag: 0,
        data: 0,
        desc: MrDesc::NONE,
        context: 1,
        flags: Flags::COMPLETION,
    };
    // SAFETY: there is no buffer.
    unsafe { endpoint.send(&op, &[]).unwrap() };
}

/// The next endpoint is found, and nobody has used the address. A send that begins before the
/// transports go over to that endpoint is sent when they have.
///
/// Covers: AV-15, AV-17
#[test]
fn a_send_to_an_address_that_was_found_again_is_sent() {
    let record = SharedRecord::default();
    let opened = record.clone();
    let domain = domain_of(AddrFormat::SOCKADDR_IN, move || Recorder::<false> {
        record: opened.clone(),
        ..Recorder::default()
    });
    let listener = Arc::new(Restarting::default());
    let attr = AvAttr {
        resolver: Some(listener.clone()),
        ..AvAttr::default()
    };
    let av = domain.open_av(&attr).unwrap();
    let cq = domain.open_cq(&CqAttr::default()).unwrap();
    let endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq)).unwrap();
    let until_one_is_sent = || {
        let until = Instant::now() + PATIENCE;
        while cq.read(&mut [Completion::BLANK]) == Err(OpError::Again) {
            assert!(Instant::now() < until, "it is not sent");
        }
    };
    let addr = insert(&av);
    send(&endpoint, addr);
    until_one_is_sent();
    assert_eq!(av.lookup(addr).unwrap(), name(NODE, 1));
    record.lock().unwrap().gone.push(addr);
    let lost = cq.read(&mut [Completion::BLANK]);
    assert_eq!(lost, Err(OpError::Again));
    assert_eq!(insert(&av), addr);
    listener.wait_for(2);
    send(&endpoint, addr);
    until_one_is_sent();
    assert_eq!(av.lookup(addr).unwrap(), name(NODE, 2));
}
