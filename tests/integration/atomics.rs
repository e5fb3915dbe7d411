//! Atomic operations of Rust programs, over shared memory.

use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferrofabric::info::Progress;
use ferrofabric::{
    AllowsRead, AllowsWrite, AtomicElement, AtomicInteger, AtomicRegion, Buffer, CompareOperator,
    CompletedOperation, Errno, Error, FiAddr, OperationError, OperationId, Operator, PathChoice,
    PeersRead, PeersReadWrite, PeersWrite, RdmEndpoint, RdmEndpointBuilder, RemoteAtomicRegion,
    RemoteRegion,
};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn options() -> RdmEndpointBuilder {
    RdmEndpoint::builder().path(PathChoice::Shm)
}

/// A client, a server that a thread of its domain drives, and the server as the client has it.
fn pair() -> (RdmEndpoint, RdmEndpoint, FiAddr) {
    let client = options().open().unwrap();
    let server = options().progress(Progress::Auto).open().unwrap();
    let to_server = client.insert(server.address()).unwrap();
    (client, server, to_server)
}

fn done<I: OperationId>(
    client: &mut RdmEndpoint,
    posted: Result<I, OperationError>,
) -> Result<I::Output, OperationError> {
    client.wait_for(posted.unwrap(), PATIENCE)
}

/// The element that an operator makes of element and operand.
type Model<T> = fn(T, T) -> T;

/// Whether an element is swapped, of compare value and element.
type SwapModel<T> = fn(T, T) -> bool;

/// The call that shares elements.
type Share<T> = fn(&RdmEndpoint, &[T]) -> Result<AtomicRegion<T>, Error>;

/// Operands and elements of a type, with their models.
struct Subject<T: AtomicElement> {
    elements: Vec<T>,
    operands: Vec<T>,
    operators: Vec<(Operator<T>, Model<T>)>,
}

impl<T: AtomicElement> Subject<T> {
    /// Each value with each.
    fn of_values(values: &[T], operators: Vec<(Operator<T>, Model<T>)>) -> Self {
        let pairs = (values.iter()).flat_map(|a| values.iter().map(move |b| (*a, *b)));
        let (elements, operands) = pairs.unzip();
        Self {
            elements,
            operands,
            operators,
        }
    }

    /// Each operator, in each of its forms, on all elements and on one.
    fn check_operators(&self) {
        self.check_operators_in(RdmEndpoint::share_atomic);
        self.check_operators_in(RdmEndpoint::share_atomic_mapped);
    }

    fn check_operators_in(&self, share: Share<T>) {
        let (mut client, server, to_server) = pair();
        for (operator, model) in &self.operators {
            let pairs = self.elements.iter().zip(&self.operands);
            let after: Vec<T> = pairs.map(|(a, b)| model(*a, *b)).collect();

            let region = share(&server, &self.elements).unwrap();
            let remote = region.remote();
            let base = client.atomic(to_server, remote, *operator, &self.operands);
            done(&mut client, base).unwrap();
            assert_same(&region.close(), &after, operator);

            let region = share(&server, &self.elements).unwrap();
            let remote = region.remote();
            let fetch = client.fetch_atomic(to_server, remote, *operator, &self.operands);
            let before = done(&mut client, fetch).unwrap();
            assert_same(&before, &self.elements, operator);
            let read = client.atomic_read(to_server, remote);
            let present = done(&mut client, read).unwrap();
            assert_same(&present, &after, operator);
            assert_same(&region.close(), &after, operator);

            let region = share(&server, &self.elements).unwrap();
            let last = self.elements.len() - 1;
            let remote = region.remote().element(last).unwrap();
            let fetch = client.fetch_atomic(to_server, remote, *operator, self.operands[last]);
            let before = done(&mut client, fetch).unwrap();
            assert_same(&[before], &self.elements[last..], operator);
            let left = region.close();
            assert_same(&left[last..], &after[last..], operator);
            assert_same(&left[..last], &self.elements[..last], operator);
        }
    }

    /// Each operator that compares. The operands are the compare values, and `swapped` is swapped
    /// in.
    fn check_compares(&self, swapped: T) {
        let orders: [(CompareOperator<T>, SwapModel<T>); 6] = [
            (CompareOperator::EQUAL, |compare, now| compare == now),
            (CompareOperator::NOT_EQUAL, |compare, now| compare != now),
            (CompareOperator::LESS_OR_EQUAL, |compare, now| {
                compare <= now
            }),
            (CompareOperator::LESS, |compare, now| compare < now),
            (CompareOperator::GREATER_OR_EQUAL, |compare, now| {
                compare >= now
            }),
            (CompareOperator::GREATER, |compare, now| compare > now),
        ];
        for (operator, swaps) in orders {
            let pairs = self.elements.iter().zip(&self.operands);
            let after: Vec<T> = pairs
                .map(|(now, compare)| if swaps(*compare, *now) { swapped } else { *now })
                .collect();
            self.check_compare(operator, &vec![swapped; after.len()], &after);
        }
    }

    fn check_compare(&self, operator: CompareOperator<T>, operands: &Vec<T>, after: &[T]) {
        self.check_compare_in(RdmEndpoint::share_atomic, operator, operands, after);
        self.check_compare_in(RdmEndpoint::share_atomic_mapped, operator, operands, after);
    }

    fn check_compare_in(
        &self,
        share: Share<T>,
        operator: CompareOperator<T>,
        operands: &Vec<T>,
        after: &[T],
    ) {
        let (mut client, server, to_server) = pair();
        let region = share(&server, &self.elements).unwrap();
        let remote = region.remote();
        let swap = client.compare_atomic(to_server, remote, operator, &self.operands, operands);
        let before = done(&mut client, swap).unwrap();
        assert_same(&before, &self.elements, &operator);
        assert_same(&region.close(), after, &operator);
    }
}

/// The same text, so a NaN is as a NaN is.
fn assert_same<T: Debug>(these: &[T], those: &[T], operator: &dyn Debug) {
    assert_eq!(format!("{these:?}"), format!("{those:?}"), "{operator:?}");
}

macro_rules! integer_tests {
    ($($integer:ident)*) => {$(
        #[test]
        fn $integer() {
            let subject = Subject::<$integer>::of_values(
                &[0, 1, 3, 0x5a, <$integer>::MIN, <$integer>::MAX],
                vec![
                    (Operator::MIN, |a, b| a.min(b)),
                    (Operator::MAX, |a, b| a.max(b)),
                    (Operator::SUM, <$integer>::wrapping_add),
                    (Operator::DIFFERENCE, <$integer>::wrapping_sub),
                    (Operator::PRODUCT, <$integer>::wrapping_mul),
                    (Operator::LOGICAL_OR, |a, b| (a != 0 || b != 0).into()),
                    (Operator::LOGICAL_AND, |a, b| (a != 0 && b != 0).into()),
                    (Operator::LOGICAL_XOR, |a, b| ((a != 0) != (b != 0)).into()),
                    (Operator::WRITE, |_, b| b),
                    (Operator::BIT_OR, |a, b| a | b),
                    (Operator::BIT_AND, |a, b| a & b),
                    (Operator::BIT_XOR, |a, b| a ^ b),
                ],
            );
            subject.check_operators();
            subject.check_compares(77);
            let masked = |(now, mask): (&$integer, &$integer)| (now & !mask) | (77 & mask);
            let pairs = subject.elements.iter().zip(&subject.operands);
            let after: Vec<_> = pairs.map(masked).collect();
            subject.check_compare(CompareOperator::MASK, &vec![77; after.len()], &after);
        }
    )*};
}

macro_rules! float_tests {
    ($($float:ident)*) => {$(
        #[test]
        fn $float() {
            let subject = Subject::<$float>::of_values(
                &[0.0, -0.0, 1.5, -7.25, <$float>::INFINITY, <$float>::MAX, <$float>::NAN],
                vec![
                    (Operator::MIN, |a, b| if b < a { b } else { a }),
                    (Operator::MAX, |a, b| if b > a { b } else { a }),
                    (Operator::SUM, |a, b| a + b),
                    (Operator::DIFFERENCE, |a, b| a - b),
                    (Operator::PRODUCT, |a, b| a * b),
                    (Operator::LOGICAL_OR, |a, b| u8::from(a != 0.0 || b != 0.0).into()),
                    (Operator::LOGICAL_AND, |a, b| u8::from(a != 0.0 && b != 0.0).into()),
                    (Operator::LOGICAL_XOR, |a, b| u8::from((a != 0.0) != (b != 0.0)).into()),
                    (Operator::WRITE, |_, b| b),
                ],
            );
            subject.check_operators();
            subject.check_compares(77.0);
        }
    )*};
}

/// Each operator of each type, beside a plain model.
mod operators {
    use super::*;

    integer_tests! { i8 u8 i16 u16 i32 u32 i64 u64 i128 u128 }
    float_tests! { f32 f64 }
}

/// A handle of which the fields are these. The rights have bits: 1 for reads, 2 for writes; and
/// from bit 8 on, the number of the elements' type, plus 1.
fn forged(key: u64, place: u64, len: u64, rights: u64) -> [u8; 32] {
    let words = [key, place, len, rights].map(u64::to_le_bytes);
    words.concat().try_into().unwrap()
}

fn key_of(handle: &[u8; 32]) -> u64 {
    u64::from_le_bytes(handle[..8].try_into().unwrap())
}

/// The word of the rights, with the number of a type.
fn rights_of<T: AtomicElement>(rights: u64) -> u64 {
    rights | ((T::DATATYPE as u64 + 1) << 8)
}

/// The errors of a base form, a fetching form and a read through a handle.
fn errors<T: AtomicInteger + From<u8>>(
    client: &mut RdmEndpoint,
    to: FiAddr,
    handle: &[u8; 32],
) -> [Option<Errno>; 3] {
    let remote = RemoteAtomicRegion::<T>::from_bytes(handle).unwrap();
    let base = client.atomic(to, remote, Operator::SUM, T::from(1));
    let base = base.unwrap();
    let error = client.wait_for(base, PATIENCE).err();
    if let Some(error) = &error {
        assert_eq!((error.atomic_id(), error.peer()), (Some(base), Some(to)));
        assert!(error.to_string().starts_with("change a region"), "{error}");
    }
    let base = error.map(|error| error.errno());
    let fetch = client.fetch_atomic(to, remote, Operator::SUM, T::from(1));
    let fetch = done(client, fetch).err();
    let read = client.atomic_read(to, remote);
    let read = done(client, read).err();
    [
        base,
        fetch.map(|error| error.errno()),
        read.map(|error| error.errno()),
    ]
}

const REFUSED: Option<Errno> = Some(Errno::EACCES);

/// Forged handles are checked at the target: key, range, rights, and type of the elements.
#[test]
fn a_forged_handle_changes_nothing() {
    let (mut client, server, to_server) = pair();
    let region: AtomicRegion<u64> = server.share_atomic(&[5; 8]).unwrap();
    let key = key_of(&region.remote().to_bytes());
    let words = rights_of::<u64>(3);
    for (key, place) in [(key, 64), (key, 1 << 63), (key ^ 0x5555, 0)] {
        let handle = forged(key, place, 8, words);
        assert_eq!(errors::<u64>(&mut client, to_server, &handle), [REFUSED; 3]);
    }
    let handle = forged(key, 0, 8, rights_of::<u32>(3));
    assert_eq!(errors::<u32>(&mut client, to_server, &handle), [REFUSED; 3]);
    let handle = forged(key, 0, 16, rights_of::<u128>(3));
    assert_eq!(
        errors::<u128>(&mut client, to_server, &handle),
        [REFUSED; 3]
    );
    // It has the size of an element, and is another type.
    let handle = forged(key, 3, 8, rights_of::<u8>(3));
    assert_eq!(errors::<u8>(&mut client, to_server, &handle), [REFUSED; 3]);
    assert_eq!(region.close(), [5; 8]);

    let readable: AtomicRegion<u64, PeersRead> = server.share_atomic(&[5]).unwrap();
    let handle = forged(key_of(&readable.remote().to_bytes()), 0, 8, words);
    let refused = errors::<u64>(&mut client, to_server, &handle);
    assert_eq!(refused, [REFUSED, REFUSED, None]);
    assert_eq!(readable.close(), [5]);
    let writable: AtomicRegion<u64, PeersWrite> = server.share_atomic(&[5]).unwrap();
    let handle = forged(key_of(&writable.remote().to_bytes()), 0, 8, words);
    let refused = errors::<u64>(&mut client, to_server, &handle);
    assert_eq!(refused, [None, REFUSED, REFUSED]);
    assert_eq!(writable.close(), [6]);
    assert_eq!(errors::<u64>(&mut client, to_server, &handle), [REFUSED; 3]);
}

/// The owner's atomic instructions would race with the copies of reads and writes.
#[test]
fn reads_and_writes_do_not_reach_elements() {
    let (mut client, server, to_server) = pair();
    let region: AtomicRegion<u64> = server.share_atomic(&[5; 8]).unwrap();
    let handle = forged(key_of(&region.remote().to_bytes()), 0, 64, 3);
    let remote = RemoteRegion::<PeersReadWrite>::from_bytes(&handle).unwrap();
    for _ in 0..3 {
        let read = client.read(to_server, remote, Buffer::new(64).unwrap());
        assert_eq!(done(&mut client, read).unwrap_err().errno(), Errno::EACCES);
        let write = client.write(to_server, remote, Buffer::new(64).unwrap());
        assert_eq!(done(&mut client, write).unwrap_err().errno(), Errno::EACCES);
    }
    assert_eq!(region.close(), [5; 8]);
}

#[test]
fn bytes_that_are_no_handle_are_refused() {
    type Handle = RemoteAtomicRegion<f64>;
    let rights = rights_of::<f64>(3);
    let sound = forged(1, 16, 64, rights);
    let handle = Handle::from_bytes(&sound).unwrap();
    assert_eq!((handle.to_bytes(), handle.len()), (sound, 8));
    assert!(RemoteAtomicRegion::<f64, PeersRead>::from_bytes(&sound).is_ok());
    for bytes in [
        &sound[..31],
        // Within an element.
        &forged(1, 17, 64, rights),
        &forged(1, 20, 64, rights),
        &forged(1, 16, 60, rights),
        &forged(1, u64::MAX - 7, 8, rights),
        // Of other elements, or of bytes.
        &forged(1, 16, 64, rights_of::<u64>(3)),
        &forged(1, 16, 64, 3),
        // With fewer rights, or with others.
        &forged(1, 16, 64, rights_of::<f64>(1)),
        &forged(1, 16, 64, rights_of::<f64>(7)),
        &forged(1, 16, 64, rights | (1 << 63)),
    ] {
        assert_eq!(
            Handle::from_bytes(bytes).unwrap_err().errno(),
            Errno::EINVAL
        );
    }
    let of_bytes = RemoteRegion::<PeersReadWrite>::from_bytes(&sound);
    assert_eq!(of_bytes.unwrap_err().errno(), Errno::EINVAL);
    // C's alignment: 8 bytes for elements of 16.
    let wide = forged(1, 8, 32, rights_of::<i128>(3));
    assert_eq!(
        RemoteAtomicRegion::<i128>::from_bytes(&wide).unwrap().len(),
        2
    );
}

#[test]
fn ranges_are_checked_at_the_initiator() {
    let (mut client, server, to_server) = pair();
    let region: AtomicRegion<u16> = server.share_atomic(&[1; 3000]).unwrap();
    let remote = region.remote();
    assert!(remote.slice(3000..).unwrap().is_empty());
    for index in [3000, usize::MAX] {
        assert_eq!(remote.element(index).unwrap_err().errno(), Errno::EINVAL);
        assert_eq!(region.load(index).unwrap_err().errno(), Errno::EINVAL);
        let update = region.update(index, |value| value);
        assert_eq!(update.unwrap_err().errno(), Errno::EINVAL);
    }
    let error = remote.slice(2..3001).unwrap_err().to_string();
    assert!(error.contains("the region has 3000 elements"), "{error}");

    let two = remote.slice(..2).unwrap();
    let error = client.atomic(to_server, two, Operator::SUM, &[1; 3]);
    let error = error.unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    let text = error.to_string();
    assert!(text.starts_with("change 6 bytes of fi_addr"), "{text}");
    assert!(text.contains("the region has fewer elements"), "{text}");
    assert!(error.into_buffer().is_none());
    let (one, none) = (vec![1; 1], Vec::new());
    let swap = client.compare_atomic(to_server, two, CompareOperator::EQUAL, &one, &none);
    assert_eq!(swap.unwrap_err().errno(), Errno::EINVAL);
    let swap = client.compare_atomic(to_server, two, CompareOperator::EQUAL, &none, &one);
    assert_eq!(swap.unwrap_err().errno(), Errno::EINVAL);
    let read = client.atomic_read(to_server, remote.slice(5..5).unwrap());
    assert_eq!(read.unwrap_err().errno(), Errno::EINVAL);

    const MOST: usize = RemoteAtomicRegion::<u16>::MAX_ELEMENTS;
    let (most, more) = (vec![1; MOST], vec![1; MOST + 1]);
    let error = client.atomic(to_server, remote, Operator::SUM, &more);
    assert_eq!(error.unwrap_err().errno(), Errno::EMSGSIZE);
    let error = client.atomic_read(to_server, remote).unwrap_err();
    assert_eq!(error.errno(), Errno::EMSGSIZE);
    assert!(error.to_string().contains("4096 bytes at most"), "{error}");
    let fetch = client.fetch_atomic(to_server, remote, Operator::SUM, &most);
    assert_eq!(done(&mut client, fetch).unwrap(), most);
    let left = region.close();
    assert_eq!(
        (&left[..MOST], &left[MOST..]),
        (&[2; MOST][..], &[1; 3000 - MOST][..])
    );

    let empty = server.share_atomic::<u16, PeersRead>(&[]).unwrap_err();
    assert_eq!(empty.errno(), Errno::EINVAL);
}

/// A client changes elements of a server on its node that makes no call, and has no thread for it.
#[test]
fn mapped_elements_need_no_call_of_their_owner() {
    let mut client = options().open().unwrap();
    let mut server = options().open().unwrap();
    let to_server = client.insert(server.address()).unwrap();
    let region: AtomicRegion<u64> = server.share_atomic_mapped(&[7; 8]).unwrap();
    // The first operations make the link, and find it.
    let first = region.remote().element(0).unwrap();
    for round in 0..3 {
        let fetch = client.fetch_atomic(to_server, first, Operator::SUM, 1);
        let fetch = fetch.unwrap();
        let fetched = loop {
            assert!(server.poll().unwrap().is_none());
            match client.wait_for(fetch, Some(Duration::from_millis(1))) {
                Ok(fetched) => break fetched,
                Err(error) => assert_eq!(error.errno(), Errno::ETIMEDOUT),
            }
        };
        assert_eq!(fetched, 7 + round);
    }
    for round in 0..100 {
        let last = region.remote().element(7).unwrap();
        let fetch = client.fetch_atomic(to_server, last, Operator::SUM, 1);
        assert_eq!(done(&mut client, fetch).unwrap(), 7 + round);
    }
    assert_eq!(region.close(), [10, 7, 7, 7, 7, 7, 7, 107]);
}

/// Two peers and their target count the same words, each type by its own means. No count is lost.
#[test]
fn owner_and_peers_count_at_the_same_time() {
    const ROUNDS: u64 = 2000;
    let server = options().progress(Progress::Auto).open().unwrap();
    let words: AtomicRegion<u64> = server.share_atomic(&[0; 2]).unwrap();
    let floats: AtomicRegion<f64> = server.share_atomic(&[0.0]).unwrap();
    let wide: AtomicRegion<u128> = server.share_atomic(&[0]).unwrap();
    let half = 1 << 63;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut client = options().open().unwrap();
            let to_server = client.insert(server.address()).unwrap();
            let handles = (words.remote(), floats.remote(), wide.remote());
            scope.spawn(move || {
                let (words, floats, wide) = handles;
                let mut last = 0;
                for _ in 0..ROUNDS {
                    let sum = client.atomic(to_server, floats, Operator::SUM, 1.0);
                    done(&mut client, sum).unwrap();
                    let sum = client.atomic(to_server, wide, Operator::SUM, half);
                    done(&mut client, sum).unwrap();
                    let fetch = client.fetch_atomic(to_server, words, Operator::SUM, &[1, 1]);
                    let now = done(&mut client, fetch).unwrap();
                    assert!(now[0] >= last && now[0] < 3 * ROUNDS, "{now:?}");
                    last = now[0];
                }
            });
        }
        for _ in 0..ROUNDS {
            words.atomics()[0].fetch_add(1, Ordering::Relaxed);
            words.update(1, |word| word + 1).unwrap();
            floats.update(0, |float| float + 1.0).unwrap();
            wide.update(0, |wide| wide + half).unwrap();
        }
    });
    let all = 3 * ROUNDS;
    assert_eq!(words.load(1).unwrap(), all);
    assert_eq!(words.close(), [all; 2]);
    assert_eq!(floats.close(), [all as f64]);
    assert_eq!(wide.close(), [u128::from(all) * half]);
}

/// A region closes while peers change it: then its elements are the owner's.
#[test]
fn a_region_that_closes_refuses_its_peers() {
    let (mut client, server, to_server) = pair();
    for round in 0..100 {
        let region: AtomicRegion<u32> = server.share_atomic(&[0; 4]).unwrap();
        let remote = region.remote().slice(1..3).unwrap();
        let posted: Vec<_> = (0..20)
            .map(|_| {
                let sum = client.fetch_atomic(to_server, remote, Operator::SUM, &[1, 1]);
                sum.unwrap()
            })
            .collect();
        // It is anywhere in their line.
        for id in posted.iter().take(round % 5) {
            client.wait_for(*id, PATIENCE).unwrap();
        }
        let left = region.close();
        let later = &posted[round % 5..];
        let outcomes = later.iter().map(|id| client.wait_for(*id, PATIENCE));
        let refused = outcomes.filter(|outcome| match outcome {
            Ok(_) => false,
            Err(error) => error.errno() == Errno::EACCES,
        });
        let carried_out = (posted.len() - refused.count()) as u32;
        assert_eq!(left, [0, carried_out, carried_out, 0]);
    }
}

/// A program that polls gets each operation, with its elements, in the order of their ends.
#[test]
fn completions_have_the_elements() {
    let mut alone = options().open().unwrap();
    let itself = alone.insert(alone.address()).unwrap();
    let region: AtomicRegion<i32> = alone.share_atomic(&[-1, -2]).unwrap();
    let remote = region.remote();
    let sum = alone
        .atomic(itself, remote, Operator::SUM, &[1, 1])
        .unwrap();
    let fetch = alone
        .fetch_atomic(itself, remote, Operator::MAX, 7)
        .unwrap();
    // The completions of others are kept meanwhile.
    let read = alone.atomic_read(itself, remote).unwrap();
    assert_eq!(alone.wait_for(read, PATIENCE).unwrap(), [7, -1]);
    for (posted, elements) in [(sum, vec![]), (fetch.id(), vec![0])] {
        match alone.wait(PATIENCE).unwrap() {
            Some(CompletedOperation::Atomic(id, fetched)) => {
                assert_eq!((id, fetched.to_vec::<i32>()), (posted, elements));
            }
            other => panic!("{other:?}"),
        }
    }
    let error = alone.wait_for(fetch, PATIENCE).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOENT);
}

/// More operations than may be under way.
#[test]
fn operations_that_are_refused_are_posted_again() {
    const OPERATIONS: u32 = 3000;
    let (mut client, server, to_server) = pair();
    let region: AtomicRegion<u32> = server.share_atomic(&[0]).unwrap();
    let (mut posted, mut ended) = (0, 0);
    while ended < OPERATIONS {
        while posted < OPERATIONS {
            match client.try_fetch_atomic(to_server, region.remote(), Operator::SUM, 1) {
                Ok(_) => posted += 1,
                Err(error) if error.is_again() => break,
                Err(error) => panic!("{error}"),
            }
        }
        match client.wait(PATIENCE).unwrap() {
            // Operations on a peer are carried out in their order.
            Some(CompletedOperation::Atomic(_, before)) => {
                assert_eq!(before.to_vec::<u32>(), [ended])
            }
            other => panic!("{other:?}"),
        }
        ended += 1;
    }
    assert_eq!(region.close(), [OPERATIONS]);
}

/// The room for elements of an operation that is under way when its endpoint is dropped is not
/// written to.
#[test]
fn a_dropped_endpoint_gets_no_elements() {
    let (mut client, server, to_server) = pair();
    let region: AtomicRegion<u8> = server.share_atomic(&[0xee; 4096]).unwrap();
    for _ in 0..20 {
        let mut reader = options().open().unwrap();
        let to_target = reader.insert(server.address()).unwrap();
        server.insert(reader.address()).unwrap();
        for _ in 0..8 {
            reader.atomic_read(to_target, region.remote()).unwrap();
        }
        drop(reader);
        // Memory of the rooms that were freed.
        let others: Vec<Buffer> = (0..16).map(|_| Buffer::new(4096).unwrap()).collect();
        let read = client.atomic_read(to_server, region.remote());
        assert_eq!(done(&mut client, read).unwrap(), [0xee; 4096]);
        assert!(
            others
                .iter()
                .all(|other| other.iter().all(|&byte| byte == 0))
        );
    }
}

/// A program may be written for any type and any rights that allow it.
#[test]
fn a_generic_program_compiles() {
    fn fetch_and_write<T: AtomicElement, R: AllowsRead + AllowsWrite>(
        client: &mut RdmEndpoint,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
        value: T,
    ) -> T {
        let fetch = client.fetch_atomic(to, remote, Operator::WRITE, value);
        done(client, fetch).unwrap()
    }
    let (mut client, server, to_server) = pair();
    let region: AtomicRegion<f32> = server.share_atomic(&[1.5]).unwrap();
    let before = fetch_and_write(&mut client, to_server, region.remote(), 2.5);
    assert_eq!((before, region.close()), (1.5, vec![2.5]));
}
