//! The data side of the verbs provider: peers, sessions, and the lanes that carry them.

mod grants;
mod lane;
mod packet_pool;
mod payload;
mod peers;
mod pending;
mod probe_turns;
mod records;
mod registered;
mod send_queue;
mod state;
mod turns;
mod ud_lane;
mod unexpected;
mod wr_id;

pub(crate) use grants::{Grants, QUOTA_UNITS};
pub(crate) use lane::{LaneTable, RcLane};
pub(crate) use packet_pool::PacketPool;
pub(crate) use peers::{PeerFate, PeerRoute, PeerTable, RdmPeer, TRANSPORT};
pub(crate) use pending::Pending;
pub(crate) use probe_turns::SilentLane;
pub(crate) use records::PacketRecords;
pub(crate) use registered::Registered;
pub(crate) use send_queue::{LaneSendQueue, LaneWqe, OneSidedWqe, PacketBuffer, WqeKind};
pub(crate) use state::{
    ControlMessage, FragmentTarget, IncomingFragments, IncomingTransfer, OutgoingTransfer,
    PulledReceive, RendezvousSend, ResendKind, ResendPacket, SessionState,
};
pub(crate) use turns::{LaneTurn, TurnQueue};
pub(crate) use ud_lane::{UdLane, UdRoute};
pub(crate) use unexpected::{
    RdmUnexpectedMessage, RdmUnexpectedMessages, TransferMethod, UnexpectedBody,
};
pub(crate) use wr_id::{WrId, datagram_wr_id, is_datagram, receive_wr_id, send_wr_id};
