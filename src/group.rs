//! A group of endpoints.

use std::sync::Arc;

use ferrofabric_collectives::{GroupId, Membership};
use ferrofabric_contracts::types::FiAddr;

/// A group of endpoints for collective operations, of which an endpoint of this program is a
/// member: [`RdmEndpoint::join`](crate::RdmEndpoint::join).
#[derive(Clone, Debug)]
pub struct Group {
    endpoint: u64,
    id: GroupId,
    members: Arc<[FiAddr]>,
    rank: usize,
}

impl Group {
    pub(crate) fn new(endpoint: u64, id: GroupId, members: &Membership) -> Self {
        Self {
            endpoint,
            id,
            members: members.addresses().clone(),
            rank: members.rank(),
        }
    }

    /// The members, in the order of their ranks.
    pub fn members(&self) -> &[FiAddr] {
        &self.members
    }

    /// The rank of the endpoint that has joined: its place among the members.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The rank of a member.
    pub(crate) fn rank_of(&self, member: FiAddr) -> Option<usize> {
        self.members.iter().position(|&other| other == member)
    }

    /// Its number, if the endpoint with this number has joined it.
    pub(crate) fn id_at(&self, endpoint: u64) -> Option<GroupId> {
        (self.endpoint == endpoint).then_some(self.id)
    }
}
