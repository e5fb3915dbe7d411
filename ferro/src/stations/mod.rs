//! Several threads in each of two processes, each with an endpoint of its own domain, and a peer of
//! its own: the side that initiates, and the one that answers.

mod station;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::channel::Channel;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::message::{MAX_THREADS, Message, Stations, from_hex, to_hex};
use crate::pattern::Direction;
use crate::sizes::MAX_BYTES;
use crate::workload::threads::Crew;
use station::{Common, Station};

/// The asking side: stations that have met those of the other one.
pub(crate) struct Asking<'a> {
    link: &'a mut Link,
    crew: Crew<Station>,
    gone: Arc<AtomicBool>,
    /// The transport of the messages.
    pub(crate) carrier: &'static str,
    /// The name of the domain.
    pub(crate) domain: String,
}

impl<'a> Asking<'a> {
    /// Opens `threads` stations, and has the other side open the same number. Their addresses are
    /// filled in.
    ///
    /// # Errors
    ///
    /// When they can not be opened, or the partner can not open its own.
    pub(crate) fn begin(link: &'a mut Link, mut asked: Stations, threads: usize) -> Result<Self> {
        let common = Common::of(&asked, Direction::There);
        let crew = open(&common, threads)?;
        asked.addresses = addresses(&crew)?;
        link.channel().send(&Message::Stations(asked))?;
        let (carrier, domain) = match link.message()? {
            Message::Addresses(theirs) => meet(&crew, theirs)?,
            _ => return Err(Failure::new("the partner said no addresses")),
        };
        Ok(Self {
            link,
            crew,
            gone: common.gone,
            carrier,
            domain,
        })
    }

    /// Each station sends so many messages. Returns how long all took.
    ///
    /// # Errors
    ///
    /// When a message is lost or damaged, or the partner is gone.
    pub(crate) fn stretch(&mut self, messages: u64, verify: bool) -> Result<Duration> {
        let Self { link, crew, .. } = self;
        link.channel()
            .send(&Message::Stretch { messages, verify })?;
        match link.message()? {
            Message::Ready => {}
            _ => return Err(Failure::new("the partner is not ready to receive")),
        }
        verifies(crew, verify)?;
        watched(link.channel(), &self.gone, |watch| {
            crew.send_all(messages, watch)
        })
    }

    /// Notifies the partner that its stations are needed no longer.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub(crate) fn finish(self) -> Result<()> {
        self.link.channel().send(&Message::Done)
    }
}

/// The answering side's part, until the other side is done.
///
/// # Errors
///
/// When the request is impossible, a message is damaged, or the partner is gone.
pub(crate) fn answer(link: &mut Link, asked: &Stations) -> Result<()> {
    let threads = asked.addresses.len();
    if threads == 0 || threads as i64 > MAX_THREADS || asked.size > MAX_BYTES {
        return Err(Failure::new(format!(
            "{threads} threads with messages of {} bytes are not possible",
            asked.size
        )));
    }
    let common = Common::of(asked, Direction::Back);
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

/// Gives each station its peer. Returns the transport of the messages, and the name of the domain.
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

/// Works with the threads, and stops them when the other side fails or goes away. The failure of
/// the other side then replaces theirs.
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
    // The side that is done first may close the channel.
    match (result, failed) {
        (Err(_), Err(failure)) => Err(failure),
        (result, _) => result,
    }
}
