//! Known defects of devices, and the consequence of each.
//!
//! Ferrofabric probes at start-up the behaviour that it can probe without harm. This table has the
//! defects for which a probe is impossible or expensive.

use super::facts::DeviceFacts;
use super::limits::DeviceLimits;

bitflags::bitflags! {
    /// A device's deviations from the verbs standard.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Quirks: u32 {
        /// A window gives access to the whole region beneath it; only rights and revocation hold. A
        /// window must be backed by a registration of exactly its range.
        const WINDOW_BOUNDS_NOT_ENFORCED = 1 << 0;
        /// A type 2 window that was invalidated on one queue pair and bound again on another makes
        /// its destruction hang for most of a minute: use a window again on its own queue pair
        /// only.
        const WINDOW_TIED_TO_QUEUE_PAIR = 1 << 1;
        /// Deregistering a region with a bound window gives `EINVAL`, where the standard has a
        /// "busy" error.
        const DEREGISTER_BOUND_IS_EINVAL = 1 << 2;
        /// A receive with invalidate completes without `IBV_WC_WITH_INV`, with other bits set in
        /// its place. The key is right: go by the protocol, not by the flag.
        const INVALIDATE_FLAG_WRONG = 1 << 3;
        /// `ibv_wr_set_inline_data` needs `IBV_SEND_INLINE` in `wr_flags`, which the interface does
        /// not require.
        const EXTENDED_INLINE_NEEDS_FLAG = 1 << 4;
        /// `ibv_wr_set_inline_data_list` sends nothing and reports success: post inline lists the
        /// legacy way.
        const EXTENDED_INLINE_LIST_LOST = 1 << 5;
        /// A datagram of more than the path MTU completes with success and is not sent: check sizes
        /// before posting.
        const LONG_DATAGRAM_LOST = 1 << 6;
        /// A message longer than the receive's buffers ends with statuses 11 (receiver) and 2
        /// (sender), where the standard has 9 and 1.
        const SHORT_RECEIVE_STATUS_WRONG = 1 << 7;
        /// Joining a multicast group succeeds and nothing of it is delivered.
        const MULTICAST_NOT_DELIVERED = 1 << 8;
        /// When packets are lost or overtake each other, a read of several packets completes with
        /// success and its last ones are missing.
        const LONG_READ_TORN = 1 << 9;
        /// A queue pair that moves to the error state while the last packet of a send completes
        /// takes that packet once more, now without a receive, and the kernel crashes: no send may
        /// take several packets.
        const LONG_SEND_CRASHES = 1 << 10;
        /// A send is posted by a write of the device's descriptor, which is a cancellation point
        /// (pthreads(7)).
        const POSTS_BY_SYSTEM_CALL = 1 << 11;
        /// A queue pair in error does not report its last receive of a shared queue. Its receives
        /// are flushed before the call that moves it to error returns.
        const LAST_RECEIVE_NOT_REPORTED = 1 << 12;
        /// A receive of a shared queue whose message has begun never completes if its queue pair
        /// goes to error. The event of the last receive comes all the same.
        const HELD_RECEIVE_LOST = 1 << 13;
    }
}

/// The device of a row: all given fields must match.
struct QuirkDevice {
    vendor_id: u32,
    /// On the PCI bus, or not; `None`: either.
    hardware: Option<bool>,
}

/// Soft-RoCE (rdma_rxe): Linux gives it this vendor and no address on a bus. Its name is the
/// administrator's choice.
const SOFT_ROCE: QuirkDevice = QuirkDevice {
    vendor_id: 0x00ff_ffff,
    hardware: Some(false),
};

/// The same for the software iWARP driver (siw).
const SOFT_IWARP: QuirkDevice = QuirkDevice {
    vendor_id: 0x0062_6d74,
    hardware: Some(false),
};

/// Omni-Path (hfi1) and the InfiniBand adapters before it (qib), by the vendor that both drivers
/// give.
const PATHSCALE: QuirkDevice = QuirkDevice {
    vendor_id: 0x0000_1175,
    hardware: Some(true),
};

/// Broadcom NetXtreme-E (bnxt_re), by its vendor on the PCI bus, which no other device has.
const NETXTREME: QuirkDevice = QuirkDevice {
    vendor_id: 0x0000_14e4,
    hardware: None,
};

/// Soft-RoCE's quirks were observed on Linux 6.12; none is known to be fixed since. The drivers of
/// rdma-core show that the next two post by system calls, while those of all other devices ring
/// doorbells in mapped memory; and that the last one makes up no completions for receives of a
/// shared queue.
const TABLE: &[(QuirkDevice, Quirks)] = &[
    (
        SOFT_ROCE,
        Quirks::all()
            .difference(Quirks::LAST_RECEIVE_NOT_REPORTED.union(Quirks::HELD_RECEIVE_LOST)),
    ),
    (
        SOFT_IWARP,
        Quirks::POSTS_BY_SYSTEM_CALL.union(Quirks::LAST_RECEIVE_NOT_REPORTED),
    ),
    (PATHSCALE, Quirks::POSTS_BY_SYSTEM_CALL),
    (NETXTREME, Quirks::HELD_RECEIVE_LOST),
];

impl Quirks {
    /// The defects of a device.
    pub fn of(limits: &DeviceLimits, facts: &DeviceFacts) -> Self {
        Self::matching(limits.vendor_id, facts.pci.is_some())
    }

    fn matching(vendor_id: u32, hardware: bool) -> Self {
        TABLE
            .iter()
            .filter(|(row, _)| {
                row.vendor_id == vendor_id && row.hardware.is_none_or(|is| is == hardware)
            })
            .fold(Self::empty(), |all, (_, quirks)| all | *quirks)
    }
}

#[cfg(test)]
mod tests {
    use super::Quirks;

    #[test]
    fn soft_roce_is_known_by_vendor_and_lack_of_a_bus() {
        assert!(Quirks::matching(0xff_ffff, false).contains(Quirks::WINDOW_BOUNDS_NOT_ENFORCED));
        assert_eq!(Quirks::matching(0xff_ffff, true), Quirks::empty());
    }

    #[test]
    fn a_card_has_none_of_them() {
        for mellanox in [0x02c9, 0x15b3] {
            assert_eq!(
                Quirks::matching(mellanox, true) | Quirks::matching(mellanox, false),
                Quirks::empty()
            );
        }
    }

    #[test]
    fn devices_whose_kernel_posts_are_known() {
        let soft_iwarp = Quirks::matching(0x62_6d74, false);
        let by_call = Quirks::POSTS_BY_SYSTEM_CALL;
        assert_eq!(soft_iwarp, by_call | Quirks::LAST_RECEIVE_NOT_REPORTED);
        assert!(Quirks::matching(0xff_ffff, false).contains(by_call));
        assert_eq!(Quirks::matching(0x1175, true), by_call);
    }
}
