//! Atomic operations on peers' memory (`docs/adr/0064`): how the initiator begins one, and how the
//! target carries it out. The initiator awaits the reply as that of a read.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::PART_REFUSED;

mod elements;
mod engine;
mod initiator;
mod mapped;
mod target;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use elements::Element;
pub use engine::combine;
pub(crate) use engine::combine_on;
pub(super) use initiator::{begin, check, used_buffers};
pub(crate) use words::AtomicWord;

/// Why a target refuses an operation on an address that its elements can not have.
const MISALIGNED: &str = "the target refuses it: an element's address is no multiple of its \
                          alignment, or it goes over the end of a piece, or the request has a wrong \
                          length";

/// Why a target refuses an operation that it does not have.
const UNSUPPORTED: &str = "the target refuses it: it has no such operator, data type or form";

/// The error of an operation, by that in its reply.
pub(super) fn error_of_reply(errno: Errno) -> (Errno, &'static str) {
    match errno {
        Errno::EINVAL => (Errno::EINVAL, MISALIGNED),
        Errno::EOPNOTSUPP => (Errno::EOPNOTSUPP, UNSUPPORTED),
        _ => (Errno::EACCES, PART_REFUSED),
    }
}
