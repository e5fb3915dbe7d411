//! The end of a run's one-sided operations: all are over, and memory, CQ data and counters are as
//! the model's.

use super::one_sided::{RemoteWrite, content};
use super::regions::RegionUse;
use super::*;
use ferrofabric_contracts::types::RmaKind;

impl MessageRun<'_> {
    /// Whether all operations are over. Those without completion are when all are counted.
    pub(super) fn ops_are_over(&mut self) -> Result<bool, Wrong> {
        for at in 0..self.nodes.len() {
            let live = &self.nodes[at];
            if live.end.is_none() {
                continue;
            }
            let (mut counted, mut failed) = (0, 0);
            for kind in [RmaKind::Read, RmaKind::Write] {
                let (ok, errors) = live.cntrs_of(kind);
                counted += ok + errors;
                failed += errors;
            }
            let begun = live.ops.len() as u64;
            if counted > begun || failed < live.failed_ops {
                return Err(format!("node {at} counts {counted} of {begun} operations"));
            }
            // An error that is counted and not read yet may be that of any of them.
            if counted == begun && failed == live.failed_ops {
                for op in 0..self.ops.len() {
                    let RunOneSided {
                        from,
                        quiet,
                        succeeded,
                        ..
                    } = &self.ops[op];
                    if *from == at && *quiet && succeeded.is_none() {
                        let ended = self.ends_well(op);
                        ended.map_err(|why| format!("{why}: {}", self.ops[op].in_words()))?;
                    }
                }
            }
        }
        Ok(self.ops.iter().all(|op| op.succeeded.is_some()))
    }

    /// Waits for the CQ data and the counts at the targets, and checks all memory.
    pub(super) fn end_one_sided(&mut self) -> Result<(), Wrong> {
        self.until("one-sided operations do not end", |run| run.ops_are_over())?;
        self.until("CQ data of writes does not come", |run| {
            Ok(run.has_all_notices())
        })?;
        self.until("targets do not count", |run| {
            Ok((0..run.nodes.len()).all(|at| run.is_counted(at)))
        })?;
        self.settle()?;
        for at in 0..self.nodes.len() {
            self.check_counts(at)?;
        }
        let mut regions = self.regions.iter_mut().flatten();
        regions.try_for_each(RunRegion::judge_open_atomics)?;
        self.check_regions()
    }

    fn has_all_notices(&self) -> bool {
        let here = self.ops.iter().all(|op| {
            let is_due = op.succeeded == Some(true) && op.data.is_some();
            let target = &self.nodes[op.to];
            !is_due || op.noticed || target.end.is_none()
        });
        here && self.due_notices.iter().all(|(node, notice)| {
            let came = self.nodes[*node].notices.iter();
            came.filter(|came| *came == notice).count() == 1
        })
    }

    /// Operations of a kind on a node's memory, at least and at most.
    fn remote_ops(&self, at: NodeNumber, kind: RmaKind) -> (u64, u64) {
        let ops = self.ops.iter().filter(|op| op.to == at && op.kind == kind);
        let (mut least, mut most) = (0, 0);
        for op in ops {
            least += u64::from(op.succeeded == Some(true));
            most += u64::from(!op.is_refused());
        }
        (least, most)
    }

    fn is_counted(&self, at: NodeNumber) -> bool {
        let live = &self.nodes[at];
        let Some([reads, writes]) = live.remote_counts() else {
            return true;
        };
        live.end.is_none()
            || (reads >= self.remote_ops(at, RmaKind::Read).0
                && writes >= self.remote_ops(at, RmaKind::Write).0)
    }

    fn check_counts(&self, at: NodeNumber) -> Result<(), Wrong> {
        let live = &self.nodes[at];
        if live.end.is_none() {
            return Ok(());
        }
        for (kind, remote) in [(RmaKind::Read, 0), (RmaKind::Write, 1)] {
            let ops = self
                .ops
                .iter()
                .filter(|op| op.from == at && op.kind == kind);
            let succeeded = ops.clone().filter(|op| op.succeeded == Some(true)).count() as u64;
            let failed = ops.count() as u64 - succeeded;
            let counted = live.cntrs_of(kind);
            if counted != (succeeded, failed) {
                return Err(format!(
                    "node {at} counts {counted:?} {kind:?}s, {succeeded} and {failed} are over"
                ));
            }
            // Those of the other process are not listed here.
            let most = self.remote_ops(at, kind).1;
            if let Some(counts) = live.remote_counts().filter(|_| self.share.1 == 1) {
                if counts[remote] > most {
                    return Err(format!(
                        "node {at} counts {counts:?} of peers, {kind:?}s {most}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The operations that change regions of the other process.
    pub(super) fn written_elsewhere(&self) -> Vec<RemoteWrite> {
        let mut elsewhere = Vec::new();
        for op in &self.ops {
            if self.nodes[op.to].elsewhere && op.changes() {
                let region = &self.regions[op.region.0][op.region.1];
                elsewhere.push(op.to_remote(region));
            }
        }
        elsewhere
    }

    pub(super) fn note_written(&mut self, writes: Vec<RemoteWrite>) {
        for write in writes {
            let (rank, at) = write.region;
            let len = write.place.len();
            let region = &mut self.regions[rank][at];
            match write.succeeded {
                true => {
                    let bytes = write.after.unwrap_or_else(|| content(write.number, len));
                    region.note(write.place, &bytes);
                }
                false => region.begin(
                    RegionUse {
                        op: usize::MAX,
                        by: (0, write.to),
                        place: write.place,
                        writes: true,
                        is_lost: true,
                    },
                    None,
                ),
            }
            if let (true, Some(data)) = (write.succeeded, write.data) {
                self.due_notices.push((write.to, (data, len)));
            }
        }
    }
}
