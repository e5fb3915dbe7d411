//! The data side of the verbs provider: slots of registered memory, peers, and the lanes that carry their messages.

mod lane;
mod payload;
mod peers;
mod slots;
mod unexpected;

pub(crate) use lane::{
    Fetching, Lane, Lanes, RendezvousSend, SendSlot, Wqe, WqeKind, WrId, receive_wr_id,
};
pub(crate) use peers::{Gathered, Link, Peers, Pending};
pub(crate) use slots::SlotPool;
pub(crate) use unexpected::{Body, Held, HeldMessage};
