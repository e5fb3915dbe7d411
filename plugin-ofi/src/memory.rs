//! Memory that C describes: lists of buffers, strings, keys, addresses to be copied out.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, PoisonError};

use ferrofabric_contracts::addr::AUTH_KEY_LEN;
use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::types::IoBuf;
use libc::iovec;

use crate::guard::Refused;

// One is used as the other.
const _: () = {
    assert!(size_of::<iovec>() == size_of::<IoBuf>());
    assert!(std::mem::offset_of!(iovec, iov_base) == std::mem::offset_of!(IoBuf, addr));
    assert!(std::mem::offset_of!(iovec, iov_len) == std::mem::offset_of!(IoBuf, len));
};

/// Entries of a list that are looked at. No endpoint takes as many (`iov_limit`), so that a longer
/// list is refused for its length.
pub(crate) const LISTED: usize = 16;

/// A list of buffers as ours, or the beginning of one that is too long for any endpoint.
///
/// # Safety
///
/// The list has that many entries while the result is used.
#[inline]
pub(crate) unsafe fn buffers<'a>(iov: *const iovec, count: usize) -> &'a [IoBuf] {
    if count == 0 || iov.is_null() {
        return &[];
    }
    // SAFETY: both look alike, which is checked above; an address is any number to us.
    unsafe { std::slice::from_raw_parts(iov.cast(), count.min(LISTED)) }
}

/// The descriptor of a list: that of all its buffers, none where they differ.
///
/// # Safety
///
/// `desc` has an entry for each buffer, or is NULL. A list that is too long is refused, whatever
/// this says of it.
#[inline]
pub(crate) unsafe fn common(desc: *mut *mut c_void, count: usize) -> *mut c_void {
    if desc.is_null() || count == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: as the caller says.
    let all = unsafe { std::slice::from_raw_parts(desc, count.min(LISTED)) };
    match all.iter().all(|one| *one == all[0]) {
        true => all[0],
        false => std::ptr::null_mut(),
    }
}

/// The text of a string; `None` for NULL.
///
/// # Safety
///
/// It ends with a 0, and stays while the result is used.
pub(crate) unsafe fn text<'a>(string: *const c_char) -> Option<std::borrow::Cow<'a, str>> {
    // SAFETY: as the caller says.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_string_lossy())
}

/// An authorization key.
///
/// # Safety
///
/// It has that many bytes, or is NULL.
///
/// # Errors
///
/// `EINVAL`: no key has that many, or there is none.
pub(crate) unsafe fn key_bytes(
    key: *const c_void,
    size: usize,
) -> Result<[u8; AUTH_KEY_LEN], Refused> {
    if key.is_null() || size != AUTH_KEY_LEN {
        let object = format!("authorization key of {size} bytes");
        return Err(Error::new(Errno::EINVAL, "read", object)
            .mend(format!("one has {AUTH_KEY_LEN}: P_Key, 0, Q_Key"))
            .into());
    }
    // SAFETY: as the caller says.
    Ok(unsafe { key.cast::<[u8; AUTH_KEY_LEN]>().read_unaligned() })
}

/// Copies as much of an address as there is room for, and says how long it is.
///
/// # Safety
///
/// `len` holds the room at `to` in bytes.
///
/// # Errors
///
/// `ETOOSMALL` where not all of it fits.
pub(crate) unsafe fn copy_address(
    bytes: &[u8],
    to: *mut c_void,
    len: *mut usize,
) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    let Some(len) = (unsafe { len.as_mut() }) else {
        return Err(Errno::EINVAL);
    };
    let room = match to.is_null() {
        true => 0,
        false => *len,
    };
    let fit = room.min(bytes.len());
    // SAFETY: there is room for that many bytes.
    unsafe { to.cast::<u8>().copy_from(bytes.as_ptr(), fit) };
    *len = bytes.len();
    match fit == bytes.len() {
        true => Ok(()),
        false => Err(Errno::ETOOSMALL),
    }
}

/// As [`copy_address`], but an address that does not fit is truncated without an error: the caller
/// sees it by the length (fi_av(3)).
///
/// # Safety
///
/// As there.
pub(crate) unsafe fn copy_cut(bytes: &[u8], to: *mut c_void, len: *mut usize) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    match unsafe { copy_address(bytes, to, len) } {
        Err(Errno::ETOOSMALL) => Ok(()),
        copied => copied,
    }
}

/// The data of the error that was read last, which C may still look at.
#[derive(Default)]
pub(crate) struct ErrorData(Mutex<Vec<u8>>);

impl ErrorData {
    /// Gives C the data of an error. They are copied to where `at` leads, as much as there is room
    /// for, or nothing where `is_whole` says that a part is of no use. Without room they stay in
    /// memory of ours until the next error is read. Returns how many bytes C has.
    ///
    /// # Safety
    ///
    /// `at` may be read and written, and leads to as much room, or to none.
    pub(crate) unsafe fn give(
        &self,
        data: Vec<u8>,
        is_whole: bool,
        at: *mut *mut c_void,
        room: usize,
    ) -> usize {
        if room == 0 {
            let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *last = data;
            let kept = match last.is_empty() {
                true => std::ptr::null_mut(),
                false => last.as_mut_ptr().cast(),
            };
            // SAFETY: as the caller says.
            unsafe { at.write(kept) };
            return last.len();
        }
        // SAFETY: as the caller says.
        let to = unsafe { at.read() };
        let fit = match data.len() {
            _ if to.is_null() => 0,
            len if len > room && is_whole => 0,
            len => len.min(room),
        };
        // SAFETY: there is room for that many bytes.
        unsafe { to.cast::<u8>().copy_from(data.as_ptr(), fit) };
        fit
    }
}

/// Copies text as a string, cut to the room there is.
///
/// # Safety
///
/// There is room for `len` bytes at `to`.
pub(crate) unsafe fn copy_text(text: &str, to: *mut c_char, len: usize) {
    let Some(fit) = len.checked_sub(1) else {
        return;
    };
    let fit = fit.min(text.len());
    // SAFETY: as the caller says.
    unsafe {
        to.cast::<u8>().copy_from(text.as_ptr(), fit);
        to.add(fit).write(0);
    }
}

/// Words for C: copied where there is room, else as they are.
///
/// # Safety
///
/// There is room for `len` bytes at `buf`, or that is NULL.
pub(crate) unsafe fn say(words: &'static CStr, buf: *mut c_char, len: usize) -> *const c_char {
    if buf.is_null() || len == 0 {
        return words.as_ptr();
    }
    // SAFETY: the caller's promise.
    unsafe { copy_text(&words.to_string_lossy(), buf, len) };
    buf
}

/// Checks that a structure of the caller's has all of the expected one: it may be longer.
///
/// # Errors
///
/// `EINVAL`: there is none, or it is shorter.
///
/// # Safety
///
/// `given` is NULL, or a structure that begins with its size.
pub(crate) unsafe fn check_size<T>(given: *const T) -> Result<(), Errno> {
    if given.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as the caller says.
    let size = unsafe { given.cast::<usize>().read() };
    match size >= size_of::<T>() {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_cut_to_the_room_and_say_their_length() {
        let mut room = [0u8; 4];
        let mut len = 4;
        // SAFETY: the room is as long as `len` says.
        let copied = unsafe { copy_address(b"abcdef", room.as_mut_ptr().cast(), &mut len) };
        assert_eq!((copied, len, &room), (Err(Errno::ETOOSMALL), 6, b"abcd"));
        len = 0;
        // SAFETY: no room.
        let copied = unsafe { copy_address(b"abc", std::ptr::null_mut(), &mut len) };
        assert_eq!((copied, len), (Err(Errno::ETOOSMALL), 3));
        len = 4;
        // SAFETY: as above.
        let copied = unsafe { copy_address(b"xy", room.as_mut_ptr().cast(), &mut len) };
        assert_eq!((copied, len, &room), (Ok(()), 2, b"xycd"));
    }

    #[test]
    fn error_data_go_to_the_room_there_is_or_stay_with_us() {
        let kept = ErrorData::default();
        let mut room = [0u8; 4];
        let mut at: *mut c_void = room.as_mut_ptr().cast();
        // SAFETY: `at` leads to 4 bytes.
        let give = |data: &[u8], is_whole, at: &mut *mut c_void, room| unsafe {
            kept.give(data.to_vec(), is_whole, at, room)
        };
        assert_eq!(give(b"abcdef", true, &mut at, 4), 0);
        assert_eq!(give(b"abcdef", false, &mut at, 4), 4);
        assert_eq!(give(b"xy", true, &mut at, 4), 2);
        assert_eq!(&room, b"xycd");
        assert_eq!(give(b"abcdef", false, &mut std::ptr::null_mut(), 4), 0);
        assert_eq!(give(b"abcdef", false, &mut at, 0), 6);
        // SAFETY: they stay until the next.
        assert_eq!(unsafe { at.cast::<[u8; 6]>().read() }, *b"abcdef");
        assert_eq!(give(b"", false, &mut at, 0), 0);
        assert!(at.is_null());
    }

    #[test]
    fn text_ends_with_a_zero_whatever_the_room() {
        let mut room = [1 as c_char; 4];
        // SAFETY: the room is 4 long.
        unsafe { copy_text("abcdef", room.as_mut_ptr(), 4) };
        // SAFETY: it ends with a 0.
        assert_eq!(unsafe { text(room.as_ptr()) }.as_deref(), Some("abc"));
        // SAFETY: no room is used.
        unsafe { copy_text("abc", std::ptr::null_mut(), 0) };
        // SAFETY: NULL is no string.
        assert_eq!(unsafe { text(std::ptr::null()) }, None);
    }
}
