//! Calls that a provider of other authors makes to a domain while the domain has called it.

use crate::recorder;
use std::sync::{Arc, Mutex};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::AddrFormat;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Threading;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::domain::RdmDomain;
use ferrofabric_runtime::fabric::{
    Av, Cntr, CntrAttr, Cq, CqAttr, Domain, Endpoint, EndpointConfig,
};

use recorder::{Callback, NODE, Recorder, SharedRecord, backend_of, defaults, name};

const BUSY: OpError = OpError::Failed(Errno::EBUSY);

/// The objects of a domain.
#[derive(Clone)]
struct TestDomain {
    domain: Arc<dyn Domain>,
    cq: Arc<dyn Cq>,
    cntr: Arc<dyn Cntr>,
    av: Arc<dyn Av>,
    peer: FiAddr,
    callback: Callback,
    /// Of the transports.
    records: Arc<Mutex<Vec<SharedRecord>>>,
}

impl TestDomain {
    fn new(
        open: impl FnOnce(recorder::TestBackend<Recorder>) -> Arc<dyn Domain>,
        level: Threading,
    ) -> Self {
        let callback = Callback::default();
        let records = Arc::<Mutex<Vec<SharedRecord>>>::default();
        let (called, opened) = (callback.clone(), records.clone());
        let domain = open(backend_of(AddrFormat::UNSPEC, level, move || {
            let record = SharedRecord::default();
            opened.lock().unwrap().push(record.clone());
            Recorder {
                record,
                callback: called.clone(),
                ..Recorder::default()
            }
        }));
        let av = domain.open_av(&AvAttr::default()).unwrap();
        Self {
            cq: domain.open_cq(&CqAttr::default()).unwrap(),
            cntr: domain.open_cntr(&CntrAttr::default()).unwrap(),
            peer: av.insert(&name(NODE, 1).to_bytes()).unwrap(),
            av,
            domain,
            callback,
            records,
        }
    }

    /// One at each threading level, and one without a lock.
    fn all() -> Vec<Self> {
        let levels = [
            Threading::Safe,
            Threading::Fid,
            Threading::Completion,
            Threading::Domain,
        ];
        let opened = levels.map(|level| {
            let open = |backend| RdmDomain::open(backend, &defaults());
            Self::new(|backend| Arc::new(open(backend).unwrap()), level)
        });
        // SAFETY: each test has one thread.
        let open = |backend| unsafe { RdmDomain::open_serialized(backend, &defaults()) };
        let serialized = Self::new(
            |backend| Arc::new(open(backend).unwrap()),
            Threading::Domain,
        );
        opened.into_iter().chain([serialized]).collect()
    }

    fn endpoint(&self) -> Arc<dyn Endpoint> {
        let config = EndpointConfig::new(&self.av, &self.cq);
        self.domain.open_endpoint(config).unwrap()
    }

    fn read(&self) -> Result<usize, OpError> {
        self.cq.read(&mut [Completion::BLANK])
    }

    fn send(&self, endpoint: &dyn Endpoint) -> Result<(), OpError> {
        let op = SendOp {
            kind: MsgKind::Tagged,
            dest: self.peer,
            tag: 0,
            data: 0,
            desc: MrDesc::NONE,
            context: 1,
            flags: Flags::empty(),
        };
        // SAFETY: there is no buffer.
        unsafe { endpoint.send(&op, &[]) }
    }

    fn recv(&self, endpoint: &dyn Endpoint) -> Result<(), OpError> {
        let op = RecvOp {
            kind: MsgKind::Tagged,
            src: FiAddr::UNSPEC,
            tag: 0,
            ignore: 0,
            desc: MrDesc::NONE,
            context: 2,
            flags: Flags::empty(),
        };
        // SAFETY: there is no buffer.
        unsafe { endpoint.recv(&op, &[]) }
    }

    /// Drives the domain, which calls its transport, which calls this.
    fn call_back(&self, callback: impl FnOnce() + Send + 'static) {
        *self.callback.lock().unwrap() = Some(Box::new(callback));
        assert_eq!(self.read(), Err(OpError::Again));
        assert!(self.callback.lock().unwrap().is_none(), "it was not called");
    }
}

/// Covers: PEER-12
#[test]
fn a_callback_is_busy_at_each_threading_level() {
    for test in TestDomain::all() {
        let endpoint = test.endpoint();
        let (inside, on) = (test.clone(), endpoint.clone());
        test.call_back(move || {
            assert_eq!(inside.send(&*on), Err(BUSY));
            assert_eq!(inside.recv(&*on), Err(BUSY));
            assert_eq!(on.cancel(2), Err(BUSY));
            assert_eq!(on.flush(None), Err(BUSY));
            assert_eq!(inside.read(), Err(BUSY));
            let read = inside.cq.sread(&mut [Completion::BLANK], None);
            assert_eq!(read, Err(BUSY));
            assert_eq!(inside.cntr.read(), Err(BUSY));
            assert_eq!(inside.cntr.wait(1, None), Err(BUSY));
            let inserted = inside.av.insert(&name(NODE, 2).to_bytes());
            let config = EndpointConfig::new(&inside.av, &inside.cq);
            let control = [
                inserted.map(drop),
                inside.av.remove(inside.peer),
                inside.domain.open_endpoint(config).map(drop),
            ];
            for refused in control {
                let error = refused.unwrap_err();
                assert_eq!(error.errno(), Errno::EBUSY);
                assert!(error.to_string().contains("another provider"), "{error}");
            }
        });
        // Nothing has happened, and all goes on.
        assert_eq!(test.av.lookup(test.peer).unwrap(), name(NODE, 1));
        test.send(&*endpoint).unwrap();
        test.recv(&*endpoint).unwrap();
        endpoint.cancel(2).unwrap();
        test.av.remove(test.peer).unwrap();
    }
}

/// Covers: PEER-12
#[test]
fn an_endpoint_that_a_callback_closes_is_closed_after_it() {
    for test in TestDomain::all() {
        let (_endpoint, closed) = (test.endpoint(), test.endpoint());
        let record = test.records.lock().unwrap().pop().unwrap();
        let is_open = |record: &SharedRecord| Arc::strong_count(record) > 1;
        assert!(is_open(&record));
        let inside = record.clone();
        // The clone counts, too.
        test.call_back(move || {
            drop(closed);
            assert!(
                Arc::strong_count(&inside) > 2,
                "it is closed inside the callback"
            );
        });
        assert!(is_open(&record));
        assert_eq!(test.read(), Err(OpError::Again));
        assert!(!is_open(&record));
    }
}
