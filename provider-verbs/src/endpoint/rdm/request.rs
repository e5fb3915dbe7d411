//! Requests to send (RTS): the envelope of a message that the peer reads, or gives a buffer for.

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::SendDone;
use ferrofabric_contracts::types::{IoBuf, MrDesc, SendOp, total_len};
use ferrofabric_protocol::wire::data::{Header, MAX_RTS_BYTES, MAX_SEGMENTS, Segment};

use super::poster::{PostError, Poster, envelope};
use crate::gather::Readable;
use crate::mr::Access;
use crate::session::{RcLane, RendezvousSend, SessionState, WqeKind};

impl Poster {
    /// Posts a request to send for a message.
    #[cold]
    pub(super) fn request(
        &mut self,
        lane: &mut RcLane,
        op: &SendOp,
        iov: Readable<'_>,
        copy: Option<&[u8]>,
    ) -> Result<(), PostError> {
        let mut bytes = [0; MAX_RTS_BYTES];
        let (len, header) = self.announce(&mut lane.session, op, iov, copy, &mut bytes)?;
        self.control(lane, &bytes[..len], WqeKind::Control, header)
    }

    /// Enters a rendezvous message, which the peer reads or gives a buffer for, and writes its
    /// request to send (RTS).
    pub(super) fn announce(
        &mut self,
        session: &mut SessionState,
        op: &SendOp,
        iov: Readable<'_>,
        copy: Option<&[u8]>,
        bytes: &mut [u8; MAX_RTS_BYTES],
    ) -> Result<(usize, Header), PostError> {
        if session.sends.is_full() {
            // The peer has to finish some first. Nothing is registered for this message until then.
            return Err(PostError::LaneFull);
        }
        let mut copied = None;
        let mut owned = [IoBuf::EMPTY];
        let iov = if op.flags.contains(Flags::INJECT) && !iov.list().is_empty() {
            let bytes: Box<[u8]> = copy.map_or_else(|| iov.to_bytes(), Into::into);
            owned[0] = IoBuf::new(bytes.as_ptr(), bytes.len());
            copied = Some(bytes);
            &owned[..]
        } else {
            iov.list()
        };
        let desc = copied.as_ref().map_or(op.desc, |_| MrDesc::NONE);
        let writes = self.tuning.rendezvous.sender_writes;
        let mut regions = Vec::new();
        let mut segments = Vec::with_capacity(iov.len());
        let access = match writes {
            true => Access::empty(),
            false => Access::REMOTE_READ,
        };
        for buf in iov.iter().filter(|buf| buf.len != 0) {
            let region = match self.registrations.described(desc, *buf, access) {
                Some(region) => region,
                None => {
                    let at = buf.as_mut_ptr();
                    // SAFETY: the buffer stays until the operation completes, and the region is
                    // released before that.
                    let region = unsafe { self.registrations.region(at, buf.len, access) };
                    region.map_err(refused)?
                }
            };
            let key = if writes { region.lkey() } else { region.rkey() };
            regions.push(region);
            segments.push(Segment {
                address: buf.addr as u64,
                length_bytes: buf.len as u64,
                rkey: key,
            });
        }
        if !writes && segments.len() > MAX_SEGMENTS {
            return Err(PostError::Refused(
                Errno::EINVAL,
                "the message has too many pieces",
            ));
        }
        let total = total_len(iov) as u64;
        if !session.numbers.may_stamp() {
            return Err(PostError::LaneFull);
        }
        let send = RendezvousSend {
            done: SendDone::of(op, total as usize),
            local: writes.then(|| segments.clone()),
            total_bytes: total,
            regions,
            _copy: copied,
        };
        let number = session
            .sends
            .insert(send)
            .map_err(|_| PostError::LaneFull)?;
        let header = session.numbers.stamp().ok_or(PostError::LaneFull)?;
        let envelope = envelope(op);
        let written = match writes {
            true => Ok(header.write_offer(&envelope, number, total, bytes)),
            false => header.write_rts(&envelope, number, &segments, bytes),
        };
        // Room was checked above, and no segment is empty.
        let len = written.unwrap_or(0);
        self.counters.sent.rendezvous += 1;
        self.counters.sent.bytes += total;
        Ok((len, header))
    }
}

#[cold]
fn refused(error: Error) -> PostError {
    tracing::warn!("{error}");
    PostError::Refused(
        error.errno(),
        "the message could not be registered with the device; the log says why (most often the limit of locked memory)",
    )
}
