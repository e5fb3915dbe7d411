//! Endpoints over the fake device, and patience with them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::{FakeDevice, LiveObjects, ROCE};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::{Buffer, OwnedCompletion, OwningEndpoint};
use ferrofabric_system::clock::HandClock;
use ferrofabric_verbs::VerbsProvider;
use ferrofabric_verbs_sys::{ibv_qp_state, ibv_qp_type};

/// A wait that takes so long hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

/// Verbs alone, over one device, with other settings on top.
pub(crate) fn settings(pairs: &[(&str, &str)]) -> Settings {
    let own = [("FERRO_SHM", "off"), ("FERRO_DEVICE", ROCE)];
    let all: Vec<_> = pairs.iter().chain(&own).copied().collect();
    ferrofabric_conformance::limits::settings(&all)
}

/// A domain of its own: nothing that drives one drives another.
pub(crate) fn domain(pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    domain_of(&VerbsProvider::new(), pairs)
}

/// As [`domain`], with a clock that is set by hand.
pub(crate) fn domain_at(clock: &HandClock, pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    domain_of(&VerbsProvider::with_clock(clock.clock()), pairs)
}

fn domain_of(provider: &VerbsProvider, pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    crate::endpoints::counters::of_the_suite();
    let settings = settings(pairs);
    let found = provider.discover(&settings);
    let info = found.candidates.first();
    let info = info.unwrap_or_else(|| panic!("no verbs domain: {:?}", found.notices));
    provider.open(info, &settings).unwrap()
}

/// A domain whose calls the application serializes, as MPI libraries open theirs: no close of
/// another domain's object drives it.
pub(crate) fn serialized(pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    let settings = settings(pairs);
    let found = VerbsProvider::new().discover(&settings);
    let info = &found.candidates[0];
    // SAFETY: only the thread of the test uses it.
    unsafe { VerbsProvider::new().open_serialized(info, &settings) }.unwrap()
}

/// An endpoint on a domain of its own.
pub(crate) fn endpoint(pairs: &[(&str, &str)]) -> OwningEndpoint {
    OwningEndpoint::open(&*domain(pairs), &AvAttr::default()).unwrap()
}

/// Two endpoints that know each other.
pub(crate) struct PeerPair {
    pub(crate) a: OwningEndpoint,
    pub(crate) b: OwningEndpoint,
    /// `b`, as `a` knows it.
    pub(crate) to_b: FiAddr,
    /// `a`, as `b` knows it.
    pub(crate) to_a: FiAddr,
}

impl PeerPair {
    pub(crate) fn open(pairs: &[(&str, &str)]) -> Self {
        let (a, b) = (endpoint(pairs), endpoint(pairs));
        let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
        let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
        Self { a, b, to_b, to_a }
    }

    /// As [`open`](Self::open), with a message each way behind them: connected.
    pub(crate) fn connected(pairs: &[(&str, &str)]) -> Self {
        let mut this = Self::open(pairs);
        for tag in 0..2 {
            this.exchange(8, tag);
        }
        this
    }

    /// A message each way, received and compared.
    pub(crate) fn exchange(&mut self, bytes: usize, tag: u64) {
        let seed = tag ^ ((bytes as u64) << 20);
        self.b
            .trecv(room(bytes), self.to_a, tag, 0, 1)
            .map_err(first)
            .unwrap();
        self.a
            .trecv(room(bytes), self.to_b, tag, 0, 2)
            .map_err(first)
            .unwrap();
        self.a
            .tsend(message(bytes, seed), bytes, self.to_b, tag, 3)
            .map_err(first)
            .unwrap();
        self.b
            .tsend(message(bytes, !seed), bytes, self.to_a, tag, 4)
            .map_err(first)
            .unwrap();
        for done in self.run(4) {
            let what = format!("{bytes} bytes, operation {}", done.token);
            assert!(done.outcome.is_ok(), "{what}: {:?}", done.outcome);
            match done.token {
                1 => check(&done.buffer[..bytes], seed, &what),
                2 => check(&done.buffer[..bytes], !seed, &what),
                _ => {}
            }
        }
    }

    /// Drives both until so many operations are over.
    pub(crate) fn run(&mut self, count: usize) -> Vec<OwnedCompletion> {
        run(&mut [&mut self.a, &mut self.b], count)
    }

    /// Drives both until they agree on what there is between them: a session that one side has
    /// given up has ended at the other, too, and a broken connection is gone, or another is there
    /// in its place.
    pub(crate) fn settle(&mut self, device: &FakeDevice) {
        self.rest(|this| {
            stat(&this.a, SESSIONS) == stat(&this.b, SESSIONS) && all_connected(device)
        });
    }

    /// Drives both until all buffers, credit and queue pairs are where they belong.
    pub(crate) fn balance(&mut self, device: &FakeDevice) {
        let begun = Instant::now();
        while let Some(missing) = [&self.a, &self.b]
            .iter()
            .find_map(|end| missing(device, end))
        {
            let pending = pending_operations([&self.a, &self.b]);
            assert!(begun.elapsed() < PATIENCE, "{missing}; {pending}");
            // Buffers that were lost on the device are found by the traffic that lacks them.
            (0..64).for_each(|tag| self.exchange(8, tag));
            self.rest(|_| true);
        }
    }

    /// Closes both, once everything is where it belongs.
    pub(crate) fn close(mut self, device: &FakeDevice) {
        self.balance(device);
        drop(self);
        assert_clean(device);
    }

    /// Drives both until `so` holds, and for a while nothing completes: packets that change no
    /// statistic, such as a datagram without news, have arrived by then.
    pub(crate) fn rest(&mut self, so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        let quiet = Duration::from_millis(20);
        let mut last = begun;
        while last.elapsed() < quiet {
            assert!(
                begun.elapsed() < PATIENCE,
                "the endpoints do not come to rest: {}",
                pending_operations([&self.a, &self.b])
            );
            let mut over = 0;
            for endpoint in [&mut self.a, &mut self.b] {
                over += usize::from(endpoint.poll().unwrap().is_some());
            }
            if over > 0 || !so(self) {
                last = Instant::now();
            }
        }
    }
}

/// Sessions that an endpoint has.
const SESSIONS: &str = "verbs_sessions_now";

/// One of an endpoint's counters.
pub(crate) fn stat(endpoint: &OwningEndpoint, name: &str) -> u64 {
    let stats = endpoint.stats().unwrap();
    stats.iter().find(|(n, _)| *n == name).unwrap().1
}

/// Names the resources that an endpoint without operations under way lacks: receive buffers that
/// neither the device nor the endpoint has, bounce buffers, credit, and queue pairs in error.
fn missing(device: &FakeDevice, end: &OwningEndpoint) -> Option<String> {
    let control = end.name().verbs.unwrap().qpn;
    let all = device.queue_pairs();
    let pd = all.iter().find(|qp| qp.number == control).unwrap().pd;
    let own = all.iter().filter(|qp| qp.pd == pd && qp.number != control);
    let (mut at_device, mut in_error) = (device.shared_receives(pd) as u64, 0);
    for qp in own {
        at_device += u64::from(qp.receives + qp.held);
        in_error += u32::from(qp.state == ibv_qp_state::IBV_QPS_ERR.0);
    }
    let receives = stat(end, "verbs_receive_buffers");
    let here = stat(end, "verbs_receives_to_post_now") + stat(end, "verbs_receives_held_now");
    let lost = ["verbs_bounces_lost_now", "verbs_credit_lost_now"].map(|name| stat(end, name));
    (receives != at_device + here || lost != [0, 0] || in_error > 0).then(|| {
        format!(
            "of {receives} receives the device has {at_device} and the endpoint {here}; \
             bounce buffers and credit lost: {lost:?}; {in_error} queue pairs in error"
        )
    })
}

/// The operations and statistics of endpoints, for a test that has waited for too long: operations
/// under way, and the statistics with the suffix `_now`.
pub(crate) fn pending_operations<'a>(ends: impl IntoIterator<Item = &'a OwningEndpoint>) -> String {
    let of = |(at, end): (usize, &OwningEndpoint)| {
        let stats = end.stats().unwrap().into_iter();
        let now = stats.filter(|(name, value)| name.ends_with("_now") && *value != 0);
        let now: Vec<_> = now.map(|(name, value)| format!("{name} {value}")).collect();
        let operations = end.in_flight();
        format!(
            "end {at}: {operations} operations under way, {}",
            now.join(", ")
        )
    };
    let all: Vec<_> = ends.into_iter().enumerate().map(of).collect();
    all.join("; ")
}

/// Whether each connection works, and has both its ends.
fn all_connected(device: &FakeDevice) -> bool {
    let all = device.queue_pairs();
    let mut connections = all.iter().filter(|qp| qp.kind == ibv_qp_type::IBV_QPT_RC.0);
    connections.all(|qp| {
        let other = all.iter().find(|other| other.number == qp.remote);
        qp.state == ibv_qp_state::IBV_QPS_RTS.0
            && other.is_some_and(|other| other.remote == qp.number)
    })
}

/// The error of a refused operation.
pub(crate) fn first<T>((error, _): (OpError, T)) -> OpError {
    error
}

/// Drives endpoints until that number of their operations is over.
pub(crate) fn run(endpoints: &mut [&mut OwningEndpoint], count: usize) -> Vec<OwnedCompletion> {
    let begun = Instant::now();
    let mut done = Vec::new();
    while done.len() < count {
        assert!(
            begun.elapsed() < PATIENCE,
            "{} of {count} operations are over: {done:?}; {}",
            done.len(),
            pending_operations(endpoints.iter().map(|end| &**end))
        );
        for endpoint in endpoints.iter_mut() {
            done.extend(endpoint.poll().unwrap());
        }
    }
    done
}

/// Room for a message.
pub(crate) fn room(bytes: usize) -> Buffer {
    Buffer::new(bytes).unwrap()
}

/// A message of its own.
pub(crate) fn message(bytes: usize, seed: u64) -> Buffer {
    let mut buffer = room(bytes);
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = byte_at(at, seed);
    }
    buffer
}

/// Checks that a message is as [`message`] made it.
pub(crate) fn check(bytes: &[u8], seed: u64, what: &str) {
    let wrong = bytes
        .iter()
        .enumerate()
        .find(|&(at, &byte)| byte != byte_at(at, seed));
    assert_eq!(wrong, None, "{what}: there and after it another byte");
}

fn byte_at(at: usize, seed: u64) -> u8 {
    let mixed = (at as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// Nothing is left, and nothing was done that must not be.
pub(crate) fn assert_clean(device: &FakeDevice) {
    // A thread that resolves an address may be on its way out.
    let begun = Instant::now();
    while device.live() != LiveObjects::default() && begun.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    assert_eq!(device.live(), LiveObjects::default(), "objects are left");
    assert_eq!(device.misuse(), "");
    assert_eq!(device.faults_left(), 0, "faults that did not strike");
}
