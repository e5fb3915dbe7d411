//! The data of a broadcast on its way through `off_coll`, which reads and writes a multiple of the
//! number of members in elements.

/// A copy of the data, with room for more elements behind them.
pub(crate) struct Bounce {
    memory: Box<[u8]>,
    application: *mut u8,
    bytes: usize,
    is_root: bool,
}

// SAFETY: the application keeps its buffer until the operation is complete.
unsafe impl Send for Bounce {}

impl Bounce {
    /// Takes the data of the root. `room` is at least `bytes`.
    ///
    /// # Safety
    ///
    /// The application's buffer has that many bytes, until this is dropped.
    pub(crate) unsafe fn new(
        application: *mut u8,
        bytes: usize,
        room: usize,
        is_root: bool,
    ) -> Self {
        let mut memory = vec![0; room].into_boxed_slice();
        if is_root && bytes != 0 {
            // SAFETY: as the caller says.
            let data = unsafe { std::slice::from_raw_parts(application, bytes) };
            memory[..bytes].copy_from_slice(data);
        }
        Self {
            memory,
            application,
            bytes,
            is_root,
        }
    }

    /// Where `off_coll` reads and writes.
    pub(crate) fn memory(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    /// Gives the data to the application: the broadcast is complete.
    pub(crate) fn finish(self) {
        if !self.is_root && self.bytes != 0 {
            // SAFETY: the application's buffer has that many bytes.
            unsafe { (self.application).copy_from(self.memory.as_ptr(), self.bytes) };
        }
    }
}
