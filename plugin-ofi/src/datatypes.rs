//! Elements of collective operations, by the numbers of libfabric.

use crate::abi::fi_datatype;

/// Bytes of each type: integers, floats, complex numbers, long doubles and their complex numbers,
/// and integers of 128 bits.
const SIZES: [usize; 16] = [1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 16, 32, 16, 16];

/// Bytes of an element; `None`: there is no such type.
pub(crate) fn size_of_element(datatype: fi_datatype) -> Option<usize> {
    SIZES.get(datatype.0 as usize).copied()
}
