//! The near transport of a pair that is a provider written in C: libfabric's `shm` in place of our
//! shared memory (`docs/adr/0070`).
//!
//! Each endpoint of ours has one at the provider, over the objects of [`owner`](super::owner). The
//! domain's lock is held while the provider runs, and the owner is lent to it for the time of each
//! call. The endpoint's name at the provider is computed from its address, so nothing is exchanged
//! with a peer: one whose presence is there takes messages, and all others are the far transport's.
//!
//! A peer is known here by a number, which the provider reports as the source of its messages
//! (`FI_AV_USER_ID`). It stays the peer's while this endpoint is open, whatever the application
//! removes and inserts: only the address behind the number changes.

mod domain;
mod open;
mod peers;
mod presence;
mod registry;

use std::os::fd::AsFd;
use std::time::Duration;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{
    HandsBack, Owner, PeerAv, PeerSrx, Reaches, SendDone, Start, Token, Transport, Unsent,
};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, SendOp};
use ferrofabric_system::clock::Clock;
use ferrofabric_system::wait::WaitSet;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

pub(crate) use self::domain::ForeignShm;
use self::open::{ForeignEndpoint, MOST_BUFFERS};
use self::peers::Peers;
use self::presence::{Presence, PresenceProbe};
use self::registry::{AtProvider, MemberPlace, Met};
use super::host_provider::ForeignInfo;
use super::owner::ForeignObjects;
use crate::abi::{FI_COMPLETION, fi_addr_t, fi_msg_tagged};

/// The transport number in its tokens; that of verbs is 0.
const TRANSPORT: u32 = 1;

/// Why operations fail with a peer that is there no more.
const PEER_GONE: &str = "the peer has closed its endpoint, or has ended";

/// The time between two looks whether the peers are there, in nanoseconds.
const SWEEP_NS: u64 = 100_000_000;

/// Calls to progress between two looks at the clock.
const CLOCK_PERIOD: u32 = 64;

/// The name of an endpoint at the provider.
fn name_of(number: u64) -> String {
    format!("ferro_{number:016x}")
}

/// Another name of the endpoint, by which `shm` maps its memory as that of another process. By its
/// list of names it takes an endpoint of its own process without a mapping, and then lacks the
/// place of that one's memory for long messages from it.
fn second_name_of(number: u64) -> String {
    format!("/{}", name_of(number))
}

/// The most that the provider takes.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Bytes of a message that it copies at once.
    inject: usize,
    /// Buffers of a send.
    buffers: usize,
}

/// The transport of one endpoint.
pub(crate) struct ForeignTransport {
    /// `None` while it is dropped.
    at_provider: Option<AtProvider>,
    place: MemberPlace,
    /// Likewise.
    presence: Option<Presence>,
    probe: PresenceProbe,
    name: NativeAddr,
    peers: Peers,
    limits: Limits,
    sleep: SleepTimer,
    clock: Clock,
    polls: u32,
    next_sweep_ns: u64,
    sent: u64,
    bytes_sent: u64,
}

/// The route to a peer: its number here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ForeignRoute(Option<u32>);

/// A send that was accepted and not sent. There is none: the provider takes a send, or the caller
/// gets [`OpError::Again`].
pub(crate) enum NoSend {}

// SAFETY: there is none.
unsafe impl Unsent for NoSend {
    fn op(&self) -> &SendOp {
        match *self {}
    }

    fn iov(&self) -> &[IoBuf] {
        match *self {}
    }
}

impl Drop for ForeignTransport {
    fn drop(&mut self) {
        // First: nobody inserts an endpoint that is about to go.
        self.presence = None;
        if let Some(at_provider) = self.at_provider.take() {
            self.place.retire(at_provider);
        }
    }
}

impl ForeignTransport {
    /// Opens the endpoint with this address at the provider.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: an endpoint of this node has drawn the same number. Else the provider's.
    fn open(
        provider: &'static str,
        info: &ForeignInfo,
        name: NativeAddr,
        wait: &WaitSet,
    ) -> Result<Self> {
        let number = name
            .shm
            .ok_or_else(|| Error::new(Errno::EINVAL, "open", "an endpoint without local peers"))?;
        let probe = PresenceProbe::new(provider)?;
        let presence = Presence::show(provider, number)?;
        let sleep = SleepTimer::new()?;
        wait.add(sleep.timer.as_fd())?;
        let objects = ForeignObjects::new(TRANSPORT);
        let endpoint = ForeignEndpoint::open(provider, info, &name_of(number), &objects)?;
        Ok(Self {
            at_provider: Some(AtProvider { endpoint, objects }),
            place: MemberPlace::take(number),
            presence: Some(presence),
            probe,
            name,
            peers: Peers::default(),
            limits: Limits {
                inject: info.info().tx.inject_size,
                buffers: info.info().tx.iov_limit.min(MOST_BUFFERS),
            },
            sleep,
            clock: Clock::SYSTEM,
            polls: 0,
            next_sweep_ns: 0,
            sent: 0,
            bytes_sent: 0,
        })
    }

    fn objects(&self) -> &ForeignObjects {
        &self.parts().objects
    }

    #[inline]
    fn parts(&self) -> &AtProvider {
        // It is taken by `drop` alone.
        match &self.at_provider {
            Some(parts) => parts,
            None => unreachable!("a transport that was dropped"),
        }
    }

    /// The peer behind an address, which is inserted at the provider if it is new there.
    ///
    /// # Errors
    ///
    /// [`OpError::Again`]: the provider refuses it, and the next call to progress hands it back.
    #[cold]
    fn find_peer<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) -> Result<u32, OpError> {
        if let Some(number) = self.peers.of_addr(addr) {
            return Ok(number);
        }
        let name = owner.av().lookup(addr);
        let name = name.ok_or(OpError::Failed(Errno::EADDRNOTAVAIL))?;
        self.insert_peer(addr, &name, owner).ok_or_else(|| {
            self.peers.refuse(addr);
            OpError::Again
        })
    }

    /// Gives a peer's number to an address. `None`: the provider does not take the peer.
    fn insert_peer<O: Owner>(
        &mut self,
        addr: FiAddr,
        name: &NativeAddr,
        owner: &mut O,
    ) -> Option<u32> {
        self.count_peers();
        let id = name.shm.filter(|_| self.takes(name))?;
        let number = match self.peers.of_name(id) {
            Some(number) => number,
            None => self.add_peer(id, addr, name, owner)?,
        };
        let source = self.peers.add_addr(number, addr);
        let objects = self.objects();
        objects.set_source(u64::from(number), source);
        objects.resolve(u64::from(number), source, owner);
        Some(number)
    }

    /// Inserts a peer at the provider. `None`: the provider does not take it.
    fn add_peer<O: Owner>(
        &mut self,
        id: u64,
        addr: FiAddr,
        name: &NativeAddr,
        owner: &mut O,
    ) -> Option<u32> {
        let met = self.place.meet(id);
        let own = self.name.shm?;
        if met == Met::Closed || (id != own && !self.probe.announce(own, id)) {
            return None;
        }
        let number = self.peers.next_number();
        let parts = self.parts();
        // The provider inquires about the sources of queued messages when it inserts.
        parts.objects.set_source(u64::from(number), addr);
        let at_provider = parts.objects.enter(owner, || {
            let source = parts.endpoint.insert(&name_of(id), u64::from(number))?;
            if met != Met::InProcess || !parts.endpoint.has_second_names() {
                return Some(source);
            }
            let second = parts.endpoint.insert(&second_name_of(id), fi_addr_t::MAX);
            if second.is_none() {
                parts.endpoint.forget(&name_of(id));
            }
            second
        });
        let Some(at_provider) = at_provider else {
            parts
                .objects
                .set_source(u64::from(number), FiAddr::NOTAVAIL);
            return None;
        };
        if let Some(presence) = &mut self.presence {
            presence.add(id, if met == Met::InProcess { 2 } else { 1 });
        }
        Some(self.peers.add(name, at_provider))
    }

    /// Counts the peers that have announced themselves.
    fn count_peers(&mut self) {
        if let Some(presence) = &mut self.presence {
            presence.count();
        }
    }

    /// Looks which peers are there still, if it is time to.
    #[cold]
    fn sweep<O: Owner>(&mut self, owner: &mut O) {
        let now = self.clock.now_ns();
        if now < self.next_sweep_ns {
            return;
        }
        self.next_sweep_ns = now + SWEEP_NS;
        self.count_peers();
        let probe = &self.probe;
        let missing = self.peers.newly_missing(|id| probe.misses(id));
        if !missing.is_empty() {
            // The messages that they have left behind come first.
            let parts = self.parts();
            parts.objects.enter(owner, || parts.endpoint.drive());
        }
        for number in missing {
            let addr = self.peers.lose(number);
            tracing::info!("{addr:?}: {PEER_GONE}");
            let errno = Errno::ECONNRESET;
            self.objects()
                .fail_sends(u64::from(number), errno, PEER_GONE, owner);
            if addr.is_some() {
                // Its messages can be received still.
                owner.srx().fail_source(addr, errno, PEER_GONE, |_| false);
            }
        }
        // Those of which a part is missing end so, each when a receive has met it.
        for number in self.peers.gone() {
            self.objects()
                .fail_receives(u64::from(number), Errno::ECONNRESET, PEER_GONE, owner);
        }
    }
}

impl Reaches for ForeignTransport {
    const NAME: &'static str = "Provider for local peers";

    fn takes(&self, name: &NativeAddr) -> bool {
        let id = name.shm.filter(|_| name.node == self.name.node);
        let is_known = |id| {
            let presence = self.presence.as_ref();
            self.peers.of_name(id).is_some() || presence.is_some_and(|p| p.has_announced(id))
        };
        let has_room = self.presence.as_ref().is_some_and(|p| !p.is_full());
        id.is_some_and(|id| is_known(id) || (has_room && self.probe.finds(id)))
    }
}

impl HandsBack for ForeignTransport {
    type Unsent = NoSend;
    const TRANSPORT: u32 = TRANSPORT;
    const CARRIES_PARTS: bool = false;

    #[inline]
    fn is_current(&self, route: &ForeignRoute) -> bool {
        route.0.is_some()
    }

    #[inline]
    fn handed_back(&mut self) -> Option<(FiAddr, Vec<NoSend>)> {
        self.peers.take_refused().map(|addr| (addr, Vec::new()))
    }
}

impl Transport for ForeignTransport {
    type Route = ForeignRoute;

    const INFORMED_OF_ALL: bool = true;

    #[inline]
    unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        route: &mut ForeignRoute,
        owner: &mut O,
    ) -> Result<(), OpError> {
        let number = match route.0 {
            Some(number) => number,
            None => self.find_peer(op.dest, owner)?,
        };
        let len = iov.iter().map(|piece| piece.len).sum();
        let is_injected = op.flags.contains(Flags::INJECT);
        if iov.len() > self.limits.buffers || (is_injected && len > self.limits.inject) {
            return Err(OpError::Failed(Errno::EMSGSIZE));
        }
        let peer = self.peers.get(number);
        if peer.is_gone {
            return Err(OpError::Failed(Errno::ECONNRESET));
        }
        let parts = self.parts();
        let context = parts
            .objects
            .add_send(u64::from(number), SendDone::of(op, len));
        let mut desc = [std::ptr::null_mut(); MOST_BUFFERS];
        let message = fi_msg_tagged {
            msg_iov: iov.as_ptr().cast(),
            desc: desc.as_mut_ptr(),
            iov_count: iov.len(),
            addr: peer.at_provider,
            tag: op.tag,
            ignore: 0,
            context: std::ptr::without_provenance_mut(context),
            data: op.data,
        };
        let is_tagged = op.kind == MsgKind::Tagged;
        let flags = FI_COMPLETION | (op.flags & (Flags::INJECT | Flags::REMOTE_CQ_DATA)).bits();
        let sent = parts.objects.enter(owner, || {
            // SAFETY: the caller's promise.
            unsafe { parts.endpoint.send(&message, is_tagged, flags) }
        });
        if sent != 0 {
            parts.objects.withdraw_send(context);
            let errno = i32::try_from(sent.wrapping_neg()).map_or(Errno::EOTHER, Errno);
            return Err(OpError::from(errno));
        }
        *route = ForeignRoute(Some(number));
        self.sent += 1;
        self.bytes_sent += len as u64;
        Ok(())
    }

    fn is_drained(&self) -> bool {
        self.objects().sends_under_way() == 0
    }

    /// What the provider has taken it delivers by its own rules when its endpoint closes.
    fn report_undelivered(&self, _report: &mut dyn FnMut(FiAddr, usize)) {}

    unsafe fn start<O: Owner>(&mut self, start: Start, owner: &mut O) {
        self.objects().start(start, owner);
    }

    fn discard<O: Owner>(&mut self, kind: MsgKind, token: Token, owner: &mut O) {
        // `shm` of 2.5 returns the command of a discarded message from a copy, which is no command.
        self.objects().discard(kind, token, 0, owner);
    }

    #[inline]
    fn progress<O: Owner>(&mut self, owner: &mut O) -> usize {
        let parts = self.parts();
        let mut done = parts.objects.drain(owner);
        parts.objects.enter(owner, || parts.endpoint.drive());
        done += parts.objects.take_calls();
        self.sleep.note(done != 0);
        self.polls = self.polls.wrapping_add(1);
        if self.polls % CLOCK_PERIOD == 0 || self.sleep.was_armed() {
            self.sweep(owner);
        }
        done
    }

    fn peer_inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, owner: &mut O) {
        if name.node == self.name.node {
            self.insert_peer(addr, name, owner);
        }
    }

    fn has_unknown_sources(&self) -> bool {
        // Each local address is inserted at the provider before its first message.
        true
    }

    fn peer_removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        // Before the peer has another source.
        owner.srx().forget_source(addr);
        let Some(number) = self.peers.remove_addr(addr) else {
            return;
        };
        // Sends that the provider has taken go on: it uses the buffers.
        self.objects()
            .set_source(u64::from(number), FiAddr::NOTAVAIL);
        let name = self.peers.get(number).name;
        let other = owner.av().find(&name);
        if other.is_some() {
            self.peer_inserted(other, &name, owner);
        }
    }

    fn arm(&mut self) -> Result<bool> {
        self.sleep.arm()
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        report("peer_sent", self.sent);
        report("peer_bytes_sent", self.bytes_sent);
        self.objects().stats(report);
    }
}

/// The timer that ends sleeps: the provider has no descriptor of its own.
struct SleepTimer {
    timer: TimerFd,
    is_armed: bool,
    /// Whether the last call to progress did something.
    is_busy: bool,
    /// Sleeps since something was done.
    sleeps: u32,
}

impl SleepTimer {
    /// The first sleeps, and their number.
    const SHORT: Duration = Duration::from_micros(200);
    const SHORT_SLEEPS: u32 = 50;
    /// The later ones.
    const LONG: Duration = Duration::from_millis(2);

    fn new() -> Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)
            .map_err(|e| Error::new(Errno(e as i32), "create", "timer descriptor"))?;
        Ok(Self {
            timer,
            is_armed: false,
            is_busy: false,
            sleeps: 0,
        })
    }

    /// A call to progress is over.
    #[inline]
    fn note(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
        if is_busy {
            self.sleeps = 0;
        }
    }

    /// Whether it was armed since the last call of this.
    #[inline]
    fn was_armed(&mut self) -> bool {
        std::mem::take(&mut self.is_armed)
    }

    /// As [`Transport::arm`].
    fn arm(&mut self) -> Result<bool> {
        let time = match self.sleeps < Self::SHORT_SLEEPS {
            true => Self::SHORT,
            false => Self::LONG,
        };
        self.sleeps = self.sleeps.saturating_add(1);
        self.is_armed = true;
        // It is not readable from here until the time is over.
        self.timer
            .set(
                Expiration::OneShot(TimeSpec::from_duration(time)),
                TimerSetTimeFlags::empty(),
            )
            .map_err(|e| Error::new(Errno(e as i32), "set", "timer descriptor"))?;
        Ok(!self.is_busy)
    }
}
