//! Sending: at once where the peer's path has a handle and the queue has room, else in line for the handle.

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Owner, PeerAv, SendDone};
use ferrofabric_contracts::types::{FiAddr, IoBuf, SendOp, total_len};
use ferrofabric_verbs_sys::ibv_wc_status;

use super::handles::News;
use super::{DgramTransport, MAX_BUFFERS};
use crate::ah::{Ah, Path};
use crate::gather::{Readable, entry};
use crate::mr::Access;
use crate::post::{SendChain, SendFlags, SendRequest};
use crate::qp::UdQp;
use crate::registration::{Region, Registry};
use crate::slots::SlotPool;

/// Sends that wait for handles, at most; then the caller is told to try again.
const MAX_WAITING: usize = 1024;

/// Largest inline send of several buffers, which is put together on the stack, in bytes.
const MAX_GATHERED_BYTES: usize = 512;

/// High bit of a work request ID: a send. The low half is its number.
pub(super) const SEND: u64 = 1 << 63;

/// The send queue, and what waits for a place in it.
pub(super) struct Sends {
    /// What was posted, in order.
    queue: VecDeque<Wqe>,
    /// The last of them, which are held back for more to come (fi_msg(3), `FI_MORE`).
    run: SendChain<1>,
    /// Of those that were held back, what the device then did not take.
    refused: Vec<(SendDone, Errno)>,
    depth: usize,
    next_number: u32,
    /// Requests posted since the last that was signalled.
    unsignaled: usize,
    bounces: SlotPool,
    /// For buffers that the application has registered.
    registry: Arc<Registry>,
    inline_bytes: usize,
    /// Sends that want no completion are to be told of soon all the same.
    pub(super) counted: bool,
    /// By the path whose handle is being made.
    waiting: HashMap<Path, Vec<Waiting>>,
    waiting_count: usize,
    /// What waits for room alone.
    ready: VecDeque<Waiting>,
}

/// A posted send.
struct Wqe {
    number: u32,
    signaled: bool,
    done: SendDone,
    /// Memory that it uses until it is over.
    slot: Option<u32>,
    _region: Option<Arc<Region>>,
    /// The device uses it until the send is over.
    _handle: Arc<Ah>,
}

/// A send that waits.
struct Waiting {
    op: SendOp,
    payload: Gathered,
}

/// What a waiting send sends.
enum Gathered {
    /// The application's buffers.
    Borrowed(Payload),
    /// A copy (`INJECT`).
    Copied(Box<[u8]>),
}

/// The buffers of a message, without the prefix.
#[derive(Clone, Copy)]
pub(super) struct Payload {
    buffers: [IoBuf; MAX_BUFFERS],
    count: usize,
}

impl Payload {
    /// What is behind the first `prefix` bytes, which lie in the first buffer.
    ///
    /// # Errors
    ///
    /// `EINVAL`: more buffers than the limit, or a first one with no room for the prefix.
    #[inline]
    fn behind(prefix: usize, iov: &[IoBuf]) -> Result<Self, OpError> {
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
    fn buffers(&self) -> &[IoBuf] {
        &self.buffers[..self.count]
    }
}

impl Sends {
    pub(super) fn new(
        depth: usize,
        bounces: SlotPool,
        registry: Arc<Registry>,
        inline_bytes: usize,
    ) -> Self {
        Self {
            queue: VecDeque::with_capacity(depth),
            run: SendChain::new(),
            refused: Vec::new(),
            depth,
            next_number: 0,
            unsignaled: 0,
            bounces,
            registry,
            inline_bytes: inline_bytes.min(MAX_GATHERED_BYTES),
            counted: false,
            waiting: HashMap::new(),
            waiting_count: 0,
            ready: VecDeque::new(),
        }
    }

    /// Posts a message; with `MORE` it may be held back.
    ///
    /// # Safety
    ///
    /// The buffers stay until the completion (with `INJECT`: until return).
    ///
    /// # Errors
    ///
    /// [`OpError::Again`] when the queue is full; what the device says else. Nothing was posted.
    #[inline]
    unsafe fn post(
        &mut self,
        qp: &UdQp,
        handle: &Arc<Ah>,
        (qpn, qkey): (u32, u32),
        op: &SendOp,
        buffers: &[IoBuf],
    ) -> Result<(), OpError> {
        if self.queue.len() >= self.depth {
            return Err(OpError::Again);
        }
        let len = total_len(buffers);
        let number = self.next_number;
        // A quarter of the queue may be over before anybody is told.
        let signaled = op.flags.contains(Flags::COMPLETION)
            || self.counted
            || (self.unsignaled + 1) * 4 >= self.depth;
        let mut flags = match signaled {
            true => SendFlags::SIGNALED,
            false => SendFlags::empty(),
        };
        let more = op.flags.contains(Flags::MORE);
        let fits_inline = len <= self.inline_bytes;
        if fits_inline {
            flags |= SendFlags::INLINE;
        }
        // What is held back is read when it goes.
        let outlives = !more || buffers.len() == 1 && !op.flags.contains(Flags::INJECT);
        let mut gathered = MaybeUninit::<[u8; MAX_GATHERED_BYTES]>::uninit();
        let (mut slot, mut region) = (None, None);
        let sge = if fits_inline && outlives {
            match buffers {
                [one] => entry(one.addr as u64, len, 0),
                many => {
                    // SAFETY: the caller's promise; what fits inline fits there.
                    unsafe { Readable::new(many).gather(gathered.as_mut_ptr().cast()) };
                    entry(gathered.as_ptr() as u64, len, 0)
                }
            }
        } else {
            if let ([one], false) = (buffers, op.flags.contains(Flags::INJECT)) {
                region = self.registry.described(op.desc, *one, Access::empty());
            }
            match (buffers, &region) {
                ([one], Some(region)) => entry(one.addr as u64, len, region.lkey()),
                _ => {
                    let taken = self.bounces.take().ok_or(OpError::Again)?;
                    slot = Some(taken);
                    let at = self.bounces.address(taken);
                    // SAFETY: the caller's promise; a slot holds the longest message.
                    unsafe { Readable::new(buffers).gather(at) };
                    entry(at as u64, len, self.bounces.lkey())
                }
            }
        };
        let mut request = SendRequest::send(SEND | u64::from(number), [sge])
            .to(handle, qpn, qkey)
            .flags(flags);
        if op.flags.contains(Flags::REMOTE_CQ_DATA) {
            request = request.immediate((op.data as u32).to_be());
        }
        let joins = more || !self.run.is_empty();
        if joins {
            self.join_run(qp, request);
        // SAFETY: inline data is copied at once; a slot and the handle are kept until the completion, and the application
        // keeps its buffer until then.
        } else if let Err(error) = unsafe { request.post(qp) } {
            if let Some(slot) = slot {
                self.bounces.give(slot);
            }
            return Err(error);
        }
        self.next_number = number.wrapping_add(1);
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        self.queue.push_back(Wqe {
            number,
            signaled,
            done: SendDone::of(op, len),
            slot,
            _region: region,
            _handle: handle.clone(),
        });
        if joins && !more {
            self.post_run(qp);
        }
        Ok(())
    }

    /// Puts a request behind those that are held back.
    #[inline(never)]
    fn join_run(&mut self, qp: &UdQp, request: SendRequest<1>) {
        if self.run.is_full() {
            self.post_run(qp);
        }
        // The chain has only the last of them signalled.
        if !self.run.is_empty() && request.has_flags(SendFlags::SIGNALED) {
            if let Some(before) = self.queue.back_mut() {
                before.signaled = false;
            }
        }
        self.run.put(&request);
    }

    /// Posts the sends that are held back, with one doorbell.
    #[inline]
    pub(super) fn post_held_back(&mut self, qp: &UdQp) {
        if !self.run.is_empty() {
            self.post_run(qp);
        }
    }

    #[inline(never)]
    fn post_run(&mut self, qp: &UdQp) {
        let held = self.run.len();
        // SAFETY: what is inline lies in a slot or in a buffer that the application keeps until the completion; for the rest
        // see `post`.
        if let Err((error, posted)) = unsafe { self.run.post(qp) } {
            let first = self.queue.len() - (held - posted);
            for wqe in self.queue.split_off(first) {
                if let Some(slot) = wqe.slot {
                    self.bounces.give(slot);
                }
                self.refused.push((wqe.done, error.errno()));
            }
        }
    }

    /// Takes out the oldest send, which is over.
    #[inline]
    fn pop(&mut self) -> Option<Wqe> {
        let wqe = self.queue.pop_front()?;
        if let Some(slot) = wqe.slot {
            self.bounces.give(slot);
        }
        Some(wqe)
    }

    /// Whether sends were held back that the device did not take.
    #[inline]
    pub(super) fn have_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Whether no send is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a send is under way that the device will tell of.
    pub(super) fn will_hear(&self) -> bool {
        self.queue.iter().any(|wqe| wqe.signaled)
    }

    /// Whether sends wait for nothing but room.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Puts a send in line for the handle of a path.
    fn wait_for(&mut self, path: Path, waiting: Waiting) {
        self.waiting.entry(path).or_default().push(waiting);
        self.waiting_count += 1;
    }

    /// What waited for the handle of a path.
    fn take_waiting(&mut self, path: &Path) -> Vec<Waiting> {
        let waiting = self.waiting.remove(path).unwrap_or_default();
        self.waiting_count -= waiting.len();
        waiting
    }
}

impl DgramTransport {
    /// Sends a message, or puts it in line.
    ///
    /// # Safety
    ///
    /// As [`ferrofabric_contracts::peer::Transport::send`].
    #[inline]
    pub(super) unsafe fn send_message<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        let payload = Payload::behind(self.prefix, iov)?;
        let at = match self.ways.find(op.dest) {
            Some(at) => at,
            None => self.add_way(op.dest, owner)?,
        };
        let len = total_len(payload.buffers());
        let way = self.ways.at(at);
        if len > way.max_bytes {
            return Err(OpError::Failed(Errno::EMSGSIZE));
        }
        self.check_usable()?;
        let way = self.ways.at(at);
        let Some(handle) = &way.handle else {
            // SAFETY: the caller's promise.
            return unsafe { self.send_first(at, op, payload) };
        };
        let to = (way.qpn, way.qkey);
        // SAFETY: the caller's promise.
        unsafe {
            self.sends
                .post(&self.qp, handle, to, op, payload.buffers())?;
        }
        self.counters.sent(len);
        Ok(())
    }

    #[cold]
    fn add_way<O: Owner>(&mut self, addr: FiAddr, owner: &O) -> Result<usize, OpError> {
        let name = owner
            .av()
            .lookup(addr)
            .ok_or(OpError::Failed(Errno::EADDRNOTAVAIL))?;
        name.verbs
            .and_then(|peer| self.ways.add(addr, &peer, &self.port))
            .ok_or(OpError::Failed(Errno::EHOSTUNREACH))
    }

    /// Sends to a peer whose way has no handle yet; or queues it until there is one.
    ///
    /// # Safety
    ///
    /// As [`send_message`](Self::send_message).
    #[cold]
    unsafe fn send_first(
        &mut self,
        at: usize,
        op: &SendOp,
        payload: Payload,
    ) -> Result<(), OpError> {
        let path = self.ways.at(at).path;
        let asked = self.sends.waiting.contains_key(&path);
        if !asked {
            if let Some(handle) = self.handles.of(path) {
                let way = self.ways.at(at);
                way.handle = Some(handle.clone());
                let to = (way.qpn, way.qkey);
                // SAFETY: the caller's promise.
                unsafe {
                    self.sends
                        .post(&self.qp, &handle, to, op, payload.buffers())?;
                }
                self.counters.sent(total_len(payload.buffers()));
                return Ok(());
            }
        }
        if self.sends.waiting_count + self.sends.ready.len() >= MAX_WAITING {
            if !asked {
                // Nobody waits for it here, but its handle is under way: what comes of it is no news to anybody.
                self.sends.waiting.entry(path).or_default();
            }
            return Err(OpError::Again);
        }
        let payload = match op.flags.contains(Flags::INJECT) {
            // SAFETY: the caller's promise.
            true => Gathered::Copied(unsafe { Readable::new(payload.buffers()) }.to_bytes()),
            false => Gathered::Borrowed(payload),
        };
        self.sends.wait_for(path, Waiting { op: *op, payload });
        Ok(())
    }

    /// Sends that were posted up to this number are over.
    #[inline]
    pub(super) fn sent<O: Owner>(&mut self, number: u32, status: ibv_wc_status, owner: &mut O) {
        let first = self.sends.queue.front().map_or(0, |wqe| wqe.number);
        if number.wrapping_sub(first) as usize >= self.sends.queue.len() {
            // Not in line: it was ended when the queue pair was reset.
            return;
        }
        while let Some(wqe) = self.sends.pop() {
            let last = wqe.number == number;
            if last && status != ibv_wc_status::IBV_WC_SUCCESS {
                self.send_failed(&wqe.done, status, owner);
            } else {
                owner.complete_send(&wqe.done);
            }
            if last {
                break;
            }
        }
    }

    #[cold]
    fn send_failed<O: Owner>(&mut self, done: &SendDone, status: ibv_wc_status, owner: &mut O) {
        let text = self.qp.pd().context().status_text(status);
        tracing::debug!("datagram from {} failed: {text}", *self.qp);
        self.counters.failed += 1;
        owner.fail_send(
            done,
            Errno::EIO,
            status.0 as i32,
            "the device could not send the datagram: its memory may not be registered (any more)",
        );
        // It takes no more after that.
        self.want_renewal(true);
    }

    /// Ends the sends that were held back and that the device then did not take.
    #[cold]
    pub(super) fn fail_refused<O: Owner>(&mut self, owner: &mut O) -> usize {
        let refused = std::mem::take(&mut self.sends.refused);
        for (done, errno) in &refused {
            self.counters.failed += 1;
            owner.fail_send(done, *errno, 0, "the device did not take the datagram");
        }
        // Of those before them that it took the last was not to be signalled.
        self.want_renewal(false);
        refused.len()
    }

    /// Takes what the resolvers have to say.
    #[cold]
    pub(super) fn take_news<O: Owner>(&mut self, owner: &mut O) -> usize {
        let news = self.handles.news();
        let done = news.len();
        for one in news {
            match one {
                News::Ready(path) => {
                    let waiting = self.sends.take_waiting(&path);
                    self.sends.ready.extend(waiting);
                }
                News::Failed(path, error) => {
                    tracing::debug!("{error}");
                    for waiting in self.sends.take_waiting(&path) {
                        self.counters.failed += 1;
                        owner.fail_send(
                            &SendDone::of(&waiting.op, 0),
                            Errno::EHOSTUNREACH,
                            error.errno().0,
                            "the peer's address does not resolve: its host may be down",
                        );
                    }
                }
            }
        }
        done
    }

    /// Posts what waits for nothing but room. Says how many.
    #[cold]
    pub(super) fn send_ready<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        while let Some(waiting) = self.sends.ready.pop_front() {
            let copied;
            let payload = match &waiting.payload {
                Gathered::Borrowed(payload) => payload.buffers(),
                Gathered::Copied(bytes) => {
                    copied = [IoBuf::new(bytes.as_ptr(), bytes.len())];
                    &copied
                }
            };
            // Who was removed meanwhile has nothing in line.
            let Some(at) = self.ways.find(waiting.op.dest) else {
                continue;
            };
            let way = self.ways.at(at);
            let handle = match &way.handle {
                Some(handle) => handle.clone(),
                None => match self.handles.of(way.path) {
                    Some(handle) => way.handle.insert(handle).clone(),
                    None => {
                        let path = way.path;
                        self.sends.wait_for(path, waiting);
                        continue;
                    }
                },
            };
            let to = (way.qpn, way.qkey);
            // SAFETY: whoever sent it keeps its buffers until the completion; a copy has flag INJECT, and is copied again.
            let posted = unsafe { self.sends.post(&self.qp, &handle, to, &waiting.op, payload) };
            match posted {
                Ok(()) => self.counters.sent(total_len(payload)),
                Err(OpError::Again) => {
                    self.sends.ready.push_front(waiting);
                    break;
                }
                Err(OpError::Failed(errno)) => {
                    let why = "the device did not take the datagram";
                    owner.fail_send(&SendDone::of(&waiting.op, 0), errno, 0, why);
                }
            }
            done += 1;
        }
        done
    }

    /// Ends what waits to be sent and meets `which`.
    pub(super) fn fail_waiting<O: Owner>(
        &mut self,
        which: impl Fn(&SendOp) -> bool,
        errno: Errno,
        why: &'static str,
        owner: &mut O,
    ) {
        let sends = &mut self.sends;
        let mut failed = Vec::new();
        // A path stays, though nobody waits for it any more: its handle is being made.
        for waiting in sends.waiting.values_mut() {
            failed.extend(take_those(waiting, |w| which(&w.op)));
        }
        sends.waiting_count -= failed.len();
        let mut ready = Vec::from(std::mem::take(&mut sends.ready));
        failed.extend(take_those(&mut ready, |w| which(&w.op)));
        sends.ready = ready.into();
        for waiting in failed {
            owner.fail_send(&SendDone::of(&waiting.op, 0), errno, 0, why);
        }
    }

    /// The queue pair was reset: what was posted is over, as far as anybody will ever know.
    pub(super) fn end_posted_sends<O: Owner>(&mut self, owner: &mut O) {
        while let Some(wqe) = self.sends.pop() {
            owner.complete_send(&wqe.done);
        }
        self.sends.unsignaled = 0;
    }
}

/// Takes out of a list what meets `which`; the rest keeps its order.
fn take_those<T>(list: &mut Vec<T>, which: impl Fn(&T) -> bool) -> Vec<T> {
    let (taken, left) = std::mem::take(list).into_iter().partition(|one| which(one));
    *list = left;
    taken
}
