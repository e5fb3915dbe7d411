//! Collective operations of Rust programs, over shared memory: each member is a thread.

use std::fmt::Debug;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use ferrofabric::addr::Address;
use ferrofabric::{
    AtomicElement, AtomicInteger, Buffer, CompletedOperation, Errno, Error, FiAddr, Group, Inbound,
    OperationError, OperationId, Operator, Outbound, PathChoice, RdmEndpoint,
};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// The numbers of ranks that each operation runs on.
const SIZES: [usize; 4] = [2, 3, 5, 8];

fn open() -> RdmEndpoint {
    let options = RdmEndpoint::builder().path(PathChoice::Shm);
    options.collectives(true).open().unwrap()
}

/// A member of a group of all ranks.
struct Member {
    endpoint: RdmEndpoint,
    peers: Vec<FiAddr>,
    group: Group,
    /// Where all meet without the operations under test.
    meeting: Arc<Barrier>,
}

impl Member {
    fn done<I: OperationId>(&mut self, begun: Result<I, OperationError>) -> I::Output {
        self.endpoint.wait_for(begun.unwrap(), PATIENCE).unwrap()
    }

    fn join(&mut self, ranks: &[usize]) -> Group {
        let members: Vec<_> = ranks.iter().map(|&rank| self.peers[rank]).collect();
        let begun = self.endpoint.join(&members);
        self.done(begun)
    }

    /// Waits for the others without a call of the endpoint: its messages are with them.
    fn meet(&mut self) {
        self.endpoint.flush(Duration::from_secs(60)).unwrap();
        self.meeting.wait();
    }

    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.members().len()
    }
}

/// Runs a program on some ranks.
fn run(ranks: usize, program: impl Fn(&mut Member) + Send + Sync) {
    let meeting = Arc::new(Barrier::new(ranks));
    let (addresses, program) = (Addresses::new(ranks), &program);
    std::thread::scope(|scope| {
        for (to_all, from_all) in addresses {
            let meeting = meeting.clone();
            scope.spawn(move || {
                let mut endpoint = open();
                let address = endpoint.address();
                to_all.iter().for_each(|to| to.send(address).unwrap());
                drop(to_all);
                let mut all: Vec<_> = from_all.iter().collect();
                all.sort_by_key(ToString::to_string);
                let peers: Vec<_> = (all.iter())
                    .map(|address| endpoint.insert(*address).unwrap())
                    .collect();
                let join = endpoint.join(&peers).unwrap();
                let group = endpoint.wait_for(join, PATIENCE).unwrap();
                let mut member = Member {
                    endpoint,
                    peers,
                    group,
                    meeting,
                };
                // A member whose group fails before its own join is over gets an error of the join.
                member.meet();
                program(&mut member);
                member.endpoint.close(Duration::from_secs(60)).unwrap();
            });
        }
    });
}

/// The ends by which all ranks exchange addresses.
struct Addresses;

impl Addresses {
    #[allow(clippy::new_ret_no_self, reason = "the ends alone are needed")]
    fn new(ranks: usize) -> Vec<(Vec<Sender<Address>>, Receiver<Address>)> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..ranks).map(|_| channel()).unzip();
        receivers
            .into_iter()
            .map(|receiver| (senders.clone(), receiver))
            .collect()
    }
}

/// The values of a rank: `count` of them, from a few that are exact in all types.
fn values<T: AtomicElement>(some: &[T], rank: usize, count: usize) -> Vec<T> {
    let at = |index: usize| some[(7 * rank + 3 * index + index / 5) % some.len()];
    (0..count).map(at).collect()
}

/// The element that an operator makes of two.
type Model<T> = fn(T, T) -> T;

/// Each operation, with elements of a type.
fn check_type<T: AtomicElement>(some: &[T], operators: &[(Operator<T>, Model<T>)]) {
    for ranks in SIZES {
        run(ranks, |member| {
            for count in [1, 3, 1000, 40_000] {
                check_count(member, some, operators, count);
            }
        });
    }
}

fn check_count<T: AtomicElement>(
    member: &mut Member,
    some: &[T],
    operators: &[(Operator<T>, Model<T>)],
    count: usize,
) {
    let (rank, size, group) = (member.rank(), member.size(), member.group.clone());
    let own = values(some, rank, count);
    let of = |rank| values(some, rank, count);
    for (operator, model) in operators {
        let begun = member.endpoint.allreduce(&group, *operator, &own);
        let result = member.done(begun);
        let combined = (1..size).fold(of(0), |left, rank| {
            let pairs = left.iter().zip(of(rank));
            pairs.map(|(left, right)| model(*left, right)).collect()
        });
        assert_same(&result, &combined, operator);
    }
    let begun = member.endpoint.allgather(&group, &own);
    let all: Vec<_> = (0..size).flat_map(of).collect();
    assert_same(&member.done(begun), &all, &"allgather");
    for root in [0, size - 1] {
        let at_root = member.peers[root];
        let begun = member.endpoint.broadcast(&group, at_root, &own);
        assert_same(&member.done(begun), &of(root), &"broadcast");
        let for_all = match rank == root {
            true => values(some, rank, count * size),
            false => Vec::new(),
        };
        let begun = (member.endpoint).scatter(&group, at_root, &for_all, count);
        let expected = values(some, root, count * size);
        let expected = &expected[rank * count..(rank + 1) * count];
        assert_same(&member.done(begun), expected, &"scatter");
    }
}

fn assert_same<T: AtomicElement>(result: &[T], expected: &[T], what: &impl Debug) {
    let wrong = result.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(
        (result.len(), wrong),
        (expected.len(), None),
        "{what:?} of {}",
        std::any::type_name::<T>()
    );
}

fn integers<T: AtomicInteger>(
    wrapping: [Model<T>; 2],
    bitwise: [Model<T>; 3],
    logical: [Model<T>; 3],
) -> Vec<(Operator<T>, Model<T>)> {
    let mut operators = ordered(wrapping, logical);
    operators.extend([
        (Operator::BIT_AND, bitwise[0]),
        (Operator::BIT_OR, bitwise[1]),
        (Operator::BIT_XOR, bitwise[2]),
    ]);
    operators
}

fn ordered<T: AtomicElement>(
    [sum, product]: [Model<T>; 2],
    [and, or, xor]: [Model<T>; 3],
) -> Vec<(Operator<T>, Model<T>)> {
    vec![
        (Operator::SUM, sum),
        (Operator::PRODUCT, product),
        (Operator::MIN, |a, b| if b < a { b } else { a }),
        (Operator::MAX, |a, b| if b > a { b } else { a }),
        (Operator::LOGICAL_AND, and),
        (Operator::LOGICAL_OR, or),
        (Operator::LOGICAL_XOR, xor),
        (Operator::WRITE, |_, b| b),
    ]
}

macro_rules! integer_types {
    ($($name:ident: $integer:ty;)*) => {$(
        #[test]
        fn $name() {
            let some = [0, 1, 2, 5, <$integer>::MAX, <$integer>::MAX - 7, <$integer>::MIN];
            let wrapping: [Model<$integer>; 2] =
                [<$integer>::wrapping_add, <$integer>::wrapping_mul];
            let bitwise: [Model<$integer>; 3] = [|a, b| a & b, |a, b| a | b, |a, b| a ^ b];
            let logical: [Model<$integer>; 3] = [
                |a, b| (a != 0 && b != 0).into(),
                |a, b| (a != 0 || b != 0).into(),
                |a, b| ((a != 0) != (b != 0)).into(),
            ];
            check_type(&some, &integers(wrapping, bitwise, logical));
        }
    )*};
}

integer_types! {
    elements_of_i8: i8;
    elements_of_u16: u16;
    elements_of_i32: i32;
    elements_of_u64: u64;
    elements_of_i128: i128;
}

macro_rules! float_types {
    ($($name:ident: $float:ty;)*) => {$(
        #[test]
        fn $name() {
            // Sums and products of these are exact.
            let some = [0.0, 1.0, 2.0, -2.0, 0.5, -1.0];
            let arithmetic: [Model<$float>; 2] = [|a, b| a + b, |a, b| a * b];
            let logical: [Model<$float>; 3] = [
                |a, b| u8::from(a != 0.0 && b != 0.0).into(),
                |a, b| u8::from(a != 0.0 || b != 0.0).into(),
                |a, b| u8::from((a != 0.0) != (b != 0.0)).into(),
            ];
            check_type(&some, &ordered(arithmetic, logical));
        }
    )*};
}

float_types! {
    elements_of_f32: f32;
    elements_of_f64: f64;
}

#[test]
fn sums_of_floats_are_the_same_bits_everywhere() {
    run(7, |member| {
        let group = member.group.clone();
        let own: Vec<f64> = (0..5000)
            .map(|index| 1.0 / (f64::from(index) + 0.1 + member.group.rank() as f64))
            .collect();
        let begun = member.endpoint.allreduce(&group, Operator::SUM, &own);
        let bits = member.done(begun).into_iter().map(f64::to_bits);
        let bits: Vec<u64> = bits.collect();
        let begun = member.endpoint.allgather(&group, &bits);
        let all = member.done(begun);
        assert!(all.chunks_exact(bits.len()).all(|other| other == bits));
    });
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_entered() {
    let entered = std::sync::atomic::AtomicUsize::new(0);
    run(5, |member| {
        let group = member.group.clone();
        for round in 1..=50 {
            entered.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let begun = member.endpoint.barrier(&group);
            member.done(begun);
            let so_far = entered.load(std::sync::atomic::Ordering::SeqCst);
            assert!(so_far >= 5 * round, "{so_far} of round {round}");
        }
    });
}

#[test]
fn operations_of_several_groups_are_under_way_at_once() {
    run(5, |member| {
        let rank = member.rank();
        let world = member.group.clone();
        // Three joins at once, two of them of the same members.
        let mut joins = Vec::new();
        for ranks in [vec![4, 2, 0], vec![1, 2, 3, 4], vec![1, 2, 3, 4]] {
            if ranks.contains(&rank) {
                let members: Vec<_> = ranks.iter().map(|&rank| member.peers[rank]).collect();
                joins.push((member.endpoint.join(&members).unwrap(), ranks));
            }
        }
        let groups: Vec<_> = (joins.into_iter())
            .map(|(join, ranks)| (member.done(Ok(join)), ranks))
            .collect();
        for (group, ranks) in &groups {
            assert_eq!(ranks[group.rank()], rank);
        }
        let mut sums = Vec::new();
        for round in 0..30_u64 {
            for (at, (group, ranks)) in groups.iter().enumerate() {
                let own = 100 * round + at as u64 + rank as u64;
                let sum: u64 = (ranks.iter())
                    .map(|&rank| 100 * round + at as u64 + rank as u64)
                    .sum();
                // Members have a group at different places.
                let own = own - at as u64;
                let sum = sum - at as u64 * ranks.len() as u64;
                let begun = member.endpoint.allreduce(group, Operator::SUM, own);
                sums.push((begun.unwrap(), sum));
            }
            let begun = member
                .endpoint
                .allreduce(&world, Operator::MAX, round * rank as u64);
            sums.push((begun.unwrap(), round * 4));
        }
        // In the reverse order: the completions of the others are kept.
        for (begun, sum) in sums.into_iter().rev() {
            assert_eq!(member.done(Ok(begun)), sum);
        }
        for (group, _) in groups {
            member.endpoint.leave(group).unwrap();
        }
    });
}

#[test]
fn results_are_completions_with_elements() {
    run(2, |member| {
        let group = member.group.clone();
        let barrier = member.endpoint.barrier(&group).unwrap();
        let all = member.endpoint.allgather(&group, 7_u16).unwrap();
        let mut left = 2;
        while left > 0 {
            match member.endpoint.wait(PATIENCE).unwrap().unwrap() {
                CompletedOperation::Collective(id, elements) if id == barrier => {
                    assert!(elements.to_vec::<u8>().is_empty());
                }
                CompletedOperation::Collective(id, elements) if id == all.id() => {
                    assert_eq!(elements.to_vec::<u16>(), [7, 7]);
                }
                other => panic!("{other:?}"),
            }
            left -= 1;
        }
        let error = member.endpoint.wait_for(barrier, PATIENCE).unwrap_err();
        assert_eq!(error.errno(), Errno::ENOENT);
    });
}

#[test]
fn messages_with_any_tag_do_not_meet_those_of_groups() {
    run(2, |member| {
        let (group, other) = (member.group.clone(), member.peers[1 - member.group.rank()]);
        let any = Inbound::from(Buffer::new(64).unwrap()).ignore(u64::MAX);
        let any = member.endpoint.recv(any).unwrap();
        let begun = member
            .endpoint
            .allreduce(&group, Operator::SUM, &[1_u64, 2]);
        assert_eq!(member.done(begun), [2, 4]);
        member.endpoint.tinject(other, 99, b"a message").unwrap();
        let message = member.done(Ok(any));
        assert_eq!(
            (message.bytes(), message.tag()),
            (&b"a message"[..], Some(99))
        );

        let tag = (1 << 63) | 99;
        let refused = member.endpoint.tinject(other, tag, b"").unwrap_err();
        assert_eq!(refused.errno(), Errno::EINVAL);
        let tagged = Outbound::from(Buffer::new(1).unwrap()).tag(tag);
        let refused = member.endpoint.send(other, tagged).unwrap_err();
        assert!(
            refused.to_string().contains("the highest bit of a tag"),
            "{refused}"
        );
        assert_eq!(refused.into_buffer().map(|buffer| buffer.len()), Some(1));
        let tagged = Inbound::from(Buffer::new(1).unwrap()).tag(tag);
        assert_eq!(
            member.endpoint.recv(tagged).unwrap_err().errno(),
            Errno::EINVAL
        );
        let begun = member.endpoint.barrier(&group);
        member.done(begun);
    });
}

#[test]
fn wrong_calls_are_refused() {
    run(2, |member| {
        let group = member.group.clone();
        let peers = member.peers.clone();
        let endpoint = &mut member.endpoint;
        let errno = |result: Result<_, OperationError>| result.err().map(|error| error.errno());
        let own = peers[group.rank()];
        let other = peers[1 - group.rank()];
        let invalid = Some(Errno::EINVAL);
        assert_eq!(errno(endpoint.join(&[]).map(drop)), invalid);
        assert_eq!(errno(endpoint.join(&[other]).map(drop)), invalid);
        assert_eq!(errno(endpoint.join(&[own, other, own]).map(drop)), invalid);
        let nobody = FiAddr(77);
        let refused = endpoint.join(&[own, nobody]).unwrap_err();
        assert!(
            [Errno::EINVAL, Errno::EADDRNOTAVAIL].contains(&refused.errno()),
            "{refused}"
        );
        assert_eq!(
            errno(endpoint.broadcast(&group, nobody, 1_u8).map(drop)),
            invalid
        );
        let too_few = endpoint.scatter(&group, own, &[1_u8, 2, 3], 2);
        assert_eq!(errno(too_few.map(drop)), invalid);
        let too_many = endpoint.scatter(&group, other, &[0_u64; 0], usize::MAX);
        assert_eq!(errno(too_many.map(drop)), Some(Errno::EMSGSIZE));
        let difference = endpoint.allreduce(&group, Operator::DIFFERENCE, 1_u8);
        assert_eq!(errno(difference.map(drop)), Some(Errno::EOPNOTSUPP));

        let mut stranger = RdmEndpoint::builder().path(PathChoice::Shm).open().unwrap();
        let refused = stranger.barrier(&group).unwrap_err();
        assert_eq!(refused.errno(), Errno::ENOSYS);
        assert!(
            refused
                .to_string()
                .contains("RdmEndpointBuilder::collectives"),
            "{refused}"
        );
        let mut stranger = open();
        assert_eq!(errno(stranger.barrier(&group).map(drop)), invalid);
        assert!(stranger.leave(group.clone()).is_err());

        let begun = endpoint.barrier(&group).unwrap();
        endpoint.wait_for(begun, PATIENCE).unwrap();
        endpoint.leave(group.clone()).unwrap();
        assert_eq!(errno(endpoint.barrier(&group).map(drop)), invalid);
    });
}

/// The error of an operation that can not be completed.
fn failure<I: OperationId>(
    member: &mut Member,
    begun: Result<I, OperationError>,
) -> Option<OperationError> {
    match begun {
        Ok(begun) => member.endpoint.wait_for(begun, PATIENCE).err(),
        Err(refused) => Some(refused),
    }
}

#[test]
fn a_member_that_leaves_ends_the_operations_of_the_others() {
    run(4, |member| {
        let world = member.group.clone();
        let group = member.join(&[3, 1, 0, 2]);
        // A member that leaves before ends the joins of the others.
        member.meet();
        if member.rank() == 2 {
            let begun = member.endpoint.barrier(&group).unwrap();
            member.endpoint.leave(group).unwrap();
            let error = member.endpoint.wait_for(begun, PATIENCE).unwrap_err();
            assert_eq!(error.errno(), Errno::ECANCELED);
        } else {
            // Longer than a message that its receiver takes without a receive.
            let begun = member
                .endpoint
                .allreduce(&group, Operator::SUM, &vec![1_u64; 200_000]);
            let error = failure(member, begun).unwrap();
            assert_eq!(error.errno(), Errno::ECONNABORTED, "{error}");
            let begun = member.endpoint.barrier(&group);
            assert_eq!(failure(member, begun).unwrap().errno(), Errno::ECONNABORTED);
        }
        // The other group goes on.
        let begun = member.endpoint.allreduce(&world, Operator::SUM, 1_u32);
        assert_eq!(member.done(begun), 4);
    });
}

#[test]
fn an_endpoint_that_closes_ends_the_operations_of_the_others() {
    run(4, |member| {
        let meeting = member.meeting.clone();
        if member.rank() == 1 {
            let closing = std::mem::replace(&mut member.endpoint, open());
            closing.close(Duration::from_secs(60)).unwrap();
            meeting.wait();
            return;
        }
        let group = member.group.clone();
        meeting.wait();
        let begun = member.endpoint.allgather(&group, &[0_u8; 100]);
        let error = failure(member, begun).unwrap();
        let gone = [
            Errno::ESHUTDOWN,
            Errno::ECONNRESET,
            Errno::ECONNABORTED,
            Errno::EHOSTUNREACH,
        ];
        assert!(gone.contains(&error.errno()), "{error}");
        // Those that remain join another group.
        let rest = member.join(&[0, 2, 3]);
        let begun = member.endpoint.allreduce(&rest, Operator::SUM, &[1_i16, 2]);
        assert_eq!(member.done(begun), [3, 6]);
        member.endpoint.leave(group).unwrap();
    });
}

#[test]
fn members_with_other_numbers_of_elements_get_an_error() {
    run(3, |member| {
        let group = member.group.clone();
        let own = vec![1_u32; 10 + member.rank()];
        let begun = member.endpoint.allreduce(&group, Operator::SUM, &own);
        let error: Error = failure(member, begun).unwrap().into();
        let known = [Errno::EPROTO, Errno::ETRUNC, Errno::ECONNABORTED];
        assert!(known.contains(&error.errno()), "{error}");
    });
}
