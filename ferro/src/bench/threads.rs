//! `ferro bench rate --threads N`: messages a second of several threads in each of two processes, each with an endpoint of its own
//! domain, and a peer of its own: the sum of all. One message of a thread is under way at a time.

mod station;
mod workload;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::station::{Common, Station};
use self::workload::Crew;
use crate::cli::{MAX_ITERS, MAX_THREADS, RateOptions, RunOptions};
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::partner::channel::{Channel, Message};
use crate::partner::{self, from_hex, to_hex};
use crate::pattern::Direction;
use crate::providers::Path;
use crate::report::{Table, print_json, print_text, significant};
use crate::sizes::{self, MAX_BYTES, Sizes};

/// Messages of each thread whose content is checked.
const VERIFIED_MESSAGES: u64 = 64;

/// Messages of each thread before those that count, and at least as many count.
const FEWEST: u64 = 1000;

/// How long one size takes where the user does not say how many messages.
const TIME_PER_SIZE: Duration = Duration::from_millis(500);

/// The stations of one side: what the other has to open its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stations {
    path: Path,
    block: bool,
    patience_s: u64,
    size: usize,
    /// Native addresses in hexadecimal, one a thread.
    addresses: Vec<String>,
}

/// What one size gives.
#[derive(Debug, Serialize)]
struct ThreadRate {
    bench: &'static str,
    size: usize,
    threads: u32,
    path: &'static str,
    domain: String,
    /// Of each thread.
    messages: u64,
    /// 10⁶ bytes a second.
    megabytes_per_s: f64,
    messages_per_s: f64,
    blocking: bool,
    verified: bool,
}

/// Measures all that is asked for.
///
/// # Errors
///
/// When there is no partner, or a message is lost or damaged.
pub(super) fn run(options: &RateOptions, threads: u32) -> Result<()> {
    let run = &options.run;
    let sizes = match &run.sizes {
        Some(Sizes(sizes)) => sizes.clone(),
        None => vec![64],
    };
    let mut results = Vec::new();
    partner::with(run, |link| {
        for size in sizes {
            results.push(measure(link, size, threads, run)?);
        }
        Ok(())
    })?;
    match run.json {
        true => print_json(&results),
        false => print_text(&table(&results).to_string()),
    }
}

fn measure(link: &mut Link, size: usize, threads: u32, options: &RunOptions) -> Result<ThreadRate> {
    let common = Common {
        path: options.path,
        size,
        side: Direction::There,
        block: options.block,
        patience: Duration::from_secs(options.patience),
        gone: Arc::default(),
    };
    let crew = open(&common, threads as usize)?;
    link.channel().send(&Message::Stations(Stations {
        path: options.path,
        block: options.block,
        patience_s: options.patience,
        size,
        addresses: addresses(&crew)?,
    }))?;
    let (carrier, domain) = match link.message()? {
        Message::Addresses(theirs) => meet(&crew, theirs)?,
        _ => return Err(Failure::new("the partner said no addresses")),
    };
    let mut stretch = |messages, verify| {
        link.channel()
            .send(&Message::Stretch { messages, verify })?;
        match link.message()? {
            Message::Ready => {}
            _ => return Err(Failure::new("the partner is not ready to receive")),
        }
        verifies(&crew, verify)?;
        watched(link.channel(), &common.gone, |watch| {
            crew.send_all(messages, watch)
        })
    };
    if options.verifies() {
        stretch(VERIFIED_MESSAGES, true)?;
    }
    let warm_up = options.warmup.unwrap_or(FEWEST).max(1);
    let each_s = stretch(warm_up, false)?.as_secs_f64() / warm_up as f64;
    let messages = options.iters.unwrap_or_else(|| {
        let fit = TIME_PER_SIZE.as_secs_f64() / each_s.max(1e-9);
        (fit as u64).clamp(FEWEST, MAX_ITERS)
    });
    let took = stretch(messages, false)?.as_secs_f64().max(1e-9);
    link.channel().send(&Message::Done)?;
    let messages_per_s = messages as f64 * f64::from(threads) / took;
    Ok(ThreadRate {
        bench: "rate",
        size,
        threads,
        path: carrier,
        domain,
        messages,
        megabytes_per_s: messages_per_s * size as f64 / 1e6,
        messages_per_s,
        blocking: options.block,
        verified: options.verifies(),
    })
}

/// The answering side's part, until the other one has what it wants.
///
/// # Errors
///
/// When what is asked for is impossible, a message is damaged, or the partner is gone.
pub(crate) fn answer(link: &mut Link, asked: &Stations) -> Result<()> {
    let threads = asked.addresses.len();
    if threads == 0 || threads as i64 > MAX_THREADS || asked.size > MAX_BYTES {
        return Err(Failure::new(format!(
            "{threads} threads with messages of {} bytes are not possible",
            asked.size
        )));
    }
    let common = Common {
        path: asked.path,
        size: asked.size,
        side: Direction::Back,
        block: asked.block,
        patience: Duration::from_secs(asked.patience_s.clamp(1, 86_400)),
        gone: Arc::default(),
    };
    let crew = open(&common, threads)?;
    meet(&crew, asked.addresses.clone())?;
    let own = addresses(&crew)?;
    link.channel().send(&Message::Addresses(own))?;
    loop {
        match link.message()? {
            Message::Stretch { messages, verify } => {
                verifies(&crew, verify)?;
                link.channel().send(&Message::Ready)?;
                watched(link.channel(), &common.gone, |watch| {
                    crew.receive_all(messages, watch)
                })?;
            }
            Message::Done => return Ok(()),
            _ => return Err(Failure::new("the partner sent a message out of turn")),
        }
    }
}

fn open(common: &Common, threads: usize) -> Result<Crew<Station>> {
    let common = common.clone();
    Crew::start(threads, move || Station::open(&common))
}

fn addresses(crew: &Crew<Station>) -> Result<Vec<String>> {
    crew.each(|| (), |_, station| Ok(to_hex(&station.address())))
}

fn verifies(crew: &Crew<Station>, verify: bool) -> Result<()> {
    crew.each(
        || (),
        move |_, station| {
            station.set_verify(verify);
            Ok(())
        },
    )?;
    Ok(())
}

/// Gives each station its peer. Returns what carries the messages of all, and the name of the domain.
fn meet(crew: &Crew<Station>, addresses: Vec<String>) -> Result<(&'static str, String)> {
    let met = crew.each(
        || (),
        move |number, station| {
            let other = || Failure::new("the partner has another number of threads");
            let address = addresses.get(number).ok_or_else(other)?;
            let carrier = station.meet(&from_hex(address)?)?;
            Ok((carrier, station.domain_name().to_owned()))
        },
    )?;
    let none = || Failure::new("no thread");
    met.into_iter().next().ok_or_else(none)
}

/// Works with the threads, and has them stop when the other side fails or goes away, which is what is then said.
fn watched<T>(
    channel: &mut Channel,
    gone: &AtomicBool,
    work: impl FnOnce(&mut dyn FnMut()) -> Result<T>,
) -> Result<T> {
    let mut failed = Ok(());
    let result = work(&mut || {
        if failed.is_ok() {
            failed = channel.check();
            gone.store(failed.is_err(), Ordering::Relaxed);
        }
    });
    // Whoever is done first may say goodbye.
    match (result, failed) {
        (Err(_), Err(failure)) => Err(failure),
        (result, _) => result,
    }
}

fn table(results: &[ThreadRate]) -> Table {
    let header = [
        "SIZE",
        "THREADS",
        "M MESSAGES/s",
        "MB/s",
        "MESSAGES",
        "PATH",
    ];
    let mut table = Table::new(&header, 0);
    for r in results {
        table.row(vec![
            sizes::print(r.size),
            r.threads.to_string(),
            significant(r.messages_per_s / 1e6),
            significant(r.megabytes_per_s),
            r.messages.to_string(),
            r.path.to_owned(),
        ]);
    }
    table
}
