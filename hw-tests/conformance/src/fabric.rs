//! The fabric of a run, as the suite sees it: a way to open domains, and a few sizes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Info;
use ferrofabric_runtime::fabric::Domain;

/// Ranks that a run has at most.
pub const MAX_RANKS: usize = 6;

/// A fabric under test.
pub struct Fabric {
    /// Its name in reports.
    pub name: &'static str,
    /// Sizes in bytes at which something changes: how a message is sent, in how many pieces.
    pub thresholds: Vec<usize>,
    /// Longest message in bytes that random programs send.
    pub longest: usize,
    /// A random program in which nothing more happens for so long hangs.
    pub patience: Duration,
    /// Of a network that loses, repeats and reorders packets: after such a silence nothing is under
    /// way any more.
    pub silence: Option<Duration>,
    /// Two ranks for each kind of path.
    paths: Vec<(usize, usize)>,
    // Closed before what it takes to open them goes.
    domains: [OnceLock<Arc<dyn Domain>>; MAX_RANKS],
    open: Box<dyn Fn(usize) -> Arc<dyn Domain>>,
}

impl Fabric {
    /// A fabric on which rank `n` uses the domain that `open(n)` opens, below [`MAX_RANKS`]. Each
    /// rank has a domain of its own, so that driving one does not drive another.
    pub fn new(name: &'static str, open: impl Fn(usize) -> Arc<dyn Domain> + 'static) -> Self {
        Self {
            name,
            thresholds: Vec::new(),
            longest: 1 << 20,
            patience: Duration::from_secs(10),
            silence: None,
            paths: vec![(0, 1)],
            domains: Default::default(),
            open: Box::new(open),
        }
    }

    /// With sizes at which something changes.
    #[must_use]
    pub fn with_thresholds(mut self, bytes: &[usize]) -> Self {
        self.thresholds = bytes.to_vec();
        self
    }

    /// With no message in random programs longer than this.
    #[must_use]
    pub fn with_longest(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }

    /// With these as the pairs of ranks that scenarios of two use, one for each kind of path.
    #[must_use]
    pub fn with_paths(mut self, paths: &[(usize, usize)]) -> Self {
        self.paths = paths.to_vec();
        self
    }

    /// With more patience, or less.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// On a network that loses, repeats and reorders packets, and has delivered all that it will
    /// after such a silence.
    #[must_use]
    pub fn with_losses(mut self, silence: Duration) -> Self {
        self.silence = Some(silence);
        self
    }

    /// The domain of a rank, opened when first asked for.
    pub fn domain(&self, rank: usize) -> &dyn Domain {
        &**self.domains[rank].get_or_init(|| (self.open)(rank))
    }

    /// The offer that the domains were opened with.
    pub fn info(&self) -> &Info {
        self.domain(0).info()
    }

    /// Whether all of these flags are offered, as capabilities or as flags of operations.
    pub fn offers(&self, flags: Flags) -> bool {
        let info = self.info();
        let all = info.caps | info.tx.caps | info.rx.caps | info.tx.op_flags | info.rx.op_flags;
        all.contains(flags)
    }

    /// Two ranks for each kind of path.
    pub fn paths(&self) -> Vec<(usize, usize)> {
        self.paths.clone()
    }

    /// Those of the sizes that may be used.
    pub fn sizes(&self, all: &[usize]) -> Vec<usize> {
        let mut sizes = all.to_vec();
        sizes.retain(|&size| size <= self.longest);
        sizes
    }

    /// Sizes around each threshold and the limit of injects, none above `longest`, in order.
    pub fn edges(&self, longest: usize) -> Vec<usize> {
        let inject = self.info().tx.inject_size;
        let mut sizes: Vec<usize> = [0, 1, 7, 8, 9, 64]
            .into_iter()
            .chain(
                self.thresholds
                    .iter()
                    .chain([&inject])
                    .flat_map(|&at| [at.saturating_sub(1), at, at + 1]),
            )
            .filter(|&size| size <= longest)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}
