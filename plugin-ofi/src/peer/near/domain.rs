//! The near side of a verbs domain whose local peers are reached through a provider in C.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{DomainAttr, EpAttr, Info, RxAttr, TxAttr};
use ferrofabric_runtime::domain::Opening;
use ferrofabric_verbs::near::{NearDomain, with_near_transport};

use super::ForeignTransport;
use super::open::MOST_BUFFERS;
use crate::peer::host_provider::{self, ForeignInfo};

/// Capabilities without which an endpoint's local peers are reached through the provider. With one
/// of them the device reaches all peers.
const NOT_NEAR: Flags = Flags::RMA
    .union(Flags::ATOMIC)
    .union(Flags::READ)
    .union(Flags::WRITE)
    .union(Flags::REMOTE_READ)
    .union(Flags::REMOTE_WRITE)
    .union(Flags::RMA_EVENT)
    .union(Flags::FENCE)
    .union(Flags::SOURCE_ERR)
    .union(Flags::PEER);

/// Flags of sends without which that holds.
const NOT_NEAR_LEVELS: Flags = Flags::DELIVERY_COMPLETE.union(Flags::MATCH_COMPLETE);

/// The provider of a domain's local peers, if it has one.
pub(crate) struct ForeignShm(Option<(&'static str, ForeignInfo)>);

impl ForeignShm {
    /// Whether a domain with this info has local peers through the provider.
    fn is_near(info: &Info) -> bool {
        info.caps.contains(Flags::LOCAL_COMM)
            && !info.caps.intersects(NOT_NEAR)
            && !info.tx.op_flags.intersects(NOT_NEAR_LEVELS)
            && info.domain.auth_key_size == 0
            && info.ep.auth_key_size == 0
    }
}

impl NearDomain for ForeignShm {
    type Transport = ForeignTransport;

    const OWN_SHM_WITH_KEYS: bool = false;

    fn open(info: &Info, settings: &Settings) -> Result<Self> {
        if !settings.shm || !Self::is_near(info) {
            return Ok(Self(None));
        }
        let provider = name_in_settings(settings);
        match host_provider::offer(provider, info) {
            Ok(theirs) => Ok(Self(Some((provider, theirs)))),
            Err(error) => {
                tracing::warn!("local peers are reached by the device: {error}");
                Ok(Self(None))
            }
        }
    }

    fn offers(all: Info, settings: &Settings, notices: &mut Vec<Error>) -> Vec<Info> {
        if !settings.shm {
            return vec![all];
        }
        match host_provider::offer(name_in_settings(settings), &all) {
            Ok(theirs) => vec![near_offer(&all, theirs.info()), all],
            Err(error) => {
                notices.push(error);
                vec![all]
            }
        }
    }

    fn open_endpoint(
        &self,
        opening: &Opening<'_>,
        name: &NativeAddr,
    ) -> Result<Option<ForeignTransport>> {
        match &self.0 {
            // The provider has no keys.
            Some((provider, theirs)) if opening.auth_key.is_none() => {
                ForeignTransport::open(provider, theirs, *name, opening.wait).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn completion_levels(&self) -> Flags {
        match self.0 {
            Some(_) => Flags::empty(),
            None => NOT_NEAR_LEVELS | Flags::FENCE,
        }
    }
}

/// The provider's name, for the rest of the process.
fn name_in_settings(settings: &Settings) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let name = settings.shm_provider.as_str();
    match names.get(name) {
        Some(there) => there,
        None => {
            let kept: &'static str = Box::leak(name.to_owned().into_boxed_str());
            names.insert(kept);
            kept
        }
    }
}

/// The offer for messages, of the one with all capabilities.
fn near_offer(all: &Info, theirs: &Info) -> Info {
    let caps = all.caps - NOT_NEAR;
    with_near_transport(Info {
        caps,
        tx: TxAttr {
            caps: all.tx.caps - NOT_NEAR,
            op_flags: all.tx.op_flags - NOT_NEAR_LEVELS,
            inject_size: all.tx.inject_size.min(theirs.tx.inject_size),
            iov_limit: all.tx.iov_limit.min(theirs.tx.iov_limit).min(MOST_BUFFERS),
            ..all.tx.clone()
        },
        rx: RxAttr {
            caps: all.rx.caps - NOT_NEAR,
            ..all.rx.clone()
        },
        ep: EpAttr {
            max_msg_size: all.ep.max_msg_size.min(theirs.ep.max_msg_size),
            auth_key_size: 0,
            ..all.ep.clone()
        },
        domain: DomainAttr {
            caps: all.domain.caps - NOT_NEAR,
            auth_key_size: 0,
            max_ep_auth_key: 0,
            ..all.domain.clone()
        },
        ..all.clone()
    })
}
