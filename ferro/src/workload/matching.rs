//! The workload of a receive queue of some depth: a few entries go, the same number of new ones
//! comes, and the time of the receiver's calls counts. Our side and the program that drives
//! others share it.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Entries that go at once: few enough for the shallowest queue, enough that the clock is small
/// beside them.
pub(crate) const BURST: usize = 8;

/// Tag of the message that says that those before it have come; it never waits in the queue.
const MARK: u64 = 1 << 62;

/// Bits of the tag that a masked receive does not look at.
const MASKED_BITS: u64 = 0xfff << 40;

/// The entries of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Receives.
    Posted,
    /// Messages.
    Unexpected,
}

/// The fields that a receive compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Source and tag.
    Exact,
    /// The tag.
    AnySource,
    /// The source and a part of the tag.
    Masked,
}

/// The order in which entries go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchOrder {
    /// The oldest.
    Oldest,
    /// Any.
    Random,
}

/// The names that options and results have for values.
macro_rules! named {
    ($type:ident: $($value:ident $name:literal),+) => {
        impl $type {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name),+
                }
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().find(|value| value.name() == text);
                found.copied().ok_or_else(|| {
                    format!("\"{text}\" is none of: {}", [$($name),+].join(", "))
                })
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named!(Side: Posted "posted", Unexpected "unexpected");
named!(Kind: Exact "exact", AnySource "any_source", Masked "masked");
named!(MatchOrder: Oldest "order", Random "random");

/// A receive of no bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    /// From whom: from anybody, or from the one sender.
    pub(crate) any_source: bool,
    pub(crate) tag: u64,
    /// Bits of the tag that do not count.
    pub(crate) ignore: u64,
}

impl Kind {
    /// The receive for the message with a tag.
    fn receive(self, tag: u64) -> Receive {
        let masked = self == Self::Masked;
        Receive {
            any_source: self == Self::AnySource,
            tag: if masked {
                tag | (MASKED_BITS & (0xabc << 40))
            } else {
                tag
            },
            ignore: if masked { MASKED_BITS } else { 0 },
        }
    }
}

/// A sender and a receiver, both driven by this thread.
pub(crate) trait Pair {
    /// Why a call failed.
    type Error;
    /// Posts a receive.
    fn post(&mut self, receive: Receive) -> Result<(), Self::Error>;
    /// Sends a message of no bytes; it has left for the receiver at return.
    fn send(&mut self, tag: u64) -> Result<(), Self::Error>;
    /// Drives the receiver until `receives` more receives are complete.
    fn reap(&mut self, receives: usize) -> Result<(), Self::Error>;
}

/// A queue that is kept at its depth.
pub(crate) struct Queue<P> {
    pair: P,
    side: Side,
    kind: Kind,
    order: MatchOrder,
    /// The tags that are in it; with [`MatchOrder::Oldest`] a ring.
    live: Vec<u64>,
    oldest: usize,
    next: u64,
    rng: fastrand::Rng,
}

impl<P: Pair> Queue<P> {
    /// Fills the queue to a depth of at least [`BURST`].
    pub(crate) fn fill(
        mut pair: P,
        (side, kind, order): (Side, Kind, MatchOrder),
        depth: usize,
    ) -> Result<Self, P::Error> {
        let live: Vec<u64> = (0..depth.max(BURST) as u64).collect();
        match side {
            Side::Posted => {
                for &tag in &live {
                    pair.post(kind.receive(tag))?;
                }
            }
            Side::Unexpected => {
                for burst in live.chunks(BURST) {
                    arrive(&mut pair, burst)?;
                }
            }
        }
        Ok(Self {
            pair,
            side,
            kind,
            order,
            next: live.len() as u64,
            live,
            oldest: 0,
            rng: fastrand::Rng::with_seed(0),
        })
    }

    /// Has [`BURST`] entries go and come. Returns the time of the receiver's calls.
    pub(crate) fn burst(&mut self) -> Result<Duration, P::Error> {
        let mut out = [0; BURST];
        let mut new = [0; BURST];
        for i in 0..BURST {
            new[i] = self.next;
            self.next += 1;
            out[i] = self.exchange(i, new[i]);
        }
        match self.side {
            Side::Posted => {
                for tag in out {
                    self.pair.send(tag)?;
                }
                let start = Instant::now();
                self.pair.reap(BURST)?;
                for tag in new {
                    self.pair.post(self.kind.receive(tag))?;
                }
                Ok(start.elapsed())
            }
            Side::Unexpected => {
                let start = Instant::now();
                for tag in out {
                    self.pair.post(self.kind.receive(tag))?;
                }
                self.pair.reap(BURST)?;
                let took = start.elapsed();
                Ok(took + arrive(&mut self.pair, &new)?)
            }
        }
    }

    /// Chooses what goes as the burst's number `i`, none that came in the same burst, and has `new`
    /// in its place.
    fn exchange(&mut self, i: usize, new: u64) -> u64 {
        let at = match self.order {
            MatchOrder::Oldest => self.oldest,
            // The burst's new ones are kept at the front.
            MatchOrder::Random => self.rng.usize(i..self.live.len()),
        };
        self.oldest = (self.oldest + 1) % self.live.len();
        let out = std::mem::replace(&mut self.live[at], new);
        if self.order == MatchOrder::Random {
            self.live.swap(i, at);
        }
        out
    }
}

/// Sends messages that no receive is posted for. Returns the time that the receiver took to take
/// them in.
fn arrive<P: Pair>(pair: &mut P, tags: &[u64]) -> Result<Duration, P::Error> {
    pair.post(Kind::Exact.receive(MARK))?;
    for &tag in tags {
        pair.send(tag)?;
    }
    pair.send(MARK)?;
    let start = Instant::now();
    pair.reap(1)?;
    Ok(start.elapsed())
}

/// Bursts until `time` is over. Returns what each took, in nanoseconds per entry.
pub(crate) fn sample<P: Pair>(queue: &mut Queue<P>, time: Duration) -> Result<Vec<f64>, P::Error> {
    let start = Instant::now();
    // The first finds the caches full of something else.
    queue.burst()?;
    let mut bursts = Vec::new();
    while bursts.is_empty() || start.elapsed() < time {
        bursts.push(queue.burst()?.as_nanos() as f64 / BURST as f64);
    }
    Ok(bursts)
}
