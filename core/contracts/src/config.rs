//! Every setting, declared once: its name, type, default, range and help. The parser and the
//! documentation (`ferro info --settings`) both come from this table.
//!
//! A setting `shm_cma` is read from `FERRO_SHM_CMA`, else from `FI_FERRO_SHM_CMA` (the name
//! under which libfabric shows it); a value that does not parse is an error that names the
//! variable. A variable of that form which is no setting is named once ([`variables`]).

pub mod variables;

use std::time::Duration;

use crate::error::{Errno, Error, Result};
use crate::size::{Size, SizeError};

/// The form of a setting, for documentation.
#[derive(Clone, Copy, Debug)]
pub struct SettingInfo {
    /// Name, as `shm_cma`.
    pub name: &'static str,
    /// The values that it takes.
    pub values: &'static str,
    /// The default, as text.
    pub default: &'static str,
    /// Its effect.
    pub help: &'static str,
}

/// A type that settings have.
trait Value: Sized {
    fn parse(text: &str) -> Result<Self, String>;
}

macro_rules! settings {
    ($($(#[doc = $help:literal])+ $name:ident: $type:ty = $default:literal, $values:literal, $check:expr;)*) => {
        /// All settings, with their values.
        #[derive(Clone, Debug)]
        pub struct Settings {
            $($(#[doc = $help])+ pub $name: $type,)*
        }

        /// The table of settings.
        pub const SETTINGS: &[SettingInfo] = &[
            $(SettingInfo {
                name: stringify!($name),
                values: $values,
                default: $default,
                help: concat!($($help),+),
            },)*
        ];

        impl Settings {
            /// Reads the settings through `lookup`, by the names `FERRO_NAME` and `FI_FERRO_NAME`.
            ///
            /// # Errors
            ///
            /// `EINVAL` that names the variable, its value and what it takes.
            pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
                $(
                    let $name = {
                        let upper = stringify!($name).to_uppercase();
                        let found = [format!("FERRO_{upper}"), format!("FI_FERRO_{upper}")]
                            .into_iter()
                            .find_map(|variable| lookup(&variable).map(|value| (variable, value)));
                        let (variable, text) = found.unwrap_or((String::new(), $default.to_owned()));
                        let check: fn(&$type) -> bool = $check;
                        <$type as Value>::parse(text.trim())
                            .and_then(|v| if check(&v) { Ok(v) } else { Err("out of range".to_owned()) })
                            .map_err(|why| {
                                Error::new(Errno::EINVAL, "read setting", format!("{variable}={text}"))
                                    .mend(format!("{why}; it takes {}", $values))
                            })?
                    };
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

settings! {
    /// Whether local peers are reached through shared memory.
    shm: bool = "on", "on or off", |_| true;
    /// The provider that carries messages to local peers of verbs endpoints: `own` is this
    /// project's shared memory. Any other is one of libfabric's that takes an owner's objects, such
    /// as its `shm`. Then an endpoint that is opened for messages alone uses it, and one with
    /// further capabilities reaches all peers by the device. Both sides need the same choice.
    shm_provider: String = "own", "own, or a provider of libfabric's such as shm", |v| !v.is_empty();
    /// Whether verbs devices are used.
    verbs: bool = "on", "on or off", |_| true;
    /// The one verbs device to use; empty for all that are active.
    device: String = "", "a device name as `ibv_devices` lists it, or nothing", |_| true;
    /// Port of the device; 0 for every active one.
    port: u64 = "0", "0 to 255", |v| *v <= 255;
    /// GID index to use; `auto` prefers RoCE v2 with an IPv4 address, then IPv6, then link-local,
    /// then RoCE v1.
    gid_index: Auto = "auto", "auto or 0 to 255", |v| v.0.is_none_or(|i| i <= 255);
    /// Service level of packets; `auto` is the one in the peer's address, which is 0 unless another
    /// program wrote it.
    service_level: Auto = "auto", "auto or 0 to 15", |v| v.0.is_none_or(|level| level <= 15);
    /// Traffic class of packets with a routing header: a code point (DSCP) of six bits, and two
    /// bits for congestion notification. `auto` is 106 on RoCE v2 and else 0. A code point that the
    /// application chooses by `tclass` takes the place of the six bits, on RoCE.
    traffic_class: Auto = "auto", "auto or 0 to 255", |v| v.0.is_none_or(|class| class <= 255);
    /// Flow label of packets with a routing header; with 0 the device chooses, as for the source
    /// port of RoCE v2.
    flow_label: u64 = "0", "0 to 1048575", |v| *v < 1 << 20;
    /// Routers that packets with a routing header may pass.
    hop_limit: u64 = "255", "1 to 255", |v| (1..=255).contains(v);
    /// The paths to peers that the connection manager (rdma_cm) finds: `on` for all, `off` for
    /// none, `auto` for those to another subnet of InfiniBand, which need the LID of a router. On
    /// InfiniBand the subnet manager chooses the service level and the rate of such a path, on RoCE
    /// the system has a traffic class and a service level for it. Choices of other settings stay.
    path_records: Choice = "auto", "auto, on or off", |_| true;
    /// Largest message that verbs sends in one packet, in bytes; `auto` takes it from the table of
    /// the device.
    eager: Auto = "auto", "auto or 0 to 65536", |v| v.0.is_none_or(|b| b <= 65536);
    /// Largest message that verbs sends without a rendezvous, in bytes, if need be in several
    /// packets; `auto` takes it from the table of the device, or is as `eager` if that is given.
    eager_max: Auto = "auto", "auto or 0 to 2M", |v| v.0.is_none_or(|b| b <= 2 << 20);
    /// Receive buffers of an endpoint; they are all the receive memory that it has, whatever the
    /// number of peers. A part is for datagrams: where lanes share a queue an eighth, a quarter or
    /// half, by `lane`; else a quarter.
    rx_buffers: u64 = "512", "16 to 16384", |v| (16..=16384).contains(v);
    /// Most bytes of a bulk transfer that one RDMA read or write moves.
    read_chunk: u64 = "256K", "4K to 1G", |v| (4096..=1 << 30).contains(v);
    /// The side that moves messages above the eager size over verbs: the receiver reads, or the
    /// sender writes; `auto` takes it from the table of the device. With `read`, long reads of
    /// peers' memory go by a device, too, that is known to lose bytes of them.
    rendezvous: Rendezvous = "auto", "auto, read or write", |_| true;
    /// Whether registrations of buffers of large messages are kept for further ones, over verbs:
    /// `auto` where the kernel reports when memory is unmapped, `on` or else it is an error,
    /// `verify` like `on`, and checks the reports each time (as root).
    mr_cache: RegistrationCache = "auto", "auto, on, off or verify", |_| true;
    /// Whether memory that an application has registered through the plugin is registered anew
    /// where its pages have changed, over verbs, since no offer has `FI_MR_ALLOCATED`. A device does
    /// not reach memory of which the kernel does not report that. With `off` applications are known
    /// to leave the pages as they are.
    mr_watch: bool = "on", "on or off", |_| true;
    /// Registrations that a domain keeps at most.
    mr_cache_count: u64 = "1024", "1 to 1048576", |v| (1..=1 << 20).contains(v);
    /// Bytes of them at most; `auto` is half of the memory that there is for each processor of the
    /// machine.
    mr_cache_bytes: Auto = "auto", "auto or a size such as 1G", |_| true;
    /// The lane that carries messages to another node: `rc` connects a queue pair to each peer upon
    /// the first message, `ud` sends reliable datagrams through one queue pair, except for messages
    /// that only RC carries (above the eager size), `auto` begins with datagrams and connects peers
    /// with enough traffic.
    lane: LaneChoice = "rc", "auto, rc or ud", |_| true;
    /// RC queue pairs that an endpoint may have; at the limit peers fall back to datagrams, those
    /// first that were used least recently.
    max_lanes: u64 = "4096", "1 to 4194304", |v| (1..=1 << 22).contains(v);
    /// Threads of a domain that make, connect and end queue pairs, at most: a NIC takes about a
    /// millisecond for each step.
    control_threads: u64 = "8", "1 to 64", |v| (1..=64).contains(v);
    /// How long to try to get a broken connection back before its operations fail; `off` tries for
    /// ever.
    reconnect_timeout: Patience = "10s", "off or a duration such as 10s", |_| true;
    /// Give a peer up that answered nothing for so long; `off` waits for evidence of its death for
    /// ever; `auto` does so where the device has such evidence, which is on RC lanes, and is 60s for
    /// peers that are reached by datagrams: on UD lanes, and before there is a first lane. A process
    /// that computes answers, one that is stopped does not.
    peer_timeout: PeerTimeout = "auto", "auto, off or a duration such as 5s", |_| true;
    /// How long the close of an endpoint may take to deliver what the application takes for sent:
    /// messages that were injected, and those whose sends are complete. It takes no time where all
    /// of them are at their peers, or the peers are gone; `off` loses what is not at its peer. The
    /// log has the peers and the number of messages that were lost.
    close_timeout: Patience = "30s", "off or a duration such as 30s", |_| true;
    /// Sends to one peer that may wait in the memory of this side while the peer takes no more:
    /// those that were injected as a copy, all others in the application's buffers. Beyond it a
    /// send is refused with `EAGAIN`.
    waiting_sends: u64 = "1M", "1 to 16M", |v| (1..=16 << 20).contains(v);
    /// How long sends to a socket address wait for an endpoint to listen there before they fail.
    resolve_timeout: Patience = "5s", "a duration such as 5s", |v| v.0.is_some();
    /// How long a blocking read of a completion queue spins before it sleeps.
    spin: Patience = "20us", "off or a duration such as 20us", |_| true;
    /// Whether local copies may go straight from process to process (cross memory attach).
    shm_cma: Choice = "auto", "auto (the faster by measurement), on or off", |_| true;
    /// Folder into which each endpoint that closes writes what it has done, as a JSON file; empty
    /// for none.
    stats: String = "", "a folder, or nothing", |_| true;
}

impl Settings {
    /// Whether verbs endpoints reach local peers through this project's shared memory, if at all.
    pub fn has_own_shm(&self) -> bool {
        self.shm_provider == "own"
    }
}

impl Settings {
    /// Reads the settings from the environment. The first call of a process names unknown
    /// variables on standard error ([`variables::warn_once`]).
    ///
    /// # Errors
    ///
    /// As [`Settings::read`].
    pub fn from_env() -> Result<Self> {
        variables::warn_once();
        Self::read(|name| std::env::var(name).ok())
    }
}

/// A number that is chosen for the user unless given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auto(pub Option<u64>);

/// A duration, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(pub Option<Duration>);

/// How long a peer may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerTimeout {
    /// For ever, unless its silence is the only sign that it died.
    Auto,
    /// So long, whoever it is.
    After(Patience),
}

/// The side that moves a large message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// The device's best way.
    Auto,
    /// The receiver, by RDMA read.
    Read,
    /// The sender, by RDMA write.
    Write,
}

impl Value for Rendezvous {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            _ => Err("none of auto, read and write".to_owned()),
        }
    }
}

/// Whether registrations of memory are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationCache {
    /// Where the kernel reports that memory goes.
    Auto,
    /// They are, or opening a domain fails.
    On,
    /// They are not.
    Off,
    /// They are, and each use looks whether the memory is still there.
    Verify,
}

impl Value for RegistrationCache {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            "verify" => Ok(Self::Verify),
            _ => Err("none of auto, on, off and verify".to_owned()),
        }
    }
}

/// The lane that carries messages to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneChoice {
    /// Datagrams at first, an RC queue pair for peers with traffic.
    Auto,
    /// An RC queue pair from the first message on.
    Rc,
    /// Datagrams, except for messages that only RC carries.
    Ud,
}

impl Value for LaneChoice {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "rc" => Ok(Self::Rc),
            "ud" => Ok(Self::Ud),
            _ => Err("none of auto, rc and ud".to_owned()),
        }
    }
}

/// Use something, do not, or find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Find out.
    Auto,
    /// Use it wherever it works.
    On,
    /// Do not.
    Off,
}

impl Value for bool {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "on" | "1" | "yes" | "true" => Ok(true),
            "off" | "0" | "no" | "false" => Ok(false),
            _ => Err("neither on nor off".to_owned()),
        }
    }
}

impl Value for String {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl Value for u64 {
    fn parse(text: &str) -> Result<Self, String> {
        let size: Size = text.parse().map_err(|error: SizeError| error.to_string())?;
        Ok(size.0)
    }
}

impl Value for Auto {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self(None)),
            _ => u64::parse(text).map(|n| Self(Some(n))),
        }
    }
}

impl Value for PeerTimeout {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => Patience::parse(text).map(Self::After),
        }
    }
}

/// The longest duration that a setting takes: sums with points in time do not overflow.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

impl Value for Patience {
    fn parse(text: &str) -> Result<Self, String> {
        if matches!(text, "off" | "0") {
            return Ok(Self(None));
        }
        let at = text
            .find(|c: char| !c.is_ascii_digit())
            .ok_or("a duration needs a unit: us, ms or s")?;
        let n: u64 = text[..at]
            .parse()
            .map_err(|_| "not a duration".to_owned())?;
        let duration = match &text[at..] {
            "us" => Duration::from_micros(n),
            "ms" => Duration::from_millis(n),
            "s" => Duration::from_secs(n),
            _ => return Err("unknown unit: us, ms or s".to_owned()),
        };
        match duration <= LONGEST {
            true => Ok(Self(Some(duration))),
            false => Err("longer than a year".to_owned()),
        }
    }
}

impl Value for Choice {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => bool::parse(text).map(|on| if on { Self::On } else { Self::Off }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings> {
        Settings::read(|name| {
            pairs
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn the_defaults_of_the_table_parse() {
        let s = read(&[]).unwrap();
        assert!(s.shm && s.verbs);
        assert_eq!(s.read_chunk, 256 << 10);
        assert_eq!(s.spin, Patience(Some(Duration::from_micros(20))));
    }

    #[test]
    fn our_variable_wins_over_libfabrics() {
        let s = read(&[("FI_FERRO_SHM", "off"), ("FERRO_VERBS", "0")]).unwrap();
        assert!(!s.shm && !s.verbs);
        let s = read(&[("FI_FERRO_RX_BUFFERS", "32"), ("FERRO_RX_BUFFERS", "64")]).unwrap();
        assert_eq!(s.rx_buffers, 64);
    }

    #[test]
    fn a_bad_value_names_the_variable_and_its_values() {
        let all = [
            ("FERRO_SHM", "maybe", "on or off"),
            ("FERRO_RX_BUFFERS", "3", "16 to 16384"),
            ("FERRO_RX_BUFFERS", "99999999999999999999G", "16 to 16384"),
            ("FERRO_READ_CHUNK", "20000000000G", "4K to 1G"),
            ("FERRO_GID_INDEX", "256", "auto or 0 to 255"),
            ("FERRO_SPIN", "20", "a duration such as 20us"),
            ("FERRO_SPIN", "18446744073709551615s", "longer than a year"),
            ("FERRO_PEER_TIMEOUT", "367000000s", "longer than a year"),
            ("FERRO_SHM_CMA", "", "auto (the faster by measurement)"),
        ];
        for (name, value, takes) in all {
            let text = read(&[(name, value)]).unwrap_err().to_string();
            assert!(text.contains(&format!("{name}={value}")), "{text}");
            assert!(text.contains(takes), "{text}");
        }
    }
}
