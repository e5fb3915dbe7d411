//! Copies out of another process's memory and into it (`process_vm_readv`, `process_vm_writev`):
//! one copy in place of two, where the kernel permits it.
//!
//! The kernel fetches missing pages while the caller waits, and only a deadly signal ends that
//! wait: if a page never comes, the caller never returns. So a copy covers present pages alone
//! ([`pages`](self::pages)).

mod pages;

use std::time::{Duration, Instant};

use ferrofabric_contracts::types::{IoBuf, total_len};
use nix::errno::Errno as Sys;

use self::pages::{PageUse, PresentPages};

/// Bytes that prove that a process is still the one of the handshake.
pub(crate) type Cookie = [u8; 16];

/// A process whose memory this process may read and write, as far as is known.
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

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyOutcome {
    /// All bytes were copied.
    Complete,
    /// These bytes can not be copied, or not now; some may have been. Others may be copied.
    Missing,
    /// The process can not be reached, or is not the peer any more.
    Refused,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyWay {
    /// Out of the peer's memory.
    Read,
    /// Into the peer's memory.
    Write,
}

/// Most buffers of one copy.
const BUFFERS: usize = 16;

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
        (read != CopyOutcome::Refused).then_some(peer)
    }

    /// Copies `into.len` bytes from the peer's address. The read fails if a page is missing there,
    /// or if the process is not the peer any more, since a process ID may be used again. If the
    /// last proof is too old, the same call reads the cookie; that takes a third of a microsecond.
    ///
    /// # Safety
    ///
    /// `into` is valid for writes.
    pub(crate) unsafe fn read(&mut self, addr: u64, into: IoBuf, now: Instant) -> CopyOutcome {
        let proves = !self.is_proven(now);
        let (cookie_addr, cookie_len) = (self.cookie_addr, self.cookie.len());
        let pages = match self.pages() {
            Ok(pages) => pages,
            Err(why) => return why,
        };
        let there = pages.are_present(PageUse::Read, addr, into.len, now)
            && (!proves || pages.are_present(PageUse::Read, cookie_addr, cookie_len, now));
        match there {
            // SAFETY: the caller's contract.
            true => unsafe { self.copy(addr, into, proves.then_some(now)) },
            false => CopyOutcome::Missing,
        }
    }

    /// Copies between the peer's memory from `addr` on and all bytes of `buffers`. Nothing is
    /// written to a process before it has proven to be the peer.
    ///
    /// # Safety
    ///
    /// The buffers are valid: for writes if the peer's memory is read, else for reads.
    pub(crate) unsafe fn copy_list(
        &mut self,
        way: CopyWay,
        addr: u64,
        buffers: &[IoBuf],
        now: Instant,
    ) -> CopyOutcome {
        if !self.is_proven(now) {
            // SAFETY: nothing is written but the cookie.
            match unsafe { self.read(0, IoBuf::EMPTY, now) } {
                CopyOutcome::Complete => {}
                failed => return failed,
            }
        }
        let len = total_len(buffers);
        let (call, of): (VmCall, _) = match way {
            CopyWay::Read => (libc::process_vm_readv, PageUse::Read),
            CopyWay::Write => (libc::process_vm_writev, PageUse::Write),
        };
        let there = match self.pages() {
            Ok(pages) => pages.are_present(of, addr, len, now),
            Err(why) => return why,
        };
        if !there || buffers.len() > BUFFERS {
            return CopyOutcome::Missing;
        }
        if len == 0 {
            return CopyOutcome::Complete;
        }
        let mut local = [iovec(0, 0); BUFFERS];
        for (local, buffer) in local.iter_mut().zip(buffers) {
            *local = iovec(buffer.addr, buffer.len);
        }
        let remote = iovec(addr as usize, len);
        // SAFETY: the local parts are the caller's contract; the kernel checks the remote one.
        let n = unsafe {
            call(
                self.pid,
                local.as_ptr(),
                buffers.len() as u64,
                &raw const remote,
                1,
                0,
            )
        };
        match n {
            n if n == len as isize => CopyOutcome::Complete,
            n if n >= 0 => CopyOutcome::Missing,
            _ => CopyOutcome::of_error(),
        }
    }

    /// Whether the process has proven to be the peer a moment ago.
    fn is_proven(&self, now: Instant) -> bool {
        self.proven
            .is_some_and(|at| now.saturating_duration_since(at) < PROOF_LASTS)
    }

    /// The pages of the process; `Err`: the result of a copy without them.
    fn pages(&mut self) -> Result<&mut PresentPages, CopyOutcome> {
        match &mut self.pages {
            Some(pages) => Ok(pages),
            none => match PresentPages::of(self.pid) {
                Ok(pages) => Ok(none.insert(Box::new(pages))),
                // Out of descriptors or memory: a later copy may succeed.
                Err(Sys::EMFILE | Sys::ENFILE | Sys::ENOMEM) => Err(CopyOutcome::Missing),
                Err(_) => Err(CopyOutcome::Refused),
            },
        }
    }

    /// Copies bytes, and the cookie if it is `proven` with this.
    ///
    /// # Safety
    ///
    /// As for [`Self::read`].
    unsafe fn copy(&mut self, addr: u64, into: IoBuf, proven: Option<Instant>) -> CopyOutcome {
        let mut seen: Cookie = [0; 16];
        let local = [
            iovec(into.addr, into.len),
            iovec(seen.as_mut_ptr() as usize, seen.len()),
        ];
        let remote = [
            iovec(addr as usize, into.len),
            iovec(self.cookie_addr as usize, seen.len()),
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
            return CopyOutcome::of_error();
        }
        if n < into.len as isize {
            return CopyOutcome::Missing;
        }
        if proven.is_some() {
            // The kernel wrote to it behind the compiler's back.
            let seen = std::hint::black_box(seen);
            let is_proven = n == (into.len + seen.len()) as isize && seen == self.cookie;
            self.proven = proven.filter(|_| is_proven);
            if !is_proven {
                return CopyOutcome::Refused;
            }
        }
        CopyOutcome::Complete
    }
}

impl CopyOutcome {
    /// The result of a call that has just failed.
    fn of_error() -> Self {
        match Sys::last() {
            Sys::EFAULT | Sys::ENOMEM | Sys::EINTR | Sys::EAGAIN => Self::Missing,
            _ => Self::Refused,
        }
    }
}

/// `process_vm_readv` or `process_vm_writev`.
type VmCall = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

fn iovec(addr: usize, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: addr as *mut libc::c_void,
        iov_len: len,
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
        assert_eq!(reads(&mut peer, there, later), CopyOutcome::Complete);
        assert_eq!(out, data);
        assert_eq!(reads(&mut peer, 1, later), CopyOutcome::Missing);
        assert_eq!(reads(&mut peer, u64::MAX - 5, later), CopyOutcome::Missing);

        // Another process has the ID now.
        peer.cookie = [8; 16];
        assert_eq!(
            reads(&mut peer, there, later),
            CopyOutcome::Complete,
            "the proof still lasts"
        );
        assert_eq!(
            reads(&mut peer, there, later + PROOF_LASTS),
            CopyOutcome::Refused,
            "the proof is too old"
        );
        assert_eq!(
            reads(&mut peer, there, later),
            CopyOutcome::Refused,
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
        assert_eq!((read, out), (CopyOutcome::Missing, [0; 8]));
    }
}
