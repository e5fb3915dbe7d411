//! The objects of the conformance suite by libfabric's calls in C, so that the suite runs over any
//! of libfabric's providers: [`DomainByC`] and the objects that are opened on it.
//!
//! Each method of a trait makes the C call of its purpose with an object that libfabric has opened,
//! and translates the result. Where C has no such call, the method is refused with `ENOSYS`; the
//! tables of `conformance_by_c.rs` name the scenarios that need it.
//!
//! Three things differ between the traits and C, and are translated here:
//!
//! - *Addresses.* The suite has 64 bytes for any endpoint, C whatever its provider chooses
//!   ([`names`]).
//! - *Contexts.* The suite has numbers, C has pointers, and some providers write to the memory
//!   behind them ([`contexts`]).
//! - *No address.* C has one number for `FI_ADDR_UNSPEC` and `FI_ADDR_NOTAVAIL`. A receive from the
//!   latter is refused here, a completion from it has no source.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "modules of a test program, and a test may panic"
)]

mod contexts;
mod counter;
mod domain;
mod endpoint;
mod names;
mod offer;
mod queue;
mod transfer;
mod vector;

use std::ffi::c_int;
use std::time::Duration;

use ferro_fi::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::types::FiAddr;

pub use domain::DomainByC;
pub use offer::Offer;

/// The result of a call that returns 0 or the negative number of an error.
fn op(returned: isize) -> Result<(), OpError> {
    match returned {
        0 => Ok(()),
        error => Err(OpError::from(errno(error))),
    }
}

/// The same of a call that opens or changes an object.
fn control(returned: c_int, call: &'static str) -> Result<()> {
    match returned {
        0 => Ok(()),
        error => Err(Error::new(errno(error as isize), "call", call)),
    }
}

fn errno(returned: isize) -> Errno {
    Errno(i32::try_from(-returned).unwrap())
}

/// The refusal of a call that C does not have.
fn missing(call: &'static str) -> Error {
    Error::new(Errno::ENOSYS, "call by C", call)
}

/// An address as C has it.
fn to_c(addr: FiAddr) -> fi_addr_t {
    match addr.is_some() {
        true => addr.0,
        false => FI_ADDR_NOTAVAIL,
    }
}

/// An address of C's.
fn from_c(addr: fi_addr_t) -> FiAddr {
    match addr {
        FI_ADDR_NOTAVAIL => FiAddr::NOTAVAIL,
        addr => FiAddr(addr),
    }
}

/// A timeout in milliseconds, not shorter than the given one; -1 for ever.
fn milliseconds(timeout: Option<Duration>) -> c_int {
    timeout.map_or(-1, |timeout| {
        c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap()
    })
}
