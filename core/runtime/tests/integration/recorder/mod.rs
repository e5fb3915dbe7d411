//! A transport that records what its owner does with it, and domains over it. It carries nothing:
//! each message is sent at once, and none arrives.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ferrofabric_contracts::addr::{AddrFormat, NativeAddr};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{Info, Threading, rdm_endpoints};
use ferrofabric_contracts::peer::{
    HandsBack, Owner, PeerAv, Reaches, SendDone, Start, TakesOver, Token, Transport, Unsent,
};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, SendOp, total_len};
use ferrofabric_runtime::domain::{Backend, OpenedTransport, Opening, RdmDomain};
use ferrofabric_runtime::fabric::{self, Mr, MrAttr, Unregistered};
use ferrofabric_system::foreign::ForeignCall;

/// The node of the endpoints.
pub(crate) const NODE: u64 = 7;

/// An address on a node.
pub(crate) fn name(node: u64, incarnation: u64) -> NativeAddr {
    NativeAddr {
        incarnation,
        node,
        shm: Some(incarnation),
        verbs: None,
    }
}

/// The addresses that a transport knows, the kinds of the messages that it has sent, and its turns.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) peers: BTreeMap<FiAddr, NativeAddr>,
    pub(crate) sent: Vec<MsgKind>,
    /// How often it was driven.
    pub(crate) turns: usize,
    /// The near transport of its pair, if it is the far one.
    pub(crate) near: Option<SharedRecord>,
    /// The near transport's turns at its own last turn.
    near_turns: usize,
    /// Addresses whose endpoints its next turn reports as gone.
    pub(crate) gone: Vec<FiAddr>,
    /// The near transport's turns since then, each time that it was armed.
    pub(crate) behind_at_arm: Vec<usize>,
}

impl Record {
    fn turn(&mut self) {
        self.turns += 1;
        self.near_turns = self.turns_of_near();
    }

    fn turns_of_near(&self) -> usize {
        let near = self.near.as_ref();
        near.map_or(0, |near| near.lock().unwrap().turns)
    }

    /// The incarnations of the peers on a node, in order.
    pub(crate) fn on(&self, node: u64) -> Vec<u64> {
        let on_node = self.peers.values().filter(|name| name.node == node);
        let mut incarnations: Vec<_> = on_node.map(|name| name.incarnation).collect();
        incarnations.sort_unstable();
        incarnations
    }
}

pub(crate) type SharedRecord = Arc<Mutex<Record>>;

/// A function that the next call to progress runs as a provider of other authors would: inside a
/// call into it.
pub(crate) type Callback = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// The transport. `ALL`: it is informed of all addresses of its node. `PARTS`: as the near one of a
/// pair it carries parts of one-sided operations.
#[derive(Default)]
pub(crate) struct Recorder<const ALL: bool = false, const PARTS: bool = true> {
    pub(crate) record: SharedRecord,
    pub(crate) has_unknown_sources: bool,
    pub(crate) callback: Callback,
    /// How much each turn has moved, as it says.
    pub(crate) moves: usize,
}

impl<const ALL: bool, const PARTS: bool> Transport for Recorder<ALL, PARTS> {
    type Route = ();
    const INFORMED_OF_ALL: bool = ALL;

    unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        (): &mut (),
        owner: &mut O,
    ) -> Result<(), OpError> {
        if owner.av().lookup(op.dest).is_none() {
            return Err(OpError::Failed(Errno::EADDRNOTAVAIL));
        }
        self.record.lock().unwrap().sent.push(op.kind);
        owner.complete_send(&SendDone::of(op, total_len(iov)));
        Ok(())
    }

    fn is_drained(&self) -> bool {
        true
    }

    fn report_undelivered(&self, _report: &mut dyn FnMut(FiAddr, usize)) {}

    unsafe fn start<O: Owner>(&mut self, _start: Start, _owner: &mut O) {}

    fn discard<O: Owner>(&mut self, _kind: MsgKind, _token: Token, _owner: &mut O) {}

    fn progress<O: Owner>(&mut self, owner: &mut O) -> usize {
        let gone = {
            let mut record = self.record.lock().unwrap();
            record.turn();
            std::mem::take(&mut record.gone)
        };
        gone.iter().for_each(|addr| owner.peer_gone(*addr));
        let Some(callback) = self.callback.lock().unwrap().take() else {
            return self.moves;
        };
        let _call = ForeignCall::begin();
        callback();
        1
    }

    fn peer_inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, _owner: &mut O) {
        let before = self.record.lock().unwrap().peers.insert(addr, *name);
        assert!(before.is_none_or(|before| before == *name), "{addr:?}");
    }

    fn has_unknown_sources(&self) -> bool {
        self.has_unknown_sources
    }

    fn peer_removed<O: Owner>(&mut self, addr: FiAddr, _owner: &mut O) {
        self.record.lock().unwrap().peers.remove(&addr);
    }

    fn arm(&mut self) -> Result<bool> {
        let mut record = self.record.lock().unwrap();
        let behind = record.turns_of_near() - record.near_turns;
        record.behind_at_arm.push(behind);
        Ok(true)
    }

    fn stats(&self, _report: &mut dyn FnMut(&'static str, u64)) {}
}

impl<const ALL: bool, const PARTS: bool> Reaches for Recorder<ALL, PARTS> {
    const NAME: &'static str = "Recorder";

    fn takes(&self, _name: &NativeAddr) -> bool {
        true
    }
}

impl<const ALL: bool, const PARTS: bool> TakesOver for Recorder<ALL, PARTS> {
    unsafe fn take_over<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        // SAFETY: the caller's promise.
        unsafe { self.send(op, iov, &mut (), owner) }
    }
}

/// There is none: the transport sends all that it takes.
pub(crate) enum NoUnsent {}

// SAFETY: there is none.
unsafe impl Unsent for NoUnsent {
    fn op(&self) -> &SendOp {
        match *self {}
    }

    fn iov(&self) -> &[IoBuf] {
        match *self {}
    }
}

impl<const ALL: bool, const PARTS: bool> HandsBack for Recorder<ALL, PARTS> {
    type Unsent = NoUnsent;
    const TRANSPORT: u32 = 1;
    const CARRIES_PARTS: bool = PARTS;

    fn is_current(&self, (): &()) -> bool {
        true
    }

    fn handed_back(&mut self) -> Option<(FiAddr, Vec<NoUnsent>)> {
        None
    }
}

/// Opens transports by a function.
pub(crate) struct TestBackend<T> {
    info: Info,
    open: Box<dyn Fn() -> T + Send + Sync>,
    opened: AtomicU64,
}

impl<T: Transport> Backend for TestBackend<T> {
    type Transport = T;

    fn info(&self) -> &Info {
        &self.info
    }

    fn open_transport(&self, _opening: &Opening<'_>) -> Result<OpenedTransport<T>> {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(OpenedTransport {
            transport: (self.open)(),
            name: name(NODE, 1_000_000 + number),
            keyed: None,
        })
    }

    unsafe fn register(&self, _attr: &MrAttr<'_>) -> Result<Arc<dyn Mr>> {
        Ok(Arc::new(Unregistered))
    }
}

/// A backend whose addresses have this format, over transports that a function opens.
pub(crate) fn backend_of<T: Transport>(
    addr_format: AddrFormat,
    threading: Threading,
    open: impl Fn() -> T + Send + Sync + 'static,
) -> TestBackend<T> {
    let mut info = rdm_endpoints(Flags::LOCAL_COMM | Flags::REMOTE_COMM);
    info.addr_format = addr_format;
    (info.domain.name, info.domain.threading) = ("recorder".to_owned(), threading);
    (info.ep.max_msg_size, info.tx.size) = (1 << 20, 64);
    TestBackend {
        info,
        open: Box::new(open),
        opened: AtomicU64::new(0),
    }
}

/// The settings of a domain.
pub(crate) fn defaults() -> Settings {
    Settings::read(|_| None).unwrap()
}

/// A domain over such a backend, for any thread.
pub(crate) fn domain_of<T: Transport>(
    addr_format: AddrFormat,
    open: impl Fn() -> T + Send + Sync + 'static,
) -> Arc<dyn fabric::Domain> {
    let backend = backend_of(addr_format, Threading::Safe, open);
    Arc::new(RdmDomain::open(backend, &defaults()).unwrap())
}
