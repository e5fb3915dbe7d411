//! The numbers of groups.

/// Numbers of groups are below this one: messages have it in their tags.
pub(crate) const MAX_GROUPS: u32 = 1 << 31;

/// A group, among those of its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub(crate) u32);

impl GroupId {
    /// The number in a message of another member; `None`: there is no such number.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let number = u32::from_le_bytes(bytes.try_into().ok()?);
        (number < MAX_GROUPS).then_some(Self(number))
    }

    pub(crate) fn to_bytes(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }
}
