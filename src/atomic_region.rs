//! Elements that peers change by atomic operations, and the handles by which they reach them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_runtime::owning::{AtomicElement, SharedElements, StdAtomicInteger};

use crate::region::{PeersReadWrite, RegionRights, RemoteRegion, range_within, rights};

/// Elements that peers change by atomic operations, with the rights of its type:
/// [`RdmEndpoint::share_atomic`](crate::RdmEndpoint::share_atomic). This process changes the same
/// elements at the same time.
///
/// Peers reach the elements by atomic operations on elements of this type alone: their reads and
/// writes are refused. So all accesses are atomic with each other, and none needs the domain. An
/// array as a whole is not atomic: of several elements, some may be changed and others not yet.
///
/// As a [`PeerRegion`](crate::PeerRegion), it owns its memory until [`close`](Self::close), which
/// waits for the operations under way; a drop does the same. It belongs to the domain, and one that
/// is forgotten stays. The owner's processor carries out the operations of peers, in calls of an
/// endpoint of the domain, or in the thread of a domain with
/// [`Progress::Auto`](crate::info::Progress::Auto). In a region that
/// [peers map](crate::RdmEndpoint::share_atomic_mapped), those of this node carry theirs out by
/// themselves.
///
/// ```
/// use std::sync::atomic::Ordering;
///
/// # use ferrofabric::{AtomicRegion, PathChoice, PeersRead, RdmEndpoint};
/// # let endpoint = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
/// let counters: AtomicRegion<u64> = endpoint.share_atomic(&[0; 8])?;
/// // Integers of up to 64 bits are those of the standard library.
/// counters.atomics()[3].fetch_add(2, Ordering::Relaxed);
/// assert_eq!(counters.load(3)?, 2);
/// assert_eq!(counters.close()[3], 2);
///
/// // Peers may read these, and not change them.
/// let weights: AtomicRegion<f64, PeersRead> = endpoint.share_atomic(&[0.5, 1.5])?;
/// weights.update(1, |weight| weight * 2.0)?;
/// assert_eq!(weights.load(1)?, 3.0);
/// # Ok::<(), ferrofabric::Error>(())
/// ```
///
/// The elements are there as long as the region:
///
/// ```compile_fail,E0505
/// # use std::sync::atomic::Ordering;
/// # use ferrofabric::{AtomicRegion, PathChoice, RdmEndpoint};
/// # let endpoint = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
/// let counters: AtomicRegion<u64> = endpoint.share_atomic(&[0; 8])?;
/// let first = &counters.atomics()[0];
/// counters.close();
/// first.fetch_add(1, Ordering::Relaxed);
/// # Ok::<(), ferrofabric::Error>(())
/// ```
pub struct AtomicRegion<T, R = PeersReadWrite> {
    elements: SharedElements<T>,
    rights: PhantomData<R>,
}

impl<T: AtomicElement, R: RegionRights> AtomicRegion<T, R> {
    pub(crate) fn over(elements: SharedElements<T>) -> Self {
        Self {
            elements,
            rights: PhantomData,
        }
    }

    /// The handle for peers: send it to them.
    pub fn remote(&self) -> RemoteAtomicRegion<T, R> {
        let bytes = self.len() * size_of::<T>();
        RemoteAtomicRegion::over(RemoteRegion::whole(self.elements.key(), bytes))
    }

    /// The number of elements, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// The present element at an index, as a whole.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is none.
    pub fn load(&self, index: usize) -> Result<T> {
        self.elements.load(index)
    }

    /// Changes the element at an index to `change` of it, in one step: if the element has changed
    /// meanwhile, `change` is called again. Returns the element from before.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn update(&self, index: usize, change: impl FnMut(T) -> T) -> Result<T> {
        self.elements.update(index, change)
    }

    /// Ends the region, and returns its elements as peers and this process have left them. Later
    /// operations of peers fail with `EACCES`. The call waits for those under way, and drives the
    /// domain meanwhile.
    pub fn close(self) -> Vec<T> {
        self.elements.close()
    }
}

impl<T: StdAtomicInteger, R: RegionRights> AtomicRegion<T, R> {
    /// The elements, as the standard library's atomic integers: `AtomicU64` for `u64`. Operations
    /// of peers are `SeqCst` to them.
    pub fn atomics(&self) -> &[T::StdAtomic] {
        self.elements.atomics()
    }
}

impl<T: AtomicElement, R: RegionRights> fmt::Debug for AtomicRegion<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, element, rights) = (self.len(), T::DATATYPE, rights::<R>());
        write!(f, "AtomicRegion of {len} elements {element:?}, {rights}")
    }
}

/// A peer's [`AtomicRegion`], or a piece of one: the value by which [`RdmEndpoint::atomic`] and the
/// other atomic operations name the elements.
///
/// The peer gets it from [`AtomicRegion::remote`], and sends it as [bytes](Self::to_bytes). It is
/// no proof that the region is there: the peer checks key, range, right and type of each operation.
///
/// ```
/// # use ferrofabric::{AtomicRegion, PathChoice, RdmEndpoint, RemoteAtomicRegion};
/// # let endpoint = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
/// let region: AtomicRegion<f32> = endpoint.share_atomic(&[0.0; 100])?;
/// let message = region.remote().to_bytes();
///
/// // At the peer:
/// let remote = RemoteAtomicRegion::<f32>::from_bytes(&message)?;
/// assert_eq!(remote.slice(10..30)?.len(), 20);
/// assert!(remote.element(100).is_err());
/// assert!(RemoteAtomicRegion::<u32>::from_bytes(&message).is_err());
/// # Ok::<(), ferrofabric::Error>(())
/// ```
///
/// Elements that peers may only read are not changed, and those that they may only change are not
/// fetched:
///
/// ```compile_fail,E0277
/// # use ferrofabric::{FiAddr, Operator, PeersRead, RdmEndpoint, RemoteAtomicRegion};
/// fn add(endpoint: &mut RdmEndpoint, peer: FiAddr, sums: RemoteAtomicRegion<u64, PeersRead>) {
///     let _ = endpoint.atomic(peer, sums, Operator::SUM, 1);
/// }
/// ```
///
/// ```compile_fail,E0277
/// # use ferrofabric::{FiAddr, Operator, PeersWrite, RdmEndpoint, RemoteAtomicRegion};
/// fn take(endpoint: &mut RdmEndpoint, peer: FiAddr, sums: RemoteAtomicRegion<u64, PeersWrite>) {
///     let _ = endpoint.fetch_atomic(peer, sums, Operator::SUM, 1);
/// }
/// ```
///
/// [`RdmEndpoint::atomic`]: crate::RdmEndpoint::atomic
pub struct RemoteAtomicRegion<T, R = PeersReadWrite> {
    pub(crate) bytes: RemoteRegion<R>,
    element: PhantomData<fn() -> T>,
}

impl<T, R> Clone for RemoteAtomicRegion<T, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, R> Copy for RemoteAtomicRegion<T, R> {}

impl<T: AtomicElement, R: RegionRights> RemoteAtomicRegion<T, R> {
    /// The length of its [bytes](Self::to_bytes).
    pub const BYTES: usize = RemoteRegion::<R>::BYTES;

    /// Elements of one operation at most: those of 4096 bytes.
    pub const MAX_ELEMENTS: usize = T::DATATYPE.max_count();

    /// The type of elements, as handles have it.
    const ELEMENTS: u64 = T::DATATYPE as u64 + 1;

    fn over(bytes: RemoteRegion<R>) -> Self {
        Self {
            bytes,
            element: PhantomData,
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / size_of::<T>()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// A piece of it, by elements from its start.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not lie in it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = range_within(range, self.len(), "elements")?;
        let at = |index: usize| index * size_of::<T>();
        self.bytes
            .slice(at(range.start)..at(range.end))
            .map(Self::over)
    }

    /// The piece of one element.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such element.
    pub fn element(&self, index: usize) -> Result<Self> {
        self.slice(index..=index)
    }

    /// The handle as bytes: that of a [`RemoteRegion`], and in bits 8 and on of its last 8 bytes,
    /// the number of the type in libfabric, plus 1.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.bytes.encode(Self::ELEMENTS)
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote. A region with more rights is read as one with
    /// fewer.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the bytes are no handle, or the region has not these rights or not these elements.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes = RemoteRegion::decode(Self::ELEMENTS, bytes)?;
        let is_aligned = bytes.place % T::DATATYPE.alignment() as u64 == 0;
        if !is_aligned || bytes.len() % size_of::<T>() != 0 {
            return Err(Error::new(Errno::EINVAL, "read", "the handle of a region")
                .mend("it begins or ends within an element"));
        }
        Ok(Self::over(bytes))
    }
}

impl<T: AtomicElement, R: RegionRights> fmt::Debug for RemoteAtomicRegion<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} as elements {:?}", self.bytes, T::DATATYPE)
    }
}
