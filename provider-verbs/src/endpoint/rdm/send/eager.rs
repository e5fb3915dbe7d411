//! Eager messages of one packet: inline, copied to a bounce buffer, or with their data read from
//! where the application has registered it.

use ferrofabric_contracts::peer::SendDone;
use ferrofabric_contracts::types::SendOp;
use ferrofabric_protocol::wire::data::{Header, MAX_HEADER_BYTES};
use ferrofabric_verbs_sys::ibv_sge;

use super::super::poster::{PostError, Poster, envelope};
use crate::gather::Readable;
use crate::lane::{PacketBuffer, PacketRecords, RcLane, WqeKind};
use crate::post::inline_sge;
use crate::session::Registered;

impl Poster {
    /// Posts an eager message: inline, or from the bounce buffer `slot`.
    #[inline]
    pub(super) fn eager(
        &mut self,
        lane: &mut RcLane,
        op: &SendOp,
        iov: Readable<'_>,
        len: usize,
        slot: Option<u32>,
    ) -> Result<(), PostError> {
        let header = Self::stamp(lane)?;
        let kind = WqeKind::Message(SendDone::of(op, len));
        self.counters.sent.eager += 1;
        self.counters.sent.bytes += len as u64;
        let Some(slot) = slot else {
            let entry = write_whole(&header, op, iov, len, &mut lane.queue.records);
            let place = PacketBuffer::Record(lane.queue.records.enter(entry.length as usize));
            return self.inline(lane, entry, kind, Some(header.sequence), place);
        };
        let mut head = [0; MAX_HEADER_BYTES];
        let head_len = header.write_eager(&envelope(op), len as u32, &mut head);
        let at = self.bounces.address(slot);
        // SAFETY: the slot holds the largest header and message, and is ours until its request is
        // over.
        unsafe { at.copy_from_nonoverlapping(head.as_ptr(), head_len) };
        let place = match self.described(op, iov) {
            Some(Registered { buf, region }) => {
                lane.queue.described.push_back(region);
                PacketBuffer::Split {
                    slot,
                    head: head_len as u32,
                    rest: buf,
                }
            }
            None => {
                // SAFETY: as above; the message behind the header fits as well.
                unsafe { iov.gather(0, len, at.wrapping_add(head_len)) };
                PacketBuffer::Bounce {
                    slot,
                    len: (head_len + len) as u32,
                }
            }
        };
        self.bounced(lane, kind, Some(header.sequence), place)
    }
}

/// Writes an eager message with its header to the memory where it is kept.
#[inline]
fn write_whole(
    header: &Header,
    op: &SendOp,
    iov: Readable<'_>,
    len: usize,
    records: &mut PacketRecords,
) -> ibv_sge {
    let room = records.room(MAX_HEADER_BYTES + len);
    let head_len = match room.first_chunk_mut() {
        Some(head) => header.write_eager(&envelope(op), len as u32, head),
        None => 0,
    };
    let behind = &mut room[head_len..][..len];
    // SAFETY: the message has that length.
    unsafe { iov.gather(0, len, behind.as_mut_ptr()) };
    inline_sge(&room[..head_len + len])
}
