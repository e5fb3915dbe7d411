//! The data of an unexpected message. Short data lies in the record itself, so that keeping it
//! allocates nothing.

use std::ops::Deref;

/// The longest data that needs no memory of its own, in bytes.
const SHORT: usize = 62;

/// The data.
pub(crate) enum UnexpectedData {
    /// Short data, and its length.
    Short([u8; SHORT], u8),
    /// Long data.
    Long(Box<[u8]>),
}

impl From<&[u8]> for UnexpectedData {
    #[inline]
    fn from(bytes: &[u8]) -> Self {
        let mut short = [0; SHORT];
        match short.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Self::Short(short, bytes.len() as u8)
            }
            None => Self::Long(bytes.into()),
        }
    }
}

impl From<Vec<u8>> for UnexpectedData {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Long(bytes.into())
    }
}

impl Deref for UnexpectedData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(bytes, len) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in() {
        for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, 4096] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
            let payload = UnexpectedData::from(&bytes[..]);
            assert_eq!(matches!(payload, UnexpectedData::Short(..)), len <= SHORT);
            assert_eq!(*payload, bytes[..]);
        }
    }
}
