//! Numbers for the reasons of errors (`prov_errno`), and the words of a number (`fi_cq_strerror`,
//! `fi_eq_strerror`).
//!
//! fi_cq_strerror(3) gets nothing but the number, from any thread, and what it returns is never
//! given back. So each reason has a number of its own in the process, and words that stay for ever.
//! There are as many reasons as this project's sources have.
//!
//! A number has the reason in its upper bits; the lowest [`STATUS_BITS`] are the transport's own
//! number for the error, a work completion status, 0 for none.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::sync::{Mutex, PoisonError};

use ferrofabric_contracts::error::Errno;

/// Bits of the transport's own number.
const STATUS_BITS: u32 = 8;
const STATUSES: c_int = (1 << STATUS_BITS) - 1;

/// libfabric's own error numbers begin at 256, so that the lowest reason leaves them free.
const FIRST: usize = 2;
const ERRNOS: c_int = ((FIRST as c_int) << STATUS_BITS) - 1;

/// The reasons so far. A reason's number is its place, from [`FIRST`].
static REASONS: Mutex<Vec<Reason>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Reason {
    why: &'static str,
    words: &'static CStr,
}

/// The number for a reason.
pub(crate) fn number_of(why: &'static str, status: i32) -> c_int {
    let mut reasons = REASONS.lock().unwrap_or_else(PoisonError::into_inner);
    let at = match reasons.iter().position(|known| known.why == why) {
        Some(at) => at,
        None => {
            let text = why.split('\0').next().unwrap_or_default();
            let words = CString::new(text).unwrap_or_default();
            reasons.push(Reason {
                why,
                words: Box::leak(words.into_boxed_c_str()),
            });
            reasons.len() - 1
        }
    };
    let number = c_int::try_from(at + FIRST).unwrap_or(0);
    (number << STATUS_BITS) | (status & STATUSES)
}

/// The words of a number: a reason's; of others those of the error number that it may be.
pub(crate) fn words_of(number: c_int) -> &'static CStr {
    let known = usize::try_from(number >> STATUS_BITS).ok();
    if let Some(at) = known.and_then(|known| known.checked_sub(FIRST)) {
        let reasons = REASONS.lock().unwrap_or_else(PoisonError::into_inner);
        return reasons
            .get(at)
            .map_or(c"unknown error", |known| known.words);
    }
    match number {
        0 => c"no further reason is known",
        1..=ERRNOS => words_of_errno(Errno(number)),
        _ => c"unknown error",
    }
}

/// The words of an error number. They are made once.
fn words_of_errno(errno: Errno) -> &'static CStr {
    static WORDS: Mutex<[Option<&'static CStr>; ERRNOS as usize + 1]> =
        Mutex::new([None; ERRNOS as usize + 1]);
    let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    let place = usize::try_from(errno.0)
        .ok()
        .and_then(|at| words.get_mut(at));
    let Some(place) = place else {
        return c"unknown error";
    };
    place.get_or_insert_with(|| {
        let text: Cow<'_, str> = errno.message().into();
        Box::leak(CString::new(&*text).unwrap_or_default().into_boxed_c_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 19 f: the words are those of the number that is passed, and stay.
    #[test]
    fn each_reason_has_its_number_and_words() {
        let (one, other) = (number_of("of the one", 5), number_of("of the other", 0));
        let words = words_of(one);
        assert_eq!(words, c"of the one");
        assert_eq!(words_of(other), c"of the other");
        assert_eq!((one & STATUSES, other & STATUSES), (5, 0));
        assert_eq!(one, number_of("of the one", 5));
        assert_eq!(words, c"of the one");
        assert!(std::ptr::eq(words, words_of(one)));
    }

    #[test]
    fn every_number_has_words() {
        for number in (-300..300).chain([c_int::MIN, c_int::MAX]) {
            assert!(!words_of(number).is_empty(), "{number}");
        }
        number_of("a reason", 0);
        for errno in [Errno::EINVAL, Errno::EBADFLAGS, Errno::ETRUNC] {
            assert_eq!(words_of(errno.0).to_str().unwrap(), errno.message());
        }
    }
}
