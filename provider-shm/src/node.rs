//! The identity of this node: two endpoints may share memory if theirs is equal.

use std::hash::Hasher;

/// An identity of the running kernel: equal for all processes on it, in any container, and changed
/// by a reboot. A hint, which a handshake proves; 0 if the kernel does not give one.
pub fn node_id() -> u64 {
    match std::fs::read("/proc/sys/kernel/random/boot_id") {
        Ok(id) => {
            let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
            hash.write(id.trim_ascii());
            hash.finish()
        }
        Err(_) => 0,
    }
}

/// FNV-1a: the hash is part of the address, so it must be the same in every build.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = (self.0 ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_node_is_itself() {
        assert_ne!(super::node_id(), 0);
        assert_eq!(super::node_id(), super::node_id());
    }
}
