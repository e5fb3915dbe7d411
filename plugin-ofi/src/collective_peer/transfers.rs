//! The owner's endpoint, by which messages go (`FI_PEER_TRANSFER`).

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use ferrofabric_contracts::error::{Errno, Error, OpError};
use ferrofabric_contracts::flags::{Flags, MrMode, Order};
use ferrofabric_contracts::info::Info;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::cancel::Uncancelled;
use libc::iovec;

use crate::abi::{
    FI_ADDR_UNSPEC, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_PEER_TRANSFER, fi_msg_tagged,
    fi_ops_ep, fi_ops_tagged, fi_peer_transfer_context, fid, fid_ep,
};
use crate::guard::Refused;
use crate::info::{UsedAddresses, wanted};
use crate::memory::check_size;

/// The tag of a message has no bit above these: the owner marks transfers there.
const TAG_BITS: u64 = u64::MAX >> 1;

/// The owner's endpoint.
pub(super) struct OwnersTransfers {
    ep: NonNull<fid_ep>,
    send: MessageFn,
    receive: MessageFn,
    cancel: CancelFn,
    /// Bytes of a message at most.
    pub(super) max_msg_size: usize,
    /// Receives that there is room for.
    pub(super) most_receives: usize,
}

type MessageFn = unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize;
type CancelFn = unsafe extern "C" fn(*mut fid, *mut c_void) -> isize;

// SAFETY: the owner's endpoint is for any thread (fi_peer(3): the owner sees to locks).
unsafe impl Send for OwnersTransfers {}
// SAFETY: as above.
unsafe impl Sync for OwnersTransfers {}

/// A message as the owner sends or receives it.
#[derive(Clone, Copy)]
pub(super) struct TransferCall {
    pub(super) number: u64,
    pub(super) sends: bool,
    /// The receiver, or the sender: `FI_ADDR_UNSPEC` for any.
    pub(super) peer: FiAddr,
    pub(super) tag: u64,
    pub(super) ignore: u64,
    pub(super) is_probe: bool,
    /// It ends when the message is received.
    pub(super) is_confirmed: bool,
}

/// Memory of a message, which stays until its end is reported.
#[derive(Clone, Copy)]
pub(super) struct TransferMemory {
    pub(super) at: *mut u8,
    pub(super) len: usize,
}

impl OwnersTransfers {
    /// The endpoint that a context names.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the context is too short, or has no endpoint with tagged messages that can be
    /// cancelled; or the owner's messages do not suffice.
    ///
    /// # Safety
    ///
    /// `context` is NULL, or a context as fi_peer(3) has it, with an info that is as long as in
    /// that version.
    pub(super) unsafe fn of(
        version: u32,
        context: *const fi_peer_transfer_context,
    ) -> Result<Self, Refused> {
        // SAFETY: as the caller says; the owner's endpoint is open for as long as this one.
        unsafe {
            check_size(context)?;
            let ep = NonNull::new((*context).ep).ok_or(Errno::EINVAL)?;
            let tagged: *const fi_ops_tagged = ep.as_ref().tagged;
            check_size(tagged)?;
            let ops: *const fi_ops_ep = ep.as_ref().ops;
            check_size(ops)?;
            let (mut max_msg_size, mut most_receives) = (usize::MAX, usize::MAX);
            if !(*context).info.is_null() {
                let info = wanted(version, (*context).info, UsedAddresses::NONE)?;
                check(&info)?;
                if info.ep.max_msg_size != 0 {
                    max_msg_size = info.ep.max_msg_size;
                }
                if info.rx.size != 0 {
                    most_receives = info.rx.size;
                }
            }
            Ok(Self {
                ep,
                send: (*tagged).sendmsg.ok_or(Errno::EINVAL)?,
                receive: (*tagged).recvmsg.ok_or(Errno::EINVAL)?,
                cancel: (*ops).cancel.ok_or(Errno::EINVAL)?,
                max_msg_size,
                most_receives,
            })
        }
    }

    /// The owner's endpoint.
    pub(super) fn ep(&self) -> NonNull<fid_ep> {
        self.ep
    }

    /// Begins a message.
    ///
    /// # Errors
    ///
    /// `Again`: the owner has no room. The owner's.
    ///
    /// # Safety
    ///
    /// The memory stays until the owner reports the end, or this returns an error.
    pub(super) unsafe fn begin(
        &self,
        call: &TransferCall,
        memory: TransferMemory,
    ) -> Result<(), OpError> {
        let iov = iovec {
            iov_base: memory.at.cast(),
            iov_len: memory.len,
        };
        let mut desc = null_mut();
        let msg = fi_msg_tagged {
            msg_iov: &raw const iov,
            desc: &raw mut desc,
            iov_count: 1,
            addr: match call.peer {
                FiAddr::UNSPEC => FI_ADDR_UNSPEC,
                peer => peer.0,
            },
            tag: call.tag & TAG_BITS,
            ignore: call.ignore,
            context: context_of(call.number),
            data: 0,
        };
        let function = match call.sends {
            true => self.send,
            false => self.receive,
        };
        let level = match call.is_confirmed {
            true => FI_DELIVERY_COMPLETE,
            false => 0,
        };
        let flags = FI_PEER_TRANSFER | FI_COMPLETION | level;
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the owner's endpoint is open; the memory as the caller says.
        match unsafe { function(self.ep.as_ptr(), &raw const msg, flags) } {
            0 => Ok(()),
            error if error == -(Errno::EAGAIN.0 as isize) => Err(OpError::Again),
            error @ -4095..0 => Err(OpError::Failed(Errno(-error as i32))),
            _ => Err(OpError::Failed(Errno::EINVAL)),
        }
    }

    /// Cancels a receive, whose end the owner reports. One that has matched ends by itself.
    pub(super) fn cancel(&self, number: u64) {
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the owner's endpoint is open.
        unsafe { (self.cancel)(self.ep.as_ptr().cast(), context_of(number)) };
    }
}

/// Whether the owner's messages suffice.
///
/// # Errors
///
/// `EINVAL`: they do not.
fn check(info: &Info) -> Result<(), Error> {
    let directed = Flags::TAGGED | Flags::DIRECTED_RECV;
    let tag_format = info.ep.mem_tag_format;
    let (sent, received) = (info.tx.msg_order, info.rx.msg_order);
    let needs = [
        (
            info.caps.contains(directed),
            "FI_TAGGED and FI_DIRECTED_RECV",
        ),
        (info.mode.bits() & !FI_PEER_TRANSFER == 0, "no mode bits"),
        (
            !info.domain.mr_mode.contains(MrMode::LOCAL),
            "no FI_MR_LOCAL",
        ),
        (
            tag_format == 0 || tag_format.leading_zeros() <= 1,
            "tags of 63 bits",
        ),
        ((sent & received).contains(Order::SAS), "FI_ORDER_SAS"),
    ];
    match needs.iter().find(|(is_met, _)| !is_met) {
        None => Ok(()),
        Some((_, need)) => {
            let error = Error::new(Errno::EINVAL, "import", "transfers of another provider");
            Err(error.mend(format!("the owner's endpoint needs {need}")))
        }
    }
}

/// The context of a message. None is NULL.
fn context_of(number: u64) -> *mut c_void {
    (number + 1) as usize as *mut c_void
}

/// The number of the message with a context.
pub(super) fn number_of(context: *mut c_void) -> Option<u64> {
    (context as u64).checked_sub(1)
}
