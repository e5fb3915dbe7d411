//! Memory for packets that wait for their confirmation. An endpoint uses it again and again, so
//! messages by datagrams allocate nothing in the steady state.

use ferrofabric_protocol::wire::datagram::SPAN;

/// Buffers that the pool keeps at most: those of four lanes whose windows are full.
const MAX_FREE: usize = 4 * SPAN as usize;

/// Free buffers. Surplus buffers go back to the allocator.
#[derive(Default)]
pub(crate) struct PacketPool {
    free: Vec<Vec<u8>>,
}

impl PacketPool {
    /// An empty buffer with room for `len` bytes.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = self.free.pop().unwrap_or_default();
        // A buffer that served a shorter packet grows, so a steady mix of lengths ends with buffers
        // that hold the longest.
        buffer.reserve(len);
        buffer
    }

    /// A copy of a packet.
    pub(crate) fn copy(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut buffer = self.take(packet.len());
        buffer.extend_from_slice(packet);
        buffer
    }

    /// Takes a buffer back.
    #[inline]
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        if self.free.len() < MAX_FREE {
            buffer.clear();
            self.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again() {
        let mut pool = PacketPool::default();
        let long = pool.copy(&[7; 4096]);
        let at = long.as_ptr();
        pool.give(long);
        let short = pool.copy(&[1, 2, 3]);
        assert_eq!((short.as_ptr(), &short[..]), (at, &[1, 2, 3][..]));
        // Another packet waits meanwhile: it has memory of its own.
        let other = pool.copy(&[4]);
        assert_ne!(other.as_ptr(), at);
        pool.give(short);
        let empty = pool.take(4096);
        assert_eq!((empty.as_ptr(), empty.len()), (at, 0));
        assert!(empty.capacity() >= 4096);
    }

    #[test]
    fn the_pool_keeps_so_many_and_no_more() {
        let mut pool = PacketPool::default();
        let many: Vec<_> = (0..=MAX_FREE).map(|_| pool.copy(&[0; 10])).collect();
        many.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.free.len(), MAX_FREE);
    }
}
