//! Engines of several members exchange messages in random order, and members die.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_collectives::{Action, Collective, Engine, GroupId, Membership, Outcome, Planner};
use ferrofabric_contracts::atomics::{AtomicOperator, Datatype};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;
use proptest::prelude::*;

/// Longer messages leave their sender when they are received.
const EAGER: usize = 64;

/// Between two ticks.
const TICK: Duration = Duration::from_millis(600);

/// Ticks without a message in which every wait is probed.
const QUIET_TICKS: usize = 40;

/// Ticks in which each report gets to its receiver, and each wait has its answer.
const MOST_TICKS: usize = 1000;

/// Ticks in which each receive that fails has got through.
const MOST_TRIES: usize = 100;

/// Elements are matrices, whose product depends on the order of the factors.
const ELEMENT: usize = 4;

struct Posted {
    message: u64,
    from: FiAddr,
    tag: u64,
    ignore: u64,
    len: usize,
}

struct Sent {
    from: usize,
    tag: u64,
    bytes: Vec<u8>,
    /// The number of a message that is not over at its sender.
    ends: Option<u64>,
    /// Its sender is gone, which had the bytes.
    is_lost: bool,
}

impl Sent {
    /// The sender is gone.
    fn lose(&mut self) {
        self.is_lost = self.ends.take().is_some();
    }
}

#[derive(Default)]
struct Member {
    engine: Engine,
    posted: Vec<Posted>,
    unexpected: VecDeque<Sent>,
    ended: BTreeMap<u64, Result<Outcome, Errno>>,
    is_dead: bool,
    /// Messages to dead members, which fail together after a while.
    failing: Vec<(usize, u64)>,
    /// Members to which messages have failed. No later one to them ends.
    sees_dead: BTreeSet<usize>,
    /// Messages that do not end.
    stuck: usize,
}

/// Members, and the messages between them, which stay in order between two of them.
struct Network {
    members: Vec<Member>,
    under_way: BTreeMap<(usize, usize), VecDeque<Sent>>,
    random: fastrand::Rng,
    now: Instant,
    /// Most receives fail at once that are of no operation.
    fails_receives: bool,
    /// The number of messages from one member to another that fail as if that were gone.
    broken: BTreeMap<(usize, usize), usize>,
}

impl Network {
    fn new(members: usize, seed: u64) -> Self {
        let member = |_| Member {
            engine: Engine::new(),
            ..Member::default()
        };
        let mut this = Self {
            members: (0..members).map(member).collect(),
            under_way: BTreeMap::new(),
            random: fastrand::Rng::with_seed(seed),
            now: Instant::now(),
            fails_receives: false,
            broken: BTreeMap::new(),
        };
        (0..members).for_each(|member| this.carry_out(member));
        this
    }

    fn call<T>(&mut self, member: usize, call: impl FnOnce(&mut Engine) -> T) -> T {
        let result = call(&mut self.members[member].engine);
        self.carry_out(member);
        result
    }

    /// Carries out the actions of a member.
    fn carry_out(&mut self, at: usize) {
        while let Some(action) = self.members[at].engine.next_action() {
            match action {
                Action::Send {
                    message,
                    to,
                    tag,
                    bytes,
                    is_probe,
                } => {
                    let Some(bytes) = self.members[at].engine.bytes(&bytes) else {
                        continue;
                    };
                    let bytes = bytes.to_vec();
                    let to = to.0 as usize;
                    if is_report(tag) && self.random.u8(..4) != 0 {
                        self.members[at].engine.sent(message, Err(Errno::ENOMEM));
                        continue;
                    }
                    if let Some(left) = self.broken.get_mut(&(at, to)).filter(|left| **left > 0) {
                        *left -= 1;
                        self.members[at]
                            .engine
                            .sent(message, Err(Errno::ECONNRESET));
                        continue;
                    }
                    if self.members[to].is_dead {
                        let member = &mut self.members[at];
                        match member.sees_dead.contains(&to) {
                            true => member.stuck += 1,
                            false => member.failing.push((to, message)),
                        }
                        continue;
                    }
                    let waits = is_probe || bytes.len() > EAGER;
                    let queue = self.under_way.entry((at, to)).or_default();
                    queue.push_back(Sent {
                        from: at,
                        tag,
                        bytes,
                        ends: waits.then_some(message),
                        is_lost: false,
                    });
                    if !waits {
                        self.members[at].engine.sent(message, Ok(()));
                    }
                }
                Action::Receive {
                    message,
                    from,
                    tag,
                    ignore,
                    len,
                } => {
                    // Of a receive of an operation the error is one of the operation.
                    let is_of_operation = ignore == 0 && matches!((tag >> 61) & 3, 0 | 1);
                    if self.fails_receives && !is_of_operation && self.random.u8(..4) != 0 {
                        let engine = &mut self.members[at].engine;
                        match self.random.bool() {
                            true => engine.refused(message, Errno::ENOMEM),
                            false => engine.received(message, FiAddr::UNSPEC, Err(Errno::EIO)),
                        }
                        continue;
                    }
                    let posted = Posted {
                        message,
                        from,
                        tag,
                        ignore,
                        len,
                    };
                    let unexpected = &mut self.members[at].unexpected;
                    let found = unexpected.iter().position(|sent| matches(&posted, sent));
                    match found.and_then(|found| unexpected.remove(found)) {
                        Some(sent) => self.hand_over(at, &posted, sent),
                        None => self.members[at].posted.push(posted),
                    }
                }
                Action::Cancel { message } => {
                    let member = &mut self.members[at];
                    member.posted.retain(|posted| posted.message != message);
                    let error = Err(Errno::ECANCELED);
                    member.engine.received(message, FiAddr::UNSPEC, error);
                }
                Action::End { operation, result } => {
                    let before = self.members[at].ended.insert(operation, result);
                    assert!(before.is_none(), "operation {operation} of {at} ends twice");
                }
            }
        }
    }

    /// A message meets its receive.
    fn hand_over(&mut self, at: usize, posted: &Posted, sent: Sent) {
        let from = FiAddr(sent.from as u64);
        let result = match sent.bytes.len() <= posted.len {
            _ if sent.is_lost => Err(Errno::ECONNRESET),
            true => Ok(&sent.bytes[..]),
            false => Err(Errno::ETRUNC),
        };
        let engine = &mut self.members[at].engine;
        engine.received(posted.message, from, result);
        if let Some(message) = sent.ends {
            self.call(sent.from, |engine| engine.sent(message, Ok(())));
        }
        self.carry_out(at);
    }

    /// Delivers a message. Returns false if none is under way.
    fn step(&mut self) -> bool {
        let busy: Vec<_> = (self.under_way.iter())
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(&pair, _)| pair)
            .collect();
        let Some(&(from, to)) = self.random.choice(&busy) else {
            return false;
        };
        let sent = self
            .under_way
            .get_mut(&(from, to))
            .and_then(VecDeque::pop_front);
        let sent = sent.expect("the queue has a message");
        let posted = &mut self.members[to].posted;
        match posted.iter().position(|posted| matches(posted, &sent)) {
            Some(found) => {
                let posted = posted.remove(found);
                self.hand_over(to, &posted, sent);
            }
            None => self.members[to].unexpected.push_back(sent),
        }
        true
    }

    /// Delivers all messages, and has time pass where there are none, until `is_over`.
    fn run_until(&mut self, is_over: impl Fn(&Self) -> bool) {
        let (mut quiet, mut ticks) = (0, 0);
        while !is_over(self) {
            if self.step() {
                quiet = 0;
                continue;
            }
            (quiet, ticks) = (quiet + 1, ticks + 1);
            let moves = quiet < QUIET_TICKS && ticks < MOST_TICKS;
            assert!(moves, "the members wait for each other");
            self.tick();
        }
        while self.step() {}
    }

    /// Time passes for the members, though messages are under way.
    fn tick(&mut self) {
        self.now += TICK;
        let now = self.now;
        for member in 0..self.members.len() {
            let this = &mut self.members[member];
            if this.is_dead {
                continue;
            }
            for (dead, message) in std::mem::take(&mut this.failing) {
                this.sees_dead.insert(dead);
                this.engine.sent(message, Err(Errno::ECONNRESET));
            }
            self.call(member, |engine| engine.tick(now));
        }
    }

    /// A member dies. Its messages that are under way come, or some of them.
    fn kill(&mut self, dead: usize) {
        for (&(from, _), queue) in &mut self.under_way {
            if from == dead {
                queue.truncate(self.random.usize(..=queue.len()));
            }
        }
        self.close(dead);
    }

    /// A member closes its endpoint. Its messages that are under way come.
    fn close(&mut self, dead: usize) {
        let member = &mut self.members[dead];
        member.is_dead = true;
        member.posted.clear();
        let mut lost: Vec<_> = member.unexpected.drain(..).collect();
        for (&(_, to), queue) in &mut self.under_way {
            if to == dead {
                lost.extend(queue.drain(..));
            }
        }
        for queue in self.under_way.values_mut() {
            for sent in queue.iter_mut().filter(|sent| sent.from == dead) {
                sent.lose();
            }
        }
        for member in &mut self.members {
            for sent in member
                .unexpected
                .iter_mut()
                .filter(|sent| sent.from == dead)
            {
                sent.lose();
            }
        }
        for sent in lost {
            if let Some(message) = sent.ends.filter(|_| sent.from != dead) {
                self.members[sent.from].failing.push((dead, message));
            }
        }
    }
}

/// Whether a message reports that a group has failed.
fn is_report(tag: u64) -> bool {
    (tag >> 61) & 3 == 2
}

fn matches(posted: &Posted, sent: &Sent) -> bool {
    let is_from = posted.from == FiAddr::UNSPEC || posted.from.0 as usize == sent.from;
    is_from && (posted.tag ^ sent.tag) & !posted.ignore == 0
}

/// An operation of a group, with a number of elements and the index of a root.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Barrier,
    Broadcast(usize, usize),
    Allreduce(usize),
    Allgather(usize),
    Scatter(usize, usize),
}

fn kinds() -> impl Strategy<Value = Kind> {
    let elements = || prop_oneof![8 => 0..40usize, 1 => Just(9000), 1 => Just(33_000)];
    prop_oneof![
        Just(Kind::Barrier),
        (0..64usize, elements()).prop_map(|(root, count)| Kind::Broadcast(root, count)),
        elements().prop_map(Kind::Allreduce),
        (0..40usize).prop_map(Kind::Allgather),
        (0..64usize, 0..40usize).prop_map(|(root, count)| Kind::Scatter(root, count)),
    ]
}

fn multiply(left: &mut [u8], right: &[u8]) {
    let pairs = left
        .chunks_exact_mut(ELEMENT)
        .zip(right.chunks_exact(ELEMENT));
    for (left, right) in pairs {
        let of = |row: usize, column: usize| {
            let first = left[2 * row].wrapping_mul(right[column]);
            first.wrapping_add(left[2 * row + 1].wrapping_mul(right[2 + column]))
        };
        let product = [of(0, 0), of(0, 1), of(1, 0), of(1, 1)];
        left.copy_from_slice(&product);
    }
}

/// The elements of a member in an operation.
fn contribution(operation: u64, rank: usize, elements: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed((operation << 16) | rank as u64);
    (0..elements * ELEMENT).map(|_| random.u8(..)).collect()
}

impl Kind {
    fn begin(
        self,
        engine: &mut Engine,
        operation: u64,
        id: GroupId,
        (rank, members): (usize, usize),
    ) -> Result<(), Errno> {
        let data = |elements| contribution(operation, rank, elements);
        let (collective, bytes) = match self {
            Self::Barrier => (Collective::Barrier, Vec::new()),
            Self::Broadcast(root, count) => {
                let root = root % members;
                (Collective::Broadcast { root }, data(count))
            }
            Self::Allreduce(count) => {
                let combine = Box::new(multiply);
                let collective = Collective::Allreduce {
                    // As long as an element. The product is a function of the test's.
                    datatype: Datatype::Uint32,
                    operator: AtomicOperator::Prod,
                    combine,
                };
                (collective, data(count))
            }
            Self::Allgather(count) => (Collective::Allgather, data(count)),
            Self::Scatter(root, count) => {
                let (root, block) = (root % members, count * ELEMENT);
                let bytes = match root == rank {
                    true => data(members * count),
                    false => Vec::new(),
                };
                (Collective::Scatter { root, block }, bytes)
            }
        };
        engine.begin(operation, id, collective, bytes)
    }

    /// The result at a member, computed in one place.
    fn expected(self, operation: u64, rank: usize, members: usize) -> Vec<u8> {
        match self {
            Self::Barrier => Vec::new(),
            Self::Broadcast(root, count) => contribution(operation, root % members, count),
            Self::Allreduce(count) => {
                let mut all = (0..members).map(|rank| contribution(operation, rank, count));
                let mut result = all.next().unwrap_or_default();
                all.for_each(|next| multiply(&mut result, &next));
                result
            }
            Self::Allgather(count) => (0..members)
                .flat_map(|rank| contribution(operation, rank, count))
                .collect(),
            Self::Scatter(root, count) => {
                let all = contribution(operation, root % members, members * count);
                let block = count * ELEMENT;
                all[rank * block..(rank + 1) * block].to_vec()
            }
        }
    }
}

/// A group: the members in the order of their ranks.
fn membership(group: &[usize], own: usize) -> Membership {
    membership_by(true, group, own)
}

/// As `membership`, of members that may have no names.
fn membership_by(named: bool, group: &[usize], own: usize) -> Membership {
    let names: Vec<_> = group.iter().map(|&member| member.to_le_bytes()).collect();
    let addresses: Arc<[FiAddr]> = group.iter().map(|&member| FiAddr(member as u64)).collect();
    let members = match named {
        true => Membership::new(addresses, &names, &own.to_le_bytes()),
        false => Membership::unnamed(addresses, FiAddr(own as u64)),
    };
    members.expect("a member")
}

/// The group of a join that is over.
fn joined(network: &Network, member: usize, operation: u64) -> GroupId {
    match network.members[member].ended.get(&operation) {
        Some(Ok(Outcome::Joined(group))) => *group,
        other => panic!("the join of {member}: {other:?}"),
    }
}

/// The number of members; groups, each of members in a random order; operations with the index of
/// their group; a seed.
type Program = (usize, Vec<Vec<usize>>, Vec<(usize, Kind)>, u64);

fn programs() -> impl Strategy<Value = Program> {
    (1..=11usize).prop_flat_map(|members| {
        let all: Vec<_> = (0..members).collect();
        let group = (Just(all).prop_shuffle(), 1..=members).prop_map(|(mut group, len)| {
            group.truncate(len);
            group
        });
        (
            Just(members),
            prop::collection::vec(group, 1..4),
            prop::collection::vec((0..3usize, kinds()), 0..12),
            any::<u64>(),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn results_are_those_of_one_place(
        (members, groups, operations, seed) in programs(),
        named in any::<bool>(),
    ) {
        let mut network = Network::new(members, seed);
        for (join, group) in groups.iter().enumerate() {
            for &member in group {
                let of = membership_by(named, group, member);
                network.call(member, |engine| engine.join(join as u64, of)).expect("a number");
            }
        }
        let joins: usize = groups.iter().map(Vec::len).sum();
        network.run_until(|network| ended(network) == joins);
        let operations: Vec<_> = (operations.into_iter().enumerate())
            .map(|(number, (group, kind))| (100 + number as u64, group % groups.len(), kind))
            .collect();
        // All are under way at once, and members begin them at different times.
        let mut next = vec![0; members];
        while let Some(member) = {
            let left: Vec<_> = (0..members).filter(|&one| next[one] < operations.len()).collect();
            network.random.choice(left)
        } {
            let (operation, group, kind) = operations[next[member]];
            next[member] += 1;
            let of = &groups[group];
            if let Some(rank) = of.iter().position(|&one| one == member) {
                let id = joined(&network, member, group as u64);
                let place = (rank, of.len());
                network.call(member, |engine| kind.begin(engine, operation, id, place)).expect("begun");
            }
            for _ in 0..network.random.usize(..6) {
                network.step();
            }
        }
        let expected = joins + operations.iter().map(|&(_, group, _)| groups[group].len()).sum::<usize>();
        // A member closes once its operations are over, and its messages are with their receivers.
        while ended(&network) < expected {
            prop_assert!(network.step(), "the members wait for each other");
            if network.random.u8(..8) == 0 {
                network.tick();
            }
            let of_all = |member: usize| {
                let of = |group: usize| groups[group].contains(&member);
                let operations = operations.iter().filter(|&&(_, group, _)| of(group)).count();
                operations + (0..groups.len()).filter(|&group| of(group)).count()
            };
            for member in 0..members {
                let is_flushed = |(&(from, _), queue): (&(usize, usize), &VecDeque<Sent>)| {
                    from != member || queue.is_empty()
                };
                let this = &network.members[member];
                let is_over = !this.is_dead && this.ended.len() == of_all(member);
                if is_over && network.under_way.iter().all(is_flushed) && network.random.bool() {
                    network.close(member);
                }
            }
        }
        for (operation, group, kind) in operations {
            let of = &groups[group];
            for (rank, &member) in of.iter().enumerate() {
                let result = network.members[member].ended.remove(&operation);
                let bytes = kind.expected(operation, rank, of.len());
                prop_assert_eq!(result, Some(Ok(Outcome::Bytes(bytes))), "{:?} at {}", kind, rank);
            }
        }
        for (join, group) in groups.iter().enumerate() {
            for &member in group {
                let id = joined(&network, member, join as u64);
                network.call(member, |engine| engine.leave(id));
            }
        }
        for member in network.members.iter().filter(|member| !member.is_dead) {
            // Probes of members that have closed.
            prop_assert!(member.unexpected.iter().all(|sent| sent.bytes.is_empty()));
            // That of probes.
            prop_assert_eq!(member.posted.len(), 1);
        }
    }

    #[test]
    fn a_death_ends_all_operations_of_the_group(
        (members, groups, operations, seed) in programs(),
        steps in 0..300usize,
        dead in 0..11usize,
        named in any::<bool>(),
        fails_receives in any::<bool>(),
    ) {
        let mut network = Network::new(members, seed);
        network.fails_receives = fails_receives;
        let group: Vec<_> = groups.into_iter().max_by_key(Vec::len).unwrap_or_default();
        let dead = group[dead % group.len()];
        let mut begun = vec![0; members];
        for &member in &group {
            let of = membership_by(named, &group, member);
            network.call(member, |engine| engine.join(0, of)).expect("a number");
            begun[member] += 1;
        }
        let mut left = steps;
        let mut next = vec![0; members];
        loop {
            if left == 0 && !network.members[dead].is_dead {
                network.kill(dead);
            }
            left = left.saturating_sub(1);
            // A member begins its next operation once the join is over.
            let free: Vec<_> = (group.iter().copied())
                .filter(|&one| !network.members[one].is_dead && next[one] < operations.len())
                .filter(|&one| network.members[one].ended.contains_key(&0))
                .collect();
            let is_free = |one: &usize| matches!(network.members[*one].ended[&0], Ok(Outcome::Joined(_)));
            let free: Vec<_> = free.into_iter().filter(is_free).collect();
            match network.random.choice(&free) {
                Some(&member) => {
                    let id = joined(&network, member, 0);
                    let (operation, kind) = (100 + next[member] as u64, operations[next[member]].1);
                    next[member] += 1;
                    let rank = group.iter().position(|&one| one == member).unwrap_or_default();
                    let place = (rank, group.len());
                    match network.call(member, |engine| kind.begin(engine, operation, id, place)) {
                        Ok(()) => begun[member] += 1,
                        Err(errno) => prop_assert!(errno == Errno::ECONNRESET || errno == Errno::ECONNABORTED),
                    }
                    network.step();
                }
                None => {
                    if !network.step() && left == 0 {
                        break;
                    }
                }
            }
        }
        network.run_until(|network| {
            (0..members).all(|one| network.members[one].is_dead || network.members[one].ended.len() == begun[one])
        });
        for (rank, &member) in group.iter().enumerate().filter(|&(_, &one)| one != dead) {
            for (operation, result) in &network.members[member].ended {
                match result {
                    Ok(Outcome::Bytes(bytes)) => {
                        let kind = operations[*operation as usize - 100].1;
                        prop_assert_eq!(bytes, &kind.expected(*operation, rank, group.len()));
                    }
                    Ok(Outcome::Joined(_)) => {}
                    Err(errno) => prop_assert!(
                        *errno == Errno::ECONNRESET || *errno == Errno::ECONNABORTED, "{}", errno
                    ),
                }
            }
        }
        // Receives that failed are posted again.
        for _ in 0..MOST_TRIES {
            network.tick();
            while network.step() {}
        }
        // No long message waits for a receive, and no message for a dead member.
        for member in &network.members {
            prop_assert!(member.stuck == 0 || !named);
            prop_assert!(member.unexpected.iter().all(|sent| sent.ends.is_none()));
        }
    }
}

fn ended(network: &Network) -> usize {
    network
        .members
        .iter()
        .map(|member| member.ended.len())
        .sum()
}

#[test]
fn members_that_disagree_on_the_number_of_elements_get_an_error() {
    let mut network = Network::new(2, 7);
    for member in 0..2 {
        let of = membership(&[0, 1], member);
        (network.call(member, |engine| engine.join(0, of))).expect("a number");
    }
    network.run_until(|network| ended(network) == 2);
    for member in 0..2 {
        let id = joined(&network, member, 0);
        let kind = Kind::Allreduce(1 + member);
        (network.call(member, |engine| kind.begin(engine, 1, id, (member, 2)))).expect("begun");
    }
    network.run_until(|network| ended(network) == 4);
    let errors: Vec<_> = (network.members.iter())
        .map(|member| member.ended[&1].as_ref().expect_err("an error"))
        .collect();
    let of_wrong_length = [&Errno::EPROTO, &Errno::ETRUNC];
    assert!(errors.iter().any(|errno| of_wrong_length.contains(errno)));
}

#[test]
fn a_member_that_leaves_within_an_operation_ends_it() {
    let mut network = Network::new(3, 8);
    for member in 0..3 {
        let of = membership(&[2, 0, 1], member);
        (network.call(member, |engine| engine.join(0, of))).expect("a number");
    }
    network.run_until(|network| ended(network) == 3);
    for member in 0..2 {
        let id = joined(&network, member, 0);
        let begun = |engine: &mut Engine| engine.begin(1, id, Collective::Barrier, Vec::new());
        network.call(member, begun).expect("begun");
    }
    let id = joined(&network, 0, 0);
    network.call(0, |engine| engine.leave(id));
    network.run_until(|network| network.members[1].ended.len() == 2);
    assert_eq!(network.members[0].ended[&1], Err(Errno::ECANCELED));
    assert_eq!(network.members[1].ended[&1], Err(Errno::ECONNABORTED));
    // The third one has begun nothing, and is refused.
    network.run_until(|_| true);
    let id = joined(&network, 2, 0);
    let begun = |engine: &mut Engine| engine.begin(1, id, Collective::Barrier, Vec::new());
    let refused = network.call(2, begun);
    assert_eq!(refused, Err(Errno::ECONNABORTED));
}

/// Has members without names join a group.
fn join_unnamed(network: &mut Network, operation: u64) {
    let all: Vec<_> = (0..network.members.len()).collect();
    let before = ended(network);
    for &member in &all {
        let of = membership_by(false, &all, member);
        (network.call(member, |engine| engine.join(operation, of))).expect("a number");
    }
    network.run_until(|network| ended(network) == before + all.len());
}

/// A connection breaks between two members that live: each member's operation ends, and its group
/// has the error of that.
#[test]
fn a_member_that_another_takes_for_gone_is_informed() {
    for broken in 1..12 {
        let mut network = Network::new(3, broken as u64);
        join_unnamed(&mut network, 0);
        network.broken.insert((0, 1), broken);
        let mut members = 0;
        for member in 0..3 {
            let id = joined(&network, member, 0);
            let begun = |engine: &mut Engine| engine.begin(1, id, Collective::Barrier, Vec::new());
            members += usize::from(network.call(member, begun).is_ok());
        }
        assert_eq!(members, 3);
        network.run_until(|network| ended(network) == 6);
        network.run_until(|_| true);
        for member in 0..3 {
            let error = *network.members[member].ended[&1]
                .as_ref()
                .expect_err("an error");
            let id = joined(&network, member, 0);
            let begun = |engine: &mut Engine| engine.begin(2, id, Collective::Barrier, Vec::new());
            assert_eq!(
                network.call(member, begun),
                Err(error),
                "of member {member}"
            );
        }
    }
}

/// A member reports the failure of a group once, so no receive waits for a second report.
#[test]
fn groups_that_failed_keep_one_receive() {
    let mut network = Network::new(4, 10);
    for round in 1..10 {
        let operation = 1000 * round as u64;
        join_unnamed(&mut network, operation);
        let before = ended(&network);
        let ids: Vec<_> = (0..4).map(|one| joined(&network, one, operation)).collect();
        for (member, &id) in ids.iter().enumerate().skip(1) {
            let number = operation + 1;
            let begun =
                |engine: &mut Engine| engine.begin(number, id, Collective::Barrier, Vec::new());
            network.call(member, begun).expect("begun");
        }
        network.call(1, |engine| engine.leave(ids[1]));
        network.run_until(|network| ended(network) == before + 3);
        for _ in 0..MOST_TRIES {
            network.tick();
            while network.step() {}
        }
        for (member, &id) in ids.iter().enumerate() {
            network.call(member, |engine| engine.leave(id));
            // That of probes, and one for the messages of each group.
            assert_eq!(network.members[member].posted.len(), 1 + round);
        }
    }
}

/// A group that has failed, and was left, keeps no receive of reports of a member that has died.
#[test]
fn no_report_of_a_dead_member_is_awaited() {
    let mut network = Network::new(3, 11);
    join_unnamed(&mut network, 0);
    network.kill(2);
    for member in 0..2 {
        let id = joined(&network, member, 0);
        let begun = |engine: &mut Engine| engine.begin(1, id, Collective::Barrier, Vec::new());
        network.call(member, begun).expect("begun");
    }
    network.run_until(|network| ended(network) == 5);
    for _ in 0..MOST_TRIES {
        network.tick();
        while network.step() {}
    }
    for member in 0..2 {
        let id = joined(&network, member, 0);
        network.call(member, |engine| engine.leave(id));
        assert_eq!(network.members[member].posted.len(), 2);
    }
}

#[test]
fn an_endpoint_is_a_member_once() {
    let addresses: Arc<[FiAddr]> = [FiAddr(0), FiAddr(1)].into();
    let names = [[1], [1]];
    let twice = Membership::new(addresses.clone(), &names, &[1]);
    assert_eq!(twice.err(), Some(Errno::EINVAL));
    let none = Membership::new(addresses.clone(), &[[1], [2]], &[3]);
    assert_eq!(none.err(), Some(Errno::EINVAL));
    let twice = Membership::unnamed([FiAddr(5), FiAddr(1), FiAddr(5)].into(), FiAddr(1));
    assert_eq!(twice.err(), Some(Errno::EINVAL));
    let none = Membership::unnamed(addresses, FiAddr(2));
    assert_eq!(none.err(), Some(Errno::EINVAL));
}

#[test]
fn a_root_is_a_member_and_has_the_bytes_of_all() {
    let mut network = Network::new(1, 9);
    let of = membership(&[0], 0);
    (network.call(0, |engine| engine.join(0, of))).expect("a number");
    let id = joined(&network, 0, 0);
    let none = Collective::Broadcast { root: 1 };
    let refused = network.call(0, |engine| engine.begin(1, id, none, vec![1]));
    assert_eq!(refused, Err(Errno::EINVAL));
    for block in [2, usize::MAX] {
        let scatter = Collective::Scatter { root: 0, block };
        let refused = network.call(0, |engine| engine.begin(1, id, scatter, vec![1]));
        assert_eq!(refused, Err(Errno::EINVAL), "blocks of {block}");
    }
    network.call(0, |engine| engine.leave(id));
    let left = network.call(0, |engine| {
        engine.begin(1, id, Collective::Barrier, Vec::new())
    });
    assert_eq!(left, Err(Errno::EINVAL));
}
