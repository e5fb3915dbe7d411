//! The counters of an endpoint's one-sided operations.

use std::sync::Arc;

use ferrofabric_contracts::types::RmaKind;
use ferrofabric_runtime::fabric::{Cntr, CntrAttr, Domain, EndpointConfig};

use super::RunNode;

/// Counters of an endpoint's one-sided operations, and of its peers' on its memory, if they are
/// bound.
pub(super) struct OneSidedCounters {
    reads: Arc<dyn Cntr>,
    writes: Arc<dyn Cntr>,
    remote: Option<[Arc<dyn Cntr>; 2]>,
}

impl OneSidedCounters {
    pub(super) fn open(domain: &dyn Domain, with_remote: bool) -> Self {
        let open = || domain.open_cntr(&CntrAttr::default()).unwrap();
        Self {
            reads: open(),
            writes: open(),
            remote: with_remote.then(|| [open(), open()]),
        }
    }

    pub(super) fn bind(&self, config: &mut EndpointConfig) {
        config.read_cntr = Some(self.reads.clone());
        config.write_cntr = Some(self.writes.clone());
        if let Some([reads, writes]) = &self.remote {
            config.remote_read_cntr = Some(reads.clone());
            config.remote_write_cntr = Some(writes.clone());
        }
    }

    /// Successes and errors so far.
    fn of(&self, kind: RmaKind) -> (u64, u64) {
        let cntr = match kind {
            RmaKind::Read => &self.reads,
            RmaKind::Write => &self.writes,
        };
        (cntr.read().unwrap(), cntr.read_errors().unwrap())
    }
}

impl RunNode {
    /// Successes and errors so far.
    pub(super) fn cntrs_of(&self, kind: RmaKind) -> (u64, u64) {
        self.cntrs.as_ref().map_or((0, 0), |cntrs| cntrs.of(kind))
    }

    /// Reads and writes of peers that were counted, where they are.
    pub(super) fn remote_counts(&self) -> Option<[u64; 2]> {
        let [reads, writes] = self.cntrs.as_ref()?.remote.as_ref()?;
        Some([reads, writes].map(|cntr| cntr.read().unwrap()))
    }
}
