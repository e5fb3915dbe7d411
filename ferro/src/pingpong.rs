//! `ferro pingpong`: does it work? Messages of each size there and back, the content of each
//! checked.

use serde::Serialize;

use crate::cli::RunOptions;
use crate::failure::Result;
use crate::link::Link;
use crate::message::{Pattern, Phase};
use crate::partner;
use crate::phase::echo;
use crate::report::{Table, print_json, print_text};
use crate::sizes::{self, Sizes};

const DEFAULT_MESSAGES: u64 = 100;

/// What became of one size.
#[derive(Debug, Serialize)]
struct Outcome {
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
    if options.listen.is_some() {
        return partner::listen(options);
    }
    let mut outcomes = Vec::new();
    let mut route = String::new();
    partner::with(options, |link| {
        for size in sizes_of(options) {
            outcomes.push(one_size(link, size, options)?);
        }
        route = link.route();
        Ok(())
    })?;
    if options.json {
        return print_json(&outcomes);
    }
    let mut table = Table::new(&["SIZE", "ROUND TRIPS", "DATA"], 0);
    for o in &outcomes {
        let data = if o.verified {
            "verified"
        } else {
            "not checked"
        };
        table.row(vec![
            sizes::print(o.size),
            o.round_trips.to_string(),
            data.to_owned(),
        ]);
    }
    print_text(&format!("{table}over {route}\n"))
}

fn sizes_of(options: &RunOptions) -> Vec<usize> {
    match &options.sizes {
        Some(Sizes(sizes)) => sizes.clone(),
        None => vec![0, 8, 4 << 10, 64 << 10, 1 << 20],
    }
}

fn one_size(link: &mut Link, size: usize, options: &RunOptions) -> Result<Outcome> {
    let phase = Phase {
        pattern: Pattern::Echo,
        size,
        messages: options.iters.unwrap_or(DEFAULT_MESSAGES) + options.warmup.unwrap_or(0),
        window: 1,
        verify: options.verifies(),
    };
    echo::ask(link, &phase, 1, &mut |_, _| {})?;
    Ok(Outcome {
        size,
        round_trips: phase.messages,
        path: link.carrier(),
        domain: link.domain_name().to_owned(),
        verified: phase.verify,
    })
}
