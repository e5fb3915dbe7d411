//! Completion queues and the channels that wake their readers.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_system::cancel::Uncancelled;
use ferrofabric_verbs_sys::{
    self as sys, IBV_WC_STANDARD_FLAGS, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_poll_cq_attr, ibv_wc, ibv_wc_opcode, ibv_wc_status,
};

use crate::device::{DeviceContext, failed, last_errno};

/// A completion channel: a descriptor that becomes readable when an armed completion queue has a
/// completion.
#[derive(Debug)]
pub struct CompChannel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<DeviceContext>,
}

// SAFETY: libibverbs takes calls on a channel from any thread, at the same time.
unsafe impl Send for CompChannel {}
// SAFETY: as above.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    /// Creates a channel whose descriptor does not block.
    ///
    /// # Errors
    ///
    /// When there are no descriptors left.
    pub fn create(context: &Arc<DeviceContext>) -> Result<Arc<Self>> {
        let error = |errno| {
            failed(
                errno,
                "create",
                format!("completion channel on {}", context.name()),
            )
        };
        // SAFETY: the context is open.
        let raw = unsafe { (context.verbs().ibv_create_comp_channel)(context.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| error(last_errno()))?;
        let channel = Self {
            raw,
            context: Arc::clone(context),
        };
        let fd = channel.as_fd().as_raw_fd();
        // SAFETY: changes a flag of the channel's own descriptor.
        let rc = unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFL);
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        if rc == -1 {
            return Err(error(last_errno()));
        }
        Ok(Arc::new(channel))
    }

    /// Takes and acknowledges one event: returns the [`Cq::id`] of the queue that has a completion,
    /// or `None` when there is no event. The queue must be armed anew for another event.
    ///
    /// # Errors
    ///
    /// When the device is gone.
    pub fn take_event(&self) -> Result<Option<usize>> {
        let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        let verbs = self.context.verbs();
        // SAFETY: the channel is live.
        if unsafe { (verbs.ibv_get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut cookie) } != 0
        {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(failed(
                    errno,
                    "read",
                    format!("completion channel of {}", self.context.name()),
                )),
            };
        }
        let id = cq as usize;
        // SAFETY: a queue with an event that is not acknowledged cannot go; this acknowledges it,
        // once.
        unsafe { (verbs.ibv_ack_cq_events)(cq, 1) };
        Ok(Some(id))
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        if !self.context.is_own() {
            return;
        }
        // SAFETY: destroyed once; its queues held it and are gone.
        let rc = unsafe { (self.context.verbs().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        if rc != 0 {
            tracing::warn!(
                "{}",
                failed(
                    rc,
                    "destroy",
                    format!("completion channel on {}", self.context.name())
                )
            );
        }
    }
}

/// The configuration of a completion queue.
#[derive(Clone, Debug, Default)]
pub struct CqConfig {
    /// Completions that it must hold.
    pub depth: u32,
    /// The channel that gets the events of this queue.
    pub channel: Option<Arc<CompChannel>>,
    /// The interrupt vector, below [`crate::device::DeviceLimits::completion_vectors`].
    pub vector: u32,
    /// Whether [`Cq::start_poll`] can be used, too, on a device that supports it.
    pub extended: bool,
}

/// A completion queue.
///
/// Any thread may poll; the driver serialises them.
#[derive(Debug)]
pub struct Cq {
    raw: NonNull<ibv_cq>,
    extended: Option<NonNull<ibv_cq_ex>>,
    channel: Option<Arc<CompChannel>>,
    context: Arc<DeviceContext>,
}

// SAFETY: libibverbs takes calls on a completion queue from any thread; the driver locks it.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// Creates a completion queue.
    ///
    /// # Errors
    ///
    /// When the depth is 0 or beyond the device's limit, the vector does not exist, or there is no
    /// room; `EOPNOTSUPP` for an extended one where the device has none.
    pub fn create(context: &Arc<DeviceContext>, config: &CqConfig) -> Result<Arc<Self>> {
        let limit = context.limits().completion_depth;
        if config.depth == 0 || config.depth > limit {
            return Err(not_created(libc::EINVAL, context, config));
        }
        if let Some(channel) = &config.channel {
            if !Arc::ptr_eq(&channel.context, context) {
                return Err(not_created(libc::EXDEV, context, config));
            }
        }
        let (raw, extended) = if config.extended {
            let extended = Self::create_extended(context, config);
            (extended.map(NonNull::cast), extended)
        } else {
            (Self::create_legacy(context, config), None)
        };
        Ok(Arc::new(Self {
            raw: raw.ok_or_else(|| not_created(last_errno(), context, config))?,
            extended,
            channel: config.channel.clone(),
            context: Arc::clone(context),
        }))
    }

    fn create_legacy(context: &DeviceContext, config: &CqConfig) -> Option<NonNull<ibv_cq>> {
        // SAFETY: context and channel are live, and the queue will hold both.
        NonNull::new(unsafe {
            (context.verbs().ibv_create_cq)(
                context.as_ptr(),
                config.depth as i32,
                ptr::null_mut(),
                channel_of(config),
                config.vector as i32,
            )
        })
    }

    fn create_extended(context: &DeviceContext, config: &CqConfig) -> Option<NonNull<ibv_cq_ex>> {
        let mut attributes = ibv_cq_init_attr_ex {
            cqe: config.depth,
            channel: channel_of(config),
            comp_vector: config.vector,
            wc_flags: u64::from(IBV_WC_STANDARD_FLAGS),
            ..Default::default()
        };
        // SAFETY: as above; an empty `comp_mask` needs no more.
        NonNull::new(unsafe {
            context
                .verbs()
                .create_cq_ex(context.as_ptr(), &raw mut attributes)
        })
    }

    /// Takes up to as many completions as fit into `into`, and returns those it took.
    ///
    /// # Errors
    ///
    /// When the queue itself failed (it was overrun, or the device is gone).
    #[inline]
    pub fn poll<'a>(
        &self,
        into: &'a mut [MaybeUninit<ibv_wc>],
    ) -> std::result::Result<&'a [ibv_wc], OpError> {
        let room = into.len().min(i32::MAX as usize) as i32;
        // SAFETY: the queue is live, and `into` has room for `room` entries.
        let count = unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), room, into.as_mut_ptr().cast()) };
        if count < 0 {
            return Err(poll_failed(count));
        }
        // SAFETY: the driver has written that many entries (at most `room`), of plain numbers.
        Ok(unsafe { std::slice::from_raw_parts(into.as_ptr().cast(), (count.min(room)) as usize) })
    }

    /// Starts to read completions one by one in place; `Ok(None)` when there is none.
    ///
    /// The queue is locked until the returned value is dropped: no other poll of it is possible in
    /// between.
    ///
    /// # Errors
    ///
    /// When the queue itself failed, or was not created extended (`EOPNOTSUPP`).
    #[inline]
    pub fn start_poll(&self) -> std::result::Result<Option<ExtendedPoll<'_>>, OpError> {
        let Some(raw) = self.extended else {
            return Err(OpError::Failed(Errno::EOPNOTSUPP));
        };
        let mut attributes = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: live and extended; a nested poll would wait for itself, not break anything.
        match unsafe { sys::ibv_start_poll(raw.as_ptr(), &raw mut attributes) } {
            0 => Ok(Some(ExtendedPoll {
                raw,
                queue: PhantomData,
                thread: PhantomData,
            })),
            libc::ENOENT => Ok(None),
            errno => Err(poll_failed(errno)),
        }
    }

    /// Arms the queue: the channel gets an event at the next completion, or only at the next that
    /// its sender marked as solicited or that failed. Earlier completions cause no event: poll once
    /// more after arming.
    ///
    /// # Errors
    ///
    /// When the device is gone.
    #[inline]
    pub fn arm(&self, solicited_only: bool) -> std::result::Result<(), OpError> {
        // Some drivers arm by a write to their descriptor, which is a cancellation point.
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the queue is live.
        match unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), i32::from(solicited_only)) } {
            0 => Ok(()),
            errno => Err(poll_failed(errno)),
        }
    }

    /// Changes the depth. No other thread may poll an extended queue meanwhile.
    ///
    /// # Errors
    ///
    /// When the device cannot, or fewer fit than it holds.
    pub fn resize(&self, depth: u32) -> Result<()> {
        let limit = self.context.limits().completion_depth;
        let rc = if depth == 0 || depth > limit {
            libc::EINVAL
        } else {
            // SAFETY: the queue is live.
            unsafe { (self.context.verbs().ibv_resize_cq)(self.raw.as_ptr(), depth as i32) }
        };
        if rc != 0 {
            let object = format!(
                "completion queue on {} to {depth} entries (device limit {limit})",
                self.context.name()
            );
            return Err(failed(
                if rc == -1 { last_errno() } else { rc },
                "resize",
                object,
            ));
        }
        Ok(())
    }

    /// The number of completions that the queue holds at most.
    pub fn depth(&self) -> u32 {
        // SAFETY: the queue is live.
        u32::try_from(unsafe { (*self.raw.as_ptr()).cqe }).unwrap_or(0)
    }

    /// Identifies the queue in events of its channel and of its device.
    pub fn id(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// The channel that gets the events of this queue.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// The device.
    pub fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }

    /// The raw queue. It lives as long as `self`.
    pub fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if !self.context().is_own() {
            return;
        }
        // SAFETY: destroyed once; its queue pairs held it and are gone, and every event was
        // acknowledged as it was taken.
        let rc = unsafe { (self.context.verbs().ibv_destroy_cq)(self.raw.as_ptr()) };
        if rc != 0 {
            tracing::warn!(
                "{}",
                failed(
                    rc,
                    "destroy",
                    format!("completion queue on {}", self.context.name())
                )
            );
        }
    }
}

/// An open extended poll, standing at one completion. It keeps the queue locked, so it stays on its
/// thread.
#[derive(Debug)]
pub struct ExtendedPoll<'q> {
    raw: NonNull<ibv_cq_ex>,
    queue: PhantomData<&'q Cq>,
    thread: PhantomData<*const ()>,
}

/// Reads one field of the completion that the poll stands at.
macro_rules! read {
    ($($(#[$doc:meta])* $name:ident: $kind:ty = $call:ident;)*) => {$(
        $(#[$doc])*
        #[inline]
        pub fn $name(&self) -> $kind {
            // SAFETY: a poll is open and stands at a completion; queues are created with the
            // standard fields.
            unsafe { sys::$call(self.raw.as_ptr()) }
        }
    )*};
}

impl ExtendedPoll<'_> {
    /// Goes on to the next completion; `Ok(None)` when there is none, and the poll is over.
    ///
    /// # Errors
    ///
    /// When the queue itself failed.
    #[inline]
    pub fn advance(self) -> std::result::Result<Option<Self>, OpError> {
        // SAFETY: a poll is open.
        match unsafe { sys::ibv_next_poll(self.raw.as_ptr()) } {
            0 => Ok(Some(self)),
            libc::ENOENT => Ok(None),
            errno => Err(poll_failed(errno)),
        }
    }

    /// The ID that the poster gave to the request.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        // SAFETY: a poll is open.
        unsafe { (*self.raw.as_ptr()).wr_id }
    }

    /// The status of the completion.
    #[inline]
    pub fn status(&self) -> ibv_wc_status {
        // SAFETY: a poll is open.
        unsafe { (*self.raw.as_ptr()).status }
    }

    read! {
        /// The operation that completed; meaningful after success only.
        opcode: ibv_wc_opcode = ibv_wc_read_opcode;
        /// The device's own error number.
        vendor_error: u32 = ibv_wc_read_vendor_err;
        /// Bytes received.
        byte_len: u32 = ibv_wc_read_byte_len;
        /// Immediate data, in network byte order.
        imm_data: u32 = ibv_wc_read_imm_data;
        /// The key that a send with invalidate made invalid.
        invalidated_key: u32 = ibv_wc_read_invalidated_rkey;
        /// The local queue pair.
        qp_num: u32 = ibv_wc_read_qp_num;
        /// The sender's queue pair (datagrams).
        src_qp: u32 = ibv_wc_read_src_qp;
        /// Bits of `ibv_wc_flags`.
        wc_flags: u32 = ibv_wc_read_wc_flags;
        /// The sender's LID (datagrams on InfiniBand).
        slid: u32 = ibv_wc_read_slid;
        /// The service level (datagrams).
        sl: u8 = ibv_wc_read_sl;
    }
}

impl Drop for ExtendedPoll<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a poll is open; it ends once.
        unsafe { sys::ibv_end_poll(self.raw.as_ptr()) };
    }
}

fn channel_of(config: &CqConfig) -> *mut ibv_comp_channel {
    config
        .channel
        .as_ref()
        .map_or(ptr::null_mut(), |channel| channel.raw.as_ptr())
}

#[cold]
fn poll_failed(code: i32) -> OpError {
    OpError::Failed(match code.unsigned_abs() as i32 {
        // These drivers return only that the call failed.
        1 => Errno::EIO,
        errno => Errno(errno),
    })
}

#[cold]
fn not_created(errno: i32, context: &DeviceContext, config: &CqConfig) -> Error {
    let limits = context.limits();
    let object = format!(
        "completion queue of {} entries on {}",
        config.depth,
        context.name()
    );
    let error = failed(errno, "create", object);
    match errno {
        libc::EINVAL => error.mend(format!(
            "the device takes 1 to {} entries and vectors below {}",
            limits.completion_depth, limits.completion_vectors
        )),
        libc::EXDEV => error
            .mend("its channel was made on another opening of a device: use one context for all"),
        libc::ENOMEM => {
            error.mend("request fewer entries, or raise the limit of locked memory (ulimit -l)")
        }
        _ => error,
    }
}
