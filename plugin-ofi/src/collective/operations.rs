//! The operations of an endpoint that are under way, and its groups.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;

use super::broadcast::Bounce;
use super::lent::TransferRequest;
use super::offload_endpoint::OffloadGroup;
use super::tags::JoinName;
use super::waiting::WaitingMessages;
use crate::av::members::Members;

/// A group that the endpoint joins or has joined.
pub(crate) struct JoinedGroup {
    pub(crate) members: Members,
    /// The address of the endpoint among them.
    pub(crate) own: FiAddr,
    /// Its operations that are under way, its join among them.
    pub(crate) users: usize,
    /// The errno of the first operation that failed: the members do not agree any more.
    pub(crate) failed: Option<Errno>,
    pub(crate) is_joined: bool,
    /// Whether the application closes it.
    pub(crate) is_closing: bool,
    pub(crate) name: JoinName,
    /// Its number in tags, once the first message has it, or a report.
    pub(crate) number: Option<u64>,
    /// Closes when nothing uses it.
    pub(crate) offload: OffloadGroup,
}

/// A join of a new group.
pub(crate) struct Join {
    /// The address of the group.
    pub(crate) group: FiAddr,
    pub(crate) members: Members,
    /// The address of the endpoint among them.
    pub(crate) own: FiAddr,
    pub(crate) name: JoinName,
    pub(crate) flags: u64,
    /// The application's.
    pub(crate) end: JoinEnd,
}

/// The event of the end of a join: its object, and the application's context.
#[derive(Clone, Copy)]
pub(crate) struct JoinEnd {
    pub(crate) fid: u64,
    pub(crate) context: u64,
}

/// An operation that is under way.
pub(crate) struct CollectiveOperation {
    pub(crate) group: FiAddr,
    /// The application's.
    pub(crate) context: u64,
    pub(crate) kind: OperationKind,
    /// Bits that its tags have besides those of `off_coll`.
    pub(crate) tag_bits: u64,
    /// Messages that are under way, or wait for room.
    pub(crate) transfers: usize,
    pub(crate) failed: Option<Errno>,
}

pub(crate) enum OperationKind {
    /// A join, which ends with an event of this object.
    Join { fid: u64 },
    /// Another one. Whether it has a completion, and its data, where those are in between.
    Collective {
        reports: bool,
        bounce: Option<Bounce>,
    },
}

/// A message of an operation.
pub(crate) struct CollectiveMessage {
    pub(crate) operation: u64,
    pub(crate) request: TransferRequest,
}

// SAFETY: the pointers are passed to `off_coll` and to the endpoint alone, as those of their
// operation.
unsafe impl Send for CollectiveMessage {}

/// The operations of an endpoint, their messages, and its groups. The numbers of operations and
/// messages are used once in a process.
#[derive(Default)]
pub(crate) struct Operations {
    pub(crate) groups: BTreeMap<FiAddr, JoinedGroup>,
    pub(crate) under_way: BTreeMap<u64, CollectiveOperation>,
    pub(crate) transfers: BTreeMap<u64, CollectiveMessage>,
    /// The receives of reports that a group has failed.
    pub(crate) alarms: BTreeMap<u64, FiAddr>,
    /// The receives by which messages of groups are discarded that have failed, with the numbers
    /// of these groups.
    pub(crate) discards: BTreeMap<u64, u64>,
    /// The data of operations that ended before their messages.
    pub(crate) abandoned: BTreeMap<u64, Bounce>,
    /// The receive of a probe.
    pub(crate) probe: u64,
    /// The messages for which there was no room.
    pub(crate) waiting: WaitingMessages,
    /// The joins that are to begin, in their order.
    pub(crate) queued_joins: VecDeque<Join>,
    /// Joins so far, in all and of the same members, by the hash of their names.
    pub(crate) joins: usize,
    pub(crate) attempts: BTreeMap<u64, u8>,
}

/// A number that no operation and no message has had. It is far above those that applications have
/// as contexts, where those are no addresses.
pub(crate) fn new_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl JoinedGroup {
    /// The tags by which members report that it has failed.
    pub(crate) fn report_tags(&self) -> impl Iterator<Item = u64> {
        let numbered = self.number.map(|number| self.name.failed_group(number));
        [Some(self.name.failed(self.number)), numbered]
            .into_iter()
            .flatten()
    }
}

impl CollectiveOperation {
    pub(crate) fn is_join(&self) -> bool {
        matches!(self.kind, OperationKind::Join { .. })
    }
}

impl Operations {
    /// Adds an operation. Returns its number.
    pub(crate) fn begin(&mut self, operation: CollectiveOperation) -> u64 {
        let number = new_number();
        if let Some(group) = self.groups.get_mut(&operation.group) {
            group.users += 1;
        }
        self.under_way.insert(number, operation);
        number
    }

    /// Takes out an operation that is over, or never began.
    pub(crate) fn end(&mut self, number: u64) -> Option<CollectiveOperation> {
        let operation = self.under_way.remove(&number)?;
        if let Some(group) = self.groups.get_mut(&operation.group) {
            group.users -= 1;
        }
        Some(operation)
    }

    /// A group whose operations can begin.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the endpoint has not joined such a group. The errno of an operation of the group
    /// that has failed.
    pub(crate) fn usable(&self, group: FiAddr) -> Result<&JoinedGroup, Errno> {
        let group = self.groups.get(&group).ok_or(Errno::EINVAL)?;
        match (group.failed, group.is_joined) {
            (Some(errno), _) => Err(errno),
            (None, true) => Ok(group),
            (None, false) => Err(Errno::EINVAL),
        }
    }

    /// Keeps the data of an operation until it is over.
    pub(crate) fn set_bounce(&mut self, number: u64, data: Option<Bounce>) {
        let operation = self
            .under_way
            .get_mut(&number)
            .map(|operation| &mut operation.kind);
        if let Some(OperationKind::Collective { bounce, .. }) = operation {
            *bounce = data;
        }
    }

    /// Adds a message to an operation. Returns its number.
    pub(crate) fn add_transfer(&mut self, operation: u64, request: TransferRequest) -> Option<u64> {
        let number = new_number();
        self.under_way.get_mut(&operation)?.transfers += 1;
        self.transfers
            .insert(number, CollectiveMessage { operation, request });
        Some(number)
    }

    /// Takes out a message that is over. Returns its operation, and the object of `off_coll`.
    pub(crate) fn end_transfer(&mut self, number: u64) -> Option<(u64, *mut c_void)> {
        let transfer = self.transfers.remove(&number)?;
        if let Some(operation) = self.under_way.get_mut(&transfer.operation) {
            operation.transfers -= 1;
        } else if self.abandoned.contains_key(&transfer.operation)
            && self.transfers_of(transfer.operation).is_empty()
        {
            self.abandoned.remove(&transfer.operation);
        }
        Some((transfer.operation, transfer.request.item))
    }

    /// Counts a join of members whose names have this hash. Returns its name.
    pub(crate) fn count_join(&mut self, hash: u64) -> JoinName {
        self.joins += 1;
        let next = self.attempts.entry(hash).or_default();
        let attempt = *next;
        *next = attempt.wrapping_add(1);
        JoinName { hash, attempt }
    }

    /// Whether a join is under way.
    pub(crate) fn is_joining(&self) -> bool {
        self.under_way.values().any(CollectiveOperation::is_join)
    }

    /// Takes a join out that has not begun.
    pub(crate) fn take_queued_join(&mut self, group: FiAddr) -> Option<Join> {
        let at = self
            .queued_joins
            .iter()
            .position(|join| join.group == group)?;
        self.queued_joins.remove(at)
    }

    /// Takes out the receives of reports that a group has failed. Returns their numbers.
    pub(crate) fn take_alarms(&mut self, group: FiAddr) -> Vec<u64> {
        let of_group = self.alarms.iter().filter(|&(_, of)| *of == group);
        let numbers: Vec<_> = of_group.map(|(&number, _)| number).collect();
        for number in &numbers {
            self.alarms.remove(number);
        }
        numbers
    }

    /// Adds a message of no operation. Returns its number.
    pub(crate) fn add_lone_message(&mut self, request: TransferRequest) -> u64 {
        let (number, operation) = (new_number(), new_number());
        self.transfers
            .insert(number, CollectiveMessage { operation, request });
        number
    }

    /// A group fails, and with it all its operations. Returns the numbers of these, and whether
    /// the group had not failed before.
    pub(crate) fn fail(&mut self, group: FiAddr, errno: Errno) -> (Vec<u64>, bool) {
        let mut is_new = false;
        if let Some(group) = self.groups.get_mut(&group) {
            is_new = group.failed.is_none();
            group.failed.get_or_insert(errno);
        }
        let mut failed = Vec::new();
        for (&number, operation) in &mut self.under_way {
            if operation.group == group {
                operation.failed.get_or_insert(errno);
                failed.push(number);
            }
        }
        (failed, is_new)
    }

    /// The numbers of the operations of a group.
    pub(crate) fn of_group(&self, group: FiAddr) -> Vec<u64> {
        let of = self.under_way.iter().filter(|(_, one)| one.group == group);
        of.map(|(&number, _)| number).collect()
    }

    /// Of each operation that waits for messages, the peers from which these come.
    pub(crate) fn awaited_peers(&self) -> BTreeMap<u64, BTreeSet<FiAddr>> {
        let mut peers = BTreeMap::<u64, BTreeSet<FiAddr>>::new();
        for one in self.transfers.values().filter(|one| !one.request.sends) {
            let of_operation = peers.entry(one.operation).or_default();
            of_operation.insert(one.request.peer);
        }
        peers
    }

    /// Whether an operation waits for a message of a peer.
    pub(crate) fn awaits(&self, operation: u64, peer: FiAddr) -> bool {
        let mut transfers = self.transfers.values();
        transfers
            .any(|one| one.operation == operation && !one.request.sends && one.request.peer == peer)
    }

    /// The numbers of the messages of each operation.
    pub(crate) fn transfers_by_operation(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut numbers = BTreeMap::<u64, Vec<u64>>::new();
        for (&number, one) in &self.transfers {
            numbers.entry(one.operation).or_default().push(number);
        }
        numbers
    }

    /// The numbers of the messages of an operation.
    pub(crate) fn transfers_of(&self, operation: u64) -> Vec<u64> {
        let of = self
            .transfers
            .iter()
            .filter(|(_, transfer)| transfer.operation == operation);
        of.map(|(&number, _)| number).collect()
    }
}
