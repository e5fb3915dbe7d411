//! The owner of a shared receive context: its functions, and its receive entries in the layout of
//! the libfabric that is there.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Arrived;
use ferrofabric_contracts::types::{IoBuf, MrDesc, MsgKind};

use crate::abi::{
    FI_COMPLETION, fi_addr_t, fi_ops_srx_owner, fi_ops_srx_peer, fi_peer_match_attr,
    fi_peer_rx_entry, fi_peer_srx_context, fid_peer_srx, link_bytes,
};
use crate::fi_addr::returned;
use crate::host::Host;
use crate::memory::{buffers, check_size, common};

type MatchFn = unsafe extern "C" fn(
    *mut fid_peer_srx,
    *mut fi_peer_match_attr,
    *mut *mut fi_peer_rx_entry,
) -> c_int;
type QueueFn = unsafe extern "C" fn(*mut fi_peer_rx_entry) -> c_int;
type FreeFn = unsafe extern "C" fn(*mut fi_peer_rx_entry);
type AddressFn = unsafe extern "C" fn(*mut fi_peer_rx_entry) -> fi_addr_t;
type UpdateFn = unsafe extern "C" fn(*mut fid_peer_srx, Option<AddressFn>);

/// The owner's context and functions. They exist for longer than the context that is opened here.
#[derive(Clone, Copy)]
pub(super) struct SrxOwner {
    srx: NonNull<fid_peer_srx>,
    get_msg: MatchFn,
    get_tag: MatchFn,
    queue_msg: QueueFn,
    queue_tag: QueueFn,
    update_sources: UpdateFn,
    free: FreeFn,
}

// SAFETY: the functions are called where the owner drives this provider, which sees to its locks
// (fi_peer(3)).
unsafe impl Send for SrxOwner {}
// SAFETY: as above.
unsafe impl Sync for SrxOwner {}

/// The owner's answer for a message.
pub(super) enum OwnerMatch {
    /// A receive: its buffers are this provider's until the entry is freed.
    Receive(RxEntry),
    /// None yet: the entry stands for the message, and is to be queued.
    None(RxEntry),
    /// No entry.
    Refused(Errno),
}

impl SrxOwner {
    /// The owner that a context names. It gets this provider's functions.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the context or a table of functions is too short, or a function is missing.
    ///
    /// # Safety
    ///
    /// `context` is NULL, or a context as fi_peer(3) has it.
    pub(super) unsafe fn of(
        context: *const fi_peer_srx_context,
        ours: *mut fi_ops_srx_peer,
    ) -> Result<Self, Errno> {
        // SAFETY: as the caller says.
        unsafe {
            check_size(context)?;
            let srx = NonNull::new((*context).srx).ok_or(Errno::EINVAL)?;
            let ops: *const fi_ops_srx_owner = srx.as_ref().owner_ops;
            check_size(ops)?;
            let owner = Self {
                srx,
                get_msg: (*ops).get_msg.ok_or(Errno::EINVAL)?,
                get_tag: (*ops).get_tag.ok_or(Errno::EINVAL)?,
                queue_msg: (*ops).queue_msg.ok_or(Errno::EINVAL)?,
                queue_tag: (*ops).queue_tag.ok_or(Errno::EINVAL)?,
                update_sources: (*ops).foreach_unspec_addr.ok_or(Errno::EINVAL)?,
                free: (*ops).free_entry.ok_or(Errno::EINVAL)?,
            };
            (*srx.as_ptr()).peer_ops = ours;
            Ok(owner)
        }
    }

    /// Looks for the receive of a message.
    pub(super) fn find(&self, kind: MsgKind, message: &Arrived) -> OwnerMatch {
        let get = match kind {
            MsgKind::Tagged => self.get_tag,
            _ => self.get_msg,
        };
        let mut attr = fi_peer_match_attr {
            addr: returned(message.src),
            msg_size: usize::try_from(message.len).unwrap_or(usize::MAX),
            tag: message.tag,
        };
        let mut entry = std::ptr::null_mut();
        // SAFETY: the owner's context is open for as long as this one.
        let answer = unsafe { get(self.srx.as_ptr(), &raw mut attr, &raw mut entry) };
        match (answer, NonNull::new(entry).map(RxEntry)) {
            (0, Some(entry)) => OwnerMatch::Receive(entry),
            (answer, Some(entry)) if answer == -Errno::ENOENT.0 => OwnerMatch::None(entry),
            (0, None) => OwnerMatch::Refused(Errno::EINVAL),
            (error, _) => OwnerMatch::Refused(Errno(error.wrapping_neg())),
        }
    }

    /// Queues an entry that stands for a message.
    ///
    /// # Errors
    ///
    /// The owner's.
    pub(super) fn queue(&self, kind: MsgKind, entry: RxEntry) -> Result<(), Errno> {
        let queue = match kind {
            MsgKind::Tagged => self.queue_tag,
            _ => self.queue_msg,
        };
        // SAFETY: the entry is the owner's own, and nobody has freed it.
        match unsafe { queue(entry.0.as_ptr()) } {
            0 => Ok(()),
            error => Err(Errno(error.wrapping_neg())),
        }
    }

    /// Has the owner inquire about the sources of all queued entries that have none.
    pub(super) fn update_sources(&self, source_of: AddressFn) {
        // SAFETY: as for `find`.
        unsafe { (self.update_sources)(self.srx.as_ptr(), Some(source_of)) };
    }

    /// Gives an entry back.
    pub(super) fn free(&self, entry: RxEntry) {
        // SAFETY: the entry is the owner's own; this is the one call that gives it back.
        unsafe { (self.free)(entry.0.as_ptr()) };
    }
}

/// A receive entry of the owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RxEntry(NonNull<fi_peer_rx_entry>);

// SAFETY: only the thread that has the entry by the rules of fi_peer(3) looks into it.
unsafe impl Send for RxEntry {}

/// The receive of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryReceive {
    pub(super) context: u64,
    pub(super) tag: u64,
    /// It is for a completion.
    pub(super) reports: bool,
}

impl RxEntry {
    /// The entry of a callback; `None` for NULL.
    pub(super) fn of(entry: *mut fi_peer_rx_entry) -> Option<Self> {
        NonNull::new(entry).map(Self)
    }

    /// Its fields, in the present layout.
    fn fields(self) -> *mut fi_peer_rx_entry {
        let version = Host::get().map_or(u32::MAX, Host::version);
        self.0.as_ptr().wrapping_byte_add(link_bytes(version))
    }

    /// Writes down the message for which the entry stands, by a number of this provider's.
    ///
    /// # Safety
    ///
    /// The owner has just handed the entry out, and it is not queued yet.
    pub(super) unsafe fn note(self, number: u64, message: &Arrived) {
        // SAFETY: as the caller says.
        let fields = unsafe { &mut *self.fields() };
        fields.peer_context = number as usize as *mut c_void;
        if message.flags.contains(Flags::REMOTE_CQ_DATA) {
            fields.cq_data = message.data;
            fields.flags |= message.flags.bits();
        }
    }

    /// The number in an entry that the owner hands to a callback.
    ///
    /// # Safety
    ///
    /// The entry is one that its owner has not freed.
    pub(super) unsafe fn number(self) -> u64 {
        // SAFETY: as the caller says.
        unsafe { (*self.fields()).peer_context as u64 }
    }

    /// The buffers and their descriptor.
    ///
    /// # Safety
    ///
    /// The entry is that of a receive, and not freed while the result is used.
    pub(super) unsafe fn buffers<'a>(self) -> (&'a [IoBuf], MrDesc) {
        // SAFETY: as the caller says: the lists have that many parts.
        unsafe {
            let fields = &*self.fields();
            let desc = common(fields.desc, fields.count);
            (
                buffers(fields.iov, fields.count),
                MrDesc::from_number(desc as u64),
            )
        }
    }

    /// The application's context and tag, and whether the receive reports a completion.
    ///
    /// # Safety
    ///
    /// As of [`buffers`](Self::buffers).
    pub(super) unsafe fn receive(self) -> EntryReceive {
        // SAFETY: as the caller says.
        let fields = unsafe { &*self.fields() };
        EntryReceive {
            context: fields.context as u64,
            tag: fields.tag,
            reports: fields.flags & FI_COMPLETION != 0,
        }
    }
}
