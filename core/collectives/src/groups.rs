//! The groups of an endpoint.

use std::sync::Arc;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;
use rustc_hash::FxHashMap;

use crate::group_id::GroupId;

/// The members of a group, in the order of their ranks.
#[derive(Clone, Debug)]
pub struct Membership {
    addresses: Arc<[FiAddr]>,
    rank: usize,
    /// A number of these members, the same at each. `None`: they have no names.
    hash: Option<u64>,
}

impl Membership {
    /// `names` has the name of each member, the same at all of them, and `own` is that of this
    /// endpoint.
    ///
    /// # Errors
    ///
    /// `EINVAL`: this endpoint is no member, or an endpoint is one twice.
    pub fn new<N: AsRef<[u8]> + Ord>(
        addresses: Arc<[FiAddr]>,
        names: &[N],
        own: &N,
    ) -> Result<Self, Errno> {
        let rank = names.iter().position(|name| name == own);
        let rank = rank.ok_or(Errno::EINVAL)?;
        let mut sorted: Vec<_> = names.iter().collect();
        sorted.sort_unstable();
        if addresses.len() != names.len() || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Errno::EINVAL);
        }
        let hash = (names.iter()).fold(FIRST_HASH, |hash, name| hash_of(hash, name.as_ref()));
        Ok(Self {
            addresses,
            rank,
            hash: Some(hash),
        })
    }

    /// Members of which nothing is known but their addresses here; `own` is that of this endpoint.
    /// Any two endpoints join the groups that both are members of in the same order.
    ///
    /// # Errors
    ///
    /// `EINVAL`: this endpoint is no member, or an address is one twice.
    pub fn unnamed(addresses: Arc<[FiAddr]>, own: FiAddr) -> Result<Self, Errno> {
        let rank = addresses.iter().position(|&member| member == own);
        let rank = rank.ok_or(Errno::EINVAL)?;
        let mut sorted = addresses.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Errno::EINVAL);
        }
        Ok(Self {
            addresses,
            rank,
            hash: None,
        })
    }

    /// Addresses of the members.
    pub fn addresses(&self) -> &Arc<[FiAddr]> {
        &self.addresses
    }

    /// The rank of this endpoint.
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// The rank of a member.
    pub(crate) fn rank_of(&self, address: FiAddr) -> Option<usize> {
        self.addresses.iter().position(|&member| member == address)
    }
}

/// The hash of nothing.
const FIRST_HASH: u64 = 0xcbf2_9ce4_8422_2325;

/// Goes on with a hash (FNV-1a): members of any build and machine have the same one.
pub(crate) fn hash_of(hash: u64, bytes: &[u8]) -> u64 {
    let add = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(hash, add)
}

/// The joins of an endpoint so far.
#[derive(Default)]
pub(crate) struct Joins {
    /// By the hash of the members' names.
    of_names: FxHashMap<u64, u64>,
    /// With each member of groups without names.
    with_peers: FxHashMap<FiAddr, u64>,
}

impl Joins {
    /// The keys of the next join of these members.
    pub(crate) fn next(&mut self, members: &Membership) -> JoinKeys {
        if let Some(hash) = members.hash {
            let before = self.of_names.entry(hash).or_default();
            let key = hash_of(hash, &before.to_le_bytes());
            *before += 1;
            return JoinKeys::OfAll(key);
        }
        let mut next = |&peer: &FiAddr| {
            let joins = self.with_peers.entry(peer).or_default();
            *joins += 1;
            *joins
        };
        JoinKeys::OfPairs(members.addresses.iter().map(&mut next).collect())
    }
}

/// Numbers of a join, in the tags of its messages.
pub(crate) enum JoinKeys {
    /// One for all messages: a hash of the members' names and of the number of joins of the same
    /// members before it.
    OfAll(u64),
    /// One for each other member, by rank: how many joins the two are both in, so far.
    OfPairs(Vec<u64>),
}

impl JoinKeys {
    /// The key of messages to and from the member of a rank.
    pub(crate) fn with(&self, rank: usize) -> u64 {
        match self {
            Self::OfAll(key) => *key,
            Self::OfPairs(keys) => keys.get(rank).copied().unwrap_or_default(),
        }
    }
}

/// A group of an endpoint.
pub(crate) struct GroupState {
    pub(crate) members: Membership,
    pub(crate) keys: JoinKeys,
    /// The number that each member has the group by. Empty until all have joined.
    pub(crate) numbers: Vec<GroupId>,
    /// Operations that have begun.
    pub(crate) operations: u64,
    pub(crate) failed: Option<Errno>,
    /// Ranks of members that are gone. No message to them ends before a time limit of the
    /// transport's, if it has one.
    pub(crate) gone: Vec<u32>,
    /// The receives of reports that the group has failed elsewhere.
    pub(crate) alarms: Vec<u64>,
}

impl GroupState {
    /// Whether a member of this rank is known to be gone.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        self.gone.contains(&(rank as u32))
    }

    /// Whether the member of a rank gets a report. A message to one that is gone may never end, and
    /// the close of an endpoint waits for it. That of an owner's endpoint does not, and its members
    /// may be out of reach for this one alone.
    pub(crate) fn is_informed(&self, rank: usize) -> bool {
        matches!(self.keys, JoinKeys::OfPairs(_)) || !self.is_gone(rank)
    }
}
