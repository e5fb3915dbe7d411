//! Counters that many processes add to. The fetched values are those of some order of all
//! additions: each value once.

use std::time::Instant;

use fastrand::Rng;
use ferrofabric_av::AvAttr;
use ferrofabric_contracts::atomics::{AtomicForm, AtomicOp, AtomicOperator};
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::types::{FiAddr, MrDesc};
use ferrofabric_runtime::owning::{AtomicElement, AtomicValues, OwningEndpoint, SharedElements};
use ferrofabric_verbs::fault;

use crate::party::{self, PATIENCE, succeeded, wait};

/// Elements of 64 bits: a counter, the sum of the values that were fetched from it, the sum of
/// those from the counter of 32 bits, and the processes that have finished.
const COUNTER: usize = 0;
const FETCHED: usize = 1;
const FETCHED_NARROW: usize = 2;
const FINISHED: usize = 3;

/// The process that has the counters.
pub struct CountingHub {
    /// Its endpoint.
    pub endpoint: OwningEndpoint,
    wide: SharedElements<u64>,
    narrow: SharedElements<u32>,
}

impl CountingHub {
    /// Opens an endpoint, with the settings of the environment but for those given, and shares
    /// counters that are 0.
    pub fn open(overrides: &[(&str, &str)]) -> Self {
        let domain = party::domain(overrides);
        let rights = Rights::all();
        Self {
            endpoint: OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap(),
            wide: SharedElements::open(&*domain, &[0; 4], rights).unwrap(),
            narrow: SharedElements::open(&*domain, &[0], rights).unwrap(),
        }
    }

    /// The arguments of the role `adder`: additions to each counter, and how rarely it breaks its
    /// lanes, 0 for never.
    pub fn adder(&self, additions: u64, rarity: u64) -> [u64; 4] {
        [self.wide.key(), self.narrow.key(), additions, rarity]
    }

    /// Carries operations out until so many processes have finished, and breaks its lanes now and
    /// then, where `rarity` is not 0: once in so many additions. Checks the counters, each of which
    /// has these additions of all processes together. Returns the number of breaks.
    ///
    /// # Panics
    ///
    /// If nothing is added for long, or an addition is lost or came twice.
    pub fn count(&mut self, processes: u64, additions: u64, rarity: u64) -> u64 {
        let mut rng = Rng::new();
        let seed = rng.get_seed();
        let mut next_break = || match rarity {
            0 => u64::MAX,
            _ => rng.u64(1..2 * rarity),
        };
        let (mut break_at, mut breaks) = (next_break(), 0);
        let (mut last, mut since) = (0, Instant::now());
        while self.wide.load(FINISHED).unwrap() < processes {
            assert!(self.endpoint.poll().unwrap().is_none());
            let now = self.wide.load(COUNTER).unwrap();
            if now >= break_at {
                break_at = now.saturating_add(next_break());
                breaks += 1;
                fault::break_lanes();
            }
            if now != last {
                (last, since) = (now, Instant::now());
            }
            assert!(since.elapsed() < PATIENCE, "stands at {now}, seed {seed}");
        }
        let fetched = additions * (additions - 1) / 2;
        let wide = [COUNTER, FETCHED, FETCHED_NARROW].map(|at| self.wide.load(at).unwrap());
        assert_eq!(wide, [additions, fetched, fetched], "seed {seed}");
        assert_eq!(u64::from(self.narrow.load(0).unwrap()), additions);
        breaks
    }

    /// Carries operations out until this says that all initiators have ended: the reply to the last
    /// one may have to be sent again.
    ///
    /// # Panics
    ///
    /// If that takes long.
    pub fn serve_until(&mut self, mut have_ended: impl FnMut() -> bool) {
        let since = Instant::now();
        while !have_ended() {
            assert!(self.endpoint.poll().unwrap().is_none());
            assert!(since.elapsed() < PATIENCE, "an initiator does not end");
        }
    }

    /// Sessions of its endpoint that a lane was made anew for.
    pub fn resumed(&self) -> u64 {
        let stats = self.endpoint.stats().unwrap();
        let resumed = (stats.iter()).find(|(name, _)| *name == "verbs_sessions_resumed");
        resumed.expect("the endpoint has verbs").1
    }
}

/// An initiator.
struct Adder {
    endpoint: OwningEndpoint,
    hub: FiAddr,
}

impl Adder {
    /// Adds to an element, and returns its value from before.
    fn add<E: AtomicElement>(&mut self, key: u64, index: usize, operand: E) -> u64 {
        let op = AtomicOp {
            form: AtomicForm::Fetch,
            operator: AtomicOperator::Sum,
            datatype: E::DATATYPE,
            dest: self.hub,
            key,
            place: (index * size_of::<E>()) as u64,
            desc: MrDesc::NONE,
            context: 0,
            flags: Flags::empty(),
        };
        let values = AtomicValues {
            operands: &[operand],
            compares: &[],
            results: 1,
        };
        while let Err(error) = self.endpoint.post_atomic(op, values, 0) {
            assert_eq!(error, OpError::Again, "an addition is refused");
            assert!(self.endpoint.poll().unwrap().is_none());
        }
        let done = wait(&mut self.endpoint);
        succeeded(done.outcome);
        let mut word = [0; 8];
        word[..size_of::<E>()].copy_from_slice(&done.buffer);
        u64::from_le_bytes(word)
    }
}

/// The role `adder` of `test-peer`, with the arguments of [`CountingHub::adder`].
pub fn adder(numbers: &[u64]) {
    let &[wide, narrow, additions, rarity] = numbers else {
        panic!("adder KEY-64 KEY-32 ADDITIONS RARITY");
    };
    let endpoint = party::endpoint(&[]);
    let hub = party::report(&endpoint.name());
    // The hub answers initiators that it has not inserted.
    let hub = endpoint.av().insert(&hub.to_bytes()).unwrap();
    let mut adder = Adder { endpoint, hub };
    let (mut last, mut last_narrow) = (None, None);
    let (mut sum, mut sum_narrow) = (0, 0);
    let mut rng = Rng::new();
    println!("adder {}: seed {}", std::process::id(), rng.get_seed());
    for _ in 0..additions {
        let now = adder.add(wide, COUNTER, 1u64);
        assert!(last < Some(now), "{now} after {last:?}");
        last = Some(now);
        sum += now;
        let now = adder.add(narrow, 0, 1u32);
        assert!(last_narrow < Some(now), "{now} after {last_narrow:?}");
        last_narrow = Some(now);
        sum_narrow += now;
        if rarity != 0 && rng.u64(..rarity) == 0 {
            fault::break_lanes();
        }
    }
    adder.add(wide, FETCHED, sum);
    adder.add(wide, FETCHED_NARROW, sum_narrow);
    adder.add(wide, FINISHED, 1u64);
}
