//! Addresses as C has them: `fi_addr_t` (fi_av(3)).
//!
//! libfabric has one number for "any source" and for "no such entry", [`FiAddr`] has two. A number
//! that a call gives in place of an address is read as [`FiAddr::UNSPEC`]; both are written as that
//! number. IDs of the application's (`FI_AV_USER_ID`) are numbers, and not translated: neither are
//! the sources of completions, which may be such IDs.

use ferrofabric_contracts::types::FiAddr;

use crate::abi::{FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, fi_addr_t};

const _: () = assert!(FI_ADDR_UNSPEC == FI_ADDR_NOTAVAIL && FI_ADDR_NOTAVAIL == FiAddr::NOTAVAIL.0);
const _: () = assert!(FiAddr::UNSPEC.0 == FI_ADDR_UNSPEC - 1);

/// The address that a call gives. The number that [`FiAddr::UNSPEC`] has among ourselves is that of
/// no entry.
#[inline]
pub(crate) fn given(addr: fi_addr_t) -> FiAddr {
    // Without a branch: the two highest numbers change places.
    FiAddr(addr ^ u64::from(addr >= FiAddr::UNSPEC.0))
}

/// The number that C gets for an address.
#[inline]
pub(crate) fn returned(addr: FiAddr) -> fi_addr_t {
    match addr.is_some() {
        true => addr.0,
        false => FI_ADDR_NOTAVAIL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_c_gives_for_any_source_is_unspecified() {
        assert_eq!(given(FI_ADDR_UNSPEC), FiAddr::UNSPEC);
        assert_eq!(given(FI_ADDR_NOTAVAIL), FiAddr::UNSPEC);
    }

    #[test]
    fn no_other_number_of_c_is_any_source() {
        assert_eq!(given(FiAddr::UNSPEC.0), FiAddr::NOTAVAIL);
        for number in [0, 1, 1 << 31, 1 << 63, u64::MAX - 2] {
            assert_eq!(given(number), FiAddr(number));
            assert_eq!(returned(given(number)), number);
        }
    }

    #[test]
    fn c_gets_one_number_for_both() {
        assert_eq!(returned(FiAddr::UNSPEC), FI_ADDR_UNSPEC);
        assert_eq!(returned(FiAddr::NOTAVAIL), FI_ADDR_NOTAVAIL);
        assert_eq!(returned(FiAddr(7)), 7);
    }
}
