//! The target's side: a request that has come is carried out, and answered.

use ferrofabric_contracts::atomics::{AtomicArrays, AtomicForm, AtomicHead, RequestError};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::part::RemotePlace;
use ferrofabric_contracts::peer::{Arrived, PeerCntr};
use ferrofabric_contracts::region_window::{Elements, RegionAccess};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc};

use crate::domain::owner::EndpointOwner;
use crate::rma::as_target::regions::RegionCounters;
use crate::rma::atomics::execute;
use crate::rma::operations::{NO_BYTES, RemoteOperations, reply_to};
use crate::rma::outbox::{PartBytes, RemoteSend};

impl RemoteOperations {
    /// Room for a request that comes, and its number. `None`: it can be none.
    pub(in crate::domain) fn room_for_atomic(&mut self, a: &Arrived) -> Option<(u64, IoBuf)> {
        const LENGTHS: std::ops::RangeInclusive<usize> =
            AtomicHead::BYTES..=AtomicHead::MAX_REQUEST_BYTES;
        let len = usize::try_from(a.len).ok()?;
        if !LENGTHS.contains(&len) {
            return None;
        }
        let src = self.source_to_serve(a.src, self.atomics.requests_of(a.src));
        let (number, room) = self.room_for(src, len);
        if src.is_some() {
            self.atomics.announced(src, number);
        }
        Some((number, room))
    }
}

impl EndpointOwner<'_> {
    /// The bytes of a request have come, or will not.
    #[cold]
    pub(in crate::domain) fn atomic_came(&mut self, room: u64, at: RemotePlace, is_whole: bool) {
        let remote = &mut self.srx.remote;
        let Some(src) = remote.room_source(room) else {
            return;
        };
        if is_whole && src.is_some() {
            remote.atomics.set_whole(src, room, at);
        } else {
            remote.atomics.drop_request_of(src, room);
            let request = remote.take_room(room);
            if let (true, Some((_, request))) = (is_whole, request) {
                self.srx.refuse_request(&request);
            }
        }
        while let Some((room, at)) = self.srx.remote.atomics.take_next(src) {
            if let Some((_, request)) = self.srx.remote.take_room(room) {
                self.answer_atomic(src, at, &request);
            }
        }
    }

    /// Carries a request out, or refuses it.
    fn answer_atomic(&mut self, src: FiAddr, at: RemotePlace, request: &[u8]) {
        let (number, result) = match AtomicHead::parse(request) {
            Ok((head, arrays)) => (head.number, self.carry_out(at, &head, &arrays)),
            Err(RequestError::Unsupported { number }) => (number, Err(Errno::EOPNOTSUPP)),
            Err(RequestError::Length { number }) => (number, Err(Errno::EINVAL)),
            // No request is accepted that is shorter than a head.
            Err(RequestError::Headless) => return,
        };
        let no_region = (NO_BYTES, MrDesc::NONE);
        let mut op = reply_to(
            src,
            number,
            result.as_ref().map(|_| no_region).map_err(|e| *e),
        );
        op.flags |= Flags::INJECT;
        self.srx.send_part(RemoteSend {
            op,
            from: PartBytes::Copied(result.unwrap_or_default()),
        });
    }

    /// Carries an operation out. Returns the results for its initiator.
    ///
    /// # Errors
    ///
    /// `EACCES`: there is no such key, range or right, or the region has other elements. `EINVAL`:
    /// an element is not aligned, or goes over the end of a piece of the region. Nothing is changed
    /// then.
    fn carry_out(
        &mut self,
        at: RemotePlace,
        head: &AtomicHead,
        arrays: &AtomicArrays<'_>,
    ) -> Result<Vec<u8>, Errno> {
        let remote = &mut self.srx.remote;
        let len = head.target_bytes();
        let rights = head.form.rights(head.operator);
        let access = RegionAccess {
            rights,
            elements: Elements::of(Some(head.datatype)),
        };
        let part = remote.take(at, len as u64, access);
        let (number, part) = part.ok_or(Errno::EACCES)?;
        let mut results = match head.form {
            AtomicForm::Base => Vec::new(),
            AtomicForm::Fetch | AtomicForm::Compare => vec![0; len],
        };
        let pieces = part.bufs.segments();
        let (size, alignment) = (head.datatype.size(), head.datatype.alignment());
        let is_aligned = pieces
            .iter()
            .all(|piece| piece.addr % alignment == 0 && piece.len % size == 0);
        if is_aligned {
            // SAFETY: the region is registered and does not close before its part is given back,
            // the pieces have the length of the elements together, and are aligned.
            unsafe { execute_on_pieces(head, pieces, arrays, &mut results) };
        }
        let counters = remote.give(number);
        if !is_aligned {
            return Err(Errno::EINVAL);
        }
        self.target_cntr(head.form.kind()).inc(len);
        self.count_at_region(counters.unwrap_or(RegionCounters::NONE), rights, len);
        self.srx.remote.atomics.carried_out += 1;
        Ok(results)
    }

    /// Counts an operation at the region. One that fetches, and may change the region, is both a
    /// read and a write there: the counter of writes moves with each change (fi_mr(3)).
    fn count_at_region(&mut self, counters: RegionCounters, rights: Rights, len: usize) {
        let reads = rights.contains(Rights::READ);
        if reads {
            self.region_cntr(counters.read).inc(len);
        }
        let is_counted = reads && counters.read == counters.write;
        if rights.contains(Rights::WRITE) && !is_counted {
            self.region_cntr(counters.write).inc(len);
        }
    }
}

/// As [`execute`], on the pieces of a part of a region.
///
/// # Safety
///
/// As of [`execute`]: each piece has whole elements, and all together have those of the head.
unsafe fn execute_on_pieces(
    head: &AtomicHead,
    pieces: &[IoBuf],
    arrays: &AtomicArrays<'_>,
    results: &mut [u8],
) {
    let AtomicArrays {
        mut operands,
        mut compares,
    } = *arrays;
    let mut results = results;
    for piece in pieces {
        let head = AtomicHead {
            count: (piece.len / head.datatype.size()) as u32,
            ..*head
        };
        let arrays = AtomicArrays {
            operands: take_front(&mut operands, piece.len),
            compares: take_front(&mut compares, piece.len),
        };
        let (first, rest) = results.split_at_mut(piece.len.min(results.len()));
        // SAFETY: the caller's contract.
        unsafe { execute(&head, piece.as_mut_ptr(), &arrays, first) };
        results = rest;
    }
}

/// Takes the first bytes of an array, which may be empty.
fn take_front<'a>(array: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (first, rest) = array.split_at(len.min(array.len()));
    *array = rest;
    first
}

#[cfg(test)]
mod tests;
