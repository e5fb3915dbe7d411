//! `ferro pingpong`: does it work? Messages of each size there and back, the content of each
//! checked.

use serde::Serialize;

use crate::cli::RunOptions;
use crate::failure::Result;
use crate::link::Link;
use crate::message::{Pattern, Phase};
use crate::partner;
use crate::phase::echo;
use crate::report::{Results, TableColumn, Tabled};
use crate::sizes;

const DEFAULT_MESSAGES: u64 = 100;

/// The run of one size.
#[derive(Debug, Serialize)]
struct SizeChecked {
    size: usize,
    round_trips: u64,
    path: &'static str,
    domain: String,
    verified: bool,
}

/// Runs either side.
///
/// # Errors
///
/// When there is no partner, or a message is lost or damaged.
pub(crate) fn run(options: &RunOptions) -> Result<()> {
    if let Some(address) = &options.listen {
        return partner::listen(address, options.patience);
    }
    let sizes = &options.sizes.0;
    let mut results = Results::new(options.json, sizes.len());
    let mut route = String::new();
    partner::with(options, None, |link| {
        for &size in sizes {
            let step = format!("pingpong of {}", sizes::print(size));
            results.progress().step(step);
            results.add(one_size(link, size, options)?)?;
        }
        route = link.route();
        Ok(())
    })?;
    results.finish(&format!("over {route}")).map(drop)
}

impl Tabled for SizeChecked {
    const COLUMNS: &'static [TableColumn] = &[
        TableColumn::number("SIZE", 5),
        TableColumn::number("ROUND TRIPS", 0),
        TableColumn::number("DATA", 11),
    ];

    fn cells(&self) -> Vec<String> {
        let data = match self.verified {
            true => "verified",
            false => "not checked",
        };
        vec![
            sizes::print(self.size),
            self.round_trips.to_string(),
            data.to_owned(),
        ]
    }
}

fn one_size(link: &mut Link, size: usize, options: &RunOptions) -> Result<SizeChecked> {
    let phase = Phase {
        pattern: Pattern::Echo,
        size,
        messages: options.iters.unwrap_or(DEFAULT_MESSAGES) + options.warmup.unwrap_or(0),
        window: 1,
        verify: options.verifies(),
        mapped: false,
    };
    echo::ask(link, &phase, 1, &mut |_, _| {})?;
    Ok(SizeChecked {
        size,
        round_trips: phase.messages,
        path: link.carrier(),
        domain: link.domain_name().to_owned(),
        verified: phase.verify,
    })
}
