//! The near transport of RDM endpoints over verbs, which carries messages to peers of this node: a
//! parameter of [`VerbsProviderWith`](crate::VerbsProviderWith).
//!
//! A [`NearDomain`] is a domain's part of it. [`OwnShm`] is that of Ferrofabric's shared memory,
//! which [`VerbsProvider`](crate::VerbsProvider) has.
//!
//! # The way of an endpoint
//!
//! ```text
//!  discovery   NearDomain::offers          the offers of a port
//!  domain      NearDomain::open            its info is one of these offers, or a part of one
//!  endpoint    NearDomain::open_endpoint   drawn address ──► transport, or none
//!              Paired                      verbs and the transport, driven with the domain's lock
//!  close       the transport is dropped, with or without the lock; then the NearDomain
//! ```
//!
//! # Contract
//!
//! - *Addresses.* An endpoint with a near transport has a number for it in its address
//!   ([`NativeAddr::shm`]), one without has none. The number is a function of the queue pair and of
//!   32 random bits. It may be taken on the node: `open_endpoint` fails with `EADDRINUSE` then, and
//!   is called again with another number, four times in all. Peers find the transport by the number
//!   alone: it is reachable when `open_endpoint` returns.
//! - *Reach.* The near transport takes the addresses that [`Reaches::takes`] says. It hands back
//!   the operations that it has accepted and can not send ([`HandsBack`]), and verbs sends them.
//! - *Sleep.* A transport adds its descriptors to the set of the [`Opening`]. The set is there for
//!   longer than the transport. [`Transport::arm`] arms the descriptors.
//! - *Lock.* The functions of a [`NearDomain`] are called without the domain's lock, by several
//!   threads at a time. Those of the transport are called with it, except for its drop.
//! - *Keys.* Endpoints with the keys of an address vector have our shared memory or none
//!   ([`NearDomain::OWN_SHM_WITH_KEYS`]), DGRAM endpoints have none.
//!
//! [`Reaches::takes`]: ferrofabric_contracts::peer::Reaches::takes
//! [`Transport::arm`]: ferrofabric_contracts::peer::Transport::arm

mod own_shm;

pub use own_shm::OwnShm;

use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Info;
use ferrofabric_contracts::peer::HandsBack;
use ferrofabric_runtime::domain::Opening;
use ferrofabric_runtime::fabric::MrAttr;

/// A domain's part of the near transports of its endpoints.
pub trait NearDomain: Send + Sync + Sized + 'static {
    /// The transport of an endpoint. Its [number](HandsBack::TRANSPORT) is not 0, which is that of
    /// verbs.
    type Transport: HandsBack;

    /// Whether endpoints with the keys of an address vector (`FI_AV_AUTH_KEY`) are paired with
    /// [`OwnShm`]. If not, they reach peers of this node by the device.
    const OWN_SHM_WITH_KEYS: bool;

    /// The near part of a domain. `info` says what the application has requested, so whether its
    /// endpoints have a near transport.
    ///
    /// # Errors
    ///
    /// When a resource is missing; the error names it.
    fn open(info: &Info, settings: &Settings) -> Result<Self>;

    /// The offers of a port, best first. `all` is that with all capabilities, and its source
    /// address that of an endpoint without a near transport; [`with_near_transport`] makes it that
    /// of one with it. `notices` takes the reasons why an offer is missing.
    fn offers(all: Info, settings: &Settings, notices: &mut Vec<Error>) -> Vec<Info>;

    /// Opens the transport of an endpoint that has this address if it has a near transport. `None`:
    /// it has none.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: the number of the address is taken on this node. Else the error of the
    /// resource that is missing.
    fn open_endpoint(
        &self,
        opening: &Opening<'_>,
        name: &NativeAddr,
    ) -> Result<Option<Self::Transport>>;

    /// The flags of a send that the transports of this domain support, of `DELIVERY_COMPLETE`,
    /// `MATCH_COMPLETE` and `FENCE`. A send with another of these is refused, to far peers, too.
    fn completion_levels(&self) -> Flags {
        Flags::DELIVERY_COMPLETE | Flags::MATCH_COMPLETE | Flags::FENCE
    }

    /// As [`Backend::show_region`](ferrofabric_runtime::domain::Backend::show_region).
    fn show_region(&self, _number: usize, _key: u64, _attr: &MrAttr<'_>) {}

    /// As [`Backend::hide_region`](ferrofabric_runtime::domain::Backend::hide_region).
    fn hide_region(&self, _number: usize) {}

    /// As [`Backend::is_region_in_use`](ferrofabric_runtime::domain::Backend::is_region_in_use).
    fn is_region_in_use(&self, _number: usize) -> bool {
        false
    }
}

/// The offer, with the source address of endpoints that have a near transport.
#[must_use]
pub fn with_near_transport(offer: Info) -> Info {
    let src_addr = offer.src_addr.map(|addr| match addr {
        Address::Native(name) => Address::Native(NativeAddr {
            // No endpoint has a number yet.
            shm: Some(0),
            ..name
        }),
        other => other,
    });
    Info { src_addr, ..offer }
}

/// The settings for endpoints with the keys of an address vector.
pub(crate) fn settings_with_keys<N: NearDomain>(settings: &Settings) -> Settings {
    Settings {
        shm: settings.shm && N::OWN_SHM_WITH_KEYS,
        ..settings.clone()
    }
}
