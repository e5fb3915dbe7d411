//! Copies out of another process's memory and into it: one copy in place of two, where the kernel
//! permits it. Short ones use the [memory](self::memory) of the process as a file, long ones
//! `process_vm_readv` and `process_vm_writev`.
//!
//! Those two fetch missing pages while the caller waits, and only a deadly signal ends that wait:
//! if a page never comes, the caller never returns. So a copy covers present pages only
//! ([`pages`](self::pages)). `docs/adr/0088` says which waits are left.

mod memory;
mod pages;

use std::time::{Duration, Instant};

use ferrofabric_contracts::types::{IoBuf, total_len};
use nix::errno::Errno as Sys;

use self::memory::ProcessMemory;
use self::pages::{PageUse, PresentPages};

/// Bytes that prove that a process is still the one of the handshake.
pub(crate) type Cookie = [u8; 16];

/// A process whose memory this process may read and write, as far as is known.
#[derive(Debug)]
pub(crate) struct CmaPeer {
    pid: libc::pid_t,
    cookie_addr: u64,
    cookie: Cookie,
    /// When the cookie was last found in the memory of the process with that ID.
    proven: Option<Instant>,
    /// `None` before the first copy.
    space: Option<Box<AddressSpace>>,
}

/// The address space of a process, by files of the kernel: those of another one never take their
/// place.
#[derive(Debug)]
struct AddressSpace {
    pages: PresentPages,
    /// It had the cookie. `None`: a security policy forbids the file.
    memory: Option<ProcessMemory>,
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
            space: None,
        };
        (pid > 0 && cookie_addr != 0).then_some(())?;
        let now = Instant::now();
        let found = match peer.space(now) {
            Ok(AddressSpace { memory: None, .. }) => peer.prove(now),
            Ok(_) => CopyOutcome::Complete,
            Err(why) => why,
        };
        // Most links never read, so the files are opened at the first copy only.
        peer.space = None;
        (found != CopyOutcome::Refused).then_some(peer)
    }

    /// Copies `into.len` bytes from the peer's address. The read fails if a page is missing there,
    /// or if the process is not the peer any more, since a process ID may be used again. If the
    /// last proof is too old for a long read, the same call reads the cookie; that takes a third of
    /// a microsecond.
    ///
    /// # Safety
    ///
    /// `into` is valid for writes.
    pub(crate) unsafe fn read(&mut self, addr: u64, into: IoBuf, now: Instant) -> CopyOutcome {
        // SAFETY: the caller's contract.
        if let Some(copied) = unsafe { self.copy_short(CopyWay::Read, addr, &[into], now) } {
            return copied;
        }
        let proves = !self.is_proven(now);
        let (cookie_addr, cookie_len) = (self.cookie_addr, self.cookie.len());
        let pages = match self.space(now) {
            Ok(space) => &mut space.pages,
            Err(why) => return why,
        };
        let there = pages.are_present_now(PageUse::Read, addr, into.len, now)
            && (!proves || pages.are_present_now(PageUse::Read, cookie_addr, cookie_len, now));
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
        if buffers.len() > BUFFERS {
            return CopyOutcome::Missing;
        }
        // SAFETY: the caller's contract.
        if let Some(copied) = unsafe { self.copy_short(way, addr, buffers, now) } {
            return copied;
        }
        if !self.is_proven(now) {
            match self.prove(now) {
                CopyOutcome::Complete => {}
                failed => return failed,
            }
        }
        let len = total_len(buffers);
        let call: VmCall = match way {
            CopyWay::Read => libc::process_vm_readv,
            CopyWay::Write => libc::process_vm_writev,
        };
        let there = match self.space(now) {
            Ok(space) => space.pages.are_present_now(way.page_use(), addr, len, now),
            Err(why) => return why,
        };
        if !there {
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

    /// A copy of few bytes. `None`: it has to be the kernel's other calls.
    ///
    /// # Safety
    ///
    /// As for [`Self::copy_list`]; there are at most [`BUFFERS`] buffers.
    unsafe fn copy_short(
        &mut self,
        way: CopyWay,
        addr: u64,
        buffers: &[IoBuf],
        now: Instant,
    ) -> Option<CopyOutcome> {
        let len = total_len(buffers);
        if len == 0 || len > memory::MOST_BYTES {
            return None;
        }
        let space = match self.space(now) {
            Ok(space) => space,
            Err(why) => return Some(why),
        };
        let memory = space.memory.as_ref()?;
        match space.pages.are_present(way.page_use(), addr, len, now) {
            // SAFETY: the caller's contract.
            true => Some(unsafe { memory.copy(way, addr, buffers) }),
            false => Some(CopyOutcome::Missing),
        }
    }

    /// Whether the process has proven to be the peer a moment ago.
    fn is_proven(&self, now: Instant) -> bool {
        self.proven
            .is_some_and(|at| now.saturating_duration_since(at) < PROOF_LASTS)
    }

    /// Reads the cookie of the process that has the peer's ID.
    fn prove(&mut self, now: Instant) -> CopyOutcome {
        let (addr, len) = (self.cookie_addr, self.cookie.len());
        let is_there = match self.space(now) {
            Ok(space) => space.pages.are_present_now(PageUse::Read, addr, len, now),
            Err(why) => return why,
        };
        match is_there {
            // SAFETY: nothing is written but the cookie.
            true => unsafe { self.copy(0, IoBuf::EMPTY, Some(now)) },
            false => CopyOutcome::Missing,
        }
    }

    /// The address space of the process; `Err`: the result of a copy without it.
    #[inline]
    fn space(&mut self, now: Instant) -> Result<&mut AddressSpace, CopyOutcome> {
        if self.space.is_none() {
            self.space = Some(self.open(now)?);
        }
        self.space.as_deref_mut().ok_or(CopyOutcome::Missing)
    }

    #[cold]
    fn open(&self, now: Instant) -> Result<Box<AddressSpace>, CopyOutcome> {
        let mut pages = PresentPages::of(self.pid).map_err(|error| match error {
            error if is_shortage(error) => CopyOutcome::Missing,
            _ => CopyOutcome::Refused,
        })?;
        let memory = match ProcessMemory::of(self.pid) {
            Ok(memory) => memory,
            Err(error) if is_shortage(error) => return Err(CopyOutcome::Missing),
            Err(_) => {
                return Ok(Box::new(AddressSpace {
                    pages,
                    memory: None,
                }));
            }
        };
        let mut seen: Cookie = [0; 16];
        if !pages.are_present(PageUse::Read, self.cookie_addr, seen.len(), now) {
            return Err(CopyOutcome::Missing);
        }
        let into = IoBuf::new(seen.as_mut_ptr(), seen.len());
        // SAFETY: `seen` has as many bytes.
        match unsafe { memory.copy(CopyWay::Read, self.cookie_addr, &[into]) } {
            CopyOutcome::Complete => {}
            failed => return Err(failed),
        }
        // The kernel wrote to it behind the compiler's back.
        if std::hint::black_box(seen) != self.cookie {
            return Err(CopyOutcome::Refused);
        }
        Ok(Box::new(AddressSpace {
            pages,
            memory: Some(memory),
        }))
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

/// Descriptors or memory are short: a later attempt may succeed.
fn is_shortage(error: Sys) -> bool {
    matches!(error, Sys::EMFILE | Sys::ENFILE | Sys::ENOMEM)
}

impl CopyWay {
    fn page_use(self) -> PageUse {
        match self {
            Self::Read => PageUse::Read,
            Self::Write => PageUse::Write,
        }
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
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::fs::FileExt;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::missing_pages::MissingPages;

    fn reads(peer: &mut CmaPeer, addr: u64, out: &mut [u8], now: Instant) -> CopyOutcome {
        let into = IoBuf::new(out.as_mut_ptr(), out.len());
        // SAFETY: `out` has as many bytes.
        unsafe { peer.read(addr, into, now) }
    }

    #[test]
    fn a_reused_process_id_is_detected() {
        const LONG: usize = memory::MOST_BYTES + 1;

        let cookie = Box::new([7u8; 16]);
        let pid = std::process::id() as i32;
        let at = cookie.as_ptr() as u64;
        let mut peer = CmaPeer::probe(pid, at, *cookie).unwrap();
        let later = Instant::now() + PROOF_LASTS;
        assert!(CmaPeer::probe(pid, at, [8; 16]).is_none());
        assert!(CmaPeer::probe(0, at, *cookie).is_none());

        for len in [100, LONG] {
            let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut out = vec![0u8; len];
            let there = data.as_ptr() as u64;
            let read = reads(&mut peer, there, &mut out, later);
            assert_eq!(read, CopyOutcome::Complete);
            assert_eq!(out, data);
            for nowhere in [1, i64::MAX as u64, u64::MAX - 5] {
                let read = reads(&mut peer, nowhere, &mut out, later);
                assert_eq!(read, CopyOutcome::Missing, "{nowhere}");
            }
        }

        // Another process has the ID now. Short copies do not use the ID.
        peer.cookie = [8; 16];
        let data = vec![3u8; LONG];
        let (mut out, there) = (vec![0u8; LONG], data.as_ptr() as u64);
        let mut read = |now| reads(&mut peer, there, &mut out, now);
        assert_eq!(read(later), CopyOutcome::Complete, "the proof still lasts");
        assert_eq!(
            read(later + PROOF_LASTS),
            CopyOutcome::Refused,
            "the proof is too old"
        );
        assert_eq!(
            read(later),
            CopyOutcome::Refused,
            "the process has failed to prove itself"
        );
    }

    /// After exec(2) the process has another address space, and nothing reaches the old one.
    #[test]
    fn a_process_that_executes_another_program_is_the_peer_no_more() {
        let mut shell = Command::new("sh")
            .args(["-c", "echo; read go; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut to, mut from) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        let mut byte = [0u8; 1];
        from.read_exact(&mut byte).unwrap();

        // Its stack is in memory, and the bytes at the end are the name of the program.
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", shell.id())).unwrap();
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let end = stack.split([' ', '-']).nth(1).unwrap();
        let at = u64::from_str_radix(end, 16).unwrap() - 64;
        let mut cookie: Cookie = [0; 16];
        let memory = File::open(format!("/proc/{}/mem", shell.id())).unwrap();
        memory.read_exact_at(&mut cookie, at).unwrap();

        let mut peer = CmaPeer::probe(shell.id() as i32, at, cookie).unwrap();
        let (mut out, now) = ([0u8; 64], Instant::now());
        assert_eq!(reads(&mut peer, at, &mut out, now), CopyOutcome::Complete);
        assert_eq!(out[..16], cookie);

        // The answer comes from the program that follows.
        to.write_all(b"go\nhere\n").unwrap();
        from.read_exact(&mut byte).unwrap();
        assert_eq!(reads(&mut peer, at, &mut out, now), CopyOutcome::Refused);
        // Not even the look of a long copy finds pages of the next program.
        let mut long = vec![0; 2 * memory::MOST_BYTES];
        let outcome = reads(&mut peer, at, &mut long, now);
        assert_ne!(outcome, CopyOutcome::Complete);
        let space = peer.space.as_mut().unwrap();
        assert!(!space.pages.are_present_now(PageUse::Read, at, 16, now));
        drop(to);
        shell.wait().unwrap();
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
