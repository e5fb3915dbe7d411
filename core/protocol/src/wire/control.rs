//! Control packets: the handshake's, all of one size, on the UD queue pairs.
//!
//! Each names its sender in full, the incarnation of the receiver that it means, and the lane that
//! it is about; so any packet can be judged on its own, however late it comes.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{SessionId, VERSION, WireError};
use crate::{PLACE_BYTES, PeerKey};
use ferrofabric_contracts::{listed_constants, listed_enum};

/// Size of every control packet in bytes: below the smallest path MTU there is (256).
pub const CONTROL_BYTES: usize = size_of::<RawControl>();

/// The first bytes of a control packet.
pub const MAGIC: [u8; 4] = *b"FFc\x01";

/// A control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlPacket {
    /// The sender.
    pub from: PeerKey,
    /// The incarnation of the receiver that the packet is for.
    pub to_incarnation: u64,
    /// Which lane it is about.
    pub lane: LaneName,
    /// The sender's newest epoch: all its Hellos up to this one are void, but for the lane named
    /// here.
    pub newest_epoch: u64,
    /// Keys of the sender's queue pairs.
    pub keys: Keys,
    /// The content of the packet.
    pub body: ControlBody,
}

/// A lane of a pair of endpoints, unique over their incarnations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LaneName {
    /// Whether the sender of the packet is the side that initiated the lane.
    pub from_initiator: bool,
    /// Number of the attempt; an incarnation of an initiator counts up and never uses one twice.
    pub epoch: u64,
    /// Drawn by the initiator for this attempt; not 0.
    pub initiator_nonce: u64,
    /// Drawn by the responder for this lane; 0 where the sender cannot know it.
    pub responder_nonce: u64,
}

impl LaneName {
    /// A number for the lane, the same at both ends once both nonces are known; not 0.
    #[must_use]
    pub(crate) fn to_number(self) -> u64 {
        let mixed = self.initiator_nonce ^ self.responder_nonce.rotate_left(32);
        mixed.wrapping_add(self.epoch).max(1)
    }
}

/// Keys that an endpoint shares with its peers. Devices check them on datagrams; control packets
/// carry them for RC, which has no such keys of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Partition key.
    pub p_key: u16,
    /// Q_Key of the endpoint's authorization key, of 31 bits; `None` where it has no such key.
    pub q_key: Option<u32>,
}

/// Marks a Q_Key on the wire. No unprivileged Q_Key has this bit.
const HAS_Q_KEY: u32 = 1 << 31;

impl Keys {
    fn q_key_on_the_wire(self) -> u32 {
        self.q_key.map_or(0, |q_key| q_key | HAS_Q_KEY)
    }

    fn read(p_key: u16, q_key: u32) -> Self {
        let q_key = (q_key & HAS_Q_KEY != 0).then_some(q_key & !HAS_Q_KEY);
        Keys { p_key, q_key }
    }
}

/// The content of a control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlBody {
    /// Initiator: connect a queue pair of yours to this one. Repeated until answered.
    Hello {
        /// The sender's clock in nanoseconds, to be echoed.
        stamp_ns: u64,
        /// The initiator's queue pair.
        parameters: LaneParameters,
        /// The number of a lane of the two, or of a [`ControlBody::Challenge`]: no third party
        /// knows it. 0 for none.
        proof: u64,
    },
    /// Responder: done, here is mine. Repeated until a packet arrives on the lane.
    HelloAck {
        /// Echo of the newest Hello's stamp.
        stamp_ns: u64,
        /// The responder's queue pair.
        parameters: LaneParameters,
    },
    /// Initiator: connected, you may send.
    Ready,
    /// Either side: no, and why. Of its sender it says only what the refused packet had said: its
    /// incarnation is the one that was meant, also where that is gone.
    Reject {
        /// Why.
        reason: RejectReason,
    },
    /// Either side: this lane is closed. Repeated until answered, or until the close timeout.
    Bye {
        /// The number that the sender's session expects next, if there was a session:
        /// [`Session::expected`].
        ///
        /// [`Session::expected`]: crate::session::Session::expected
        expected: Option<u32>,
        /// The sender's endpoint closes: every other lane and session of the receiver with it is
        /// over, too, and nothing new comes about.
        ends: bool,
        /// As in a Hello.
        proof: u64,
    },
    /// Answer to every Bye.
    ByeAck,
    /// Are you there? Sent where there is a limit to the peer's silence, and where the engine
    /// suspects it.
    KeepAlive {
        /// The sender's clock in nanoseconds, to be echoed.
        stamp_ns: u64,
    },
    /// Answer to a KeepAlive about a lane that stands.
    KeepAliveAck {
        /// Echo of the KeepAlive's stamp.
        stamp_ns: u64,
    },
    /// The sender closes an endpoint or a region and waits until the receiver's endpoint has taken
    /// what was sent to it: have that endpoint driven, if its application does not drive it. It may
    /// be lost, and is not answered.
    Drive,
    /// To the endpoint in whose name a Hello or Bye came that proves nothing: send it with this.
    Challenge {
        /// The proof.
        proof: u64,
    },
}

listed_enum! {
    /// The kind of a lane.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum LaneKind: u8 {
        /// An RC queue pair at each end.
        #[default]
        Rc = 0,
        /// Datagrams between the endpoints' data queue pairs, made reliable
        /// ([`crate::datagram_lane`]).
        Ud = 1,
    }
}

/// One end of a lane: a queue pair and its owner's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneParameters {
    /// The kind of the lane.
    pub kind: LaneKind,
    /// Queue pair number, 24 bits, at least 2: for a lane of the UD kind that of the endpoint's
    /// data queue pair.
    pub qpn: u32,
    /// First packet sequence number that this end sends, 24 bits; 0 for a lane of the UD kind.
    pub psn: u32,
    /// The session at this end, to be named in data packets towards it.
    pub session: SessionId,
    /// Name of this endpoint's shared memory, 0 for none: the part of the native address that is
    /// not in the [`PeerKey`]. Opaque here.
    pub shm_name: u64,
    /// Limits of this end.
    pub limits: LaneLimits,
    /// This end holds a session with the peer, from an earlier lane.
    pub holds_session: bool,
}

/// The limits of one end of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneLimits {
    /// Eager data that a sender may have unconsumed at this end, in units of 64 bytes of credit; at
    /// most 32,767.
    pub quota_units: u16,
    /// Size of this end's receive buffers in bytes: the largest data packet, header included.
    pub receive_bytes: u32,
    /// Path MTU as verbs encode it: 1 (256 bytes) to 5 (4096).
    pub path_mtu: u8,
    /// RDMA reads and atomics that this end may have outstanding.
    pub rd_atomic_out: u8,
    /// RDMA reads and atomics of the other end that this end's queue pair can hold.
    pub rd_atomic_in: u8,
}

impl Default for LaneLimits {
    fn default() -> Self {
        LaneLimits {
            quota_units: 4096,
            receive_bytes: 8192,
            path_mtu: 3,
            rd_atomic_out: 16,
            rd_atomic_in: 16,
        }
    }
}

listed_enum! {
    /// Why a packet was refused.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum RejectReason: u8 {
        /// The receiver speaks another version (its own is in the header).
        Version = 1,
        /// P_Key or Q_Key differ.
        Keys = 2,
        /// No resources at the moment: try again later.
        Busy = 3,
        /// The receiver is closing.
        ShuttingDown = 4,
        /// The incarnation that was meant is gone.
        StaleIncarnation = 5,
        /// The lane named does not exist, or no longer.
        NoSuchLane = 6,
        /// The lane named was given up in good order: its queue pair is needed elsewhere.
        Recycled = 7,
        /// The lane named was given up in good order: the sender of this has nothing more to send.
        /// The session rests.
        Left = 8,
    }
}

/// The start of a Hello or other packet of a version that we do not speak: enough to refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Its version.
    pub version: u8,
    /// The sender.
    pub from: PeerKey,
    /// The incarnation of the receiver that the packet was for.
    pub to_incarnation: u64,
    /// Which lane it is about.
    pub lane: LaneName,
    /// Whether it is a refusal itself, and so never to be answered.
    pub is_reject: bool,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawControl {
    head: RawHead,
    newest_epoch: U64,
    stamp_ns: U64,
    q_key: U32,
    p_key: U16,
    quota_units: U16,
    session: U32,
    qpn: U32,
    psn: U32,
    receive_bytes: U32,
    path_mtu: u8,
    rd_atomic_out: u8,
    rd_atomic_in: u8,
    lane_flags: u8,
    reserved: [u8; 4],
    shm_name: U64,
    proof: U64,
}

/// The part that is the same in every version.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHead {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    flags: u8,
    reason: u8,
    place: [u8; PLACE_BYTES],
    incarnation: U64,
    to_incarnation: U64,
    epoch: U64,
    initiator_nonce: U64,
    responder_nonce: U64,
}

const _: () = assert!(size_of::<RawHead>() == 112 && CONTROL_BYTES == 176);

/// Where a packet has its version.
pub const VERSION_AT: usize = 4;

/// Where a packet has its kind.
pub const KIND_AT: usize = 5;

/// Where a Reject has its reason.
pub const REASON_AT: usize = 7;

listed_constants! {
    /// The flags of every packet.
    pub const FLAGS: [u8];
    const FROM_INITIATOR = 1;
}

/// Where a packet has them.
pub const FLAGS_AT: usize = 6;

listed_constants! {
    /// The flags of a lane.
    pub const LANE_FLAGS: [u8];
    const HOLDS_SESSION = 1 << 0;
    /// The lane is of the UD kind.
    const DATAGRAMS = 1 << 1;
}

/// Where a packet has them.
pub const LANE_FLAGS_AT: usize = std::mem::offset_of!(RawControl, lane_flags);

const _: () = assert!(
    std::mem::offset_of!(RawHead, kind) == KIND_AT
        && std::mem::offset_of!(RawHead, version) == VERSION_AT
        && std::mem::offset_of!(RawHead, reason) == REASON_AT
        && std::mem::offset_of!(RawHead, flags) == FLAGS_AT
);

listed_constants! {
    /// The flags in the stamp of a Bye.
    pub const BYE_FLAGS: [u64];
    /// The low half is a sequence number.
    const HAS_EXPECTED = 1 << 32;
    /// The endpoint closes.
    const ENDS = 1 << 33;
}

/// Where a Bye has them.
pub const STAMP_AT: usize = std::mem::offset_of!(RawControl, stamp_ns);

listed_constants! {
    /// The kinds of packets.
    pub const KINDS: [u8];
    const HELLO = 1;
    const HELLO_ACK = 2;
    const READY = 3;
    const REJECT = 4;
    const BYE = 5;
    const BYE_ACK = 6;
    const KEEP_ALIVE = 7;
    const KEEP_ALIVE_ACK = 8;
    const CHALLENGE = 9;
    const DRIVE = 10;
}

impl ControlPacket {
    /// The packet as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CONTROL_BYTES] {
        let mut raw = RawControl {
            head: RawHead {
                magic: MAGIC,
                version: VERSION,
                kind: 0,
                flags: if self.lane.from_initiator {
                    FROM_INITIATOR
                } else {
                    0
                },
                reason: 0,
                place: self.from.place,
                incarnation: self.from.incarnation.into(),
                to_incarnation: self.to_incarnation.into(),
                epoch: self.lane.epoch.into(),
                initiator_nonce: self.lane.initiator_nonce.into(),
                responder_nonce: self.lane.responder_nonce.into(),
            },
            newest_epoch: self.newest_epoch.into(),
            q_key: self.keys.q_key_on_the_wire().into(),
            p_key: self.keys.p_key.into(),
            ..RawControl::new_zeroed()
        };
        self.body.write(&mut raw);
        let mut bytes = [0; CONTROL_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads a packet: the payload of a datagram, without the 40 bytes that UD puts in front.
    ///
    /// # Errors
    /// [`WireError`]; on [`WireError::Version`], [`Foreign::parse`] gives the peer to notify.
    pub fn parse(bytes: &[u8]) -> Result<ControlPacket, WireError> {
        let (head, _) = RawHead::ref_from_prefix(bytes).map_err(|_| WireError::Length)?;
        if head.magic != MAGIC {
            return Err(WireError::Magic);
        }
        if head.version != VERSION {
            return Err(WireError::Version(head.version));
        }
        let raw = RawControl::ref_from_bytes(bytes).map_err(|_| WireError::Length)?;
        let control = ControlPacket {
            from: head.from(),
            to_incarnation: head.to_incarnation.get(),
            lane: head.lane(),
            newest_epoch: raw.newest_epoch.get(),
            keys: Keys::read(raw.p_key.get(), raw.q_key.get()),
            body: ControlBody::read(raw)?,
        };
        // Every field that this kind leaves out must be zero: one packet, one meaning.
        let is_sound = control.has_its_nonces() && control.says_no_more();
        (is_sound && control.to_bytes() == *bytes)
            .then_some(control)
            .ok_or(WireError::Field)
    }

    /// Whether the lane is named as far as the sender of such a packet knows it.
    fn has_its_nonces(&self) -> bool {
        let lane = &self.lane;
        match self.body {
            ControlBody::Reject { .. } => true,
            ControlBody::Hello { .. } => {
                lane.from_initiator && lane.initiator_nonce != 0 && lane.responder_nonce == 0
            }
            ControlBody::HelloAck { .. } => {
                !lane.from_initiator && lane.initiator_nonce != 0 && lane.responder_nonce != 0
            }
            ControlBody::Ready => {
                lane.from_initiator && lane.initiator_nonce != 0 && lane.responder_nonce != 0
            }
            _ => lane.initiator_nonce != 0,
        }
    }

    /// A Reject says of its sender nothing that the refused packet did not say.
    fn says_no_more(&self) -> bool {
        let is_reject = matches!(self.body, ControlBody::Reject { .. });
        !is_reject || self.newest_epoch == 0 && self.keys == Keys::default()
    }
}

impl ControlBody {
    fn write(&self, raw: &mut RawControl) {
        let stamp = &mut raw.stamp_ns;
        raw.head.kind = match *self {
            ControlBody::Hello {
                stamp_ns,
                parameters,
                proof,
            } => {
                *stamp = stamp_ns.into();
                raw.proof = proof.into();
                parameters.write(raw);
                HELLO
            }
            ControlBody::HelloAck {
                stamp_ns,
                parameters,
            } => {
                *stamp = stamp_ns.into();
                parameters.write(raw);
                HELLO_ACK
            }
            ControlBody::Ready => READY,
            ControlBody::Reject { reason } => {
                raw.head.reason = reason as u8;
                REJECT
            }
            ControlBody::Bye {
                expected,
                ends,
                proof,
            } => {
                let taken = expected.map_or(0, |expected| HAS_EXPECTED | u64::from(expected));
                *stamp = (taken | if ends { ENDS } else { 0 }).into();
                raw.proof = proof.into();
                BYE
            }
            ControlBody::ByeAck => BYE_ACK,
            ControlBody::KeepAlive { stamp_ns } => {
                *stamp = stamp_ns.into();
                KEEP_ALIVE
            }
            ControlBody::KeepAliveAck { stamp_ns } => {
                *stamp = stamp_ns.into();
                KEEP_ALIVE_ACK
            }
            ControlBody::Challenge { proof } => {
                raw.proof = proof.into();
                CHALLENGE
            }
            ControlBody::Drive => DRIVE,
        };
    }

    fn read(raw: &RawControl) -> Result<Self, WireError> {
        let (stamp_ns, proof) = (raw.stamp_ns.get(), raw.proof.get());
        Ok(match raw.head.kind {
            HELLO => ControlBody::Hello {
                stamp_ns,
                parameters: LaneParameters::read(raw)?,
                proof,
            },
            HELLO_ACK => ControlBody::HelloAck {
                stamp_ns,
                parameters: LaneParameters::read(raw)?,
            },
            READY => ControlBody::Ready,
            REJECT => ControlBody::Reject {
                reason: RejectReason::from_number(raw.head.reason).ok_or(WireError::Field)?,
            },
            BYE => ControlBody::Bye {
                expected: (stamp_ns & HAS_EXPECTED != 0).then_some(stamp_ns as u32),
                ends: stamp_ns & ENDS != 0,
                proof,
            },
            BYE_ACK => ControlBody::ByeAck,
            KEEP_ALIVE => ControlBody::KeepAlive { stamp_ns },
            KEEP_ALIVE_ACK => ControlBody::KeepAliveAck { stamp_ns },
            CHALLENGE => ControlBody::Challenge { proof },
            DRIVE => ControlBody::Drive,
            other => return Err(WireError::Kind(other)),
        })
    }
}

impl Foreign {
    /// Reads the part that all versions share; `None` if there is none or it is too short.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Foreign> {
        let (head, _) = RawHead::ref_from_prefix(bytes).ok()?;
        (head.magic == MAGIC).then(|| Foreign {
            version: head.version,
            from: head.from(),
            to_incarnation: head.to_incarnation.get(),
            lane: head.lane(),
            is_reject: head.kind == REJECT,
        })
    }
}

impl RawHead {
    fn from(&self) -> PeerKey {
        PeerKey {
            place: self.place,
            incarnation: self.incarnation.get(),
        }
    }

    fn lane(&self) -> LaneName {
        LaneName {
            from_initiator: self.flags & FROM_INITIATOR != 0,
            epoch: self.epoch.get(),
            initiator_nonce: self.initiator_nonce.get(),
            responder_nonce: self.responder_nonce.get(),
        }
    }
}

impl LaneParameters {
    fn write(&self, raw: &mut RawControl) {
        raw.qpn = self.qpn.into();
        raw.psn = self.psn.into();
        raw.session = self.session.0.into();
        raw.shm_name = self.shm_name.into();
        raw.quota_units = self.limits.quota_units.into();
        raw.receive_bytes = self.limits.receive_bytes.into();
        raw.path_mtu = self.limits.path_mtu;
        raw.rd_atomic_out = self.limits.rd_atomic_out;
        raw.rd_atomic_in = self.limits.rd_atomic_in;
        if self.holds_session {
            raw.lane_flags |= HOLDS_SESSION;
        }
        if self.kind == LaneKind::Ud {
            raw.lane_flags |= DATAGRAMS;
        }
    }

    fn read(raw: &RawControl) -> Result<Self, WireError> {
        let kind = match raw.lane_flags & DATAGRAMS {
            0 => LaneKind::Rc,
            _ => LaneKind::Ud,
        };
        let parameters = LaneParameters {
            kind,
            qpn: raw.qpn.get(),
            psn: raw.psn.get(),
            session: SessionId(raw.session.get()),
            shm_name: raw.shm_name.get(),
            limits: LaneLimits {
                quota_units: raw.quota_units.get(),
                receive_bytes: raw.receive_bytes.get(),
                path_mtu: raw.path_mtu,
                rd_atomic_out: raw.rd_atomic_out,
                rd_atomic_in: raw.rd_atomic_in,
            },
            holds_session: raw.lane_flags & HOLDS_SESSION != 0,
        };
        let limits = &parameters.limits;
        let sound = (2..1 << 24).contains(&parameters.qpn)
            && parameters.psn < if kind == LaneKind::Ud { 1 } else { 1 << 24 }
            && limits.quota_units <= crate::credit::MAX_QUOTA_UNITS
            && limits.receive_bytes >= super::data::MIN_RECEIVE_BYTES
            && (1..=5).contains(&limits.path_mtu);
        sound.then_some(parameters).ok_or(WireError::Field)
    }
}

#[cfg(test)]
mod tests;
