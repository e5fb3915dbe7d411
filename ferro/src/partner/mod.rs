//! The other side of a measurement: started here (`spawn`) or found over TCP (`tcp`); both agree on
//! what is to be done over a [`Channel`], and then exchange messages over a [`Link`].

mod spawn;
mod tcp;

use std::time::Duration;

use ferrofabric_contracts::info::{DomainAttr, Progress, Threading};

use crate::bound::BoundEndpoint;
use crate::channel::{Channel, PATIENCE};
use crate::cli::RunOptions;
use crate::failure::{Failure, Result};
use crate::link::{self, Link};
use crate::message::{Message, Outside, from_hex, to_hex};
use crate::providers::Path;
use crate::{phase, stations};

/// Runs `ask` on a link to the partner that the options name, which is outside of the library as
/// `outside` says.
///
/// # Errors
///
/// The failure of `ask`, or the reason why there is no partner.
pub(crate) fn with(
    options: &RunOptions,
    outside: Option<Outside>,
    ask: impl FnOnce(&mut Link) -> Result<()>,
) -> Result<()> {
    if let Some(address) = &options.address {
        return ask_over(tcp::connect(address)?, options, outside, ask).1;
    }
    let (mut child, channel) = spawn::start(options.cores)?;
    let (closed, result) = ask_over(channel, options, outside, ask);
    match result {
        Ok(()) => child.finish(),
        Err(failure) => Err(child.explain(failure, closed)),
    }
}

/// Waits for a partner at the address of `--listen` for some seconds, and does the partner's run.
///
/// # Errors
///
/// When the address is none, no partner comes, or the run fails.
pub(crate) fn listen(address: &str, patience_s: u64) -> Result<()> {
    let (channel, name) = tcp::accept(address, Duration::from_secs(patience_s))?;
    let route = serve(channel).map_err(Failure::of_partners_options)?;
    eprintln!("ferro: did what {name} asked for, over {route}");
    Ok(())
}

/// Serves the process that started this one.
///
/// # Errors
///
/// The failure of the run, which the other process prints.
pub(crate) fn serve_inherited() -> Result<()> {
    let mut channel = spawn::inherited()?;
    channel.greet()?;
    serve(channel)
        .map(drop)
        .map_err(Failure::printed_by_partner)
}

/// The side that initiates. Also says whether the partner closed the channel.
fn ask_over(
    mut channel: Channel,
    options: &RunOptions,
    outside: Option<Outside>,
    ask: impl FnOnce(&mut Link) -> Result<()>,
) -> (bool, Result<()>) {
    let opened = match channel.greet().and_then(|()| open(options.path, None)) {
        Ok(opened) => opened,
        Err(failure) => return (channel.is_closed(), tell(&mut channel, Err(failure))),
    };
    let address = match introduce(&mut channel, options, outside, &opened) {
        Ok(address) => address,
        Err(failure) => return (channel.is_closed(), tell(&mut channel, Err(failure))),
    };
    let patience = Duration::from_secs(options.patience);
    let mut link = match link::connect(opened, channel, &address, options.block, patience) {
        Ok(link) => link,
        Err(failure) => return (false, Err(failure)),
    };
    link.set_outside(outside);
    let result = ask(&mut link).and_then(|()| link.channel().send(&Message::Bye));
    let result = tell(link.channel(), result);
    (link.channel().is_closed(), result)
}

fn introduce(
    channel: &mut Channel,
    options: &RunOptions,
    outside: Option<Outside>,
    opened: &BoundEndpoint,
) -> Result<Vec<u8>> {
    channel.send(&Message::Hello {
        path: options.path,
        block: options.block,
        patience_s: options.patience,
        address: to_hex(&opened.address()),
        outside,
    })?;
    match channel.receive(PATIENCE)? {
        Message::Welcome { address, domain: _ } => from_hex(&address),
        _ => Err(out_of_turn()),
    }
}

/// The side that answers: takes part in each phase until the partner says goodbye. Returns the
/// route of the messages.
fn serve(mut channel: Channel) -> Result<String> {
    let start = channel.receive(PATIENCE).and_then(|message| match message {
        Message::Hello {
            path,
            block,
            patience_s,
            address,
            outside,
        } => Ok((path, block, patience_s, from_hex(&address)?, outside)),
        _ => Err(out_of_turn()),
    });
    let (path, block, patience_s, address, outside) = match start {
        Ok(start) => start,
        Err(failure) => return tell(&mut channel, Err(failure)),
    };
    let opened = match welcome(&mut channel, path, outside) {
        Ok(opened) => opened,
        Err(failure) => return tell(&mut channel, Err(failure)),
    };
    let patience = Duration::from_secs(patience_s.clamp(1, 86_400));
    let mut link = link::connect(opened, channel, &address, block, patience)?;
    link.set_outside(outside);
    let result = loop {
        match link.message() {
            Ok(Message::Phase(phase)) => {
                if let Err(failure) = phase::answer(&mut link, &phase) {
                    break Err(failure);
                }
            }
            Ok(Message::Stations(asked)) => {
                if let Err(failure) = stations::answer(&mut link, &asked) {
                    break Err(failure);
                }
            }
            Ok(Message::Bye) => break Ok(link.route()),
            Ok(_) => break Err(out_of_turn()),
            Err(failure) => break Err(failure),
        }
    };
    tell(link.channel(), result)
}

/// A link belongs to the thread that opens it. One whose domain serves a peer without it has
/// automatic progress.
fn open(path: Path, outside: Option<Outside>) -> Result<BoundEndpoint> {
    BoundEndpoint::open_on(path.open_with(DomainAttr {
        threading: Threading::Domain,
        data_progress: match outside {
            Some(_) => Progress::Auto,
            None => Progress::default(),
        },
        ..DomainAttr::default()
    })?)
}

fn welcome(channel: &mut Channel, path: Path, outside: Option<Outside>) -> Result<BoundEndpoint> {
    let opened = open(path, outside)?;
    channel.send(&Message::Welcome {
        address: to_hex(&opened.address()),
        domain: opened.domain_name().to_owned(),
    })?;
    Ok(opened)
}

/// Notifies the partner of a failure, so that it need not wait for us.
fn tell<T>(channel: &mut Channel, result: Result<T>) -> Result<T> {
    if let Err(failure) = &result {
        // It may be what has failed.
        let _ = channel.send(&Message::Failed {
            why: failure.to_string(),
        });
    }
    result
}

fn out_of_turn() -> Failure {
    Failure::new("the partner sent a message out of turn")
}
