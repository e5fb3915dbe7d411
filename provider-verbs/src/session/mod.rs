//! The data side of the verbs provider: peers, sessions, and the lanes that carry them.

mod grants;
mod lane;
mod packet_pool;
mod payload;
mod peers;
mod pending;
mod records;
mod registered;
mod send_queue;
mod state;
mod turns;
mod ud_lane;
mod unexpected;
mod wr_id;

pub(crate) use grants::{Grants, QUOTA_UNITS};
pub(crate) use lane::{Lane, Lanes};
pub(crate) use packet_pool::PacketPool;
pub(crate) use peers::{Fate, Peer, PeerRoute, Peers};
pub(crate) use pending::Pending;
pub(crate) use records::Records;
pub(crate) use registered::Registered;
pub(crate) use send_queue::{Place, SendQueue, Wqe, WqeKind};
pub(crate) use state::{
    Incoming, Kept, KeptKind, Notice, Receiving, RendezvousSend, SessionState, Target, Writing,
};
pub(crate) use turns::{Turn, Turns};
pub(crate) use ud_lane::{Route, UdLane};
pub(crate) use unexpected::{Body, Held, HeldMessage, Way};
pub(crate) use wr_id::{WrId, datagram_wr_id, is_datagram, receive_wr_id, send_wr_id};
