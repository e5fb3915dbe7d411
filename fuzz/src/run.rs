//! One target after the other: first its corpus, then changed inputs.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::mutate::{below, mutated};
use crate::{FuzzTarget, corpus};

/// The most inputs that a run keeps for their new observations.
const MOST_KEPT: usize = 1024;

/// The longest time that a target may need for one input.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a run goes.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Random inputs of each target.
    pub inputs: u64,
    /// The same seed gives the same inputs.
    pub seed: u64,
}

/// The result of a target's run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The target's name.
    pub target: &'static str,
    /// Inputs taken, the corpus' among them.
    pub inputs: u64,
    /// Different things that were seen.
    pub seen: usize,
    /// Time taken.
    pub took: Duration,
    /// Inputs that broke it, by the file they were written to, or by their number.
    pub broken: Vec<String>,
}

/// Runs a target, and writes down each input that breaks it by itself. After the first random one
/// that breaks it, alone or after others, the run stops.
///
/// # Panics
///
/// When the corpus can not be read, or an input written down.
pub fn run(target: &FuzzTarget, options: RunOptions) -> RunReport {
    let started = Instant::now();
    let watch = HangWatch::new(target);
    let mut report = RunReport {
        target: target.name,
        inputs: 0,
        seen: 0,
        took: Duration::ZERO,
        broken: Vec::new(),
    };
    let mut seen = HashSet::new();
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let stored = corpus::read(target).expect("the corpus can be read");
    let seeds = (target.seeds)();
    for (name, bytes) in stored.into_iter().chain(seeds) {
        report.inputs += 1;
        match watch.take(&bytes) {
            Some(what) => {
                seen.insert(what);
                kept.push(bytes);
            }
            None => report.broken.push(name),
        }
    }
    if kept.is_empty() {
        kept.push(Vec::new());
    }
    let mut random = Rng::with_seed(options.seed);
    for _ in 0..options.inputs {
        let from = &kept[below(&mut random, kept.len())];
        let other = &kept[below(&mut random, kept.len())];
        let bytes = mutated(from, other, target.words, &mut random);
        report.inputs += 1;
        match watch.take(&bytes) {
            Some(what) => {
                if seen.insert(what) && kept.len() < MOST_KEPT {
                    kept.push(bytes);
                }
            }
            None => {
                // The target has begun anew.
                let by_itself = watch.take(&bytes).is_none();
                report.broken.push(match by_itself {
                    true => store(target, &bytes),
                    false => format!(
                        "input {} of seed {}, after those before it: {bytes:02x?}",
                        report.inputs, options.seed
                    ),
                });
                break;
            }
        }
    }
    report.seen = seen.len();
    report.took = started.elapsed();
    report
}

fn store(target: &FuzzTarget, bytes: &[u8]) -> String {
    let name = format!("broke-{:016x}", crate::saw(bytes));
    let path = corpus::write(target, &name, bytes).expect("the input can be written down");
    path.display().to_string()
}

/// The input that is being taken, and since when.
type Current = Mutex<Option<(Instant, Vec<u8>)>>;

/// Sees to it that an input that takes for ever is known.
struct HangWatch {
    target: FuzzTarget,
    current: Arc<Current>,
    /// Dropping it ends the thread.
    _end: Sender<()>,
}

impl HangWatch {
    fn new(target: &FuzzTarget) -> Self {
        let (target, current) = (*target, Arc::default());
        let (end, ended) = channel();
        let watched = Arc::clone(&current);
        thread::spawn(move || watch(&target, &watched, &ended));
        Self {
            target,
            current,
            _end: end,
        }
    }

    /// The hash of the target's observations; `None` if the target panicked.
    fn take(&self, bytes: &[u8]) -> Option<u64> {
        self.set(Some((Instant::now(), bytes.to_vec())));
        let saw = catch_unwind(AssertUnwindSafe(|| (self.target.take)(bytes))).ok();
        self.set(None);
        saw
    }

    fn set(&self, value: Option<(Instant, Vec<u8>)>) {
        *self.current.lock().expect("nobody panics with it") = value;
    }
}

fn watch(target: &FuzzTarget, current: &Current, ended: &Receiver<()>) {
    while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        let current = current.lock().expect("nobody panics with it");
        if let Some((since, bytes)) = &*current {
            if since.elapsed() > PATIENCE {
                let path = store(target, bytes);
                eprintln!("{}: no end after {PATIENCE:?}: {path}", target.name);
                std::process::exit(1);
            }
        }
    }
}
