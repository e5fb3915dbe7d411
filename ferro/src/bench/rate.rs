//! Small messages a second: a bandwidth run whose result is the count of messages.

use serde::Serialize;

use super::bandwidth::{Throughput, throughput};
use crate::cli::BandwidthOptions;
use crate::failure::Result;
use crate::link::Link;
use crate::message::Pattern;
use crate::plot::{Plotted, Point};
use crate::report::{TableColumn, Tabled, significant};
use crate::sizes;

/// The rate of one size.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Rate(Throughput);

/// Measures one size.
///
/// # Errors
///
/// When the partner is gone or an operation fails.
pub(super) fn measure(link: &mut Link, size: usize, options: &BandwidthOptions) -> Result<Rate> {
    throughput(link, size, options, "rate", Pattern::Stream).map(Rate)
}

impl Tabled for Rate {
    const COLUMNS: &'static [TableColumn] = &[
        TableColumn::number("SIZE", 5),
        TableColumn::number("M MESSAGES/s", 0),
        TableColumn::number("MESSAGES", 10),
        TableColumn::number("WINDOW", 0),
    ];

    fn cells(&self) -> Vec<String> {
        let Self(rate) = self;
        vec![
            sizes::print(rate.size),
            significant(rate.messages_per_s / 1e6),
            rate.messages.to_string(),
            rate.window.to_string(),
        ]
    }
}

impl Plotted for Rate {
    fn points(&self) -> Vec<Point> {
        vec![rate_point(self.0.size, self.0.path, self.0.messages_per_s)]
    }
}

/// The point of a rate, of one thread or several.
pub(super) fn rate_point(size: usize, path: &str, messages_per_s: f64) -> Point {
    Point {
        picture: "rate".to_owned(),
        caption: "message rate".to_owned(),
        axes: ("message size".to_owned(), "messages/s".to_owned()),
        line: path.to_owned(),
        at: (size as f64, messages_per_s),
    }
}
