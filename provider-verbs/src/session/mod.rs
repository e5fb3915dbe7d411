//! The data side of the verbs provider: peers and sessions. `lane` has what carries them.

mod grants;
mod packet_pool;
mod payload;
mod peers;
mod pending;
mod registered;
mod state;
mod unexpected;

pub(crate) use grants::{Grants, QUOTA_UNITS};
pub(crate) use packet_pool::PacketPool;
pub(crate) use peers::{PeerFate, PeerRoute, PeerTable, RdmPeer, TRANSPORT};
pub(crate) use pending::Pending;
pub(crate) use registered::Registered;
pub(crate) use state::{
    ControlMessage, FragmentTarget, IncomingFragments, IncomingTransfer, OutgoingTransfer,
    PulledReceive, RendezvousSend, ResendKind, ResendPacket, SessionState, is_injected,
    is_reply_of,
};
pub(crate) use unexpected::{
    RdmUnexpectedMessage, RdmUnexpectedMessages, TransferMethod, UnexpectedBody,
};
