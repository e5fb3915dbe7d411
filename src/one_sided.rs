//! One-sided operations of an endpoint: regions for its peers, reads and writes of theirs.

use ferrofabric_contracts::error::Result;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, MrDesc, RmaKind, RmaOp};
use ferrofabric_runtime::owning::{Buffer, SharedBuffer};

use crate::endpoint::{Patience, RdmEndpoint};
use crate::operation_error::OperationError;
use crate::operation_id::{ReadId, WriteId};
use crate::region::{AllowsRead, AllowsWrite, PeerRegion, RegionRights, RemoteRegion};

/// # One-sided operations
///
/// A peer [shares](Self::share) memory, and sends the handle of it. This endpoint then
/// [reads](Self::read) and [writes](Self::write) that memory; the peer posts nothing for it.
///
/// ```
/// use std::time::Duration;
///
/// use ferrofabric::info::Progress;
/// use ferrofabric::{Buffer, PathChoice, PeersReadWrite, RdmEndpoint};
///
/// let timeout = Some(Duration::from_secs(10));
/// let options = || RdmEndpoint::builder().path(PathChoice::Shm);
/// // A thread of its domain carries the peer's operations out.
/// let server = options().progress(Progress::Auto).open()?;
/// let mut client = options().open()?;
/// let to_server = client.insert(server.address())?;
///
/// let region = server.share::<PeersReadWrite>(Buffer::copy_of(b"hello, world")?)?;
/// let remote = region.remote();
///
/// let write = client.write(to_server, remote.slice(7..)?, Buffer::copy_of(b"peers")?)?;
/// client.wait_for(write, timeout)?;
/// let read = client.read(to_server, remote, Buffer::new(12)?)?;
/// assert_eq!(&client.wait_for(read, timeout)?[..], b"hello, peers");
/// assert_eq!(&region.close()[..], b"hello, peers");
/// # Ok::<(), ferrofabric::Error>(())
/// ```
impl RdmEndpoint {
    /// Lets peers reach the bytes of a buffer, with the rights of `R`, until the region is closed.
    ///
    /// # Errors
    ///
    /// The buffer is freed. `EINVAL`: it is empty.
    ///
    /// Memory that the device does not register, for example beyond the limit of locked memory, is
    /// reached by messages alone; a warning in the log has the device's error.
    pub fn share<R: RegionRights>(&self, buffer: Buffer) -> Result<PeerRegion<R>> {
        let memory = SharedBuffer::open(&**self.domain(), buffer, R::RIGHTS)?;
        Ok(PeerRegion::over(memory))
    }

    /// Reads a peer's region, or a [piece](RemoteRegion::slice) of it, into the start of a buffer.
    /// A buffer that is shorter, but has the [capacity](Buffer::capacity), gets the length of the
    /// piece; what is behind the piece in a longer one stays. Waits until there is capacity for the
    /// operation: see [above](Self#back-pressure). 1024 reads and atomic operations are under way
    /// at most.
    ///
    /// The peer's endpoint has this endpoint's address in its address vector: it sends the bytes
    /// there.
    ///
    /// # Errors
    ///
    /// The error contains the buffer. `EINVAL`: the buffer has room for fewer bytes. Else as
    /// [`send`](Self::send).
    ///
    /// The read itself fails with `EACCES` if the region is closed, has no such bytes or gives no
    /// such right.
    pub fn read<R: AllowsRead>(
        &mut self,
        from: FiAddr,
        remote: RemoteRegion<R>,
        into: Buffer,
    ) -> Result<ReadId, OperationError> {
        self.post_read(from, remote, into, Patience::Waits)
    }

    /// As [`read`](Self::read), without a wait.
    ///
    /// # Errors
    ///
    /// As there. `EAGAIN` ([`OperationError::is_again`]): there is no capacity now.
    pub fn try_read<R: AllowsRead>(
        &mut self,
        from: FiAddr,
        remote: RemoteRegion<R>,
        into: Buffer,
    ) -> Result<ReadId, OperationError> {
        self.post_read(from, remote, into, Patience::Tries)
    }

    fn post_read<R: AllowsRead>(
        &mut self,
        from: FiAddr,
        remote: RemoteRegion<R>,
        mut into: Buffer,
        patience: Patience,
    ) -> Result<ReadId, OperationError> {
        let (op, len) = (operation(RmaKind::Read, from, &remote), remote.len());
        if into.len() < len {
            // The post below refuses a piece that the memory has no room for.
            let _ = into.resize(len);
        }
        let posted = self.post_one_sided(op, into, len, patience);
        posted
            .map(ReadId)
            .map_err(|refused| OperationError::refused_read(from, len, refused))
    }

    /// Writes all bytes of a buffer to the start of a peer's region, or of a
    /// [piece](RemoteRegion::slice) of it. The write completes when the bytes are there. Waits
    /// until there is capacity for it: see [above](Self#back-pressure).
    ///
    /// Writes have no order among each other: a write that is to come after another is posted when
    /// that one is complete.
    ///
    /// # Errors
    ///
    /// The error contains the buffer. `EINVAL`: the buffer has more bytes than the piece. Else as
    /// [`send`](Self::send). The write itself fails with `EACCES` if the region is closed, or has
    /// no such bytes, or gives no such right.
    pub fn write<R: AllowsWrite>(
        &mut self,
        to: FiAddr,
        remote: RemoteRegion<R>,
        bytes: Buffer,
    ) -> Result<WriteId, OperationError> {
        self.post_write(to, remote, bytes, None, Patience::Waits)
    }

    /// As [`write`](Self::write), without a wait.
    ///
    /// # Errors
    ///
    /// As there. `EAGAIN` ([`OperationError::is_again`]): there is no capacity now.
    pub fn try_write<R: AllowsWrite>(
        &mut self,
        to: FiAddr,
        remote: RemoteRegion<R>,
        bytes: Buffer,
    ) -> Result<WriteId, OperationError> {
        self.post_write(to, remote, bytes, None, Patience::Tries)
    }

    /// As [`write`](Self::write), with CQ data: once the bytes are there, the peer's endpoint
    /// completes a [`PeerWrite`](crate::PeerWrite) with this number.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_with_data<R: AllowsWrite>(
        &mut self,
        to: FiAddr,
        remote: RemoteRegion<R>,
        bytes: Buffer,
        data: u64,
    ) -> Result<WriteId, OperationError> {
        self.post_write(to, remote, bytes, Some(data), Patience::Waits)
    }

    /// As [`write_with_data`](Self::write_with_data), without a wait.
    ///
    /// # Errors
    ///
    /// As [`try_write`](Self::try_write).
    pub fn try_write_with_data<R: AllowsWrite>(
        &mut self,
        to: FiAddr,
        remote: RemoteRegion<R>,
        bytes: Buffer,
        data: u64,
    ) -> Result<WriteId, OperationError> {
        self.post_write(to, remote, bytes, Some(data), Patience::Tries)
    }

    fn post_write<R: AllowsWrite>(
        &mut self,
        to: FiAddr,
        remote: RemoteRegion<R>,
        bytes: Buffer,
        data: Option<u64>,
        patience: Patience,
    ) -> Result<WriteId, OperationError> {
        let len = bytes.len();
        if len > remote.len() {
            return Err(OperationError::beyond_region(to, bytes));
        }
        let op = operation(RmaKind::Write, to, &remote);
        let op = match data {
            Some(data) => RmaOp {
                data,
                flags: op.flags | Flags::REMOTE_CQ_DATA,
                ..op
            },
            None => op,
        };
        let posted = self.post_one_sided(op, bytes, len, patience);
        posted
            .map(WriteId)
            .map_err(|refused| OperationError::refused_write(to, len, refused))
    }
}

/// An operation that completes when its bytes are in their place, visible to every reader there.
fn operation<R>(kind: RmaKind, peer: FiAddr, remote: &RemoteRegion<R>) -> RmaOp {
    RmaOp {
        kind,
        dest: peer,
        key: remote.key,
        place: remote.place,
        data: 0,
        desc: MrDesc::NONE,
        context: 0,
        flags: Flags::DELIVERY_COMPLETE,
    }
}
