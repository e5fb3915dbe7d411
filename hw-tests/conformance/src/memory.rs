//! Buffers whose content says which message they hold, between guards that nobody may touch.

use std::cell::Cell;

use ferrofabric_contracts::types::IoBuf;

/// Bytes of a guard.
const GUARD_BYTES: usize = 32;
const GUARD: u8 = 0xa5;
/// The content of a receive's buffer before the receive.
const EMPTY: u8 = 0xee;
/// The content of a send's buffer after the send.
const SPOILT: u8 = 0xdd;

/// A buffer that stays where it is.
pub(crate) struct MessageMemory(Box<[Cell<u8>]>);

impl MessageMemory {
    /// Messages of fewer bytes are not known by their content.
    pub(crate) const NAMED_BYTES: usize = 8;

    /// Room for a receive.
    pub(crate) fn for_receive(len: usize) -> Self {
        let memory = vec![Cell::new(GUARD); len + 2 * GUARD_BYTES];
        for byte in &memory[GUARD_BYTES..GUARD_BYTES + len] {
            byte.set(EMPTY);
        }
        Self(memory.into())
    }

    /// The message with this number.
    pub(crate) fn of_message(number: usize, len: usize) -> Self {
        Self::of_message_behind(0, number, len)
    }

    /// The message with this number, behind so many bytes of room.
    pub(crate) fn of_message_behind(room: usize, number: usize, len: usize) -> Self {
        let memory = Self::for_receive(room + len);
        for (at, byte) in memory.inside()[room..].iter().enumerate() {
            byte.set(content(number, at));
        }
        memory
    }

    /// These bytes.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        let memory = Self::for_receive(bytes.len());
        for (to, byte) in memory.inside().iter().zip(bytes) {
            to.set(*byte);
        }
        memory
    }

    fn inside(&self) -> &[Cell<u8>] {
        &self.0[GUARD_BYTES..self.0.len() - GUARD_BYTES]
    }

    /// The first byte's address.
    pub(crate) fn addr(&self) -> usize {
        self.inside().as_ptr() as usize
    }

    /// The buffer in one piece.
    pub(crate) fn whole(&self) -> IoBuf {
        IoBuf::new(self.addr() as *const u8, self.inside().len())
    }

    /// The buffer as a list of `pieces` buffers, of different lengths, some of them perhaps empty.
    pub(crate) fn list(&self, pieces: usize) -> Vec<IoBuf> {
        let len = self.inside().len();
        let mut cuts: Vec<usize> = (1..pieces)
            .map(|n| len * n * n / (pieces * pieces))
            .collect();
        cuts.push(len);
        let mut from = 0;
        cuts.into_iter()
            .map(|to| {
                let piece = IoBuf::new((self.addr() + from) as *const u8, to - from);
                from = to;
                piece
            })
            .collect()
    }

    /// The content of a part.
    pub(crate) fn bytes(&self, part: std::ops::Range<usize>) -> Vec<u8> {
        self.inside()[part].iter().map(Cell::get).collect()
    }

    /// Makes all bytes the same.
    pub(crate) fn fill(&self, with: u8) {
        for byte in self.inside() {
            byte.set(with);
        }
    }

    /// Makes the content useless: nobody may read it any more.
    pub(crate) fn spoil(&self) {
        self.fill(SPOILT);
    }

    /// The number of the message that lies at `offset` in `len` bytes.
    ///
    /// # Errors
    ///
    /// When it is not one message, or not whole.
    pub(crate) fn message(&self, offset: usize, len: usize) -> Result<Option<usize>, String> {
        let bytes = self.bytes(offset..offset + len);
        let Some(name) = bytes.first_chunk::<{ MessageMemory::NAMED_BYTES }>() else {
            return Ok(None);
        };
        let number = u64::from_le_bytes(*name) as usize;
        match (0..len).find(|&at| bytes[at] != content(number, at)) {
            None => Ok(Some(number)),
            Some(at) => Err(format!(
                "byte {at} of {len} is not of message {number}: {:02x?}",
                &bytes[at..len.min(at + 16)]
            )),
        }
    }

    /// Checks that nothing was written behind `used` bytes, nor around the buffer.
    ///
    /// # Errors
    ///
    /// Where something was.
    pub(crate) fn untouched_behind(&self, used: usize) -> Result<(), String> {
        match self.inside()[used..].iter().all(|byte| byte.get() == EMPTY) {
            true => self.untouched_around(),
            false => Err(format!("written behind the first {used} bytes")),
        }
    }

    /// Checks that nothing was written around the buffer.
    ///
    /// # Errors
    ///
    /// When something was.
    pub(crate) fn untouched_around(&self) -> Result<(), String> {
        let (before, behind) = (
            &self.0[..GUARD_BYTES],
            &self.0[self.0.len() - GUARD_BYTES..],
        );
        match before.iter().chain(behind).all(|byte| byte.get() == GUARD) {
            true => Ok(()),
            false => Err("written outside of the buffer".into()),
        }
    }
}

/// The byte at a place in a message: its number, then what only this message has there.
fn content(number: usize, at: usize) -> u8 {
    match (number as u64).to_le_bytes().get(at) {
        Some(byte) => *byte,
        None => {
            let mixed = (number + 1).wrapping_mul(0x9e37_79b9) ^ at.wrapping_mul(0x85eb_ca6b);
            (mixed ^ (mixed >> 15)) as u8
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_known_by_its_content_and_damage_is_seen() {
        for len in [8, 9, 1000] {
            let memory = MessageMemory::of_message(7, len);
            assert_eq!(memory.message(0, len), Ok(Some(7)));
            memory.inside()[len - 1].set(memory.inside()[len - 1].get() ^ 1);
            assert_ne!(memory.message(0, len), Ok(Some(7)));
        }
        assert_eq!(MessageMemory::of_message(7, 7).message(0, 7), Ok(None));
        let list = MessageMemory::for_receive(100).list(4);
        assert_eq!(list.iter().map(|b| b.len).sum::<usize>(), 100);
    }

    #[test]
    fn writes_outside_are_seen() {
        let memory = MessageMemory::for_receive(10);
        assert_eq!(memory.untouched_behind(0), Ok(()));
        memory.inside()[4].set(0);
        assert_eq!(memory.untouched_behind(5), Ok(()));
        assert!(memory.untouched_behind(4).is_err());
        let memory = MessageMemory::for_receive(10);
        memory.0[GUARD_BYTES - 1].set(0);
        assert!(memory.untouched_behind(0).is_err());
    }
}
