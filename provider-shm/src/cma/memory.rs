//! The memory of a process as a file (`/proc/PID/mem`).
//!
//! Two properties make it the way of short copies. A fault in it never waits for a handler of
//! userfaultfd(2): the kernel takes this way for debuggers, does not let such a fault be repeated,
//! and so fails it. And an open file stays with one address space: after exec(2), or the end of the
//! process, it reaches nothing. The kernel copies each page twice, so long copies are faster by
//! `process_vm_readv` and `process_vm_writev`.

use std::fs::File;
use std::os::fd::AsRawFd;

use ferrofabric_contracts::types::{IoBuf, total_len};
use nix::errno::Errno as Sys;

use super::{BUFFERS, CopyOutcome, CopyWay, iovec};

/// Up to this number of bytes the file is as fast as the other calls, or faster.
pub(super) const MOST_BYTES: usize = 16 << 10;

/// The memory of a process.
#[derive(Debug)]
pub(super) struct ProcessMemory(File);

impl ProcessMemory {
    /// The memory of the process with this ID.
    pub(super) fn of(pid: libc::pid_t) -> Result<Self, Sys> {
        File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .map(Self)
            .map_err(|error| Sys::from_raw(error.raw_os_error().unwrap_or_default()))
    }

    /// Copies between the memory from `addr` on and all bytes of `buffers`.
    ///
    /// # Safety
    ///
    /// The buffers are valid: for writes if the memory is read, else for reads.
    pub(super) unsafe fn copy(&self, way: CopyWay, addr: u64, buffers: &[IoBuf]) -> CopyOutcome {
        let len = total_len(buffers);
        if len == 0 {
            return CopyOutcome::Complete;
        }
        let Ok(at) = i64::try_from(addr) else {
            return CopyOutcome::Missing;
        };
        let mut local = [iovec(0, 0); BUFFERS];
        for (local, buffer) in local.iter_mut().zip(buffers) {
            *local = iovec(buffer.addr, buffer.len);
        }
        let call = match way {
            CopyWay::Read => libc::SYS_preadv,
            CopyWay::Write => libc::SYS_pwritev,
        };
        let (fd, number) = (self.0.as_raw_fd(), buffers.len().min(BUFFERS));
        // SAFETY: the buffers are the caller's contract; the kernel checks the address. The C
        // library's functions are cancellation points, and this is none. The last argument has the
        // high half of offsets of 128 bits.
        let n = unsafe { libc::syscall(call, fd, local.as_ptr(), number, at, 0_u64) };
        match n {
            n if n == len as i64 => CopyOutcome::Complete,
            // The address space has no users any more.
            0 => CopyOutcome::Refused,
            n if n > 0 => CopyOutcome::Missing,
            _ if Sys::last() == Sys::EIO => CopyOutcome::Missing,
            _ => CopyOutcome::of_error(),
        }
    }
}
