//! Authorization keys over verbs (fi_domain(3), fi_av(3)): the partition that an endpoint speaks
//! in, and the Q_Key that its datagrams carry. Only endpoints with the same key reach each other.

use std::fmt;

/// Size of an authorization key in bytes.
pub const AUTH_KEY_LEN: usize = 8;

/// Bit of a P_Key that says whether a port is a full member of the partition; no part of the
/// partition's number.
const FULL_MEMBER: u16 = 1 << 15;

/// Bit of a Q_Key that only privileged processes may set (IBTA 1.5 §10.2.5, "controlled Q_Keys").
const CONTROLLED: u32 = 1 << 31;

/// A key: bytes 0 and 1 are the P_Key, 2 and 3 are 0, 4 to 7 the Q_Key; little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AuthKey {
    pkey: u16,
    qkey: u32,
}

/// Why bytes are no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthKeyError {
    /// Too few or too many bytes.
    #[error("an authorization key has {AUTH_KEY_LEN} bytes, this has {0}")]
    Length(usize),
    /// Something where nothing is to be.
    #[error("bytes 2 and 3 of an authorization key are 0")]
    Reserved,
    /// The P_Key names no partition.
    #[error("P_Key {0:#06x} names no partition: the default one is 0xffff")]
    Partition(u16),
    /// The Q_Key is one that processes may not use.
    #[error("a Q_Key with its highest bit set is for privileged processes: leave that bit 0")]
    Controlled,
}

impl AuthKey {
    /// The key of a partition and a Q_Key.
    ///
    /// # Errors
    ///
    /// [`AuthKeyError::Partition`] and [`AuthKeyError::Controlled`].
    pub fn new(pkey: u16, qkey: u32) -> Result<Self, AuthKeyError> {
        if pkey & !FULL_MEMBER == 0 {
            return Err(AuthKeyError::Partition(pkey));
        }
        if qkey & CONTROLLED != 0 {
            return Err(AuthKeyError::Controlled);
        }
        Ok(Self { pkey, qkey })
    }

    /// Reads a key from exactly [`AUTH_KEY_LEN`] bytes.
    ///
    /// # Errors
    ///
    /// The fault of the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AuthKeyError> {
        let &[p0, p1, r0, r1, q0, q1, q2, q3] = bytes else {
            return Err(AuthKeyError::Length(bytes.len()));
        };
        if [r0, r1] != [0, 0] {
            return Err(AuthKeyError::Reserved);
        }
        Self::new(
            u16::from_le_bytes([p0, p1]),
            u32::from_le_bytes([q0, q1, q2, q3]),
        )
    }

    /// The key as bytes.
    pub fn to_bytes(self) -> [u8; AUTH_KEY_LEN] {
        let [p0, p1] = self.pkey.to_le_bytes();
        let [q0, q1, q2, q3] = self.qkey.to_le_bytes();
        [p0, p1, 0, 0, q0, q1, q2, q3]
    }

    /// The partition, and whether as a full member.
    pub fn pkey(self) -> u16 {
        self.pkey
    }

    /// The Q_Key that datagrams carry.
    pub fn qkey(self) -> u32 {
        self.qkey
    }

    /// Whether endpoints with the two keys reach each other: of the P_Keys the membership bit does
    /// not count.
    pub fn admits(self, other: Self) -> bool {
        self.identity() == other.identity()
    }

    /// The key as addresses have it: without the membership, the same for all that it admits.
    #[must_use]
    pub fn in_addresses(self) -> Self {
        Self {
            pkey: self.pkey | FULL_MEMBER,
            ..self
        }
    }

    /// Equal for keys that admit each other.
    pub(crate) fn identity(self) -> u64 {
        (u64::from(self.pkey & !FULL_MEMBER) << 32) | u64::from(self.qkey)
    }
}

/// A Q_Key keeps other endpoints out, so it goes into no log.
impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthKey {{ pkey: {:#06x}, qkey: … }}", self.pkey)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in super::super) fn any_key() -> impl Strategy<Value = AuthKey> {
        (any::<u16>(), any::<u32>())
            .prop_filter_map("a partition, not privileged", |(pkey, qkey)| {
                AuthKey::new(pkey, qkey & !CONTROLLED).ok()
            })
    }

    proptest! {
        /// Covers: AV-21
        #[test]
        fn bytes_give_the_key_back(key in any_key()) {
            prop_assert_eq!(AuthKey::from_bytes(&key.to_bytes()), Ok(key));
        }

        #[test]
        fn bytes_of_others_are_refused_or_a_key(bytes in any::<[u8; AUTH_KEY_LEN]>()) {
            if let Ok(key) = AuthKey::from_bytes(&bytes) {
                prop_assert_eq!(key.to_bytes(), bytes);
            }
        }
    }

    /// Covers: AV-21
    #[test]
    fn the_layout_is_as_documented_and_faults_are_named() {
        let key = AuthKey::new(0x8001, 0x0403_0201).unwrap();
        assert_eq!(key.to_bytes(), [0x01, 0x80, 0, 0, 1, 2, 3, 4]);
        assert_eq!((key.pkey(), key.qkey()), (0x8001, 0x0403_0201));
        assert_eq!(AuthKey::from_bytes(&[0; 6]), Err(AuthKeyError::Length(6)));
        assert_eq!(
            AuthKey::from_bytes(&[1, 0, 0, 1, 0, 0, 0, 0]),
            Err(AuthKeyError::Reserved)
        );
        assert_eq!(
            AuthKey::new(0x8000, 1),
            Err(AuthKeyError::Partition(0x8000))
        );
        assert_eq!(AuthKey::new(1, 1 << 31), Err(AuthKeyError::Controlled));
    }

    #[test]
    fn membership_of_a_partition_does_not_count_and_all_else_does() {
        let key = |pkey, qkey| AuthKey::new(pkey, qkey).unwrap();
        assert!(key(0x8001, 7).admits(key(1, 7)));
        assert!(!key(0x8001, 7).admits(key(0x8002, 7)));
        assert!(!key(0x8001, 7).admits(key(0x8001, 8)));
    }

    #[test]
    fn a_q_key_is_not_printed() {
        let key = AuthKey::new(0xffff, 0x1234_5678).unwrap();
        assert!(!format!("{key:?}").contains("12345678"));
        assert!(!format!("{key:?}").contains(&0x1234_5678.to_string()));
    }
}
