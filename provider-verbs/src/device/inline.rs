//! The inline limit of a device. Verbs has no query for it: a device refuses to create a queue pair
//! that requests more, or grants less than the request. So it is found by trying.

use std::sync::OnceLock;

use ferrofabric_contracts::error::Result;

/// Steps of the search for the limit of endpoints, in bytes.
const STEP_BYTES: u32 = 4;

/// As [`find_inline_limit`], unless `known` has the limit already.
///
/// # Errors
///
/// As [`find_inline_limit`].
pub(crate) fn inline_limit(
    known: &OnceLock<InlineLimit>,
    wanted: u32,
    create: impl FnMut(u32) -> Result<u32>,
) -> Result<InlineLimit> {
    if let Some(limit) = known.get() {
        return Ok(*limit);
    }
    let found = find_inline_limit(wanted, STEP_BYTES, create)?;
    Ok(*known.get_or_init(|| found))
}

/// Finds the largest request for inline data, up to `wanted` bytes and to the step, with which
/// `create` succeeds. `create` makes an object and drops it again, and returns the granted bytes.
///
/// Returns the request and the bytes of it that may be used: a device may grant less than the
/// request.
///
/// # Errors
///
/// When `create` fails without inline data, too.
pub(crate) fn find_inline_limit(
    wanted: u32,
    step: u32,
    mut create: impl FnMut(u32) -> Result<u32>,
) -> Result<InlineLimit> {
    let limit = |request: u32, granted: u32| InlineLimit {
        request,
        usable: granted.min(wanted),
    };
    if let Ok(granted) = create(wanted) {
        return Ok(limit(wanted, granted));
    }
    let mut best = limit(0, create(0)?);
    // `best` succeeds, and `refused` does not.
    let mut refused = wanted;
    while refused - best.request > step {
        let middle = (best.request + (refused - best.request) / 2).next_multiple_of(step);
        let middle = middle.min(refused - 1);
        match create(middle) {
            Ok(granted) => best = limit(middle, granted),
            Err(_) => refused = middle,
        }
    }
    Ok(best)
}

/// An inline limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InlineLimit {
    /// The request at creation, in bytes.
    pub(crate) request: u32,
    /// The longest data that the device takes inline, in bytes.
    pub(crate) usable: u32,
}

impl InlineLimit {
    /// No inline data.
    pub(crate) const NONE: Self = Self {
        request: 0,
        usable: 0,
    };
}

#[cfg(test)]
mod tests {
    use ferrofabric_contracts::error::{Errno, Error};
    use proptest::prelude::*;

    use super::*;

    fn refused() -> Error {
        Error::new(Errno::EINVAL, "create", "queue pair")
    }

    /// A device that takes up to `most` bytes, and grants `granted` of a request.
    fn search(wanted: u32, most: u32, granted: impl Fn(u32) -> u32) -> InlineLimit {
        let create = |requested| match requested <= most {
            true => Ok(granted(requested)),
            false => Err(refused()),
        };
        find_inline_limit(wanted, STEP_BYTES, create).unwrap()
    }

    #[test]
    fn limits_of_known_drivers() {
        let usable = |most, granted: fn(u32) -> u32| search(220, most, granted).usable;
        assert_eq!(
            usable(1023, |requested| (requested + 4).next_multiple_of(64) - 4),
            220
        );
        assert_eq!(usable(96, |_| 96), 96);
        assert_eq!(usable(101, |requested| requested), 100);
        assert_eq!(usable(u32::MAX, |requested| requested.min(32)), 32);
        assert_eq!(usable(0, |_| 0), 0);
    }

    #[test]
    fn the_reason_is_that_of_a_creation_without_inline_data() {
        let create = |requested| match requested {
            0 => Err(Error::new(Errno::ENOMEM, "create", "queue pair")),
            _ => Err(refused()),
        };
        assert_eq!(
            find_inline_limit(220, STEP_BYTES, create)
                .unwrap_err()
                .errno(),
            Errno::ENOMEM
        );
    }

    proptest! {
        #[test]
        fn it_is_found_to_the_step(wanted in 0..2048u32, most in 0..2048u32) {
            let found = search(wanted, most, |requested| requested);
            prop_assert!(found.request <= most.min(wanted));
            prop_assert!(found.usable + STEP_BYTES >= most.min(wanted));
        }

        #[test]
        fn in_steps_of_a_byte_it_is_exact(wanted in 0..2048u32, most in 0..2048u32) {
            let create = |requested| match requested <= most {
                true => Ok(requested),
                false => Err(refused()),
            };
            let found = find_inline_limit(wanted, 1, create).unwrap();
            prop_assert_eq!(found.request, most.min(wanted));
        }
    }
}
