//! Reading another process's memory (`process_vm_readv`): one copy in place of two, where the
//! kernel permits it.
//!
//! The kernel fetches missing pages while the reader waits, and only a deadly signal ends that
//! wait: if a page never comes, the reader never returns. So a read covers present pages alone
//! ([`pages`](self::pages)).

mod pages;

use std::time::{Duration, Instant};

use ferrofabric_contracts::types::IoBuf;
use nix::errno::Errno as Sys;

use self::pages::PresentPages;

/// Bytes that prove that a process is still the one of the handshake.
pub(crate) type Cookie = [u8; 16];

/// A process whose memory this process may read, as far as is known.
#[derive(Debug)]
pub(crate) struct CmaPeer {
    pid: libc::pid_t,
    cookie_addr: u64,
    cookie: Cookie,
    /// When the cookie was last found in the process's memory.
    proven: Option<Instant>,
    /// The present pages of the process; `None` before the first read.
    pages: Option<Box<PresentPages>>,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// All bytes were copied.
    Complete,
    /// These bytes can not be read, or not now. Other bytes may be readable.
    Missing,
    /// The process can not be read, or is not the peer any more.
    Refused,
}

/// How long a process counts as the peer after its cookie was read. Its process ID could pass to
/// another process only if, in that time, the peer ended and all other process IDs were given out.
const PROOF_LASTS: Duration = Duration::from_millis(1);

impl CmaPeer {
    /// Reads the cookie that a peer named in its handshake. `None` if the process can not be read:
    /// another PID namespace, a process that can not be traced, or a security policy. If the cookie
    /// is not in memory just now, the first read is the proof.
    pub(crate) fn probe(pid: libc::pid_t, cookie_addr: u64, cookie: Cookie) -> Option<Self> {
        let mut peer = Self {
            pid,
            cookie_addr,
            cookie,
            proven: None,
            pages: None,
        };
        (pid > 0 && cookie_addr != 0).then_some(())?;
        // SAFETY: nothing is written but the cookie.
        let read = unsafe { peer.read(0, IoBuf::EMPTY, Instant::now()) };
        // Most links never read, so the file of pages is opened at the first read only.
        peer.pages = None;
        (read != Read::Refused).then_some(peer)
    }

    /// Copies `into.len` bytes from the peer's address. The read fails if a page is missing there,
    /// or if the process is not the peer any more, since a process ID may be used again. If the
    /// last proof is too old, the same call reads the cookie; that takes a third of a microsecond.
    ///
    /// # Safety
    ///
    /// `into` is valid for writes.
    pub(crate) unsafe fn read(&mut self, addr: u64, into: IoBuf, now: Instant) -> Read {
        let proves = self
            .proven
            .is_none_or(|at| now.saturating_duration_since(at) >= PROOF_LASTS);
        let pages = match &mut self.pages {
            Some(pages) => pages,
            none => match PresentPages::of(self.pid) {
                Ok(pages) => none.insert(Box::new(pages)),
                // Out of descriptors or memory: a later read may succeed.
                Err(Sys::EMFILE | Sys::ENFILE | Sys::ENOMEM) => return Read::Missing,
                Err(_) => return Read::Refused,
            },
        };
        let there = pages.are_present(addr, into.len, now)
            && (!proves || pages.are_present(self.cookie_addr, self.cookie.len(), now));
        match there {
            // SAFETY: the caller's contract.
            true => unsafe { self.copy(addr, into, proves.then_some(now)) },
            false => Read::Missing,
        }
    }

    /// Copies bytes, and the cookie if it is `proven` with this.
    ///
    /// # Safety
    ///
    /// As for [`Self::read`].
    unsafe fn copy(&mut self, addr: u64, into: IoBuf, proven: Option<Instant>) -> Read {
        let mut seen: Cookie = [0; 16];
        let part = |addr: usize, len| libc::iovec {
            iov_base: addr as *mut libc::c_void,
            iov_len: len,
        };
        let local = [
            part(into.addr, into.len),
            part(seen.as_mut_ptr() as usize, seen.len()),
        ];
        let remote = [
            part(addr as usize, into.len),
            part(self.cookie_addr as usize, seen.len()),
        ];
        let first = usize::from(into.len == 0);
        let end = 1 + usize::from(proven.is_some());
        // SAFETY: the local parts are valid for writes (the caller's contract, and `seen`); the
        // kernel checks the remote ones.
        let n = unsafe {
            libc::process_vm_readv(
                self.pid,
                local[first..end].as_ptr(),
                (end - first) as u64,
                remote[first..end].as_ptr(),
                (end - first) as u64,
                0,
            )
        };
        if n < 0 {
            return match Sys::last() {
                Sys::EFAULT | Sys::ENOMEM | Sys::EINTR | Sys::EAGAIN => Read::Missing,
                _ => Read::Refused,
            };
        }
        if n < into.len as isize {
            return Read::Missing;
        }
        if proven.is_some() {
            // The kernel wrote to it behind the compiler's back.
            let seen = std::hint::black_box(seen);
            let is_proven = n == (into.len + seen.len()) as isize && seen == self.cookie;
            self.proven = proven.filter(|_| is_proven);
            if !is_proven {
                return Read::Refused;
            }
        }
        Read::Complete
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::missing_pages::MissingPages;

    #[test]
    fn a_reused_process_id_is_detected() {
        let cookie = Box::new([7u8; 16]);
        let pid = std::process::id() as i32;
        let at = cookie.as_ptr() as u64;
        let mut peer = CmaPeer::probe(pid, at, *cookie).unwrap();
        let later = Instant::now() + PROOF_LASTS;
        assert!(CmaPeer::probe(pid, at, [8; 16]).is_none());
        assert!(CmaPeer::probe(0, at, *cookie).is_none());

        let data: Vec<u8> = (0..100).collect();
        let mut out = vec![0u8; 100];
        let into = IoBuf::new(out.as_mut_ptr(), out.len());
        // SAFETY: `out` has as many bytes.
        let reads = |peer: &mut CmaPeer, addr, now| unsafe { peer.read(addr, into, now) };
        let there = data.as_ptr() as u64;
        assert_eq!(reads(&mut peer, there, later), Read::Complete);
        assert_eq!(out, data);
        assert_eq!(reads(&mut peer, 1, later), Read::Missing);
        assert_eq!(reads(&mut peer, u64::MAX - 5, later), Read::Missing);

        // Another process has the ID now.
        peer.cookie = [8; 16];
        assert_eq!(
            reads(&mut peer, there, later),
            Read::Complete,
            "the proof still lasts"
        );
        assert_eq!(
            reads(&mut peer, there, later + PROOF_LASTS),
            Read::Refused,
            "the proof is too old"
        );
        assert_eq!(
            reads(&mut peer, there, later),
            Read::Refused,
            "the process has failed to prove itself"
        );
    }

    /// A cookie that is not in memory now proves nothing, and does not count against the peer.
    #[test]
    fn a_cookie_that_is_not_there_is_neither_read_nor_taken_for_proof() {
        let Some(never) = MissingPages::map(4096) else {
            return;
        };
        let pid = std::process::id() as i32;
        let mut peer = CmaPeer::probe(pid, never.addr(), [0; 16]).unwrap();
        let (data, mut out) = ([7u8; 8], [0u8; 8]);
        let into = IoBuf::new(out.as_mut_ptr(), out.len());
        // SAFETY: `out` has as many bytes.
        let read = unsafe { peer.read(data.as_ptr() as u64, into, Instant::now()) };
        assert_eq!((read, out), (Read::Missing, [0; 8]));
    }
}
