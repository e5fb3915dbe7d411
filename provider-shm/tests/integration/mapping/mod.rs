//! Domains, endpoints and regions of tests in which one side maps the other's memory.

use std::sync::Arc;

use ferrofabric_conformance::ends::{QueuedEndpoint, QueuedPair};
use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::reports::counter;
use ferrofabric_conformance::target::BOTH;
use ferrofabric_contracts::types::IoBuf;
use ferrofabric_runtime::fabric::{Domain, Mr, MrAttr, Provider};
use ferrofabric_shm::ShmProvider;
use ferrofabric_system::shared_memory::{MemoryBacking, SharedMemory};

pub const BYTES: usize = 1 << 20;

pub fn domain(cma: &str) -> Arc<dyn Domain> {
    let settings = settings(&[("FERRO_SHM_CMA", cma)]);
    let provider = ShmProvider::new();
    let found = provider.discover(&settings);
    provider.open(&found.candidates[0], &settings).unwrap()
}

/// A pair of endpoints with a link, and a domain for each.
pub fn connected(cma: &str) -> ([Arc<dyn Domain>; 2], QueuedPair) {
    let domains = [domain(cma), domain(cma)];
    let [a, b] = [0, 1].map(|side| QueuedEndpoint::open(&*domains[side]));
    let pair = QueuedPair::connect(a, b);
    // The link is there, and the route to it.
    for _ in 0..3 {
        pair.barrier();
    }
    (domains, pair)
}

pub fn whole(memory: &SharedMemory) -> IoBuf {
    IoBuf::new(memory.as_ptr().as_ptr(), memory.len())
}

/// A region over all of some memory, which is found where `backing` says.
pub fn register(
    domain: &dyn Domain,
    key: u64,
    memory: &SharedMemory,
    backing: MemoryBacking,
) -> Arc<dyn Mr> {
    let request = MrAttr {
        key: Some(key),
        backing: Some(backing),
        ..MrAttr::new(whole(memory), BOTH)
    };
    // SAFETY: each test keeps the memory for longer than the region.
    unsafe { domain.register_region(&request) }.unwrap()
}

/// The bytes of a buffer that nothing changes now.
pub fn bytes(buf: IoBuf) -> Vec<u8> {
    // SAFETY: the memory lives as long as the test, and nothing is under way in it.
    unsafe { std::slice::from_raw_parts(std::hint::black_box(buf.as_ptr()), buf.len) }.to_vec()
}

/// A statistic of an endpoint.
pub fn statistic(end: &QueuedEndpoint, name: &str) -> u64 {
    counter(&end.endpoint.stats().unwrap(), name)
}
