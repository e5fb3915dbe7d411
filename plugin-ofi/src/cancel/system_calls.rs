//! System calls that are no cancellation points (pthreads(7)), in place of those of the C library.
//!
//! The linker has the whole library, with the standard library in it, use these (`build.rs`): a
//! call that is added later gets one that does not unwind. `tests/integration/cancellation.rs` checks that no
//! other cancellation point is left.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{
    AT_FDCWD, epoll_event, iovec, mode_t, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t,
    ssize_t, syscall, timespec,
};

/// Defines functions, and a symbol for each that is seen within the library alone.
macro_rules! calls {
    ($($(#[$doc:meta])* $symbol:literal: fn $name:ident($($argument:ident: $kind:ty),*) -> $returned:ty $body:block)*) => {
        $(
            $(#[$doc])*
            unsafe extern "C" fn $name($($argument: $kind),*) -> $returned {
                // SAFETY: the kernel takes what the C library's function takes, and the caller
                // keeps to its manual page.
                unsafe { ($body) as $returned }
            }

            std::arch::global_asm!(
                concat!(".globl ", $symbol),
                concat!(".hidden ", $symbol),
                concat!(".type ", $symbol, ", %function"),
                concat!($symbol, ":"),
                jump!(),
                target = sym $name,
            );
        )*
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {target}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {target}"
    };
}

/// For calls that take a time in milliseconds, negative for ever.
fn time(ms: c_int) -> timespec {
    timespec {
        tv_sec: (ms / 1000).into(),
        tv_nsec: (i64::from(ms) % 1000 * 1_000_000) as _,
    }
}

calls! {
    "ferro_read": fn read(fd: c_int, to: *mut c_void, room: usize) -> ssize_t {
        syscall(libc::SYS_read, fd, to, room)
    }
    "ferro_write": fn write(fd: c_int, from: *const c_void, len: usize) -> ssize_t {
        syscall(libc::SYS_write, fd, from, len)
    }
    "ferro_writev": fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
        syscall(libc::SYS_writev, fd, from, count)
    }
    "ferro_readv": fn readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t {
        syscall(libc::SYS_readv, fd, to, count)
    }
    "ferro_pread64": fn pread64(fd: c_int, to: *mut c_void, room: usize, at: off_t) -> ssize_t {
        syscall(libc::SYS_pread64, fd, to, room, at)
    }
    "ferro_pwrite64": fn pwrite64(fd: c_int, from: *const c_void, len: usize, at: off_t) -> ssize_t {
        syscall(libc::SYS_pwrite64, fd, from, len, at)
    }
    "ferro_close": fn close(fd: c_int) -> c_int {
        syscall(libc::SYS_close, fd)
    }
    "ferro_open64": fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // The mode is garbage where none was passed, and is not looked at then.
        syscall(libc::SYS_openat, AT_FDCWD, path, flags | libc::O_LARGEFILE, mode)
    }
    "ferro_openat64": fn openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        syscall(libc::SYS_openat, at, path, flags | libc::O_LARGEFILE, mode)
    }
    "ferro_fcntl": fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        // The C library does more for the owner of signals alone (F_GETOWN), which nobody queries.
        syscall(libc::SYS_fcntl, fd, command, argument)
    }
    "ferro_fallocate": fn fallocate(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int {
        syscall(libc::SYS_fallocate, fd, mode, at, len)
    }
    "ferro_poll": fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
        // The kernel writes how much time is left.
        let mut timeout = time(timeout_ms);
        let timeout = match timeout_ms < 0 {
            true => std::ptr::null_mut(),
            false => &raw mut timeout,
        };
        syscall(libc::SYS_ppoll, fds, count, timeout, 0usize, 8usize)
    }
    "ferro_epoll_wait": fn epoll_wait(set: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int) -> c_int {
        syscall(libc::SYS_epoll_pwait, set, events, room, timeout_ms, 0usize, 8usize)
    }
    "ferro_pause": fn pause() -> c_int {
        syscall(libc::SYS_ppoll, 0usize, 0usize, 0usize, 0usize, 8usize)
    }
    "ferro_nanosleep": fn nanosleep(wanted: *const timespec, left: *mut timespec) -> c_int {
        syscall(libc::SYS_nanosleep, wanted, left)
    }
    "ferro_clock_nanosleep": fn clock_nanosleep(clock: c_int, flags: c_int, wanted: *const timespec, left: *mut timespec) -> c_int {
        match syscall(libc::SYS_clock_nanosleep, clock, flags, wanted, left) {
            0 => 0,
            // This one returns the error.
            _ => *libc::__errno_location(),
        }
    }
    "ferro_connect": fn connect(socket: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
        syscall(libc::SYS_connect, socket, to, len)
    }
    "ferro_accept4": fn accept4(socket: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        syscall(libc::SYS_accept4, socket, from, len, flags)
    }
    "ferro_send": fn send(socket: c_int, from: *const c_void, len: usize, flags: c_int) -> ssize_t {
        syscall(libc::SYS_sendto, socket, from, len, flags, 0usize, 0usize)
    }
    "ferro_sendto": fn sendto(socket: c_int, from: *const c_void, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t {
        syscall(libc::SYS_sendto, socket, from, len, flags, to, to_len)
    }
    "ferro_sendmsg": fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        syscall(libc::SYS_sendmsg, socket, message, flags)
    }
    "ferro_recv": fn recv(socket: c_int, to: *mut c_void, room: usize, flags: c_int) -> ssize_t {
        syscall(libc::SYS_recvfrom, socket, to, room, flags, 0usize, 0usize)
    }
    "ferro_recvfrom": fn recvfrom(socket: c_int, to: *mut c_void, room: usize, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t {
        syscall(libc::SYS_recvfrom, socket, to, room, flags, from, from_len)
    }
    "ferro_recvmsg": fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        syscall(libc::SYS_recvmsg, socket, message, flags)
    }
    "ferro_getrandom": fn getrandom(to: *mut c_void, room: usize, flags: c_uint) -> ssize_t {
        syscall(libc::SYS_getrandom, to, room, flags)
    }
    "ferro_waitid": fn waitid(kind: c_uint, id: c_uint, about: *mut libc::siginfo_t, options: c_int) -> c_int {
        syscall(libc::SYS_waitid, kind, id, about, options, 0usize)
    }
    "ferro_fsync": fn fsync(fd: c_int) -> c_int {
        syscall(libc::SYS_fsync, fd)
    }
}
