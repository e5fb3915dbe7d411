//! The offer of a collective peer.

use ferrofabric_contracts::flags::{Flags, Mode};
use ferrofabric_contracts::info::{
    DomainAttr, EpAttr, EpType, FabricAttr, Info, Progress, ResourceMgmt, RxAttr, Threading, TxAttr,
};

/// The name of the domain, and of its fabric.
const NAME: &str = "ferro-collectives";

/// The capabilities in the hints of an owner that looks for it.
const ASKED: Flags = Flags::COLLECTIVE.union(Flags::PEER);

/// Those that say nothing here: the owner's messages decide it.
const REACH: Flags = Flags::LOCAL_COMM.union(Flags::REMOTE_COMM);

/// Objects of each kind: no limit but that of the memory.
const MANY: usize = 1 << 20;

/// The mode bit of owners that lend transfers.
fn transfers() -> Mode {
    Mode::from_bits_retain(Flags::PEER_TRANSFER.bits())
}

/// Whether an info is that of a collective peer, or of an owner that lends transfers to one.
pub(crate) fn has_transfers(info: &Info) -> bool {
    info.mode.bits() & Flags::PEER_TRANSFER.bits() != 0
}

/// Whether the hints are those of an owner that looks for a collective peer.
pub(crate) fn is_asked(hints: &Info) -> bool {
    has_transfers(hints) && hints.caps.contains(ASKED) && (hints.caps - ASKED - REACH).is_empty()
}

/// The offer to such hints, if they want nothing else.
pub(crate) fn offer(hints: &Info) -> Option<Info> {
    let is_named = |name: &str| name.is_empty() || name == NAME;
    let fits = matches!(hints.ep.ep_type, EpType::Unspec | EpType::Rdm)
        && hints.domain.data_progress != Progress::Auto
        && is_named(&hints.domain.name)
        && is_named(&hints.fabric.name);
    fits.then(|| Info {
        caps: ASKED | REACH,
        mode: transfers(),
        addr_format: hints.addr_format,
        tx: TxAttr {
            caps: Flags::COLLECTIVE,
            size: MANY,
            iov_limit: 1,
            ..TxAttr::default()
        },
        rx: RxAttr {
            caps: Flags::COLLECTIVE,
            size: MANY,
            iov_limit: 1,
            ..RxAttr::default()
        },
        ep: EpAttr {
            ep_type: EpType::Rdm,
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            ..EpAttr::default()
        },
        domain: DomainAttr {
            name: NAME.to_owned(),
            caps: REACH,
            threading: Threading::Safe,
            control_progress: Progress::Manual,
            data_progress: Progress::Manual,
            resource_mgmt: ResourceMgmt::Enabled,
            cq_cnt: MANY,
            ep_cnt: MANY,
            tx_ctx_cnt: MANY,
            rx_ctx_cnt: MANY,
            max_ep_tx_ctx: 1,
            max_ep_rx_ctx: 1,
            ..DomainAttr::default()
        },
        fabric: FabricAttr {
            name: NAME.to_owned(),
            provider_version: ferrofabric_contracts::VERSION,
            ..FabricAttr::default()
        },
        ..Info::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_alone_get_it() {
        let owner = Info {
            caps: ASKED,
            mode: transfers(),
            ..Info::default()
        };
        assert!(is_asked(&owner));
        let found = offer(&owner).expect("an offer");
        assert!(is_asked(&found) && offer(&found).is_some());
        for caps in [Flags::COLLECTIVE, Flags::PEER, ASKED | Flags::MSG] {
            let other = Info {
                caps,
                ..owner.clone()
            };
            assert!(!is_asked(&other), "{caps:?}");
        }
        let without = Info {
            mode: Mode::empty(),
            ..owner.clone()
        };
        assert!(!is_asked(&without));
        let mut wants = [owner.clone(), owner.clone(), owner.clone(), owner];
        wants[0].ep.ep_type = EpType::Dgram;
        wants[1].domain.data_progress = Progress::Auto;
        wants[2].domain.name = "shm".to_owned();
        wants[3].fabric.name = "shm".to_owned();
        assert!(wants.iter().all(|other| offer(other).is_none()));
    }
}
