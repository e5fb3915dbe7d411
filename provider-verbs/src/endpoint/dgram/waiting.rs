//! Sends that wait: for the handle of their peer's path, or for room in the send queue.

use std::collections::{HashMap, VecDeque};

use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::types::{IoBuf, SendOp};

use super::MAX_BUFFERS;
use crate::ah::PortPath;

/// Sends that wait for handles, at most; beyond it a send fails with `FI_EAGAIN`.
const MAX_WAITING: usize = 1024;

/// The sends of an endpoint that wait.
#[derive(Default)]
pub(super) struct WaitingSends {
    /// By the path whose handle is being made.
    by_path: HashMap<PortPath, Vec<WaitingDatagram>>,
    /// The number of these sends.
    count: usize,
    /// Sends that wait for room alone.
    ready: VecDeque<WaitingDatagram>,
}

/// A send that waits.
pub(super) struct WaitingDatagram {
    pub(super) op: SendOp,
    pub(super) buffers: SendBuffers,
}

/// The buffers of a message, without the prefix.
#[derive(Clone, Copy)]
pub(super) struct SendPayload {
    buffers: [IoBuf; MAX_BUFFERS],
    count: usize,
}

impl SendPayload {
    /// The data behind the first `prefix` bytes, which lie in the first buffer.
    ///
    /// # Errors
    ///
    /// `EINVAL`: more buffers than the limit, or a first one with no room for the prefix.
    #[inline]
    pub(super) fn behind(prefix: usize, iov: &[IoBuf]) -> Result<Self, OpError> {
        let mut buffers = [IoBuf::EMPTY; MAX_BUFFERS];
        let Some(into) = buffers.get_mut(..iov.len()) else {
            return Err(OpError::Failed(Errno::EINVAL));
        };
        into.copy_from_slice(iov);
        if prefix != 0 {
            let first = buffers[0];
            if first.len < prefix {
                return Err(OpError::Failed(Errno::EINVAL));
            }
            buffers[0] = first.part(prefix, first.len);
        }
        Ok(Self {
            buffers,
            count: iov.len(),
        })
    }

    #[inline]
    pub(super) fn buffers(&self) -> &[IoBuf] {
        &self.buffers[..self.count]
    }
}

impl WaitingSends {
    /// Whether the handle of a path is being made.
    pub(super) fn awaits(&self, path: &PortPath) -> bool {
        self.by_path.contains_key(path)
    }

    /// The handle of a path is being made, and no send waits for it.
    pub(super) fn await_without_send(&mut self, path: PortPath) {
        self.by_path.entry(path).or_default();
    }

    /// Whether no more may wait.
    pub(super) fn is_full(&self) -> bool {
        self.count + self.ready.len() >= MAX_WAITING
    }

    /// The number of sends that wait.
    pub(super) fn len(&self) -> usize {
        self.count + self.ready.len()
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a send in line for the handle of a path.
    pub(super) fn wait_for(&mut self, path: PortPath, waiting: WaitingDatagram) {
        self.by_path.entry(path).or_default().push(waiting);
        self.count += 1;
    }

    /// Takes out the sends that waited for the handle of a path.
    pub(super) fn take(&mut self, path: &PortPath) -> Vec<WaitingDatagram> {
        let waiting = self.by_path.remove(path).unwrap_or_default();
        self.count -= waiting.len();
        waiting
    }

    /// A path has its handle: its sends wait for room alone from now on.
    pub(super) fn has_handle(&mut self, path: &PortPath) {
        let waiting = self.take(path);
        self.ready.extend(waiting);
    }

    /// Whether sends wait for room alone.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes out the first send that waits for room alone.
    pub(super) fn pop_ready(&mut self) -> Option<WaitingDatagram> {
        self.ready.pop_front()
    }

    /// Puts it back, before the others: it still waits for room.
    pub(super) fn put_back(&mut self, waiting: WaitingDatagram) {
        self.ready.push_front(waiting);
    }

    /// Takes out the sends that `which` selects.
    pub(super) fn take_those(&mut self, which: impl Fn(&SendOp) -> bool) -> Vec<WaitingDatagram> {
        let mut taken = Vec::new();
        // The path stays even if no send waits for it any more: its handle is being made.
        for waiting in self.by_path.values_mut() {
            taken.extend(take_those(waiting, |w| which(&w.op)));
        }
        self.count -= taken.len();
        let mut ready = Vec::from(std::mem::take(&mut self.ready));
        taken.extend(take_those(&mut ready, |w| which(&w.op)));
        self.ready = ready.into();
        taken
    }
}

/// Takes out of a list the sends that `which` selects; the rest keeps its order.
fn take_those<T>(list: &mut Vec<T>, which: impl Fn(&T) -> bool) -> Vec<T> {
    let (taken, left) = std::mem::take(list).into_iter().partition(|one| which(one));
    *list = left;
    taken
}
