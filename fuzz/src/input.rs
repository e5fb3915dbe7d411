//! Bytes as a source of choices. Where they end, everything is 0.

/// The bytes that are left.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    /// As many bytes as the next one says.
    pub(crate) fn some(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        let (some, rest) = self.0.split_at(len);
        self.0 = rest;
        some
    }

    pub(crate) fn text(&mut self) -> std::borrow::Cow<'a, str> {
        String::from_utf8_lossy(self.some())
    }
}
