//! Small messages a second: a bandwidth run whose result is the count of messages.

use super::bandwidth::{Throughput, throughput};
use crate::cli::RunOptions;
use crate::failure::Result;
use crate::link::Link;
use crate::message::Pattern;
use crate::report::{Table, significant};
use crate::sizes;

/// Measures one size.
///
/// # Errors
///
/// When the partner is gone or an operation fails.
pub(super) fn measure(link: &mut Link, size: usize, options: &RunOptions) -> Result<Throughput> {
    throughput(link, size, options, "rate", Pattern::Stream)
}

/// All sizes in a table.
pub(super) fn table(results: &[Throughput]) -> Table {
    let mut table = Table::new(&["SIZE", "M MESSAGES/s", "MESSAGES", "WINDOW"], 0);
    for r in results {
        table.row(vec![
            sizes::print(r.size),
            significant(r.messages_per_s / 1e6),
            r.messages.to_string(),
            r.window.to_string(),
        ]);
    }
    table
}
