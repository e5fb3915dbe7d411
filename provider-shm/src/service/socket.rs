//! The sockets of the handshake: abstract names, so that nothing remains in any file system, and
//! sequenced packets, so that a slow client can not send half a record.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno as Sys;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr,
    UnixCredentials, accept4, bind, connect, getsockopt, listen, sendmsg, socket,
};
use zerocopy::IntoBytes;

use super::frame::{FRAME_LEN, Frame};

const BACKLOG: i32 = 128;

/// The socket that listens for the endpoint `id`.
pub(super) fn listen_at(id: u64) -> nix::Result<OwnedFd> {
    let fd = record_socket()?;
    bind(fd.as_raw_fd(), &address(id)?)?;
    listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(fd)
}

/// A connection to the endpoint `id`. `EAGAIN`: its queue is full; `ECONNREFUSED`: it does not
/// exist.
pub(super) fn connect_to(id: u64) -> nix::Result<OwnedFd> {
    let fd = record_socket()?;
    connect(fd.as_raw_fd(), &address(id)?)?;
    Ok(fd)
}

/// The next waiting client, if there is one.
pub(super) fn accept(listener: &OwnedFd) -> nix::Result<OwnedFd> {
    let fd = accept4(
        listener.as_raw_fd(),
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
    )?;
    // SAFETY: accept4 just made it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The process (0 if it can not be seen from here) and user at the other end, from the kernel.
pub(super) fn credentials(fd: &OwnedFd) -> nix::Result<UnixCredentials> {
    getsockopt(fd, PeerCredentials)
}

/// Sends a record with descriptors. Nothing blocks: the socket's buffer is empty, or the other side
/// breaks the protocol.
pub(super) fn send(fd: &OwnedFd, frame: &Frame, give: &[BorrowedFd<'_>]) -> nix::Result<()> {
    let fds: Vec<RawFd> = give.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let n = sendmsg::<()>(
        fd.as_raw_fd(),
        &[IoSlice::new(frame.as_bytes())],
        if fds.is_empty() { &[] } else { &rights },
        MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    if n == FRAME_LEN {
        Ok(())
    } else {
        Err(Sys::EIO)
    }
}

/// A record that has come.
pub(super) struct Record {
    pub(super) bytes: Vec<u8>,
    /// The descriptors that came with it, all owned, so that none can leak.
    pub(super) fds: Vec<OwnedFd>,
    /// More came, and this process had no room for them.
    pub(super) lacks_descriptors: bool,
}

/// Takes the next record. `EAGAIN`: no record yet; `EPIPE`: the other side hung up.
pub(super) fn receive(fd: &OwnedFd) -> nix::Result<Record> {
    // One byte more than a record, to see when one is too long.
    let mut bytes = vec![0u8; FRAME_LEN + 1];
    // Room for the two descriptors that a record may have and some more: the kernel closes those
    // that do not fit. (By hand, since a safe wrapper hides the descriptors that did
    // fit when some did not.)
    let mut control = [0u64; 8];
    let mut iov = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all zeroes is a valid header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header has local buffers with their sizes.
    let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    let n = Sys::result(n)? as usize;
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control buffer and set its length; the macros stay within. Each
    // descriptor in it was just made for us, and nobody else has it.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(header) = part.as_ref() {
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(part).cast::<RawFd>();
                let len = header.cmsg_len - libc::CMSG_LEN(0) as usize;
                for i in 0..len / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            part = libc::CMSG_NXTHDR(&raw const message, part);
        }
    }
    if n == 0 {
        return Err(Sys::EPIPE);
    }
    bytes.truncate(n);
    Ok(Record {
        bytes,
        fds,
        lacks_descriptors: message.msg_flags & libc::MSG_CTRUNC != 0,
    })
}

fn record_socket() -> nix::Result<OwnedFd> {
    socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )
}

fn address(id: u64) -> nix::Result<UnixAddr> {
    UnixAddr::new_abstract(format!("ferrofabric.{id:016x}.link").as_bytes())
}
