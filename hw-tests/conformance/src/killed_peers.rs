//! Processes that are killed in the middle of one-sided operations: the survivor's operations end,
//! its regions close, and no memory changes but what was given to the victim.

use std::sync::Arc;
use std::time::Instant;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, RmaKind, RmaOp};
use ferrofabric_runtime::fabric::{Domain, Mr, MrAttr};

use crate::ends::{PATIENCE, QueuedEndpoint, context_of};
use crate::region_memory::region_of;
use crate::target::{BOTH, KEY};

/// Bytes of a region.
const REGION: usize = 4 << 20;

/// Bytes on both sides of a region, which nobody may touch.
const GUARD_BYTES: usize = 4096;
const GUARD: u8 = 0xa5;

/// The content of a region that has closed.
const CLOSED: u8 = 0xc1;

/// Bytes of the operations, by turns.
const LENGTHS: [usize; 4] = [8, 5000, 100_000, REGION];

/// Operations that are under way at a time.
const WINDOW: usize = 64;

/// Operations that the victim carries out before it is killed.
const BEFORE: usize = 100;

/// An endpoint with a region between guards.
struct GuardedTarget {
    // Closed before its memory goes.
    region: Option<Arc<dyn Mr>>,
    end: QueuedEndpoint,
    memory: IoBuf,
    /// The bytes that all writes bring, and the place that all reads go to.
    local: [IoBuf; 2],
}

impl GuardedTarget {
    fn open(domain: &dyn Domain) -> Self {
        let end = QueuedEndpoint::open(domain);
        let memory = end.memory(REGION + 2 * GUARD_BYTES, GUARD);
        let request = MrAttr {
            key: Some(KEY),
            ..region_of(memory.part(GUARD_BYTES, REGION), BOTH)
        };
        // SAFETY: the memory lives as long as the endpoint, which closes after the region.
        let region = unsafe { domain.register_region(&request) }.unwrap();
        Self {
            region: Some(region),
            local: [end.memory(REGION, 0x77), end.memory(REGION, 0)],
            end,
            memory,
        }
    }

    fn content(&self) -> Vec<u8> {
        self.end.bytes(self.memory.addr, self.memory.len)
    }

    fn insert(&self, name: &NativeAddr) -> FiAddr {
        self.end.av.insert(&name.to_bytes()).unwrap()
    }

    /// Begins the operation with a number, if there is room. Data says to the target which it is.
    fn begin(&self, peer: FiAddr, number: usize) -> Result<u64, OpError> {
        let len = LENGTHS[number / 3 % LENGTHS.len()];
        let (kind, data) = match number % 3 {
            0 => (RmaKind::Write, Flags::REMOTE_CQ_DATA),
            1 => (RmaKind::Read, Flags::empty()),
            _ => (RmaKind::Write, Flags::empty()),
        };
        let op = RmaOp {
            kind,
            dest: peer,
            key: KEY,
            place: 0,
            data: number as u64,
            desc: MrDesc::NONE,
            context: self.end.context(),
            flags: Flags::COMPLETION | data,
        };
        let buf = self.local[usize::from(kind == RmaKind::Read)].part(0, len);
        // SAFETY: the buffers live as long as the endpoint.
        unsafe { self.end.endpoint.rma(&op, &[buf]) }.map(|()| op.context)
    }
}

/// A peer that has a region and operates on the other's, until it is killed. `meet` gives its name
/// away, and gets the other's.
pub fn operate_until_killed(domain: &dyn Domain, meet: impl FnOnce(&NativeAddr) -> NativeAddr) {
    let target = GuardedTarget::open(domain);
    let peer = target.insert(&meet(&target.end.endpoint.name()));
    let (mut number, mut over) = (0, 0);
    loop {
        if number < over + WINDOW {
            match target.begin(peer, number) {
                Ok(_) => number += 1,
                Err(OpError::Again) => {}
                Err(error) => panic!("{error}"),
            }
        }
        over += target.end.take_all().0.len();
    }
}

/// Operates on a peer's region, as that does on ours, until `kill` kills it.
pub fn a_peer_that_is_killed(
    domain: &dyn Domain,
    meet: impl FnOnce(&NativeAddr) -> NativeAddr,
    kill: impl FnOnce(),
) {
    let mut target = GuardedTarget::open(domain);
    let peer = target.insert(&meet(&target.end.endpoint.name()));
    let mut open: Vec<u64> = Vec::new();
    let mut kill = Some(kill);
    let (mut number, mut succeeded, mut failed, mut came) = (0, 0, 0, 0);
    let mut until = Instant::now() + PATIENCE;
    // Once operations fail, no other begins.
    while failed == 0 || !open.is_empty() {
        let begun = match open.len() < WINDOW && failed == 0 {
            true => target.begin(peer, number),
            false => Err(OpError::Again),
        };
        match begun {
            Ok(context) => {
                open.push(context);
                number += 1;
            }
            Err(OpError::Again) => {}
            // There is no peer any more.
            Err(OpError::Failed(errno)) => {
                assert!(kill.is_none() && is_lost(errno), "{errno:?}");
                failed += 1;
            }
        }
        let (sent, received) = target.end.take_all();
        came += received.iter().filter(|came| came.is_ok()).count();
        for done in sent {
            let at = open.iter().position(|open| *open == context_of(&done));
            open.swap_remove(at.expect("an operation ends twice"));
            match done {
                Ok(_) => succeeded += 1,
                Err(error) => {
                    assert!(kill.is_none() && is_lost(error.errno), "{error:?}");
                    failed += 1;
                }
            }
        }
        if succeeded >= BEFORE && came >= BEFORE / 4 {
            if let Some(kill) = kill.take() {
                kill();
                until = Instant::now() + PATIENCE;
            }
        }
        assert!(Instant::now() < until, "{open:?} do not end");
    }
    println!("{succeeded} operations succeeded, {failed} failed or were refused");
    // A close waits for nothing of a dead peer's.
    drop(target.region.take());
    let inside = target.memory.part(GUARD_BYTES, REGION);
    // SAFETY: the memory is the endpoint's, and peers do not use it any more.
    unsafe { inside.as_mut_ptr().write_bytes(CLOSED, REGION) };
    for _ in 0..1000 {
        drop(target.end.take_all());
    }
    let now = target.content();
    let (before, rest) = now.split_at(GUARD_BYTES);
    let (inside, behind) = rest.split_at(REGION);
    assert!(before.iter().chain(behind).all(|byte| *byte == GUARD));
    assert!(inside.iter().all(|byte| *byte == CLOSED));
}

/// Whether this is an error of operations with a peer that has died.
fn is_lost(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ECONNRESET
            | Errno::ESHUTDOWN
            | Errno::EHOSTUNREACH
            | Errno::EREMOTEIO
            | Errno::ECONNREFUSED
            | Errno::ECONNABORTED
            | Errno::ETIMEDOUT
    )
}
