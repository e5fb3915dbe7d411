//! Control verbs that take a NIC a millisecond each, by a clock that is set by hand: a verb sleeps
//! until the test has set the clock so far forward.
//!
//! The test sets it forward as soon as each worker is in a verb, so that no worker could begin one
//! at that time, or when nothing changes any more. If it is too early the latter time, a verb ends
//! later by the clock than it might have: the measured time is never too short.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::FakeDevice;
use ferrofabric_runtime::fabric::Domain;
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_system::clock::HandClock;

use crate::endpoints::nic::has_lanes_for;
use crate::endpoints::party::{PATIENCE, assert_clean, domain_at, first, message, room, stat};

const STEP: Duration = Duration::from_millis(1);

/// The clock of the verbs.
static CLOCK: Mutex<Option<Arc<HandClock>>> = Mutex::new(None);

thread_local! {
    /// This thread sets the clock.
    static SETS_CLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Sleeps by that clock. The thread that sets the clock drives endpoints, too, which call a few
/// verbs themselves: nobody would wake it.
extern "C" fn sleep(micros: u64) {
    let clock = CLOCK.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (Some(clock), span) = (clock, Duration::from_micros(micros)) else {
        return;
    };
    match SETS_CLOCK.get() {
        true => clock.advance(span),
        false => clock.sleep(span),
    }
}

/// Whether no other thread of this process runs, or waits for a processor.
fn all_others_sleep() -> bool {
    // SAFETY: the call has no requirements.
    let this = unsafe { libc::gettid() }.to_string();
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads.flatten().all(|thread| {
        // The state stands behind the name, which is in brackets.
        let text = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let runs = text
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('R'));
        !runs || thread.file_name() == *this
    })
}

/// A device whose control verbs take a step each, as long as it is slow.
struct SlowDevice {
    device: FakeDevice,
    clock: Arc<HandClock>,
}

impl SlowDevice {
    fn take() -> Self {
        let device = FakeDevice::take();
        let clock = Arc::new(HandClock::new());
        SETS_CLOCK.set(true);
        *CLOCK.lock().unwrap_or_else(PoisonError::into_inner) = Some(clock.clone());
        Self { device, clock }
    }

    fn is_slow(&self, slow: bool) {
        let micros = STEP.as_micros() as u64;
        self.device
            .control_calls(micros, slow.then_some(sleep as extern "C" fn(u64)));
    }

    /// Drives endpoints until `so` holds, and sets the clock forward meanwhile. `busy` verbs are as
    /// many as there can be at a time. Returns the time that has passed.
    fn run(&self, busy: usize, mut so: impl FnMut() -> bool) -> Duration {
        /// Looks that find nothing new, after which nothing changes any more.
        const CALM: u32 = 100;

        let (begun, mut steps) = (Instant::now(), 0);
        let (mut before, mut looks) = (0, 0);
        while !so() {
            assert!(begun.elapsed() < PATIENCE, "after {steps} steps");
            let sleeping = self.clock.sleeping();
            looks = if sleeping == before { looks + 1 } else { 0 };
            before = sleeping;
            if sleeping >= busy || (looks > CALM && all_others_sleep()) {
                self.clock.advance(STEP);
                steps += 1;
                looks = 0;
            }
            std::thread::yield_now();
        }
        STEP * steps
    }
}

/// Endpoints of one domain, all with the same peer.
struct Star {
    // The leaves close first, and the hub answers them.
    leaves: Vec<OwningEndpoint>,
    hub: OwningEndpoint,
}

impl Star {
    fn open(domain: &Arc<dyn Domain>, leaves: usize) -> Self {
        let open = || OwningEndpoint::open(&**domain, &AvAttr::default()).unwrap();
        Self {
            hub: open(),
            leaves: (0..leaves).map(|_| open()).collect(),
        }
    }

    /// Sends a message from each leaf to the hub. The lanes are up when it has arrived.
    fn greet(&mut self) {
        for leaf in &mut self.leaves {
            let receive = self.hub.trecv(room(8), FiAddr::UNSPEC, 1, 0, 1);
            receive.map_err(first).unwrap();
            let to_hub = leaf.av().insert(&self.hub.name().to_bytes()).unwrap();
            let sent = leaf.tsend(message(8, 1), 8, to_hub, 1, 2);
            sent.map_err(first).unwrap();
        }
    }

    /// The messages that have arrived since the last call.
    fn arrived(&mut self) -> usize {
        let mut arrived = 0;
        while let Some(done) = self.hub.poll().unwrap() {
            assert!(done.outcome.is_ok(), "{:?}", done.outcome);
            arrived += 1;
        }
        arrived
    }
}

/// The time in which lanes from `leaves` endpoints to one are up, at both ends.
fn time_to_connect(leaves: usize, threads: usize) -> Duration {
    let slow = SlowDevice::take();
    let text = threads.to_string();
    let settings = [
        ("FERRO_LANE", "rc"),
        ("FERRO_RX_BUFFERS", "16"),
        ("FERRO_CONTROL_THREADS", text.as_str()),
    ];
    let domain = domain_at(&slow.clock, &settings);
    let mut star = Star::open(&domain, leaves);
    slow.is_slow(true);
    star.greet();
    let mut arrived = 0;
    let time = slow.run(threads, || {
        arrived += star.arrived();
        arrived == leaves
    });
    assert_eq!(stat(&star.hub, "verbs_lanes_failed"), 0);
    slow.is_slow(false);
    while slow.clock.sleeping() > 0 {
        slow.clock.advance(STEP);
    }
    drop((star, domain));
    assert_clean(&slow.device);
    println!("{leaves} lanes by {threads} workers: {time:?}");
    time
}

/// A lane takes four verbs at each end: 8000 for a thousand lanes, here from one process.
#[test]
fn a_thousand_lanes_are_up_in_two_seconds() {
    if !has_lanes_for(1000) {
        return;
    }
    let time = time_to_connect(1000, 8);
    assert!(time < Duration::from_secs(2), "{time:?}");
}

/// Workers carry out verbs at the same time: eight take an eighth of the time of one, which is that
/// of all verbs.
#[test]
fn workers_share_the_verbs() {
    const LANES: usize = 40;
    if !has_lanes_for(LANES) {
        return;
    }
    let (of_one, of_eight) = (time_to_connect(LANES, 1), time_to_connect(LANES, 8));
    let verbs = STEP * 8 * LANES as u32;
    assert!(of_one >= verbs, "{of_one:?}");
    assert!(
        of_eight >= verbs / 8 && of_eight < verbs / 4,
        "{of_eight:?}"
    );
}

/// An endpoint that closes waits for its verbs under way, and nothing of them is left.
#[test]
fn an_endpoint_that_closes_waits_for_its_verbs() {
    const LANES: usize = 20;

    // Each time it closes in another step of its lanes.
    for steps in 0..12 {
        let slow = SlowDevice::take();
        let settings = [("FERRO_LANE", "rc"), ("FERRO_CONTROL_THREADS", "4")];
        let domain = domain_at(&slow.clock, &settings);
        let mut star = Star::open(&domain, LANES);
        slow.is_slow(true);
        star.greet();
        for _ in 0..steps {
            slow.run(4, || {
                star.arrived();
                slow.clock.sleeping() == 4
            });
            slow.clock.advance(STEP);
        }
        let closing = std::thread::spawn(move || drop((star, domain)));
        while !closing.is_finished() {
            slow.clock.advance(STEP);
            std::thread::yield_now();
        }
        closing.join().unwrap();
        slow.is_slow(false);
        assert_clean(&slow.device);
    }
}
