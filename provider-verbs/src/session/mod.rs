//! The data side of the verbs provider: peers, sessions, and the lanes that carry them.

mod grants;
mod lane;
mod packet_pool;
mod payload;
mod peers;
mod records;
mod registered;
mod state;
mod ud_lane;
mod unexpected;

pub(crate) use grants::{Grants, QUOTA_UNITS};
pub(crate) use lane::{
    AfterLane, Lane, LaneEnd, Lanes, Place, Wqe, WqeKind, WrId, datagram_wr_id, is_datagram,
    receive_wr_id, send_wr_id,
};
pub(crate) use packet_pool::PacketPool;
pub(crate) use peers::{Fate, Goodbye, Link, Peers, Pending};
pub(crate) use records::Records;
pub(crate) use registered::Registered;
pub(crate) use state::{
    Incoming, Kept, KeptKind, Notice, Quotas, Receiving, RendezvousSend, SessionState, Target,
    Writing,
};
pub(crate) use ud_lane::{Route, UdLane};
pub(crate) use unexpected::{Body, Held, HeldMessage, Way};
