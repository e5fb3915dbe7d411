//! The messages with which the two sides of a run agree on it. Each is checked, since any process
//! may have sent it.

use clap::ValueEnum;
use ferrofabric_contracts::flags::Flags;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::providers::Path;
use crate::sizes::{self, MAX_BYTES};

/// The most messages of a phase.
pub(crate) const MAX_ITERS: u64 = 1 << 40;

/// The most threads of a side.
pub(crate) const MAX_THREADS: i64 = 128;

/// The largest window.
pub(crate) const MAX_WINDOW: u64 = 4096;

/// Memory that one phase may take on one side, in bytes.
const MAX_MEMORY_BYTES: usize = 1 << 30;

/// A message of one side to the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    /// The side that initiates: how to talk, and where it is.
    Hello {
        /// The transport of the messages.
        path: Path,
        /// Whether to sleep in place of polling.
        block: bool,
        /// How long to wait for a message before giving up.
        patience_s: u64,
        /// Its native address, in hexadecimal.
        address: String,
        /// The calls of the side that answers while it serves atomic operations, if a thread of
        /// its domain carries them out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outside: Option<Outside>,
    },
    /// The side that answers: where it is.
    Welcome {
        /// Its native address, in hexadecimal.
        address: String,
        /// The domain it uses.
        domain: String,
    },
    /// The next phase.
    Phase(Phase),
    /// The side that answers has posted its receives.
    Ready,
    /// The side that initiates has threads with endpoints of their own; as many are wanted of the
    /// other one.
    Stations(Stations),
    /// The side that answers: the native addresses of its threads' endpoints, in hexadecimal.
    Addresses(Vec<String>),
    /// The threads' next stretch: each takes this number of messages.
    Stretch {
        /// Of each thread.
        messages: u64,
        /// Whether their content is made and checked.
        verify: bool,
    },
    /// The threads are needed no longer, or the side that answers makes its calls again.
    Done,
    /// All is done.
    Bye,
    /// The side that says so gives up.
    Failed {
        /// Why.
        why: String,
    },
}

/// How messages go to and fro.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pattern {
    /// Each is answered by one of the same size.
    Echo,
    /// They go one way; a short one says from time to time how far.
    Stream,
    /// They go both ways at once.
    Exchange,
    /// They are written to the other side's memory.
    Put(WriteLevel),
    /// They are read from the other side's memory.
    Get,
    /// They are written there and back, and each side waits for them in its memory.
    PolledPut(WriteLevel),
    /// They change the other side's memory in one step each.
    Atomic(AtomicKind),
}

/// The moment at which a write completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WriteLevel {
    /// As endpoints have it where an operation names no level.
    Usual,
    /// Its bytes are visible at the target (`FI_DELIVERY_COMPLETE`).
    Delivered,
}

impl WriteLevel {
    /// The flags of a write.
    pub(crate) fn flags(self) -> Flags {
        match self {
            Self::Usual => Flags::empty(),
            Self::Delivered => Flags::DELIVERY_COMPLETE,
        }
    }
}

/// An atomic operation: each adds 1 to each element of the other side's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AtomicKind {
    /// Add 1; the value from before comes back (FI_SUM of fi_fetch_atomic)
    FetchAdd,
    /// Add 1; nothing comes back (FI_SUM of fi_atomic)
    Add,
    /// Swap in the next number if the last one is there (FI_CSWAP of fi_compare_atomic)
    CompareSwap,
}

impl AtomicKind {
    /// Its name in options and results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FetchAdd => "fetch-add",
            Self::Add => "add",
            Self::CompareSwap => "compare-swap",
        }
    }
}

/// The calls of an answering side whose domain has automatic progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outside {
    /// The time of computation between two calls, in microseconds; 0: it makes no call.
    pub(crate) call_every_us: u64,
}

/// A phase of a run, which the asking side chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Phase {
    /// How messages go.
    pub(crate) pattern: Pattern,
    /// Bytes of each.
    pub(crate) size: usize,
    /// How many, each way.
    pub(crate) messages: u64,
    /// The most that may be under way.
    pub(crate) window: u64,
    /// Whether their content is made and checked.
    pub(crate) verify: bool,
    /// Whether one-sided operations go to memory that peers map.
    pub(crate) mapped: bool,
}

impl Phase {
    /// The flags that each write of the phase has.
    pub(crate) fn level(&self) -> Flags {
        match self.pattern {
            Pattern::Put(level) | Pattern::PolledPut(level) => level.flags(),
            _ => Flags::empty(),
        }
    }

    /// Checks that the phase is possible, before it allocates memory: any process may have sent it.
    ///
    /// # Errors
    ///
    /// Which number is out of its range.
    pub(crate) fn check(&self, max_bytes: usize) -> Result<()> {
        let most = max_bytes.min(MAX_BYTES);
        if self.size > most {
            return Err(too_long(self.size, most));
        }
        if self.messages > MAX_ITERS {
            return Err(Failure::usage(format!(
                "{} messages are too many",
                self.messages
            )));
        }
        if !(1..=MAX_WINDOW).contains(&self.window) {
            return Err(Failure::usage(format!(
                "a window of {} messages is not possible",
                self.window
            )));
        }
        if (self.window as usize).saturating_mul(self.size) > MAX_MEMORY_BYTES.max(self.size) {
            return Err(Failure::usage(format!(
                "a window of {} messages of {} takes more than {} of memory",
                self.window,
                sizes::print(self.size),
                sizes::print(MAX_MEMORY_BYTES)
            )));
        }
        Ok(())
    }
}

/// Messages are longer than a domain takes.
pub(crate) fn too_long(size: usize, most: usize) -> Failure {
    let (size, most) = (sizes::print(size), sizes::print(most));
    Failure::usage(format!(
        "messages of {size} are too long: this domain sends at most {most}"
    ))
}

/// The stations of one side, from which the other side opens its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stations {
    pub(crate) path: Path,
    pub(crate) block: bool,
    pub(crate) patience_s: u64,
    pub(crate) size: usize,
    /// Native addresses in hexadecimal, one a thread.
    pub(crate) addresses: Vec<String>,
}

/// Bytes as hexadecimal text.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    digits.concat()
}

/// The bytes of a text that [`to_hex`] gave.
///
/// # Errors
///
/// When it is none.
pub(crate) fn from_hex(text: &str) -> Result<Vec<u8>> {
    let digit = |c: u8| (c as char).to_digit(16);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(((digit(*high)? << 4) | digit(*low)?) as u8),
        _ => None,
    });
    pairs
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| Failure::new("the partner sent an address that is not hexadecimal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strangers_phase_is_checked() {
        let good = Phase {
            pattern: Pattern::Stream,
            size: 4096,
            messages: 10,
            window: 64,
            verify: true,
            mapped: false,
        };
        good.check(1 << 20).unwrap();
        for (phase, why) in [
            (Phase { size: 8192, ..good }, "at most 4K"),
            (
                Phase {
                    messages: u64::MAX,
                    ..good
                },
                "too many",
            ),
            (Phase { window: 0, ..good }, "window of 0"),
            (
                Phase {
                    window: u64::MAX,
                    ..good
                },
                "not possible",
            ),
        ] {
            let text = phase.check(4096).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
        let large = Phase {
            size: 1 << 30,
            window: 2,
            ..good
        };
        assert!(
            large
                .check(usize::MAX)
                .unwrap_err()
                .to_string()
                .contains("1G of memory")
        );
        Phase { window: 1, ..large }.check(usize::MAX).unwrap();
    }

    #[test]
    fn addresses_travel_as_hexadecimal() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)).unwrap(), bytes);
        for wrong in ["0", "0g", "é0", "+1"] {
            assert!(from_hex(wrong).is_err(), "{wrong}");
        }
    }
}
