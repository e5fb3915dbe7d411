//! Structures that callers pass, and that later versions of the interface have made longer.
//!
//! An application has them as long as they were when it was compiled: behind their end may be
//! nothing that can be read. Fields that its version does not have are 0 here, which requests
//! nothing.

use std::mem::{MaybeUninit, offset_of};

use super::version::FI_VERSION;
use super::{
    fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_hmem_iface, fi_info, fi_mr_attr, fi_rx_attr,
    fi_tx_attr,
};

/// A structure that callers pass.
///
/// # Safety
///
/// All bytes 0 are a value of the type, and the lengths are those of libfabric's releases, or
/// shorter.
pub(crate) unsafe trait Grown: Copy {
    /// From which version on it has how many bytes, of those that are looked at. The oldest comes
    /// first.
    const BYTES: &'static [(u32, usize)];
}

const V1_0: u32 = FI_VERSION(1, 0);
const V1_5: u32 = FI_VERSION(1, 5);
const V1_9: u32 = FI_VERSION(1, 9);
const V1_20: u32 = FI_VERSION(1, 20);
const V2_0: u32 = FI_VERSION(2, 0);

// SAFETY: plain numbers and pointers. The field behind `fabric_attr` is the device's, which no
// caller chooses.
unsafe impl Grown for fi_info {
    const BYTES: &'static [(u32, usize)] = &[(V1_0, offset_of!(fi_info, nic))];
}

// SAFETY: as above.
unsafe impl Grown for fi_tx_attr {
    const BYTES: &'static [(u32, usize)] = &[
        (V1_0, offset_of!(fi_tx_attr, tclass)),
        (V1_9, size_of::<Self>()),
    ];
}

// SAFETY: as above.
unsafe impl Grown for fi_rx_attr {
    const BYTES: &'static [(u32, usize)] = &[(V1_0, size_of::<Self>())];
}

// SAFETY: as above.
unsafe impl Grown for fi_ep_attr {
    const BYTES: &'static [(u32, usize)] = &[
        (V1_0, offset_of!(fi_ep_attr, auth_key_size)),
        (V1_5, size_of::<Self>()),
    ];
}

// SAFETY: as above. No caller chooses the largest values of counters, which 2.5 has added.
unsafe impl Grown for fi_domain_attr {
    const BYTES: &'static [(u32, usize)] = &[
        (V1_0, offset_of!(fi_domain_attr, cntr_cnt)),
        (V1_5, offset_of!(fi_domain_attr, tclass)),
        (V1_9, offset_of!(fi_domain_attr, max_ep_auth_key)),
        (V1_20, offset_of!(fi_domain_attr, max_group_id)),
        (V2_0, offset_of!(fi_domain_attr, max_cntr_value)),
    ];
}

// SAFETY: as above.
unsafe impl Grown for fi_fabric_attr {
    const BYTES: &'static [(u32, usize)] = &[
        (V1_0, offset_of!(fi_fabric_attr, api_version)),
        (V1_5, size_of::<Self>()),
    ];
}

// SAFETY: as above; the interface of the memory is that of the system. It and the fields behind
// it count only where an application has requested `FI_HMEM`, which is not offered. Elsewhere they
// may hold anything.
unsafe impl Grown for fi_mr_attr {
    const BYTES: &'static [(u32, usize)] = &[
        (V1_0, offset_of!(fi_mr_attr, auth_key_size)),
        (V1_5, offset_of!(fi_mr_attr, iface)),
        (V1_9, offset_of!(fi_mr_attr, hmem_data)),
        (V2_0, size_of::<Self>()),
    ];
}

const _: () = assert!(fi_hmem_iface::FI_HMEM_SYSTEM.0 == 0);

/// The structure of an application that was written for a version; `None` for NULL.
///
/// # Safety
///
/// The pointer is NULL, or leads to a structure that is as long as that version has it.
pub(crate) unsafe fn read_as_of<T: Grown>(version: u32, from: *const T) -> Option<T> {
    if from.is_null() {
        return None;
    }
    let has = T::BYTES.iter().filter(|(since, _)| *since <= version);
    let bytes = has.map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let mut whole = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's promise; the lengths are those of parts of the structure.
    unsafe {
        let to = whole.as_mut_ptr().cast::<u8>();
        to.copy_from_nonoverlapping(from.cast(), bytes);
        Some(whole.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_version_has_not_is_zero() {
        let attr = fi_tx_attr {
            caps: 1,
            rma_iov_limit: 2,
            tclass: 3,
            ..fi_tx_attr::default()
        };
        let as_of = |version| {
            // SAFETY: it is longer than any version's.
            let read = unsafe { read_as_of(version, &raw const attr) }.unwrap_or_default();
            (read.caps, read.rma_iov_limit, read.tclass)
        };
        assert_eq!(as_of(FI_VERSION(1, 8)), (1, 2, 0));
        assert_eq!(as_of(FI_VERSION(1, 9)), (1, 2, 3));
        assert_eq!(as_of(u32::MAX), (1, 2, 3));
        // SAFETY: NULL is allowed.
        assert!(unsafe { read_as_of::<fi_tx_attr>(V2_0, std::ptr::null()) }.is_none());
    }
}
