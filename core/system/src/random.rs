//! Numbers that nobody can guess, from the kernel.
//!
//! The C library's function is called by its name, which the plugin replaces by one at which no
//! thread is cancelled. A crate that looks the function up at run time would call the original.

use std::io;

use ferrofabric_contracts::error::{Error, Result};

/// Fills `bytes`, of which there are 256 at most.
///
/// # Errors
///
/// If the kernel has no random numbers to give.
pub fn fill(bytes: &mut [u8]) -> Result<()> {
    // SAFETY: the buffer is ours, with its length. (Short requests are answered whole or not at
    // all.)
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match n == bytes.len() as isize {
        true => Ok(()),
        false => Err(Error::from_io(
            &io::Error::last_os_error(),
            "draw",
            "random bytes",
        )),
    }
}

/// A number that nobody can guess.
///
/// # Errors
///
/// As [`fill`].
pub fn number() -> Result<u64> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_differ() {
        let numbers = [(); 4].map(|()| super::number().expect("a number"));
        for (at, number) in numbers.iter().enumerate() {
            assert!(!numbers[..at].contains(number), "{numbers:?}");
        }
    }
}
