//! Reading another process's memory (`process_vm_readv`): one copy in place of two, where the kernel lets us.

use std::time::{Duration, Instant};

use ferrofabric_core::types::IoBuf;

/// Bytes that prove that a process is still the one that we met.
pub(crate) type Cookie = [u8; 16];

/// A process whose memory could be read when we met.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CmaPeer {
    pid: libc::pid_t,
    cookie_addr: u64,
    cookie: Cookie,
    /// When the cookie was last found in the process's memory.
    proven: Option<Instant>,
}

/// How long a process counts as the peer after its cookie was read. Its process ID could pass to another process only
/// if, in that time, the peer ended and all other process IDs were given out.
const PROOF_LASTS: Duration = Duration::from_millis(1);

impl CmaPeer {
    /// Reads the cookie that a peer named in its handshake; `None` when that does not work, for whatever reason: another
    /// PID namespace, a process that can not be traced, a security policy.
    pub(crate) fn probe(pid: libc::pid_t, cookie_addr: u64, cookie: Cookie) -> Option<Self> {
        let mut peer = Self {
            pid,
            cookie_addr,
            cookie,
            proven: None,
        };
        (pid > 0 && cookie_addr != 0).then_some(())?;
        // SAFETY: nothing is written but the cookie.
        unsafe { peer.read(0, IoBuf::EMPTY, Instant::now()) }.then_some(peer)
    }

    /// Copies `into.len` bytes from the peer's address. False when not all came, or when the process is not the peer
    /// any more, for a process ID may be used again. The cookie is read along when the last proof is too old; reading
    /// it takes a third of a microsecond.
    ///
    /// # Safety
    ///
    /// `into` is valid for writes.
    pub(crate) unsafe fn read(&mut self, addr: u64, into: IoBuf, now: Instant) -> bool {
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
        let proves = self
            .proven
            .is_none_or(|at| now.saturating_duration_since(at) >= PROOF_LASTS);
        let first = usize::from(into.len == 0);
        let end = 1 + usize::from(proves);
        // SAFETY: the local parts are valid for writes (the caller's promise, and `seen`); the kernel checks the remote ones.
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
        if !proves {
            return n == into.len as isize;
        }
        // The kernel wrote to it behind the compiler's back.
        let seen = std::hint::black_box(seen);
        let is_proven = n == (into.len + seen.len()) as isize && seen == self.cookie;
        self.proven = is_proven.then_some(now);
        is_proven
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_at_that_id_is_told_from_the_peer() {
        let cookie = Box::new([7u8; 16]);
        let pid = std::process::id() as i32;
        let at = cookie.as_ptr() as u64;
        let mut peer = CmaPeer::probe(pid, at, *cookie).unwrap();
        let later = Instant::now() + PROOF_LASTS;
        assert!(CmaPeer::probe(pid, at, [8; 16]).is_none());
        assert!(CmaPeer::probe(0, at, *cookie).is_none());
        assert!(CmaPeer::probe(pid, 1, *cookie).is_none());

        let data: Vec<u8> = (0..100).collect();
        let mut out = vec![0u8; 100];
        let into = IoBuf::new(out.as_mut_ptr(), out.len());
        // SAFETY: `out` has as many bytes.
        assert!(unsafe { peer.read(data.as_ptr() as u64, into, later) });
        assert_eq!(out, data);
        // SAFETY: as above.
        assert!(!unsafe { peer.read(1, into, later) });

        // Another process has the ID now.
        peer.cookie = [8; 16];
        // SAFETY: as above.
        let reads = |peer: &mut CmaPeer, now| unsafe { peer.read(data.as_ptr() as u64, into, now) };
        assert!(reads(&mut peer, later), "the proof still lasts");
        assert!(
            !reads(&mut peer, later + PROOF_LASTS),
            "the proof is too old"
        );
        assert!(
            !reads(&mut peer, later),
            "the process has failed to prove itself"
        );
    }
}
