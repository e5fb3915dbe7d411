//! Atomic operations on memory that the initiator has mapped: which ones it carries out by itself,
//! their order, and their sums beside the operations of others.

use crate::{mapping, party};
use std::sync::atomic::Ordering;

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::atomics::carry_out_each;
use ferrofabric_conformance::ends::{QueuedEndpoint, QueuedPair};
use ferrofabric_conformance::region_memory::use_mapped_memory;
use ferrofabric_conformance::target::{BOTH, KEY, Target};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::atomics::{
    AtomicBuffers, AtomicForm, AtomicOp, AtomicOperator, Datatype,
};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::types::{AvType, FiAddr, IoBuf, MrDesc};
use ferrofabric_runtime::fabric::{CntrAttr, MrAttr};
use ferrofabric_runtime::owning::SharedElements;
use ferrofabric_system::shared_memory::SharedMemory;
use mapping::{bytes, connected, domain, register, statistic, whole};
use party::{ChildProcess, await_line, print_line, role};

/// Operations in a row that follow others as messages at most, before the next one waits for those.
const MOST_BEHIND: usize = 64;

fn mapped(end: &QueuedEndpoint) -> u64 {
    statistic(end, "atomics_mapped")
}

/// A sum with one word of an endpoint's peer, and the buffers for it.
struct Sum {
    op: AtomicOp,
    operands: IoBuf,
    results: IoBuf,
}

impl Sum {
    fn new(end: &QueuedEndpoint, dest: FiAddr, (key, place): (u64, u64), of: Datatype) -> Self {
        let operands = end.memory(of.size(), 0);
        // SAFETY: the endpoint's memory, which nothing uses yet.
        unsafe { operands.as_mut_ptr().write(1) };
        Self {
            op: AtomicOp {
                form: AtomicForm::Fetch,
                operator: AtomicOperator::Sum,
                datatype: of,
                dest,
                key,
                place,
                desc: MrDesc::NONE,
                context: end.context(),
                flags: Flags::COMPLETION,
            },
            operands,
            results: end.memory(of.size(), 0xee),
        }
    }

    fn begin(&self, end: &QueuedEndpoint) -> Result<(), OpError> {
        let buffers = AtomicBuffers {
            operands: &[self.operands],
            compares: &[],
            results: &[self.results],
        };
        // SAFETY: the buffers live as long as the endpoint.
        unsafe { end.endpoint.atomic(&self.op, &buffers) }
    }

    /// The word from before.
    fn fetched(&self) -> u64 {
        let mut word = [0; 8];
        word[..self.results.len].copy_from_slice(&bytes(self.results));
        u64::from_le_bytes(word)
    }

    /// Carries it out in the call. Returns the word from before.
    fn alone(&self, end: &QueuedEndpoint) -> u64 {
        self.begin(end).unwrap();
        end.tx.pump();
        let done = end.tx.take_of(self.op.context);
        done.expect("the target is needed").unwrap();
        self.fetched()
    }
}

/// Another holder of a named address vector gives an entry to another peer. An operation that is
/// the next step of its endpoint goes to that one, although memory of the one before is mapped.
///
/// Covers: AV-4, AV-17
#[test]
fn an_entry_that_is_another_peers_by_now_is_not_mapped() {
    let attr = AvAttr {
        av_type: Some(AvType::Table),
        name: Some(format!("mapped atomics {}", std::process::id())),
        ..AvAttr::default()
    };
    let domains = [domain("on"), domain("on"), domain("on")];
    let a = QueuedEndpoint::open_with(&*domains[0], &attr, |_| {});
    let other = QueuedEndpoint::open(&*domains[2]);
    let pair = QueuedPair::connect(a, QueuedEndpoint::open(&*domains[1]));
    for _ in 0..3 {
        pair.barrier();
    }
    let memories = [(); 2].map(|()| SharedMemory::new(8).unwrap());
    let regions = [0, 1].map(|of| {
        let memory = &memories[of];
        register(&*domains[of + 1], KEY, memory, memory.backing(0))
    });
    let words = || [0, 1].map(|of| bytes(whole(&memories[of]))[0]);
    let sum = Sum::new(&pair.a, pair.to_b, (KEY, 0), Datatype::Uint64);
    assert_eq!(sum.alone(&pair.a), 0);
    assert_eq!(words(), [1, 0]);

    let holder = domains[2].open_av(&attr).unwrap();
    holder.remove(pair.to_b).unwrap();
    let name = other.endpoint.name().to_bytes();
    assert_eq!(holder.insert(&name).unwrap(), pair.to_b);
    let sum = Sum::new(&pair.a, pair.to_b, (KEY, 0), Datatype::Uint64);
    sum.begin(&pair.a).unwrap();
    let done = pair.until("the other peer does nothing", || {
        other.rx.pump();
        pair.a.tx.pump();
        pair.a.tx.take_of(sum.op.context)
    });
    done.unwrap();
    assert_eq!((words(), sum.fetched()), ([1, 1], 0));
    drop(regions);
}

/// The suite's operations on elements of one word go by mapping, and the others as messages.
#[test]
fn each_operation_on_words_goes_by_mapping() {
    use_mapped_memory();
    let [a, b] = [domain("auto"), domain("auto")];
    let target = Target::open(&*a, &*b);
    // The first ones make the link.
    for _ in 0..3 {
        target.pair.barrier();
    }
    let types = carry_out_each(&target);
    let words = types.iter().filter(|of| of.is_one_word()).count();
    assert!((100..types.len()).contains(&words));
    assert_eq!(target.stat("atomics_mapped"), words as u64);
}

/// An initiator reaches the words of a region of elements without a step of the target. All other
/// operations go as messages, and the target refuses them.
#[test]
fn a_region_of_elements_is_mapped_for_them_alone() {
    let ([_, b], pair) = connected("on");
    let region = SharedElements::<u32>::open_mapped(&*b, &[7; 1024], Rights::all()).unwrap();
    let at = |place| (region.key(), place);
    for round in 0..100 {
        let sum = Sum::new(&pair.a, pair.to_b, at(4 * 1023), Datatype::Uint32);
        assert_eq!(sum.alone(&pair.a), 7 + round);
    }
    assert_eq!(region.load(1023).unwrap(), 107);
    for (place, of, errno) in [
        (0, Datatype::Int32, Errno::EACCES),
        (0, Datatype::Uint64, Errno::EACCES),
        (4096, Datatype::Uint32, Errno::EACCES),
        (u64::MAX - 3, Datatype::Uint32, Errno::EACCES),
        (2, Datatype::Uint32, Errno::EINVAL),
    ] {
        let sum = Sum::new(&pair.a, pair.to_b, at(place), of);
        sum.begin(&pair.a).unwrap();
        let refused = pair.wait(&pair.a.tx, sum.op.context).unwrap_err();
        assert_eq!(refused.errno, errno, "{of:?} at {place}");
    }
    assert_eq!(mapped(&pair.a), 100);
    let left = region.close();
    assert_eq!((left[1023], &left[..1023]), (107, &[7; 1023][..]));
}

/// A region without a right for the operation, and one whose operations a counter sees.
#[test]
fn a_region_that_withholds_a_right_is_not_changed() {
    let ([_, b], pair) = connected("on");
    for rights in [Rights::READ, Rights::WRITE] {
        let region = SharedElements::<u64>::open_mapped(&*b, &[7], rights).unwrap();
        let sum = Sum::new(&pair.a, pair.to_b, (region.key(), 0), Datatype::Uint64);
        sum.begin(&pair.a).unwrap();
        let refused = pair.wait(&pair.a.tx, sum.op.context).unwrap_err();
        assert_eq!(refused.errno, Errno::EACCES);
        assert_eq!(region.close(), [7]);
    }
    assert_eq!(mapped(&pair.a), 0);
    let memory = SharedMemory::new(4096).unwrap();
    let region = register(&*b, KEY, &memory, memory.backing(0));
    let cntr = b.open_cntr(&CntrAttr::default()).unwrap();
    region.count_remote(&cntr, Flags::REMOTE_READ).unwrap();
    let sum = Sum::new(&pair.a, pair.to_b, (KEY, 0), Datatype::Uint64);
    sum.begin(&pair.a).unwrap();
    pair.wait(&pair.a.tx, sum.op.context).unwrap();
    assert_eq!((cntr.read().unwrap(), mapped(&pair.a)), (1, 0));
    assert_eq!(bytes(whole(&memory).part(0, 8)), 1u64.to_le_bytes());
}

/// An operation that could be carried out at once follows one that is under way as a message. A
/// stream of them does not go on as messages for ever.
#[test]
fn operations_of_an_initiator_keep_their_order() {
    let ([_, b], pair) = connected("on");
    let memory = SharedMemory::new(4096).unwrap();
    let _mapped = register(&*b, KEY, &memory, memory.backing(0));
    let other = MrAttr {
        key: Some(KEY + 1),
        ..MrAttr::new(pair.b.memory(8, 0), BOTH)
    };
    // SAFETY: the memory lives as long as the endpoint, which outlives the region.
    let _other = unsafe { b.register_region(&other) }.unwrap();
    let sum = |key| Sum::new(&pair.a, pair.to_b, (key, 0), Datatype::Uint64);

    let mut count = 0;
    // Of 200 the ring does not take all: some wait in line.
    for others in [1, 200] {
        assert_eq!(sum(KEY).alone(&pair.a), count);
        let before = mapped(&pair.a);
        let begun: Vec<_> = (0..others).map(|_| sum(KEY + 1)).collect();
        for other in &begun {
            other.begin(&pair.a).unwrap();
        }
        let mut followers = Vec::new();
        let waits = loop {
            let next = sum(KEY);
            match next.begin(&pair.a) {
                Ok(()) => followers.push(next),
                Err(error) => {
                    assert_eq!(error, OpError::Again);
                    break next;
                }
            }
        };
        assert!((1..=MOST_BEHIND).contains(&followers.len()));
        let word = bytes(whole(&memory).part(0, 8));
        assert_eq!(word, (count + 1).to_le_bytes());
        assert_eq!(mapped(&pair.a), before);
        for sum in begun.iter().chain(&followers) {
            pair.wait(&pair.a.tx, sum.op.context).unwrap();
        }
        let behind = followers.len() as u64;
        let fetched = followers.iter().map(Sum::fetched);
        assert!(fetched.eq(count + 1..count + 1 + behind));
        assert_eq!(waits.alone(&pair.a), count + 1 + behind);
        count += 2 + behind;
    }
}

/// A stream of operations that can only go as messages keeps no other one waiting for ever.
#[test]
fn an_operation_on_a_word_gets_its_turn_beside_others() {
    let ([_, b], pair) = connected("on");
    let memory = SharedMemory::new(32).unwrap();
    let _region = register(&*b, KEY, &memory, memory.backing(0));
    let begin = |place, of| {
        let sum = Sum::new(&pair.a, pair.to_b, (KEY, place), of);
        sum.begin(&pair.a).map(|()| sum)
    };
    let wide = || begin(16, Datatype::Uint128).unwrap();
    let end = |sum: Sum| {
        pair.wait(&pair.a.tx, sum.op.context).unwrap();
    };
    let (mut words, mut waits) = (Vec::new(), 0);
    while words.len() < 3 * MOST_BEHIND {
        // At each moment at which a word is changed, one of the others is under way.
        let mut beside = wide();
        let mut word = begin(0, Datatype::Uint64);
        if let Err(error) = word {
            assert_eq!(error, OpError::Again);
            waits += 1;
            // Those of that time are over then.
            end(beside);
            beside = wide();
            word = begin(0, Datatype::Uint64);
        }
        words.push(word.expect("its turn"));
        end(beside);
    }
    assert!(waits > 0 && mapped(&pair.a) == 0, "{waits} waits");
    for word in &words {
        pair.wait(&pair.a.tx, word.op.context).unwrap();
    }
    assert!(words.iter().map(Sum::fetched).eq(0..words.len() as u64));
}

/// Processes that add by mapping, one that adds by messages, and the owner: all sums are exact, and
/// each process fetches growing numbers.
#[test]
fn sums_of_processes_and_of_the_owner_are_exact() {
    const BY_MAPPING: u64 = 300_000;
    const BY_MESSAGES: u64 = 300;
    const OWN: u64 = 100_000;

    let domain = domain("on");
    let end = QueuedEndpoint::open(&*domain);
    let wide = SharedElements::<u64>::open_mapped(&*domain, &[0], Rights::all()).unwrap();
    let narrow = SharedElements::<u32>::open_mapped(&*domain, &[0], Rights::all()).unwrap();
    let ways = [("on", BY_MAPPING), ("on", BY_MAPPING), ("off", BY_MESSAGES)];
    let mut adders = ways.map(|(cma, each)| {
        let mut child = ChildProcess::start("adder");
        child.write_line(cma);
        end.av.insert(&child.read_name().to_bytes()).unwrap();
        let (name, keys) = (end.endpoint.name(), [wide.key(), narrow.key()]);
        child.write_line(&format!("{name} {} {} {each}", keys[0], keys[1]));
        child
    });
    let by_mapping = std::thread::scope(|threads| {
        let finish = |child: &mut ChildProcess| child.read_line().parse::<u64>().unwrap();
        let waits = adders
            .each_mut()
            .map(|child| threads.spawn(move || finish(child)));
        let mut own = 0;
        while own < OWN || !waits.iter().all(|child| child.is_finished()) {
            if own < OWN {
                wide.atomics()[0].fetch_add(1, Ordering::Relaxed);
                narrow.atomics()[0].fetch_add(1, Ordering::Relaxed);
                own += 1;
            }
            end.rx.pump();
        }
        waits.map(|child| child.join().unwrap())
    });
    assert!(
        by_mapping[..2].iter().all(|count| *count > BY_MAPPING),
        "{by_mapping:?}"
    );
    assert_eq!(by_mapping[2], 0);
    for mut child in adders {
        child.write_line("end");
        child.finish();
    }
    let all = OWN + 2 * BY_MAPPING + BY_MESSAGES;
    assert_eq!(
        (wide.close(), narrow.close()),
        (vec![all], vec![all as u32])
    );
}

/// The role of the child processes: adds to both words, then prints how often by mapping.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn party() {
    if role().as_deref() != Some("adder") {
        return;
    }
    let domain = domain(&await_line());
    let end = QueuedEndpoint::open(&*domain);
    print_line(end.endpoint.name());
    let line = await_line();
    let (name, numbers) = line.split_once(' ').unwrap();
    let mut numbers = numbers
        .split(' ')
        .map(|number| number.parse::<u64>().unwrap());
    let [wide, narrow, each] = [(); 3].map(|()| numbers.next().unwrap());
    let hub: NativeAddr = name.parse().unwrap();
    let hub = end.av.insert(&hub.to_bytes()).unwrap();
    for (key, of) in [(wide, Datatype::Uint64), (narrow, Datatype::Uint32)] {
        let sum = Sum::new(&end, hub, (key, 0), of);
        let mut last = None;
        for _ in 0..each {
            while let Err(error) = sum.begin(&end) {
                assert_eq!(error, OpError::Again);
                end.tx.pump();
            }
            let done = loop {
                end.tx.pump();
                if let Some(done) = end.tx.take_of(sum.op.context) {
                    break done;
                }
            };
            done.unwrap();
            let now = sum.fetched();
            assert!(last < Some(now), "{now} after {last:?}");
            last = Some(now);
        }
    }
    print_line(mapped(&end));
    await_line();
}
