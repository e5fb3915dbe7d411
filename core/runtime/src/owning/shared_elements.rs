//! Elements that peers change by atomic operations, and this process by the processor's atomic
//! instructions at the same time.
//!
//! The domain lets peers reach the memory by atomic operations on elements of this type alone
//! ([`MrAttr::elements`]): no read, no write, no device and no shortcut of the kernel touches it,
//! and no access of another size. So every access of this process, here and in the threads that
//! carry the operations out, is one of `AtomicWord`, and Rust's rules hold without the domain's
//! lock. Those of a peer that has mapped the memory are too, in this process or another
//! (`docs/adr/0067`).

use std::marker::PhantomData;
use std::sync::Arc;

use super::Buffer;
use super::elements::{AtomicElement, StdAtomicInteger, buffer_of, of_bytes};
use crate::fabric::{Domain, Mr, MrAttr};
use crate::rma::atomics::AtomicWord;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::Rights;

/// Elements in a region of a domain: peers with its key reach them.
///
/// Dropping it ends the region, and then frees the memory. One that is forgotten keeps both.
pub struct SharedElements<E> {
    // The region ends before the memory is freed.
    mr: Arc<dyn Mr>,
    buffer: Buffer,
    len: usize,
    element: PhantomData<E>,
}

impl<E: AtomicElement> SharedElements<E> {
    /// Registers a copy of some elements, with rights for peers.
    ///
    /// # Errors
    ///
    /// As [`Domain::register_region`]. `EINVAL`: there are no elements, or no rights.
    pub fn open(domain: &dyn Domain, values: &[E], rights: Rights) -> Result<Self> {
        Self::open_in(Buffer::new, domain, values, rights)
    }

    /// The same, in memory that peers of this node [can map](Buffer::shared): they carry their
    /// operations out by themselves, by instructions of the processor, where the elements have
    /// 64 bits at most.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and those of [`Buffer::shared`].
    pub fn open_mapped(domain: &dyn Domain, values: &[E], rights: Rights) -> Result<Self> {
        Self::open_in(Buffer::shared, domain, values, rights)
    }

    fn open_in(
        allocate: impl FnOnce(usize) -> Result<Buffer>,
        domain: &dyn Domain,
        values: &[E],
        rights: Rights,
    ) -> Result<Self> {
        if values.is_empty() || rights.is_empty() || !Rights::all().contains(rights) {
            let what = format!("{} elements for peers", values.len());
            return Err(Error::new(Errno::EINVAL, "register", what));
        }
        let buffer = buffer_of(values, allocate)?;
        let attr = MrAttr {
            elements: Some(E::DATATYPE),
            backing: buffer.backing(),
            ..MrAttr::new(buffer.io(usize::MAX), rights.flags())
        };
        // SAFETY: the memory is freed after the region (`drop`, `close`). This value gives out no
        // reference to it but to atomic types, whose accesses those of peers do not race with.
        let mr = unsafe { domain.register_region(&attr)? };
        Ok(Self {
            mr,
            buffer,
            len: values.len(),
            element: PhantomData,
        })
    }

    /// The key by which peers reach them. Places count bytes from 0.
    pub fn key(&self) -> u64 {
        self.mr.key()
    }

    /// The number of elements.
    #[allow(clippy::len_without_is_empty, reason = "there is one at least")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The element at an index.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is none.
    pub fn load(&self, index: usize) -> Result<E> {
        Ok(E::of_word(self.word(index)?.load()))
    }

    /// Changes the element at an index to `change` of it, in one step: if the element has changed
    /// meanwhile, `change` is called again. Returns the element from before.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn update(&self, index: usize, mut change: impl FnMut(E) -> E) -> Result<E> {
        let word = self.word(index)?;
        let mut before = word.load();
        loop {
            let element = E::of_word(before);
            match word.replace(before, change(element).to_word()) {
                Ok(()) => return Ok(element),
                Err(now) => before = now,
            }
        }
    }

    /// Ends the region. Afterwards nothing changes the elements, which are returned.
    pub fn close(self) -> Vec<E> {
        let Self { mr, buffer, .. } = self;
        drop(mr);
        buffer.chunks_exact(size_of::<E>()).map(of_bytes).collect()
    }

    fn word(&self, index: usize) -> Result<&E::Atomic> {
        if index >= self.len {
            let what = format!("the element at {index} of a region of {}", self.len);
            return Err(Error::new(Errno::EINVAL, "reach", what));
        }
        // The memory's own pointer: a reference would stand for bytes that do not change.
        let place = self
            .buffer
            .ptr
            .as_ptr()
            .wrapping_add(index * size_of::<E>());
        // SAFETY: the element is in the buffer, which begins at a page, so it is aligned. Nothing
        // uses it but by atomic instructions, as the module says.
        Ok(unsafe { E::Atomic::at(place) })
    }
}

impl<E: StdAtomicInteger> SharedElements<E> {
    /// The elements, as the standard library's atomic types.
    pub fn atomics(&self) -> &[E::StdAtomic] {
        // SAFETY: the buffer begins at a page and has `len` elements, of the size and alignment of
        // the atomic type (asserted beside its trait). Nothing uses them but by atomic instructions
        // of that size, as the module says.
        unsafe { std::slice::from_raw_parts(self.buffer.ptr.as_ptr().cast(), self.len) }
    }
}

impl<E: AtomicElement> std::fmt::Debug for SharedElements<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (len, key) = (self.len, self.key());
        write!(
            f,
            "SharedElements, {len} of {:?}, with key {key:#x}",
            E::DATATYPE
        )
    }
}
