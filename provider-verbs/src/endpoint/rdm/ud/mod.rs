//! Lanes of the UD kind: sessions over datagrams, which the protocol makes reliable
//! ([`ferrofabric_protocol::datagram_lane`]).
//!
//! A packet that is not confirmed is kept as bytes, in the session's `resend_queue`, and copied
//! into a work request each time that it is sent. So nothing has to wait for the device, and
//! another lane can send the packets as they are. The memory goes back to the endpoint's
//! [`PacketPool`] when the packet is confirmed.

mod change;
mod queue_pair;
mod receive;
mod revive;
mod send;

use std::os::fd::{AsFd, BorrowedFd};

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::Time;
use ferrofabric_protocol::datagram_lane::{DatagramLane, SharedLaneState};
use ferrofabric_protocol::timers::Timers;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::datagram::PREFIX_BYTES;
use ferrofabric_system::clock::Clock;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::RdmTransport;
use crate::connect::{ToService, UdDestination};
use crate::device::Mtu;
use crate::lane::{LaneTurn, NewLane, UdLane, UdRoute};
use crate::qp::UdQp;
use crate::session::{PacketPool, SessionState};

pub(super) use queue_pair::DataQueuePair;

/// The divisor of the receive buffers that packets which came too early may take.
const HELD_PART: usize = 4;

/// What all UD lanes of an endpoint share.
pub(super) struct UdShared {
    // It goes first: the device uses the other fields.
    pub(super) queue_pair: Option<DataQueuePair>,
    /// Its number; 0 if there is none.
    number: u32,
    pub(super) shared: SharedLaneState,
    pub(super) deadlines: Timers<SessionId>,
    /// Memory for the packets that are not confirmed.
    pub(super) packets: PacketPool,
    /// Receive slots that lanes hold.
    held_slots: usize,
    /// The longest datagram of this endpoint, as its handshakes state it.
    datagram_bytes: usize,
    /// The queue pair has failed and has to be revived.
    reviving: bool,
    timer: TimerFd,
    timer_at: Option<Time>,
    clock: Clock,
}

impl UdShared {
    pub(super) fn new(
        queue_pair: Option<DataQueuePair>,
        mtu: Mtu,
        slot_bytes: usize,
        clock: Clock,
    ) -> Result<Self> {
        let timer = TimerFd::new(
            timerfd::ClockId::CLOCK_MONOTONIC,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )
        .map_err(|e| Error::new(Errno(e as i32), "create", "timer descriptor"))?;
        Ok(Self {
            number: queue_pair.as_ref().map_or(0, DataQueuePair::number),
            queue_pair,
            shared: SharedLaneState::default(),
            deadlines: Timers::default(),
            packets: PacketPool::default(),
            held_slots: 0,
            datagram_bytes: mtu.bytes().min(slot_bytes - UdQp::HEADER_BYTES),
            reviving: false,
            timer,
            timer_at: None,
            clock,
        })
    }

    /// The time, as the lanes count it.
    pub(super) fn now(&self) -> Time {
        Time(self.clock.now_ns())
    }

    /// Whether packets that go to this queue pair are datagrams.
    #[inline]
    pub(super) fn is_at(&self, qp_num: u32) -> bool {
        self.number == qp_num
    }

    /// Whether lanes wait for time to pass.
    #[inline]
    pub(super) fn wait_for_time(&self) -> bool {
        self.deadlines.next().is_some()
    }

    /// Readable when a deadline has passed, once [`UdShared::arm`] has been called.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Makes the descriptor wake at the next deadline. Returns false if it has passed.
    pub(super) fn arm(&mut self) -> Result<bool> {
        let next = self.deadlines.next();
        if next == self.timer_at && next.is_none_or(|at| at > self.now()) {
            return Ok(true);
        }
        let set = match next {
            None => self.timer.unset(),
            Some(at) => {
                let left = at - self.now();
                if left.is_zero() {
                    return Ok(false);
                }
                let expiration = Expiration::OneShot(TimeSpec::from_duration(left));
                self.timer.set(expiration, TimerSetTimeFlags::empty())
            }
        };
        set.map_err(|e| Error::new(Errno(e as i32), "set", "timer descriptor"))?;
        self.timer_at = next;
        Ok(true)
    }

    /// Receive slots that lanes hold, because packets before them are missing.
    pub(super) fn held_slots(&self) -> usize {
        self.held_slots
    }

    /// The longest data packet that fits a datagram of any lane, in bytes: no peer accepts less.
    pub(super) fn packet_bytes(&self) -> usize {
        self.datagram_bytes - PREFIX_BYTES
    }
}

/// The route of a new lane: each of its datagrams is sent with these.
pub(super) fn route(lane: &NewLane, destination: UdDestination) -> UdRoute {
    UdRoute {
        destination,
        qpn: lane.remote_qpn,
        cookie: lane.start.name as u32,
    }
}

impl RdmTransport {
    /// The record of a lane from the time when datagrams carry the session.
    pub(super) fn ud_lane(
        &mut self,
        mut lane: NewLane,
        destination: UdDestination,
        mut session: SessionState,
    ) -> UdLane {
        let limits = &lane.limits;
        let path_mtu = Mtu::from_code(limits.path_mtu).map_or(256, Mtu::bytes);
        let datagram_bytes = (self.ud.datagram_bytes)
            .min(path_mtu)
            .min((limits.receive_bytes as usize).saturating_sub(UdQp::HEADER_BYTES));
        let window = DatagramLane::new(&self.ud.shared, &session.numbers, lane.start.name);
        session.numbers.remote = lane.start.remote;
        self.ud.deadlines.begin(lane.head.key.session());
        self.poster.counters.lanes.ud += 1;
        lane.head.gate.reconsider(false);
        UdLane {
            session,
            window,
            route: route(&lane, destination),
            head: lane.head,
            packet_bytes: datagram_bytes - PREFIX_BYTES,
            outgrown: false,
            turn: LaneTurn::default(),
        }
    }

    /// Handles the lanes whose deadline has passed.
    #[cold]
    pub(super) fn run_deadlines<O: Owner>(&mut self, owner: &mut O) -> usize {
        let now = self.ud.now();
        let mut done = 0;
        while let Some(session) = self.ud.deadlines.pop(now) {
            let Some(lane) = self.lanes.ud(session) else {
                self.repeat_resume(session, owner);
                continue;
            };
            done += 1;
            let suspects = (lane.window).on_deadline(&self.ud.shared, &lane.session.numbers, now);
            if suspects {
                let key = lane.head.key;
                self.service.request(ToService::ProbePeer(key));
                // This side's own queue pair may be the cause.
                self.check_data_queue_pair();
            }
            self.list(session);
        }
        done
    }

    /// Sets the deadline of a lane: to be called after each change of the lane.
    pub(super) fn set_deadline(&mut self, session: SessionId) {
        if let Some(lane) = self.lanes.ud(session) {
            let at = match lane.head.gate.is_ending() {
                false => lane.window.deadline(),
                true => None,
            };
            self.ud.deadlines.set(session, at);
        }
    }
}
