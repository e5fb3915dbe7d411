//! The out-of-band channel between the two sides: a stream socket that carries JSON messages in
//! frames. It checks each message that comes in, since the other end may be any program.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::failure::{Failure, Result};
use crate::message::Message;

/// The first bytes of both sides; the last byte is the version.
const GREETING: [u8; 8] = *b"ferrob\0\x01";

/// Longer messages are refused.
const MAX_FRAME_BYTES: usize = 64 << 10;

/// How long a side may take for one message while nothing else is going on.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The time that a new connection has for its greeting.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// One end of the channel.
pub(crate) struct Channel {
    socket: Socket,
    name: String,
    inbox: Vec<u8>,
    messages: VecDeque<Message>,
    closed: bool,
}

impl Channel {
    /// The end of a connection with a process of another origin.
    ///
    /// # Errors
    ///
    /// When the connection can not be set up as needed.
    pub(crate) fn over_tcp(stream: TcpStream, name: String) -> Result<Self> {
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_nonblocking(true))
            .map_err(|e| Failure::io(format!("talk to {name}"), e))?;
        Ok(Self::over(Socket::Tcp(stream), name))
    }

    /// The end of a socket pair.
    ///
    /// # Errors
    ///
    /// As [`Channel::over_tcp`].
    pub(crate) fn over_pair(stream: UnixStream) -> Result<Self> {
        let name = "the partner".to_owned();
        stream
            .set_nonblocking(true)
            .map_err(|e| Failure::io(format!("talk to {name}"), e))?;
        Ok(Self::over(Socket::Unix(stream), name))
    }

    fn over(socket: Socket, name: String) -> Self {
        Self {
            socket,
            name,
            inbox: Vec::new(),
            messages: VecDeque::new(),
            closed: false,
        }
    }

    /// Says who we are, and checks that the other side is one of us.
    ///
    /// # Errors
    ///
    /// When it is not, or is of another version, or says nothing.
    pub(crate) fn greet(&mut self) -> Result<()> {
        self.write(&GREETING)?;
        let deadline = Instant::now() + GREETING_PATIENCE;
        while self.inbox.len() < GREETING.len() {
            // The first wrong byte ends the greeting: another program may send no more.
            let said = self.inbox.len().min(GREETING.len() - 1);
            if self.inbox[..said] != GREETING[..said] {
                break;
            }
            self.fill(deadline)?;
        }
        let said: Vec<u8> = self
            .inbox
            .drain(..GREETING.len().min(self.inbox.len()))
            .collect();
        if said == GREETING {
            return Ok(());
        }
        let (name, ours) = (&self.name, GREETING[7]);
        Err(Failure::new(match said.as_slice() {
            [b'f', b'e', b'r', b'r', b'o', b'b', 0, theirs] => format!(
                "{name} speaks version {theirs} of the measuring protocol, this ferro speaks {ours}"
            ),
            _ => format!(
                "{name} is not a ferro partner: it said \"{}\"",
                said.escape_ascii()
            ),
        }))
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// When the other side is gone.
    pub(crate) fn send(&mut self, message: &Message) -> Result<()> {
        let json = serde_json::to_vec(message).map_err(|e| Failure::io("write a message", e))?;
        let mut frame = (json.len() as u32).to_le_bytes().to_vec();
        frame.extend(json);
        self.write(&frame)
    }

    /// The next message, waiting for it as long as `patience` says.
    ///
    /// # Errors
    ///
    /// When no message comes, the bytes are none, or the other side is gone or failed.
    pub(crate) fn receive(&mut self, patience: Duration) -> Result<Message> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            self.fill(deadline)?;
        }
    }

    /// The next message, if it is there.
    ///
    /// # Errors
    ///
    /// As [`Channel::receive`].
    pub(crate) fn try_receive(&mut self) -> Result<Option<Message>> {
        self.check()?;
        Ok(self.messages.pop_front())
    }

    /// Sleeps until something comes in, at most `timeout_ms`.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(crate) fn sleep(&self, timeout_ms: u16) -> Result<()> {
        let mut fds = [PollFd::new(self.fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(timeout_ms)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(e) => Err(Failure::io(format!("wait for {}", self.name), e)),
        }
    }

    /// Makes sure that the other side is still there and has not failed. Never waits.
    ///
    /// # Errors
    ///
    /// When it is gone or has failed.
    pub(crate) fn check(&mut self) -> Result<()> {
        while self.read_some()? {}
        while let Some(message) = self.parse()? {
            self.messages.push_back(message);
        }
        if let Some(Message::Failed { why }) = self
            .messages
            .iter()
            .find(|m| matches!(m, Message::Failed { .. }))
        {
            return Err(Failure::new(format!(
                "{} failed: {}",
                self.name,
                printable(why)
            )));
        }
        if self.closed && self.messages.is_empty() {
            return Err(self.gone());
        }
        Ok(())
    }

    /// Whether the other side has closed its end.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    fn take(&mut self) -> Result<Option<Message>> {
        if self.messages.is_empty() {
            self.check()?;
        }
        Ok(self.messages.pop_front())
    }

    /// Waits for more bytes.
    fn fill(&mut self, deadline: Instant) -> Result<()> {
        let before = self.inbox.len();
        loop {
            self.read_some()?;
            if self.inbox.len() > before {
                return Ok(());
            }
            if self.closed {
                return Err(self.gone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::new(format!("{} says nothing", self.name)));
            }
            self.sleep(left.as_millis().clamp(1, 1000) as u16)?;
        }
    }

    /// Takes in what is there; whether there may be more.
    fn read_some(&mut self) -> Result<bool> {
        if self.closed || self.inbox.len() > 2 * MAX_FRAME_BYTES {
            return Ok(false);
        }
        let mut buffer = [0; 4096];
        let read = match &mut self.socket {
            Socket::Tcp(s) => s.read(&mut buffer),
            Socket::Unix(s) => s.read(&mut buffer),
        };
        match read {
            Ok(0) => self.closed = true,
            Ok(n) => {
                self.inbox.extend_from_slice(&buffer[..n]);
                return Ok(true);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => self.closed = true,
            Err(e) => return Err(Failure::io(format!("read from {}", self.name), e)),
        }
        Ok(false)
    }

    fn parse(&mut self) -> Result<Option<Message>> {
        let Some(&head) = self.inbox.first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(head) as usize;
        if len > MAX_FRAME_BYTES {
            return Err(Failure::new(format!(
                "{} sent a message of {len} bytes, where {MAX_FRAME_BYTES} are the most",
                self.name
            )));
        }
        if self.inbox.len() < 4 + len {
            return Ok(None);
        }
        let message = serde_json::from_slice(&self.inbox[4..4 + len])
            .map_err(|e| Failure::io(format!("{} sent what is no message", self.name), e))?;
        self.inbox.drain(..4 + len);
        Ok(Some(message))
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !bytes.is_empty() {
            let written = match &mut self.socket {
                Socket::Tcp(s) => s.write(bytes),
                Socket::Unix(s) => s.write(bytes),
            };
            match written {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    let mut fds = [PollFd::new(self.fd(), PollFlags::POLLOUT)];
                    let _ = poll(&mut fds, PollTimeout::from(100u16));
                }
                Err(e) => {
                    self.closed |=
                        matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
                    return Err(Failure::io(format!("write to {}", self.name), e));
                }
            }
        }
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(s) => s.as_fd(),
            Socket::Unix(s) => s.as_fd(),
        }
    }

    fn gone(&self) -> Failure {
        Failure::new(format!("{} is gone: it closed the connection", self.name))
    }
}

/// Text of another process, fit for a terminal.
fn printable(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(1000)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Path;

    /// A channel, and the other end of its socket.
    fn end() -> (Channel, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Channel::over_pair(ours).unwrap(), theirs)
    }

    fn said(bytes: &[u8]) -> String {
        let (mut channel, mut stranger) = end();
        stranger.write_all(bytes).unwrap();
        channel.greet().unwrap_err().to_string()
    }

    #[test]
    fn strangers_are_told_from_other_versions() {
        assert!(said(b"GET / HTTP/1.1\r\n").contains("not a ferro partner: it said \"GET / HT\""));
        assert!(
            said(b"\x00").contains("not a ferro partner"),
            "by the first byte"
        );
        assert!(said(b"ferrob\0\x07").contains("version 7"));
        let (mut channel, stranger) = end();
        drop(stranger);
        assert!(channel.greet().is_err());
    }

    #[test]
    fn messages_arrive_whole_in_whatever_pieces() {
        let (mut a, mut b) = end();
        let hello = Message::Hello {
            path: Path::Shm,
            block: true,
            patience_s: 3,
            address: "00ff".to_owned(),
            outside: None,
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        Channel::over_pair(ours).unwrap().send(&hello).unwrap();
        let mut frame = Vec::new();
        (&theirs).read_to_end(&mut frame).unwrap();
        let (first, rest) = frame.split_at(frame.len() / 2);
        b.write_all(first).unwrap();
        assert_eq!(a.try_receive().unwrap(), None);
        b.write_all(rest).unwrap();
        b.write_all(&frame).unwrap();
        assert_eq!(a.receive(PATIENCE).unwrap(), hello);
        assert_eq!(a.receive(PATIENCE).unwrap(), hello);
        assert!(
            a.receive(Duration::ZERO)
                .unwrap_err()
                .to_string()
                .contains("says nothing")
        );
    }

    #[test]
    fn hostile_frames_are_refused() {
        for (bytes, why) in [
            (&[0xff, 0xff, 0xff, 0xff][..], "4294967295 bytes"),
            (b"\x02\0\0\0{}", "no message"),
            (b"\x03\0\0\0\xff\xfe\xfd", "no message"),
            (b"\x0a\0\0\0{\"x\":true}", "no message"),
        ] {
            let (mut channel, mut stranger) = end();
            stranger.write_all(bytes).unwrap();
            let text = channel.receive(PATIENCE).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn a_failure_is_passed_on_and_an_end_noticed() {
        let (mut channel, other) = end();
        channel.check().unwrap();
        let mut other = Channel::over_pair(other).unwrap();
        other.send(&Message::Ready).unwrap();
        other
            .send(&Message::Failed {
                why: "no\x1b[2J more".to_owned(),
            })
            .unwrap();
        let text = channel.check().unwrap_err().to_string();
        assert!(text.ends_with("failed: no[2J more"), "{text}");

        let (mut channel, other) = end();
        drop(other);
        assert!(channel.check().unwrap_err().to_string().contains("gone"));
        assert!(channel.is_closed());
    }
}
