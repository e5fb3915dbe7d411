//! Ferrofabric: endpoints for messages over RDMA hardware and shared memory, for HPC programs.
//!
//! [`RdmEndpoint::open`] finds the best domain of this machine and opens an endpoint there;
//! [`RdmEndpoint::builder`] has the options. An operation takes a [`Buffer`] and gives it back with
//! its completion or its error, so no call of an endpoint is unsafe.
//!
//! The package is in no registry. A program depends on a copy of the repository:
//!
//! ```toml
//! [dependencies]
//! ferrofabric = { path = "../ferrofabric" }
//! ```
//!
//! Two endpoints exchange a question and an answer:
//!
//! ```
//! use std::time::Duration;
//!
//! use ferrofabric::{Buffer, MessageSource, PathChoice, RdmEndpoint};
//!
//! # fn main() -> Result<(), ferrofabric::Error> {
//! let timeout = Some(Duration::from_secs(10));
//! let mut client = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
//! let mut server = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
//!
//! // A process passes its address on as text; here both ends are one process.
//! let to_server = client.insert(&server.address().to_string())?;
//! client.inject(to_server, b"a question")?;
//! client.flush(Duration::from_secs(10))?;
//!
//! let question = server.recv(Buffer::new(64)?)?;
//! let question = server.wait_for(question, timeout)?;
//! assert_eq!(question.bytes(), b"a question");
//!
//! // The client's address comes with its message.
//! let MessageSource::Unknown(Some(client_address)) = question.source() else {
//!     panic!("the client is known already");
//! };
//! let to_client = server.insert(client_address)?;
//! let answer = server.send(to_client, Buffer::copy_of(b"an answer")?)?;
//! server.wait_for(answer, timeout)?;
//! let received = client.recv(Buffer::new(64)?)?;
//! assert_eq!(client.wait_for(received, timeout)?.bytes(), b"an answer");
//! # Ok(())
//! # }
//! ```
//!
//! # One-sided operations
//!
//! [`RdmEndpoint::share`] makes a buffer a [`PeerRegion`], whose type has the rights of peers.
//! Peers get a [`RemoteRegion`], a value of 32 bytes, and [read](RdmEndpoint::read) or
//! [write](RdmEndpoint::write) the memory without a call of its owner. Peers on the same node map
//! memory that [`Buffer::shared`] has allocated, and reach it without a system call.
//!
//! [`RdmEndpoint::share_atomic`] does the same for integers and floats that peers and their owner
//! change at the same time, by [atomic operations](RdmEndpoint#atomic-operations);
//! [`RdmEndpoint::share_atomic_mapped`] in memory that peers on the same node map.
//!
//! # Collective operations
//!
//! [`RdmEndpoint::join`] makes endpoints a [`Group`], whose members call [the same
//! operations](RdmEndpoint#collective-operations): barrier, broadcast, allreduce, allgather and
//! scatter.
//!
//! # Examples
//!
//! The folder `examples` has whole programs: `ping_pong` between two threads, `server` with clients
//! that it does not know, `key_value` with look-ups by one-sided reads, `parameter_server` with
//! atomic sums, `data_parallel` with collective ones, `timeout`, `killed_peer` with a second
//! process, and `with_tokio`.
//!
//! # Errors
//!
//! Calls that post or complete an operation fail with [`OperationError`], which has the peer and
//! the buffer; all others fail with [`Error`]. `?` turns the first into the second. `Debug` prints
//! both as sentences, so the errors of `fn main() -> Result<(), ferrofabric::Error>` are readable.
//!
//! # Peers that are gone
//!
//! A peer's process dies, or its endpoint closes. Then sends to it that were not handed over end as
//! [`CompletedOperation::Failed`], and so do receives that wait for it alone ([`Inbound::source`]).
//! Operations with other peers go on. Later sends to the peer are refused, or fail, too:
//!
//! | [`OperationError::errno`] | the peer |
//! |---|---|
//! | `ECONNRESET` | its process is gone |
//! | `ESHUTDOWN` | it closed its endpoint |
//! | `EHOSTUNREACH` | there is no such endpoint; over verbs, it does not acknowledge any more |
//! | `ETIMEDOUT` | over verbs, it answered nothing for the time of `peer_timeout` |
//!
//! Through shared memory a death is noticed in about 0.1 s (later among many peers), over verbs by
//! the settings [`peer_timeout`](config::Settings::peer_timeout) and
//! [`reconnect_timeout`](config::Settings::reconnect_timeout). These calls get no error:
//!
//! - A short send or inject that was handed over before the death was noticed. Nobody receives it,
//!   and [`flush`](RdmEndpoint::flush) succeeds. With
//!   [`delivery_complete`](RdmEndpointBuilder::delivery_complete) the send fails.
//! - A receive from any source. Other peers may still send to it.
//! - A receive from this peer that is posted after the death was noticed, or a receive from a peer
//!   with which no message was exchanged. It goes on until it is [cancelled](RdmEndpoint::cancel),
//!   so its wait needs a time limit.
//!
//! A peer that starts again has another address.
//!
//! # Back-pressure
//!
//! A call that posts an operation waits until there is capacity for it: see
//! [there](RdmEndpoint#back-pressure). Calls with `try_` in their names do not wait. A thread that
//! owns both ends uses those.
//!
//! # Futures
//!
//! [`AsyncRdmEndpoint`] has futures for any executor, which post operations when there is capacity
//! and wait for their ends: see there.
//!
//! # The objects below
//!
//! An endpoint is made of libfabric's objects, which programs may open by themselves: a
//! [`Provider`](fabric::Provider) finds domains ([`discovery`]) and opens one, a
//! [`Domain`](fabric::Domain) opens endpoints, address vectors, completion queues and counters;
//! [`eq`] has event queues. The data path of these takes addresses of memory and is unsafe.
//! [`RdmEndpoint::domain`] and [`RdmEndpointBuilder::configure`] lead from one to the other. Other
//! providers are written to [`peer`], the interfaces between an owner and its peers.

#![deny(unsafe_code)]

mod async_endpoint;
mod atomic;
mod atomic_region;
mod builder;
mod collective;
mod endpoint;
mod group;
mod group_driver;
mod one_sided;
mod operation;
mod operation_error;
mod operation_id;
mod operation_output;
mod operator;
mod peer_address;
mod region;

pub use async_endpoint::{AsyncRdmEndpoint, DescriptorReadiness, NextFuture, OutcomeFuture};
pub use atomic_region::{AtomicRegion, RemoteAtomicRegion};
pub use builder::{PathChoice, RdmEndpointBuilder};
pub use endpoint::{CompletionIter, DROP_FLUSH, RdmEndpoint};
pub use group::Group;
pub use operation::{
    CompletedOperation, FetchedElements, Inbound, MessageSource, Outbound, PeerWrite,
    ReceivedMessage,
};
pub use operation_error::OperationError;
pub use operation_id::{
    AtomicId, CollectedId, CollectiveId, FetchId, JoinId, ReadId, RecvId, SendId, WriteId,
};
pub use operation_output::OperationId;
pub use operator::{CompareOperator, Operator};
pub use peer_address::PeerAddress;
pub use region::{
    AllowsRead, AllowsWrite, PeerRegion, PeersRead, PeersReadWrite, PeersWrite, RegionRights,
    RemoteRegion,
};

pub use ferrofabric_av::{AvAttr, InsertReport, InsertRequest, Resolve, Services};
pub use ferrofabric_contracts::error::{Errno, Error, Result};
pub use ferrofabric_contracts::types::FiAddr;
pub use ferrofabric_contracts::{
    API_VERSION, VERSION, addr, config, error, flags, info, peer, types,
};
pub use ferrofabric_runtime::owning::{
    AtomicElement, AtomicInteger, Buffer, ElementValues, FetchedValues, StdAtomicInteger,
};
pub use ferrofabric_runtime::{discovery, eq, fabric};
pub use ferrofabric_shm::ShmProvider;
pub use ferrofabric_verbs::VerbsProvider;
