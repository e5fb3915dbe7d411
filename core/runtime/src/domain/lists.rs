//! Receives into a list of buffers (fi_recvv(3)).
//!
//! A transport that copies or reads puts each byte into its place: it gets the list's buffers. A
//! sender that writes the message itself needs one address. It gets one piece of memory, allocated
//! when the message has matched the receive, and the list is filled from there when the message is
//! complete.

use std::alloc::{Layout, alloc_zeroed};

use slab::Slab;

use ferrofabric_contracts::buffers::scatter;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Piece;
use ferrofabric_contracts::types::{IoBuf, total_len};

struct BufferList {
    segments: Box<[IoBuf]>,
    /// The piece of memory for the message; empty if the message goes to the buffers themselves.
    memory: Vec<u8>,
    /// The receive's `COMPLETION`.
    completion_flag: Flags,
}

/// The lists that messages are on their way to.
#[derive(Default)]
pub(super) struct BufferLists(Slab<BufferList>);

impl BufferLists {
    /// Adds the list of a receive that a message of `len` bytes has matched. Returns the number of
    /// bytes that it has room for.
    pub(super) fn enter(
        &mut self,
        segments: Box<[IoBuf]>,
        flags: Flags,
        len: u64,
    ) -> (usize, Piece) {
        let room = total_len(&segments);
        let fill_bytes = usize::try_from(len).map_or(room, |len| len.min(room));
        let at = self.0.insert(BufferList {
            segments,
            memory: Vec::new(),
            completion_flag: flags & Flags::COMPLETION,
        });
        (fill_bytes, Piece::of_list(at))
    }

    /// The buffers of the list of that number.
    pub(super) fn segments(&self, number: usize) -> &[IoBuf] {
        self.0.get(number).map_or(&[], |list| &*list.segments)
    }

    /// One piece of memory of `len` bytes for the message. `None`: the allocation failed.
    pub(super) fn lend(&mut self, number: usize, len: usize) -> Option<IoBuf> {
        let list = self.0.get_mut(number)?;
        list.memory = zeroed(len)?;
        Some(IoBuf::new(list.memory.as_mut_ptr(), len))
    }

    /// A message is complete: fills its list from the piece of memory. Returns the receive's
    /// `COMPLETION`.
    ///
    /// # Safety
    ///
    /// The buffers of the list are valid for writes.
    pub(super) unsafe fn end(&mut self, number: usize) -> Flags {
        let Some(list) = self.0.try_remove(number) else {
            return Flags::empty();
        };
        let memory = &list.memory;
        // SAFETY: the caller's contract; the memory has as many bytes.
        unsafe { scatter(memory.as_ptr(), memory.len(), &list.segments, 0) };
        list.completion_flag
    }
}

/// Zeroed bytes, if there is memory for them. The system provides large pieces without touching
/// each page.
fn zeroed(len: usize) -> Option<Vec<u8>> {
    if len == 0 {
        return Some(Vec::new());
    }
    let layout = Layout::array::<u8>(len).ok()?;
    // SAFETY: the layout is of more than no byte.
    let at = unsafe { alloc_zeroed(layout) };
    // SAFETY: memory of the allocator, with that layout, all of it 0.
    (!at.is_null()).then(|| unsafe { Vec::from_raw_parts(at, len, len) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The list has the message's bytes, buffer after buffer, and nothing beyond them, whether
        /// they came by way of one piece of memory or in fragments of any length.
        #[test]
        fn a_list_is_filled_in_order(
            lens in prop::collection::vec(0usize..20, 2..5),
            len in 0usize..90,
            pieces in prop::option::of(1usize..40),
        ) {
            let mut memory: Vec<Vec<u8>> = lens.iter().map(|len| vec![0xff; *len]).collect();
            let segments: Box<[IoBuf]> = memory
                .iter_mut()
                .map(|m| IoBuf::new(m.as_mut_ptr(), m.len()))
                .collect();
            let room = lens.iter().sum::<usize>();
            let mut lists = BufferLists::default();
            let (fill, piece) = lists.enter(segments, Flags::COMPLETION, len as u64);
            let number = piece.list().unwrap();
            prop_assert_eq!(Piece::NONE.list(), None);
            prop_assert_eq!(fill, len.min(room));
            let message: Vec<u8> = (0..fill as u8).collect();
            match pieces {
                None => {
                    let buf = lists.lend(number, fill).unwrap();
                    prop_assert_eq!(buf.len, fill);
                    // SAFETY: the memory has as many bytes.
                    unsafe {
                        buf.as_mut_ptr()
                            .copy_from_nonoverlapping(message.as_ptr(), message.len());
                    }
                }
                Some(most) => {
                    for start in (0..fill).step_by(most) {
                        let end = (start + most).min(fill);
                        let from = message[start..end].as_ptr();
                        // SAFETY: the buffers above.
                        unsafe { scatter(from, end - start, lists.segments(number), start) };
                    }
                }
            }
            // SAFETY: the segments are `memory`.
            let completion_flag = unsafe { lists.end(number) };
            prop_assert_eq!(completion_flag, Flags::COMPLETION);
            let mut wanted = message;
            wanted.resize(room, 0xff);
            prop_assert_eq!(memory.concat(), wanted);
            prop_assert!(lists.0.is_empty());
        }
    }

    #[test]
    fn missing_memory_is_not_lent() {
        let mut lists = BufferLists::default();
        let segments = vec![
            IoBuf {
                addr: 8,
                len: usize::MAX >> 1
            };
            2
        ]
        .into_boxed_slice();
        let (_, piece) = lists.enter(segments, Flags::empty(), u64::MAX);
        let number = piece.list().unwrap();
        assert_eq!(lists.lend(number, usize::MAX), None);
        assert_eq!(lists.lend(number, isize::MAX as usize), None);
        // SAFETY: no memory was lent, so no bytes are written.
        unsafe { lists.end(number) };
    }
}
