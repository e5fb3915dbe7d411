//! Memory that peers reach by one-sided operations, and the handles by which they reach it.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::Rights;
use ferrofabric_runtime::owning::{Buffer, SharedBuffer};

/// Peers may read the region, and not write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeersRead {}

/// Peers may write to the region, and not read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeersWrite {}

/// Peers may read the region and write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeersReadWrite {}

/// The rights of peers to a region: [`PeersRead`], [`PeersWrite`] or [`PeersReadWrite`].
pub trait RegionRights: sealed::HasRights {}

/// Rights that allow reads.
pub trait AllowsRead: RegionRights {}

/// Rights that allow writes.
pub trait AllowsWrite: RegionRights {}

impl RegionRights for PeersRead {}
impl RegionRights for PeersWrite {}
impl RegionRights for PeersReadWrite {}
impl AllowsRead for PeersRead {}
impl AllowsRead for PeersReadWrite {}
impl AllowsWrite for PeersWrite {}
impl AllowsWrite for PeersReadWrite {}

mod sealed {
    use super::{PeersRead, PeersReadWrite, PeersWrite, Rights};

    /// The rights, as a value.
    pub trait HasRights {
        /// Them.
        const RIGHTS: Rights;
    }

    impl HasRights for PeersRead {
        const RIGHTS: Rights = Rights::READ;
    }

    impl HasRights for PeersWrite {
        const RIGHTS: Rights = Rights::WRITE;
    }

    impl HasRights for PeersReadWrite {
        const RIGHTS: Rights = Rights::all();
    }
}

/// A buffer that peers reach by one-sided operations, with the rights of its type:
/// [`RdmEndpoint::share`](crate::RdmEndpoint::share).
///
/// The region owns its buffer until [`close`](Self::close), which waits for the operations under
/// way. A drop does the same, and frees the memory. A region that is forgotten
/// ([`std::mem::forget`]) keeps region and memory for the life of the process, so in no case do
/// peers reach freed memory.
///
/// The region belongs to the domain: peers reach it by way of each endpoint there, and it may
/// outlive the endpoint that opened it. Peers on this node map the memory if it is of
/// [`Buffer::shared`]. A device or the kernel carries other operations out where it can.
/// All others need a call of such an endpoint, unless the domain has
/// [`Progress::Auto`](crate::info::Progress::Auto).
///
/// # Bytes that change
///
/// Peers write at any time, so there is no reference to the bytes of a region to which they may
/// write: each access is a copy. A copy locks the domain, and so meets no operation that a thread
/// of this process carries out. Devices, other processes and the kernel do not wait for it: of
/// bytes that they write meanwhile, each is an old one or a new one. Neither does a peer's write
/// have an order within its bytes; an application that needs to see a whole record checks it (a
/// sum, a version at both ends), or waits for the [`PeerWrite`](crate::PeerWrite) of a write with
/// CQ data.
///
/// ```
/// # use ferrofabric::{Buffer, PathChoice, PeersRead, PeersReadWrite, RdmEndpoint};
/// # let endpoint = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
/// let mut counters = endpoint.share::<PeersReadWrite>(Buffer::new(4096)?)?;
/// counters.store(8, 42)?;
/// let mut word = [0; 8];
/// counters.copy_out(8, &mut word)?;
/// assert_eq!(u64::from_ne_bytes(word), 42);
/// let buffer = counters.close();
/// assert_eq!(buffer[8], 42);
///
/// // To this one peers do not write: its bytes are there to be read.
/// let table = endpoint.share::<PeersRead>(buffer)?;
/// assert_eq!(table.bytes()[8], 42);
/// # Ok::<(), ferrofabric::Error>(())
/// ```
///
/// Bytes to which peers may write have no reference:
///
/// ```compile_fail,E0599
/// # use ferrofabric::{Buffer, PathChoice, PeersReadWrite, RdmEndpoint};
/// # let endpoint = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
/// let region = endpoint.share::<PeersReadWrite>(Buffer::new(4096)?)?;
/// let first = region.bytes()[0];
/// # Ok::<(), ferrofabric::Error>(())
/// ```
///
/// Neither does the buffer, while it is a region:
///
/// ```compile_fail,E0382
/// # use ferrofabric::{Buffer, PathChoice, PeersReadWrite, RdmEndpoint};
/// # let endpoint = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
/// let buffer = Buffer::new(4096)?;
/// let region = endpoint.share::<PeersReadWrite>(buffer)?;
/// let first = buffer[0];
/// # Ok::<(), ferrofabric::Error>(())
/// ```
pub struct PeerRegion<R> {
    memory: SharedBuffer,
    rights: PhantomData<R>,
}

impl<R: RegionRights> PeerRegion<R> {
    pub(crate) fn over(memory: SharedBuffer) -> Self {
        Self {
            memory,
            rights: PhantomData,
        }
    }

    /// The handle for peers: send it to them.
    pub fn remote(&self) -> RemoteRegion<R> {
        RemoteRegion::whole(self.memory.key(), self.len())
    }

    /// Its length in bytes, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.memory.len_bytes()
    }

    /// Copies bytes from byte `at` on.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the region has no such bytes. `EBUSY`: the domain belongs to another thread
    /// ([`Threading::Domain`](crate::info::Threading::Domain)).
    pub fn copy_out(&self, at: usize, into: &mut [u8]) -> Result<()> {
        self.memory.copy_out(at, into)
    }

    /// Copies bytes to byte `at` and on.
    ///
    /// # Errors
    ///
    /// As [`copy_out`](Self::copy_out).
    pub fn copy_in(&mut self, at: usize, from: &[u8]) -> Result<()> {
        self.memory.copy_in(at, from)
    }

    /// Reads the word of 8 bytes at byte `at`, in the processor's order of bytes. No store of this
    /// process is read in half.
    ///
    /// # Errors
    ///
    /// As [`copy_out`](Self::copy_out). `EINVAL` also if `at` is no multiple of 8.
    pub fn load(&self, at: usize) -> Result<u64> {
        self.memory.load(at)
    }

    /// Writes the word of 8 bytes at byte `at`, as [`load`](Self::load) reads it.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn store(&mut self, at: usize, word: u64) -> Result<()> {
        self.memory.store(at, word)
    }

    /// Ends the region, and returns its buffer with all that peers have written. Later operations
    /// of peers fail with `EACCES`. The call waits for those under way, and drives the domain
    /// meanwhile; a peer that is stopped in the middle of one holds it up until it goes on or dies.
    pub fn close(self) -> Buffer {
        self.memory.close()
    }
}

impl PeerRegion<PeersRead> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self.memory.bytes() {
            Some(bytes) => bytes,
            None => unreachable!("peers have no right to write"),
        }
    }
}

impl<R: RegionRights> fmt::Debug for PeerRegion<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerRegion of {} bytes, {}", self.len(), rights::<R>())
    }
}

/// A peer's region, or a piece of one: the value by which [`RdmEndpoint::read`] and
/// [`RdmEndpoint::write`] name the memory.
///
/// The peer gets it from [`PeerRegion::remote`], and sends it as [bytes](Self::to_bytes). It is no
/// proof that the region is there: the peer checks key, range and right of each operation.
///
/// ```
/// # use ferrofabric::{Buffer, PathChoice, PeersRead, RdmEndpoint, RemoteRegion};
/// # let endpoint = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
/// let region = endpoint.share::<PeersRead>(Buffer::new(4096)?)?;
/// let message = region.remote().to_bytes();
///
/// // At the peer:
/// let remote = RemoteRegion::<PeersRead>::from_bytes(&message)?;
/// let record = remote.slice(64..128)?;
/// assert_eq!(record.len(), 64);
/// assert!(record.slice(60..70).is_err());
/// # Ok::<(), ferrofabric::Error>(())
/// ```
///
/// A region whose peers may only read takes no write, and the reverse:
///
/// ```compile_fail,E0277
/// # use ferrofabric::{Buffer, FiAddr, PeersRead, RdmEndpoint, RemoteRegion};
/// fn write(endpoint: &mut RdmEndpoint, peer: FiAddr, table: RemoteRegion<PeersRead>) {
///     let _ = endpoint.write(peer, table, Buffer::new(64).unwrap());
/// }
/// ```
///
/// ```compile_fail,E0277
/// # use ferrofabric::{Buffer, FiAddr, PeersWrite, RdmEndpoint, RemoteRegion};
/// fn read(endpoint: &mut RdmEndpoint, peer: FiAddr, mailbox: RemoteRegion<PeersWrite>) {
///     let _ = endpoint.read(peer, mailbox, Buffer::new(64).unwrap());
/// }
/// ```
///
/// [`RdmEndpoint::read`]: crate::RdmEndpoint::read
/// [`RdmEndpoint::write`]: crate::RdmEndpoint::write
#[derive(PartialEq, Eq, Hash)]
pub struct RemoteRegion<R> {
    pub(crate) key: u64,
    pub(crate) place: u64,
    len: usize,
    rights: PhantomData<R>,
}

impl<R> Clone for RemoteRegion<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for RemoteRegion<R> {}

impl<R: RegionRights> RemoteRegion<R> {
    /// The length of its [bytes](Self::to_bytes).
    pub const BYTES: usize = 32;

    /// That of a whole region.
    pub(crate) fn whole(key: u64, len: usize) -> Self {
        Self {
            key,
            place: 0,
            len,
            rights: PhantomData,
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A piece of it, by bytes from its start.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not lie in it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let Range { start, end } = range_within(range, self.len, "bytes")?;
        Ok(Self {
            place: self.place + start as u64,
            len: end - start,
            ..*self
        })
    }

    /// The handle as bytes: key, place, length, rights (bit 0: reads, bit 1: writes), in 8 bytes
    /// each, little-endian.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.encode(NO_ELEMENTS)
    }

    /// As [`to_bytes`](Self::to_bytes), with the number of the type of the region's elements.
    pub(crate) fn encode(&self, elements: u64) -> [u8; 32] {
        let kind = u64::from(R::RIGHTS.bits()) | (elements << RIGHT_BITS);
        let words = [self.key, self.place, self.len as u64, kind];
        let mut bytes = [0; 32];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote. A region with more rights is read as one with
    /// fewer.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the bytes are no handle, or the region has not these rights.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::decode(NO_ELEMENTS, bytes)
    }

    /// Reads what [`encode`](Self::encode) wrote, with the same number.
    pub(crate) fn decode(elements: u64, bytes: &[u8]) -> Result<Self> {
        let refused = |why: &str| {
            Err(Error::new(Errno::EINVAL, "read", "the handle of a region").mend(why.to_owned()))
        };
        if bytes.len() != Self::BYTES {
            return refused("it has 32 bytes");
        }
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let (key, place) = (word(0), word(8));
        let len = match usize::try_from(word(16)) {
            Ok(len) if place.checked_add(len as u64).is_some() => len,
            _ => return refused("it has a range beyond the last address"),
        };
        if word(24) >> RIGHT_BITS != elements {
            return refused("the region has other elements");
        }
        let Some(rights) = Rights::from_bits(word(24) as u8) else {
            return refused("it has rights that there are not");
        };
        if !rights.contains(R::RIGHTS) {
            return refused("the region gives peers fewer rights");
        }
        Ok(Self {
            key,
            place,
            len,
            rights: PhantomData,
        })
    }
}

impl<R: RegionRights> fmt::Debug for RemoteRegion<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key, place, len, ..
        } = self;
        let rights = rights::<R>();
        write!(
            f,
            "RemoteRegion of {len} bytes at {place} of key {key:#x}, {rights}"
        )
    }
}

/// The range of something that has so many units.
pub(crate) fn range_within(
    range: impl RangeBounds<usize>,
    len: usize,
    unit: &str,
) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok(start..end),
        _ => {
            let what = format!("{:?} of a region", (range.start_bound(), range.end_bound()));
            Err(Error::new(Errno::EINVAL, "slice", what)
                .mend(format!("the region has {len} {unit}")))
        }
    }
}

/// The number of elements of a region of bytes; others are of types.
const NO_ELEMENTS: u64 = 0;

/// The bits of the last word of a handle that are for rights. The others have the elements.
const RIGHT_BITS: u32 = 8;

pub(crate) fn rights<R: RegionRights>() -> &'static str {
    match R::RIGHTS {
        Rights::READ => "which peers read",
        Rights::WRITE => "which peers write",
        _ => "which peers read and write",
    }
}
