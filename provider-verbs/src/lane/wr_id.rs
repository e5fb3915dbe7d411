//! Work request IDs: they identify the request of a completion.

use ferrofabric_protocol::wire::SessionId;

/// High half of the work request ID of datagrams; no session has it, either.
const DATAGRAM: u32 = u32::MAX - 1;

/// The work request ID of a datagram.
#[inline]
pub(crate) fn datagram_wr_id(number: u32) -> u64 {
    send_wr_id(SessionId(DATAGRAM), number)
}

/// Whether a work request ID that looks like a lane's is a datagram's.
#[inline]
pub(crate) fn is_datagram(session: SessionId) -> bool {
    session.0 == DATAGRAM
}

/// High half of the work request ID of receives; no session has it, because a table never has that
/// many lanes.
const RECEIVE: u32 = u32::MAX;

/// A work request ID: session and number for sends.
#[inline]
pub(crate) fn send_wr_id(session: SessionId, number: u32) -> u64 {
    (u64::from(session.0) << 32) | u64::from(number)
}

/// The work request ID of a receive into a slot.
#[inline]
pub(crate) fn receive_wr_id(slot: u32) -> u64 {
    (u64::from(RECEIVE) << 32) | u64::from(slot)
}

/// The object that a work request ID names.
pub(crate) enum WrId {
    /// A receive into a slot.
    Receive(u32),
    /// A request of a lane.
    Send(SessionId, u32),
}

impl WrId {
    #[inline]
    pub(crate) fn parse(wr_id: u64) -> Self {
        let (high, low) = ((wr_id >> 32) as u32, wr_id as u32);
        match high {
            RECEIVE => Self::Receive(low),
            session => Self::Send(SessionId(session), low),
        }
    }
}
