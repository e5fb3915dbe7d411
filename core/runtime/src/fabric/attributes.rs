//! The attributes of objects that an application opens.

use std::net::SocketAddr;
use std::sync::Arc;

use ferrofabric_contracts::addr::AuthKey;
use ferrofabric_contracts::atomics::Datatype;
use ferrofabric_contracts::flags::{Flags, Order, Rights};
use ferrofabric_contracts::info::traffic_class;
use ferrofabric_contracts::region_window::{Elements, RegionWindow};
use ferrofabric_contracts::types::IoBuf;
use ferrofabric_system::shared_memory::MemoryBacking;

use super::{Av, Cntr, Cq};

/// The attributes of a new memory region (fi_mr(3)).
#[derive(Clone, Copy, Debug)]
pub struct MrAttr<'a> {
    /// The memory: its first piece, or all of it.
    pub memory: IoBuf,
    /// The other pieces. Places count on from piece to piece, in this order, unless places are
    /// addresses.
    pub further: &'a [IoBuf],
    /// The rights of this process and of peers: `SEND`, `RECV`, `READ`, `WRITE`, `REMOTE_READ`,
    /// `REMOTE_WRITE`.
    pub access: Flags,
    /// The key by which peers reach it; `None` for any that is free.
    pub key: Option<u64>,
    /// The place that peers name for its first byte: 0, or its address where places are addresses.
    pub first_place: u64,
    /// The place of each byte is its address (`FI_MR_VIRT_ADDR`): peers reach nothing between two
    /// pieces. Else only the first byte of the region has the place that is chosen for it.
    pub places_are_addresses: bool,
    /// The type of the elements, of a region that peers reach by atomic operations on such elements
    /// alone: `EACCES` for all others. `None` for one that they reach by any operation.
    ///
    /// The threads of this process that carry the operations out use the processor's atomic
    /// instructions, so the application may do the same with elements of 64 bits at most, at any
    /// time.
    pub elements: Option<Datatype>,
    /// Where the first piece lies in memory that other processes may map, if it does. That memory
    /// is there for longer than the region.
    pub backing: Option<MemoryBacking>,
    /// The application may unmap the memory, map other memory in its place, or give its pages up,
    /// while it is registered (no `FI_MR_ALLOCATED`).
    pub pages_may_change: bool,
}

impl MrAttr<'_> {
    /// Memory in one piece with any key, whose places count from 0.
    pub fn new(memory: IoBuf, access: Flags) -> Self {
        Self {
            memory,
            further: &[],
            access,
            key: None,
            first_place: 0,
            places_are_addresses: false,
            elements: None,
            backing: None,
            pages_may_change: false,
        }
    }

    /// The first piece, as peers reach it.
    #[must_use]
    pub fn window(&self) -> RegionWindow {
        RegionWindow {
            address: self.memory.addr as u64,
            len: self.memory.len as u64,
            first_place: self.first_place,
            rights: Rights::of(self.access),
            elements: Elements::of(self.elements),
        }
    }
}

/// The attributes of a new completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct CqAttr {
    /// Entries that the queue is for; 0 takes the default. The queue grows as entries come, beyond
    /// this number, too: no entry is lost while there is memory.
    pub size: usize,
    /// Nobody reads the queue: it keeps no entry.
    pub discards: bool,
}

/// The attributes of a new counter.
#[derive(Clone, Copy, Debug, Default)]
pub struct CntrAttr {
    /// The unit of the count.
    pub events: CntrEvents,
}

/// The unit in which a counter counts operations that succeed (`fi_cntr_events`). An operation that
/// fails counts as one error, whatever its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CntrEvents {
    /// Operations (`FI_CNTR_EVENTS_COMP`).
    #[default]
    Completions,
    /// The bytes of the application that operations have moved: without CQ data, and without the
    /// provider's part of a buffer with a prefix (`FI_CNTR_EVENTS_BYTES`).
    Bytes,
}

/// The objects and attributes of a new endpoint.
#[derive(Clone)]
pub struct EndpointConfig {
    /// The address vector of its peers.
    pub av: Arc<dyn Av>,
    /// The queue of its send completions.
    pub tx_cq: Arc<dyn Cq>,
    /// The queue of its receive completions.
    pub rx_cq: Arc<dyn Cq>,
    /// The counter of its sends.
    pub tx_cntr: Option<Arc<dyn Cntr>>,
    /// The counter of its receives.
    pub rx_cntr: Option<Arc<dyn Cntr>>,
    /// The counter of its reads of peers' memory.
    pub read_cntr: Option<Arc<dyn Cntr>>,
    /// The counter of its writes to peers' memory.
    pub write_cntr: Option<Arc<dyn Cntr>>,
    /// The counter of peers' reads of this domain's memory, by way of this endpoint.
    pub remote_read_cntr: Option<Arc<dyn Cntr>>,
    /// The counter of peers' writes to this domain's memory, by way of this endpoint.
    pub remote_write_cntr: Option<Arc<dyn Cntr>>,
    /// The rights with which peers reach the domain's regions by way of this endpoint. A region may
    /// have fewer.
    pub remote_rights: Rights,
    /// Whether receives may name their source (`FI_DIRECTED_RECV`); without it the source of a
    /// receive is ignored.
    pub directed_recv: bool,
    /// The socket address of the endpoint, in a domain whose addresses are those of sockets; port 0
    /// stands for any free port. `None`: the address in the domain's info.
    pub source: Option<SocketAddr>,
    /// Its authorization key (`fi_ep_attr::auth_key`); `None` for the domain's. An endpoint that
    /// takes the keys of its address vector can have none of its own.
    pub auth_key: Option<AuthKey>,
    /// Whether a message of an unknown source completes with `EADDRNOTAVAIL` and the name of that
    /// source (`FI_SOURCE_ERR`); without this, it completes with no source.
    pub source_err: bool,
    /// The attributes of its own operations.
    pub tx: TxConfig,
}

/// How the operations of an endpoint travel.
#[derive(Clone, Copy, Debug)]
pub struct TxConfig {
    /// Their [traffic class](traffic_class) (`fi_tx_attr::tclass`); [`traffic_class::UNSPEC`] for
    /// the domain's.
    pub tclass: u32,
    /// The order that they keep (`fi_tx_attr::msg_order`). Messages always keep theirs, and so do
    /// atomic operations among each other. Where reads or writes keep one, an operation is refused
    /// with [`OpError::Again`](ferrofabric_contracts::error::OpError::Again) as long as it would
    /// overtake another.
    pub msg_order: Order,
}

impl EndpointConfig {
    /// One completion queue for sends and receives, no counters, all rights for peers, directed
    /// receives, no errors for unknown sources, the domain's traffic class.
    pub fn new(av: &Arc<dyn Av>, cq: &Arc<dyn Cq>) -> Self {
        Self {
            av: av.clone(),
            tx_cq: cq.clone(),
            rx_cq: cq.clone(),
            tx_cntr: None,
            rx_cntr: None,
            read_cntr: None,
            write_cntr: None,
            remote_read_cntr: None,
            remote_write_cntr: None,
            remote_rights: Rights::all(),
            directed_recv: true,
            source: None,
            auth_key: None,
            source_err: false,
            tx: TxConfig {
                tclass: traffic_class::UNSPEC,
                msg_order: Order::SAS,
            },
        }
    }
}
