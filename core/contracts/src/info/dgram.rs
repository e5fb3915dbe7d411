//! The attributes that every domain of ours offers over unreliable datagrams.

use super::caps::{RX_CAPS, TX_CAPS};
use super::models::EpType;
use super::{DomainAttr, EpAttr, Info, RxAttr, TxAttr, rdm_messages};
use crate::flags::{Flags, Mode, Order};

/// Untagged messages that may be lost, over unconnected endpoints (`FI_EP_DGRAM`), as the runtime's
/// domain has them. No order is kept. Providers add where it goes, what they speak, and the limits
/// of their transports, which are 0 here.
pub fn dgram_messages() -> Info {
    let all = rdm_messages();
    let caps = Flags::MSG
        | Flags::SEND
        | Flags::RECV
        | Flags::SOURCE
        | Flags::SOURCE_ERR
        | Flags::SHARED_AV
        | Flags::AV_USER_ID;
    Info {
        caps,
        tx: TxAttr {
            caps: caps & TX_CAPS,
            // A send completes when the datagram has left: an unreliable endpoint learns no more.
            msg_order: Order::empty(),
            ..all.tx
        },
        rx: RxAttr {
            caps: caps & RX_CAPS,
            op_flags: Flags::COMPLETION,
            msg_order: Order::empty(),
            ..all.rx
        },
        ep: EpAttr {
            ep_type: EpType::Dgram,
            mem_tag_format: 0,
            ..all.ep
        },
        domain: DomainAttr {
            // Datagrams are received where the device puts them, not by others' receives.
            caps: all.domain.caps - Flags::PEER,
            ..all.domain
        },
        ..all
    }
}

/// The same for applications that leave room before all their buffers (`FI_MSG_PREFIX` of
/// fi_getinfo(3)): `bytes`, which count towards no limit of messages.
#[must_use]
pub fn with_prefix(info: Info, bytes: usize) -> Info {
    debug_assert!(bytes % 8 == 0, "fi_getinfo(3) has multiples of 8");
    Info {
        mode: info.mode | Mode::MSG_PREFIX,
        tx: TxAttr {
            mode: info.tx.mode | Mode::MSG_PREFIX,
            ..info.tx
        },
        rx: RxAttr {
            mode: info.rx.mode | Mode::MSG_PREFIX,
            ..info.rx
        },
        ep: EpAttr {
            msg_prefix_size: bytes,
            ..info.ep
        },
        ..info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Datagrams are not received by other providers' receives.
    #[test]
    fn datagrams_have_no_objects_of_others() {
        let offer = dgram_messages();
        assert!(!(offer.caps | offer.domain.caps).contains(Flags::PEER));
        assert!(rdm_messages().domain.caps.contains(Flags::PEER));
    }
}
