//! Profiles: the limits, refusals and habits of real NICs, for the fake device to have.
//!
//! Each profile is a file in the folder `profiles`. It has the facts that differ from the generous
//! device, and for each fact its source in the NIC's driver. Firmware decides some of them; the
//! source says so then, and the number is an example.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// Names a profile for all programs that load the device, or the file of one.
pub const VARIABLE: &str = "FERRO_FAKE_PROFILE";

/// Takes some of the [`ABILITIES`] from the chosen profile: a list with commas.
pub const WITHOUT: &str = "FERRO_FAKE_WITHOUT";

/// Abilities that a device can lack as a whole.
pub const ABILITIES: [&str; 5] = ["srq", "ud", "inline", "rc", "atomics"];

macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        /// All profiles: names, and the texts of their files.
        const PROFILES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../profiles/", $name, ".json")))),*
        ];
    };
}

profiles![
    "generous",
    "mlx5-ib",
    "mlx5-vf",
    "mlx5-roce",
    "bnxt",
    "bnxt-p7",
    "irdma-e810",
    "irdma-gen3",
    "hns08",
    "hns09",
    "efa",
    "mana",
    "siw",
    "rxe",
    "worst",
    "inline-32",
    "worst-with-srq",
];

/// A kind of NIC.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceProfile {
    /// One sentence: which NICs it stands for.
    pub about: String,
    /// Where each fact of the profile is to be read, by the fact's name.
    pub sources: BTreeMap<String, String>,
    /// The vendor, as the device reports it.
    pub vendor_id: u32,
    /// Its rules for inline data.
    pub inline: InlineRules,
    /// It has shared receive queues.
    pub shared_receives: bool,
    /// It has reliable connections.
    pub connections: bool,
    /// It has datagrams.
    pub datagrams: bool,
    /// It has atomic operations.
    pub atomics: bool,
    /// Peers' reads and writes over connections reach memory that is not pinned (on-demand paging).
    pub on_demand_paging: bool,
    /// Pieces of memory that a work request names, at most.
    pub entries: u32,
    /// Pieces of memory that a receive of a shared queue names, at most.
    pub shared_entries: u32,
    /// Pieces of memory that an RDMA read names, at most.
    pub read_entries: u32,
    /// Reads and atomics that a queue pair serves at once.
    pub reads_as_target: u32,
    /// Reads and atomics that a queue pair has under way at once.
    pub reads_as_initiator: u32,
    /// Bytes of one message or one-sided operation, at most.
    pub message_bytes: u32,
    /// Work requests of a queue, at most.
    pub requests: u32,
    /// Entries of a completion queue, at most.
    pub completions: u32,
    /// Queue pairs of the device, at most.
    pub queue_pairs: u32,
    /// The table of GIDs of a port on Ethernet.
    pub gids: Vec<ProfileGid>,
    /// The table of partition keys.
    pub partition_keys: Vec<u16>,
    /// A port on InfiniBand has this local identifier.
    pub lid: u16,
    /// Ports say that each path needs a routing header, and refuse paths without.
    pub grh_required: bool,
    /// A queue pair in error announces that it has taken its last shared receive.
    pub announces_last_receive: bool,
    /// The fate of a shared receive that a queue pair in error holds in mid-message.
    pub held_receive: HeldReceive,
    /// A datagram that fails at its sender moves the send queue alone to error (SQE): the queue
    /// pair goes on receiving. Else all of the queue pair is in error.
    pub datagram_failure_stops_sends: bool,
    /// The post of a send to a queue pair in error is refused with `EINVAL`; else it is flushed.
    pub refuses_posts_in_error: bool,
    /// An RDMA write, an RDMA read or a receive that names no memory is made from the first entry
    /// of its list all the same, unless the list is null.
    pub empty_write_reads_entry: bool,
    /// A region gets the key of the one that ended last.
    pub reuses_keys: bool,
    /// The duration of each call that makes, changes or ends a queue pair, in microseconds.
    pub control_call_us: u64,
}

/// A GID of a port on Ethernet.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ProfileGid {
    /// The address.
    pub gid: Ipv6Addr,
    /// RoCE v2, and not v1.
    pub routed: bool,
    /// Its interface is in another network namespace: no path leads from it.
    pub elsewhere: bool,
}

/// The fate of a shared receive whose message has begun, and whose queue pair has gone to error.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct HeldReceive {
    /// Whether it completes at all.
    pub fate: HeldFate,
    /// The time from the error to that completion, in microseconds. With 0 it comes before the
    /// flushed requests of the send queue, else behind them.
    pub after_us: u64,
}

/// Whether a receive that is held in mid-message completes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum HeldFate {
    /// It completes as flushed. The event of the last receive comes behind it.
    #[default]
    Flushed,
    /// It never completes.
    Lost,
}

/// Rules for inline data.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct InlineRules {
    /// The longest inline data, in bytes.
    pub most: u32,
    /// How much of a request is granted.
    pub grants: InlineGrant,
    /// The refusal of a request beyond `most`.
    pub beyond: InlineRefusal,
    /// The flag of a send request is ignored: the memory must be registered all the same.
    pub flag_is_ignored: bool,
}

/// The inline bytes that a queue pair gets.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum InlineGrant {
    /// The requested bytes.
    Requested,
    /// Always the most.
    Most,
    /// So much that the request entry fills whole blocks of 64 bytes.
    Blocks,
    /// A power of two.
    PowerOfTwo,
    /// At least 16 bytes for each entry.
    Entries,
}

/// The answer to a request for more inline data than there can be.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum InlineRefusal {
    /// The queue pair is not made: `EINVAL`.
    Einval,
    /// The queue pair is not made, and errno stays as it was.
    NoErrno,
    /// The queue pair is made, with the most there can be.
    GrantsLess,
}

impl Default for InlineRules {
    fn default() -> Self {
        Self {
            most: 512,
            grants: InlineGrant::Requested,
            beyond: InlineRefusal::Einval,
            flag_is_ignored: false,
        }
    }
}

/// A device that allows all that an endpoint requests.
impl Default for DeviceProfile {
    fn default() -> Self {
        Self {
            about: String::new(),
            sources: BTreeMap::new(),
            vendor_id: 0x0fa4e,
            inline: InlineRules::default(),
            shared_receives: true,
            connections: true,
            datagrams: true,
            atomics: true,
            on_demand_paging: false,
            entries: 16,
            shared_entries: 16,
            read_entries: 16,
            reads_as_target: 16,
            reads_as_initiator: 16,
            message_bytes: 1 << 30,
            requests: 1 << 15,
            completions: 1 << 17,
            queue_pairs: 1 << 16,
            // An address of documentation (RFC 5737).
            gids: vec![ProfileGid {
                gid: Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped(),
                routed: true,
                elsewhere: false,
            }],
            partition_keys: vec![0xffff],
            lid: 7,
            grh_required: false,
            announces_last_receive: true,
            held_receive: HeldReceive::default(),
            datagram_failure_stops_sends: false,
            refuses_posts_in_error: false,
            empty_write_reads_entry: false,
            reuses_keys: false,
            control_call_us: 0,
        }
    }
}

impl DeviceProfile {
    /// The names of all profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|(name, _)| *name)
    }

    /// The profile of a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        static PARSED: OnceLock<Vec<DeviceProfile>> = OnceLock::new();
        let at = Self::names().position(|own| own == name)?;
        let parsed = PARSED.get_or_init(|| {
            let parse = |(name, text): &(&str, &str)| Self::parse(name, text);
            PROFILES.iter().map(parse).collect()
        });
        parsed.get(at)
    }

    fn parse(name: &str, text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("profile {name}: {error}"))
    }

    /// Whether an endpoint for reliable datagrams can be opened on it.
    pub fn carries_reliable_datagrams(&self) -> bool {
        self.connections && self.datagrams
    }

    /// A NIC that carries reliable datagrams, and is drawn from all that the profiles have.
    pub fn random(rng: &mut Rng) -> Self {
        let entries = rng.u32(1..=32);
        let grants = [
            InlineGrant::Requested,
            InlineGrant::Most,
            InlineGrant::Blocks,
            InlineGrant::PowerOfTwo,
            InlineGrant::Entries,
        ];
        let beyond = [
            InlineRefusal::Einval,
            InlineRefusal::NoErrno,
            InlineRefusal::GrantsLess,
        ];
        // Endpoints search for lost receives on devices that are known to lose them, by a quirk.
        let loses_receives = rng.bool();
        let vendor_id = match loses_receives {
            true => Self::named("bnxt").map(|nic| nic.vendor_id),
            false => None,
        };
        Self {
            about: "A random NIC.".to_owned(),
            vendor_id: vendor_id.unwrap_or(Self::default().vendor_id),
            inline: InlineRules {
                most: rng.u32(..=512),
                grants: grants[rng.usize(..grants.len())],
                beyond: beyond[rng.usize(..beyond.len())],
                flag_is_ignored: false,
            },
            shared_receives: rng.bool(),
            atomics: rng.bool(),
            on_demand_paging: rng.bool(),
            entries,
            shared_entries: rng.u32(1..=entries),
            read_entries: rng.u32(1..=entries),
            reads_as_target: rng.u32(1..=128),
            reads_as_initiator: rng.u32(1..=128),
            requests: rng.u32(128..=1 << 15),
            completions: rng.u32(1024..=1 << 17),
            announces_last_receive: rng.bool(),
            held_receive: HeldReceive {
                fate: match loses_receives {
                    true => HeldFate::Lost,
                    false => HeldFate::Flushed,
                },
                after_us: [0, rng.u64(1..5000)][rng.usize(..2)],
            },
            datagram_failure_stops_sends: rng.bool(),
            refuses_posts_in_error: rng.bool(),
            reuses_keys: rng.bool(),
            empty_write_reads_entry: rng.bool(),
            ..Self::default()
        }
    }

    /// The profile of this process, until a test chooses another.
    pub fn of_environment() -> &'static Self {
        static CHOSEN: OnceLock<DeviceProfile> = OnceLock::new();
        CHOSEN.get_or_init(|| {
            let given = std::env::var(VARIABLE).unwrap_or_else(|_| "generous".to_owned());
            let mut chosen = match Self::named(&given) {
                Some(profile) => profile.clone(),
                None => match std::fs::read_to_string(&given) {
                    Ok(text) => Self::parse(&given, &text),
                    Err(error) => panic!(
                        "{VARIABLE}={given} names no profile ({}), and no file: {error}",
                        Self::names().collect::<Vec<_>>().join(", ")
                    ),
                },
            };
            for ability in std::env::var(WITHOUT).unwrap_or_default().split(',') {
                chosen.refuse(ability.trim());
            }
            chosen
        })
    }

    fn refuse(&mut self, ability: &str) {
        match ability {
            "" => {}
            "srq" => self.shared_receives = false,
            "ud" => self.datagrams = false,
            "inline" => self.inline.most = 0,
            "rc" => self.connections = false,
            "atomics" => self.atomics = false,
            other => panic!(
                "{WITHOUT} names {other}: there are {}",
                ABILITIES.join(", ")
            ),
        }
    }

    /// The inline bytes of a queue pair that requests some, or its refusal: with an errno, or none.
    pub fn grant_inline(&self, requested: u32, entries: u32) -> Result<u32, Option<i32>> {
        let InlineRules {
            most,
            grants,
            beyond,
            ..
        } = self.inline;
        if requested > most {
            return match beyond {
                InlineRefusal::Einval => Err(Some(libc::EINVAL)),
                InlineRefusal::NoErrno => Err(None),
                InlineRefusal::GrantsLess => Ok(most),
            };
        }
        Ok(match grants {
            InlineGrant::Requested => requested,
            InlineGrant::Most => most,
            InlineGrant::Blocks if requested == 0 => 0,
            InlineGrant::Blocks => ((requested + 4).next_multiple_of(64) - 4).min(most),
            InlineGrant::PowerOfTwo if requested == 0 => 0,
            InlineGrant::PowerOfTwo => requested.next_power_of_two().min(most),
            InlineGrant::Entries => requested.max(16 * entries).min(most),
        })
    }
}
