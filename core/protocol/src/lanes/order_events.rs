//! The events that end no operation.

use super::PeerLanes;

/// The events of which only [orders](super::LaneOrder) come. A caller that cannot report the end of
/// an operation has no other events, and carries out what [`PeerLanes::next_order`] returns.
///
/// The methods are in the files of the decisions that they make.
#[derive(Debug)]
pub struct OrderEvents<'l>(pub(super) &'l mut PeerLanes);

impl PeerLanes {
    /// The events that end no operation.
    pub fn orders(&mut self) -> OrderEvents<'_> {
        OrderEvents(self)
    }
}
