//! One-sided operations on memory that the initiator has mapped: the suite of conformance, and
//! scenarios of such memory.

use crate::{mapping, party};
use ferrofabric_conformance::ends::{QueuedEndpoint, QueuedPair};
use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::killed_peers::{a_peer_that_is_killed, operate_until_killed};
use ferrofabric_conformance::region_memory::use_mapped_memory;
use ferrofabric_conformance::target::{BOTH, KEY, Target};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, RmaKind, RmaOp};
use ferrofabric_system::shared_memory::{MemoryBacking, SharedMemory};
use mapping::{BYTES, bytes, connected, domain, register, statistic, whole};
use party::{ChildProcess, await_line, print_line, role};

/// Victims of a kind, and in the soak.
const VICTIMS: [usize; 2] = [4, 400];

/// Shared memory, with regions that peers map.
fn fabric() -> Option<Fabric> {
    use_mapped_memory();
    let fabric = Fabric::new("shared memory, by mappings", |_| domain("auto"));
    Some(fabric.with_thresholds(&[40, 48, 8192, 8768, 26_304, 65_536]))
}

mod by_mapping {
    use ferrofabric_conformance::conformance;

    conformance!(super::fabric());
}

/// The suite's regions are such that operations on them go by mapping.
#[test]
fn the_suite_takes_the_way_by_mapping() {
    let fabric = fabric().unwrap();
    let target = Target::open(fabric.domain(0), fabric.domain(1));
    let _region = target.register(KEY, BOTH);
    // The first ones make the link.
    for _ in 0..3 {
        target.pair.barrier();
    }
    for kind in [RmaKind::Write, RmaKind::Read] {
        target.done(&target.op(kind, 100), &[target.pair.a.memory(5000, 7)]);
    }
    assert_eq!(target.stat("shm_rma_mapped"), 2);
}

fn op(end: &QueuedEndpoint, kind: RmaKind, dest: FiAddr, place: usize) -> RmaOp {
    RmaOp {
        kind,
        dest,
        key: KEY,
        place: place as u64,
        data: 0,
        desc: MrDesc::NONE,
        context: end.context(),
        flags: Flags::COMPLETION,
    }
}

fn mapped(end: &QueuedEndpoint) -> u64 {
    statistic(end, "shm_rma_mapped")
}

/// An operation that is over when the call returns, without a step of the target.
fn alone(end: &QueuedEndpoint, op: &RmaOp, iov: &[IoBuf]) {
    // SAFETY: the buffers live as long as the endpoint.
    unsafe { end.endpoint.rma(op, iov) }.unwrap();
    end.tx.pump();
    let done = end.tx.take_of(op.context).expect("the target is needed");
    done.unwrap();
}

/// An operation that may need the target.
fn together(pair: &QueuedPair, op: &RmaOp, iov: &[IoBuf]) {
    pair.until("no room for an operation", || {
        // SAFETY: the buffers live as long as the endpoint.
        unsafe { pair.a.endpoint.rma(op, iov) }.ok()
    });
    pair.wait(&pair.a.tx, op.context).unwrap();
}

/// Loads and stores carry the operations out, whatever length, place and buffers are, and with each
/// setting by which processes share memory.
#[test]
fn an_initiator_needs_no_step_of_the_target() {
    for cma in ["on", "auto"] {
        operate_on_mapped_memory(cma);
    }
}

/// Processes that may not trace each other map memory all the same.
#[test]
fn mapped_memory_needs_no_right_to_copy() {
    ChildProcess::start("without copies").finish();
}

fn operate_on_mapped_memory(cma: &str) {
    let ([_, b], pair) = connected(cma);
    let memory = SharedMemory::new(BYTES).unwrap();
    let _region = register(&*b, KEY, &memory, memory.backing(0));
    let mut count = 0;
    for (len, place) in [0, 1, 2, 4, 8, 9, 64, 65, 4096, 70_000, BYTES - 8]
        .into_iter()
        .flat_map(|len| [(len, 0), (len, 8), (len, 5)])
    {
        let from = pair.a.memory(len, len as u8 | 1);
        let cut = len / 3;
        let parts = |buf: IoBuf| [buf.part(0, cut), buf.part(cut, len - cut)];
        let write = op(&pair.a, RmaKind::Write, pair.to_b, place);
        alone(&pair.a, &write, &parts(from));
        assert_eq!(bytes(whole(&memory).part(place, len)), bytes(from));
        let into = pair.a.memory(len, 0xee);
        let read = op(&pair.a, RmaKind::Read, pair.to_b, place);
        alone(&pair.a, &read, &[into]);
        assert_eq!(bytes(into), bytes(from));
        count += 2;
    }
    assert_eq!(mapped(&pair.a), count);
}

/// From now on the kernel copies nothing between processes for the calling thread, and for those
/// that it starts.
fn forbid_copies_by_the_kernel() {
    let code = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let is_call = |jt, call: libc::c_long| {
        code(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            jt,
            0,
            call as u32,
        )
    };
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut program = [
        // The number of the call lies first.
        code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        is_call(2, libc::SYS_process_vm_readv),
        is_call(1, libc::SYS_process_vm_writev),
        code(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        code(libc::BPF_RET | libc::BPF_K, 0, 0, refusal),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: sets a flag of the calling thread.
    let unprivileged = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the kernel copies the program, which is there during the call.
    let filtered = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
        )
    };
    assert_eq!((unprivileged, filtered), (0, 0));
    // SAFETY: no bytes of this process are named.
    let copied = unsafe {
        libc::process_vm_readv(libc::getpid(), std::ptr::null(), 0, std::ptr::null(), 0, 0)
    };
    assert_eq!(copied, -1, "the filter is not there");
}

/// More memories than a link has mapped at one time, with a region each: all are reached.
#[test]
fn memories_beyond_those_that_are_mapped_are_reached() {
    const MEMORIES: usize = 100;
    let ([_, b], pair) = connected("on");
    let memories: Vec<_> = (0..MEMORIES)
        .map(|_| SharedMemory::new(4096).unwrap())
        .collect();
    let _regions: Vec<_> = memories
        .iter()
        .enumerate()
        .map(|(key, memory)| register(&*b, key as u64, memory, memory.backing(0)))
        .collect();
    for round in 1..=20u8 {
        let from = pair.a.memory(8, round);
        for key in 0..MEMORIES as u64 {
            let write = op(&pair.a, RmaKind::Write, pair.to_b, 0);
            together(&pair, &RmaOp { key, ..write }, &[from]);
        }
        for memory in &memories {
            assert_eq!(bytes(whole(memory).part(0, 8)), [round; 8]);
        }
    }
    let mapped = mapped(&pair.a);
    assert!(mapped >= 64, "{mapped}");
}

/// Memory that can not be mapped, whatever the reason, is reached by the other ways.
#[test]
fn memory_that_is_not_mapped_is_reached_by_other_ways() {
    let ([_, b], pair) = connected("on");
    let memory = SharedMemory::new(BYTES).unwrap();
    let good = memory.backing(0);
    let inode = good.inode + 1;
    let _region = register(&*b, KEY, &memory, MemoryBacking { inode, ..good });
    for fill in 1..50 {
        let from = pair.a.memory(5000, fill);
        together(&pair, &op(&pair.a, RmaKind::Write, pair.to_b, 3), &[from]);
        assert_eq!(bytes(whole(&memory).part(3, 5000)), [fill; 5000]);
    }
    assert_eq!(mapped(&pair.a), 0);
}

/// Regions come and go with their memory: each is reached, and none after its close.
#[test]
fn memory_that_is_freed_and_allocated_again_is_mapped_again() {
    let ([_, b], pair) = connected("on");
    for round in 0..200u8 {
        let memory = SharedMemory::new(8192).unwrap();
        let region = register(&*b, KEY, &memory, memory.backing(0));
        let from = pair.a.memory(8192, round | 1);
        let write = |fill| (op(&pair.a, RmaKind::Write, pair.to_b, 0), fill);
        let (first, from) = write(from);
        match round {
            // The pause after a memory that took the place of another.
            64.. => together(&pair, &first, &[from]),
            _ => alone(&pair.a, &first, &[from]),
        }
        assert_eq!(bytes(whole(&memory)), [round | 1; 8192]);
        drop(region);
        let (late, from) = write(pair.a.memory(8, 0xee));
        pair.until("no room for an operation", || {
            // SAFETY: the buffers live as long as the endpoint.
            unsafe { pair.a.endpoint.rma(&late, &[from]) }.ok()
        });
        assert!(pair.wait(&pair.a.tx, late.context).is_err());
        assert_eq!(bytes(whole(&memory)), [round | 1; 8192]);
    }
    assert!(mapped(&pair.a) > 64);
}

/// The roles of the child processes.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn party() {
    match role().as_deref() {
        Some("victim") => {
            use_mapped_memory();
            operate_until_killed(&*domain("on"), |name| {
                print_line(name);
                await_line().parse().unwrap()
            });
        }
        Some("forks") => fork_beside_operations(),
        Some("without copies") => {
            forbid_copies_by_the_kernel();
            operate_on_mapped_memory("auto");
        }
        _ => {}
    }
}

/// Processes that are killed in the middle of loads and stores in each other's memory.
#[test]
fn a_process_that_is_killed() {
    use_mapped_memory();
    let domain = domain("on");
    for _ in 0..VICTIMS[usize::from(std::env::var_os("FERRO_SOAK").is_some())] {
        let mut victim = ChildProcess::start("victim");
        let name = victim.read_name();
        let id = victim.child.id() as i32;
        a_peer_that_is_killed(
            &*domain,
            |ours| {
                victim.write_line(&ours.to_string());
                name
            },
            // SAFETY: our own child, which has not been waited for.
            || assert_eq!(unsafe { libc::kill(id, libc::SIGKILL) }, 0),
        );
    }
}

#[test]
fn a_child_that_drops_what_it_inherited_does_no_harm() {
    ChildProcess::start("forks").finish();
}

/// Forks with a region, and with memory of a peer that is mapped. The child drops all of it.
fn fork_beside_operations() {
    let ([a, b], pair) = connected("on");
    let memory = SharedMemory::new(BYTES).unwrap();
    let region = register(&*b, KEY, &memory, memory.backing(0));
    let write = |pair: &QueuedPair, fill| {
        let from = pair.a.memory(BYTES, fill);
        alone(&pair.a, &op(&pair.a, RmaKind::Write, pair.to_b, 0), &[from]);
    };
    write(&pair, 7);
    // SAFETY: the threads of this process are the service threads, which hold no lock that the
    // child takes, and the test harness, which waits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop((region, pair, a, b, memory));
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(bytes(whole(&memory)), [7; BYTES]);
    write(&pair, 8);
    assert_eq!(bytes(whole(&memory)), [8; BYTES]);
    assert_eq!(mapped(&pair.a), 2);
    drop(region);
}
