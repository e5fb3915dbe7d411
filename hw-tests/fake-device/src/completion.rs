//! Completion queues, the channels that wake their readers, and asynchronous events.

use std::collections::VecDeque;
use std::mem::size_of;

use ferrofabric_verbs_sys::{ibv_event_type, ibv_wc, ibv_wc_status};

use crate::model::DeviceModel;

/// An opened device.
pub(crate) struct FakeContext {
    /// The device, by its place in the list.
    pub(crate) device: usize,
    /// The InfiniBand subnet that its port was in as it was opened.
    pub(crate) subnet: [u8; 8],
    pub(crate) fd: i32,
    pub(crate) events: VecDeque<PendingAsyncEvent>,
    /// The objects of events that were taken and not acknowledged.
    pub(crate) unacknowledged: Vec<usize>,
}

/// An event that was not taken yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingAsyncEvent {
    pub(crate) kind: ibv_event_type,
    /// The address of the object, or the port's number.
    pub(crate) subject: usize,
}

/// A completion channel.
pub(crate) struct FakeChannel {
    pub(crate) context: usize,
    pub(crate) fd: i32,
    /// Completion queues that have something.
    pub(crate) events: VecDeque<usize>,
}

/// The completions that wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Any,
    Solicited,
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    pub(crate) context: usize,
    pub(crate) channel: Option<usize>,
    pub(crate) vector: u32,
    pub(crate) depth: usize,
    pub(crate) entries: VecDeque<FakeCompletion>,
    pub(crate) armed: Armed,
    /// Events that were taken and not acknowledged.
    pub(crate) unacknowledged: u32,
    /// It had no room for a completion: it gives none any more.
    pub(crate) overrun: bool,
}

/// A completion.
pub(crate) struct FakeCompletion {
    pub(crate) wc: ibv_wc,
    /// The queue pair whose send queue gets slots back when this is taken, and how many.
    pub(crate) reclaims: Option<(u32, u32)>,
}

impl DeviceModel {
    /// Adds a completion, and wakes who armed the queue for it.
    pub(crate) fn complete(&mut self, queue: usize, entry: FakeCompletion, solicited: bool) {
        let Some(cq) = self.completion_queues.get_mut(&queue) else {
            return;
        };
        if cq.overrun {
            return;
        }
        if cq.entries.len() >= cq.depth {
            self.overrun(queue);
            return;
        }
        let wakes = match cq.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited || entry.wc.status != ibv_wc_status::IBV_WC_SUCCESS,
        };
        cq.entries.push_back(entry);
        if wakes {
            cq.armed = Armed::No;
            if let Some(channel) = cq.channel.and_then(|at| self.channels.get_mut(&at)) {
                channel.events.push_back(queue);
                post(channel.fd);
            }
        }
    }

    /// The queue is broken from now on, and its queue pairs with it.
    pub(crate) fn overrun(&mut self, queue: usize) {
        let Some(cq) = self.completion_queues.get_mut(&queue) else {
            return;
        };
        cq.overrun = true;
        let context = cq.context;
        self.raise(context, ibv_event_type::IBV_EVENT_CQ_ERR, queue);
        let users: Vec<u32> = self
            .queue_pairs
            .values()
            .filter(|qp| qp.send_cq == queue || qp.recv_cq == queue)
            .map(|qp| qp.number)
            .collect();
        for number in users {
            let handle = self.queue_pairs.get(&number).map_or(0, |qp| qp.handle);
            self.raise(context, ibv_event_type::IBV_EVENT_QP_FATAL, handle);
            self.fail(number);
        }
    }

    /// Raises an asynchronous event.
    pub(crate) fn raise(&mut self, context: usize, kind: ibv_event_type, subject: usize) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context
                .events
                .push_back(PendingAsyncEvent { kind, subject });
            post(context.fd);
        }
    }

    /// Whether an event of an object was taken and not acknowledged: its destruction waits.
    pub(crate) fn is_unacknowledged(&self, subject: usize) -> bool {
        let mut contexts = self.contexts.values();
        contexts.any(|context| context.unacknowledged.contains(&subject))
    }

    /// Drops the events of an object that goes.
    pub(crate) fn forget_events(&mut self, context: usize, subject: usize) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.events.retain(|event| event.subject != subject);
        }
    }
}

/// A descriptor that becomes readable as often as it is posted to; -1 when there is none to be had.
pub(crate) fn descriptor() -> i32 {
    // SAFETY: takes no memory.
    unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) }
}

fn post(fd: i32) {
    let one = 1u64;
    // SAFETY: writes 8 bytes from where they lie. A full counter is read before it is of any use to
    // write more.
    unsafe { libc::write(fd, (&raw const one).cast(), size_of::<u64>()) };
}

/// Waits for a post, unless the descriptor does not block. False: there is none, errno says why.
pub(crate) fn take(fd: i32) -> bool {
    let mut count = 0u64;
    // SAFETY: reads 8 bytes to where there is room for them.
    let read = unsafe { libc::read(fd, (&raw mut count).cast(), size_of::<u64>()) };
    read == size_of::<u64>() as isize
}

pub(crate) fn close(fd: i32) {
    // SAFETY: the descriptor is ours, and closed once.
    unsafe { libc::close(fd) };
}
