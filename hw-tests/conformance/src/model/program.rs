//! Random programs: lists of steps for the ranks of a run, and the text form by which a program is
//! run again.

mod atomics;

use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::fabric::{Fabric, MAX_RANKS};
pub use atomics::AtomicStep;

/// Steps of a program, fewer than.
const MAX_STEPS: usize = 80;

/// A program for some ranks. As text it is one line of JSON for the head and one for each step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankProgram<S = MessageStep> {
    /// Ranks, 2 to 6.
    pub ranks: usize,
    /// Whether all pairs are connected before the first step.
    pub warm: bool,
    /// Whether address vectors are tables, whose indices others get, and not maps. Those of
    /// datagrams are maps.
    #[serde(default)]
    pub table: bool,
    /// Whether endpoints count their peers' one-sided operations, which a transport may have to do
    /// in another way then.
    #[serde(default)]
    pub counts_remote: bool,
    /// The steps.
    #[serde(skip, default = "Vec::new")]
    pub steps: Vec<S>,
}

/// The source and the tags that a receive matches. Numbers of ranks count modulo the number of
/// ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wants {
    /// Tagged or not.
    pub tagged: bool,
    /// The sender; any if there is none.
    pub from: Option<u8>,
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that do not count.
    pub ignore: u64,
}

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageStep {
    /// A send of any form: fi_send, fi_sendv, fi_senddata, fi_inject, fi_injectdata, fi_sendmsg and
    /// the tagged ones.
    Send {
        /// Sender.
        from: u8,
        /// Receiver.
        to: u8,
        /// Tagged or not.
        tagged: bool,
        /// The tag.
        tag: u64,
        /// Bytes; no more than an inject may have, if it is one.
        size: usize,
        /// With `FI_INJECT`.
        inject: bool,
        /// With `FI_REMOTE_CQ_DATA`. A message that is too short to be known by its content has it
        /// always.
        data: bool,
        /// Without `FI_COMPLETION`.
        quiet: bool,
        /// Buffers that the message is gathered from, no more than the offer allows.
        pieces: usize,
        /// With `FI_DELIVERY_COMPLETE`, where that is offered.
        #[serde(default)]
        deliver: bool,
        /// With `FI_FENCE`, where that is offered.
        #[serde(default)]
        fence: bool,
    },
    /// A receive for one message.
    Receive {
        /// The receiver.
        at: u8,
        /// The messages that match.
        wants: Wants,
        /// Bytes of the buffer.
        room: usize,
        /// Buffers that the message is scattered to, no more than the offer allows.
        pieces: usize,
    },
    /// A receive for many messages (`FI_MULTI_RECV`).
    Multi {
        /// The receiver.
        at: u8,
        /// The messages that match.
        wants: Wants,
        /// Bytes of the buffer.
        room: usize,
    },
    /// `FI_PEEK`, perhaps with `FI_CLAIM` or `FI_DISCARD`.
    Probe {
        /// The rank that probes.
        at: u8,
        /// The messages that match.
        wants: Wants,
        /// The probe's action on the message that it finds.
        and: ProbeAction,
    },
    /// `FI_CLAIM` by itself, or with `FI_DISCARD`: deals with the `which`th message that is
    /// claimed, if there is one.
    Claimed {
        /// The rank that has claimed the message.
        at: u8,
        /// The place in the list of this rank's claims.
        which: usize,
        /// Bytes of the buffer; none: the message is dropped.
        room: Option<usize>,
    },
    /// Takes back the `which`th receive that is posted, if there is one.
    Cancel {
        /// Whose.
        at: u8,
        /// The place in the list of this rank's receives.
        which: usize,
    },
    /// A read or a write of any form (fi_rma(3)) of a peer's memory.
    OneSided(OneSidedStep),
    /// Atomic operations (fi_atomic(3)) on a peer's memory.
    Atomic(AtomicStep),
    /// Registers memory for peers.
    Region {
        /// Whose.
        at: u8,
        /// Bytes.
        size: usize,
        /// Peers may read it.
        read: bool,
        /// Peers may write it.
        write: bool,
        /// Its places are addresses.
        is_virtual: bool,
    },
    /// Closes the `which`th region that is open, if there is one.
    CloseRegion {
        /// Whose.
        at: u8,
        /// The place in the list of this rank's open regions.
        which: usize,
    },
    /// Drives one rank, and no other.
    Progress {
        /// The rank.
        at: u8,
    },
    /// Drives all ranks until nothing moves.
    Settle,
    /// Takes an address out of a rank's address vector.
    Remove {
        /// Whose.
        at: u8,
        /// Of whom.
        peer: u8,
    },
    /// Puts it back in.
    Insert {
        /// Whose.
        at: u8,
        /// Of whom.
        peer: u8,
    },
    /// Closes a rank's endpoint and opens another, which all others insert in its place.
    Reopen {
        /// Whose.
        at: u8,
    },
}

impl MessageStep {
    /// The rank that does it, unless all do.
    pub(super) fn actor(&self) -> Option<u8> {
        match *self {
            Self::Send { from: rank, .. }
            | Self::OneSided(OneSidedStep { from: rank, .. })
            | Self::Atomic(AtomicStep { from: rank, .. })
            | Self::Region { at: rank, .. }
            | Self::CloseRegion { at: rank, .. }
            | Self::Receive { at: rank, .. }
            | Self::Multi { at: rank, .. }
            | Self::Probe { at: rank, .. }
            | Self::Claimed { at: rank, .. }
            | Self::Cancel { at: rank, .. }
            | Self::Progress { at: rank }
            | Self::Remove { at: rank, .. }
            | Self::Insert { at: rank, .. }
            | Self::Reopen { at: rank } => Some(rank),
            Self::Settle => None,
        }
    }
}

/// A read or a write of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OneSidedStep {
    /// The rank that begins it.
    pub from: u8,
    /// The rank whose memory it is.
    pub to: u8,
    /// The place in the list of that rank's regions.
    pub which: usize,
    /// A read; else a write.
    pub read: bool,
    /// Bytes; no more than the region has, and an inject may have, if it is one.
    pub size: usize,
    /// Where in the region a place is looked for that no other operation uses.
    pub place: usize,
    /// The fault in it.
    pub fault: OneSidedFault,
    /// With `FI_INJECT`, if it is a write.
    pub inject: bool,
    /// With `FI_REMOTE_CQ_DATA`, if it is a write.
    pub data: bool,
    /// Without `FI_COMPLETION`.
    pub quiet: bool,
    /// Local buffers, no more than the offer allows.
    pub pieces: usize,
    /// With `FI_FENCE`, where that is offered: at the place of the one before it to this peer.
    pub fence: bool,
}

/// The fault in a one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OneSidedFault {
    /// Nothing.
    None,
    /// No region has its key.
    Key,
    /// It ends beyond the region.
    Range,
    /// Its last place is beyond the last number.
    Overflow,
    /// Its place has not the alignment of its elements. Atomic operations of more than bytes have
    /// this one alone.
    Alignment,
}

/// A probe's action on the message that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeAction {
    /// Nothing.
    Leave,
    /// It is set apart.
    Claim,
    /// It is dropped.
    Discard,
}

impl<S: Serialize + DeserializeOwned> RankProgram<S> {
    /// The program as text.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string(self).unwrap();
        for step in &self.steps {
            text.push('\n');
            text.push_str(&serde_json::to_string(step).unwrap());
        }
        text.push('\n');
        text
    }

    /// The program of a text; empty lines and such that start with `#` do not count.
    ///
    /// # Errors
    ///
    /// The error, and the line that it is in.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let mut lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let (_, head) = lines.next().ok_or("it is empty")?;
        let mut program: Self = serde_json::from_str(head).map_err(|e| format!("line 1: {e}"))?;
        for (at, line) in lines {
            let step = serde_json::from_str(line).map_err(|e| format!("line {}: {e}", at + 1))?;
            program.steps.push(step);
        }
        Ok(program)
    }
}

/// How often addresses are removed and inserted again.
#[derive(Clone, Copy)]
pub enum Changes {
    /// Now and then.
    Few,
    /// Between any two messages.
    Many,
}

/// Programs for a fabric, with messages of all sizes that make a difference to it.
pub fn programs(fabric: &Fabric, changes: Changes) -> impl Strategy<Value = RankProgram> + use<> {
    let edges = fabric.edges(fabric.longest);
    let longest = fabric.longest;
    // Most programs have short messages only, so that many wait at a time.
    let longest = prop_oneof![3 => Just(longest.min(9000)), 1 => Just(longest)];
    // With a step left out, different values would be drawn, which is another program. So programs
    // shrink by their steps alone.
    let head = (any::<bool>(), any::<bool>(), any::<bool>());
    (2..=MAX_RANKS, head, longest).no_shrink().prop_flat_map(
        move |(ranks, (warm, table, counts_remote), longest)| {
            let edges = edges.iter().copied().filter(|&size| size <= longest);
            let step = step(ranks as u8, edges.collect(), longest, changes);
            let steps = prop::collection::vec(step, 1..MAX_STEPS);
            steps.prop_map(move |steps| RankProgram {
                ranks,
                warm,
                table,
                counts_remote,
                steps,
            })
        },
    )
}

fn size(edges: Vec<usize>, longest: usize) -> impl Strategy<Value = usize> {
    let bits = (longest + 1).ilog2();
    prop_oneof![
        3 => prop::sample::select(edges),
        // Each power of two as likely as the next.
        2 => (0..=bits, any::<prop::sample::Index>()).prop_map(move |(bits, at)| {
            ((1 << bits) - 1 + at.index(1 << bits)).min(longest)
        }),
    ]
}

fn step(
    ranks: u8,
    edges: Vec<usize>,
    longest: usize,
    changes: Changes,
) -> impl Strategy<Value = MessageStep> {
    let (removals, insertions) = match changes {
        Changes::Few => (2, 3),
        Changes::Many => (20, 30),
    };
    let rank = move || 0..ranks;
    let tag = || prop_oneof![4 => 0..3u64, 1 => Just(0xfedc_ba98_7654_3210)];
    let ignore = || prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(3), 2 => Just(u64::MAX)];
    let wants = move || {
        (
            prop::bool::weighted(0.7),
            prop::option::of(rank()),
            tag(),
            ignore(),
        )
            .prop_map(|(tagged, from, tag, ignore)| Wants {
                tagged,
                from,
                tag,
                ignore,
            })
    };
    let size = move || size(edges.clone(), longest);
    let pieces = || prop_oneof![3 => Just(1usize), 1 => 2..5usize];
    let rare = || prop::bool::weighted(0.2);
    let action = || {
        prop_oneof![
            2 => Just(ProbeAction::Leave),
            2 => Just(ProbeAction::Claim),
            1 => Just(ProbeAction::Discard)
        ]
    };
    let send = (
        (rank(), rank(), prop::bool::weighted(0.7), tag(), size()),
        (rare(), any::<bool>(), rare(), pieces(), rare(), rare()),
    )
        .prop_map(
            |((from, to, tagged, tag, size), (inject, data, quiet, pieces, deliver, fence))| {
                MessageStep::Send {
                    from,
                    to,
                    tagged,
                    tag,
                    size,
                    inject,
                    data,
                    quiet,
                    pieces,
                    deliver,
                    fence,
                }
            },
        );
    let one_sided = one_sided(ranks, size.clone());
    let region = (rank(), size(), any::<[bool; 3]>()).prop_map(
        |(at, size, [no_read, no_write, is_virtual])| MessageStep::Region {
            at,
            size,
            read: !no_read,
            write: !no_write,
            is_virtual,
        },
    );
    prop_oneof![
        24 => send,
        24 => one_sided,
        16 => atomics::atomic(ranks, size.clone()),
        3 => region,
        2 => (rank(), 0..4usize).prop_map(|(at, which)| MessageStep::CloseRegion { at, which }),
        16 => (rank(), wants(), size(), pieces())
            .prop_map(|(at, wants, room, pieces)| MessageStep::Receive { at, wants, room, pieces }),
        3 => (rank(), wants(), size()).prop_map(|(at, wants, room)| MessageStep::Multi { at, wants, room }),
        5 => (rank(), wants(), action()).prop_map(|(at, wants, and)| MessageStep::Probe { at, wants, and }),
        3 => (rank(), 0..4usize, prop::option::of(size()))
            .prop_map(|(at, which, room)| MessageStep::Claimed { at, which, room }),
        3 => (rank(), 0..4usize).prop_map(|(at, which)| MessageStep::Cancel { at, which }),
        12 => rank().prop_map(|at| MessageStep::Progress { at }),
        6 => Just(MessageStep::Settle),
        removals => (rank(), rank()).prop_map(|(at, peer)| MessageStep::Remove { at, peer }),
        insertions => (rank(), rank()).prop_map(|(at, peer)| MessageStep::Insert { at, peer }),
        1 => prop::bool::weighted(0.3).prop_flat_map(move |close| {
            rank().prop_map(move |at| match close {
                true => MessageStep::Reopen { at },
                false => MessageStep::Settle,
            })
        }),
    ]
}

/// Reads and writes of any form. Few have a fault, for that is all there is to them.
fn one_sided<S: Strategy<Value = usize>>(
    ranks: u8,
    size: impl Fn() -> S,
) -> impl Strategy<Value = MessageStep> {
    let rare = || prop::bool::weighted(0.2);
    let fault = prop_oneof![
        12 => Just(OneSidedFault::None),
        1 => Just(OneSidedFault::Key),
        1 => Just(OneSidedFault::Range),
        1 => Just(OneSidedFault::Overflow),
    ];
    // The words that most atomic operations change, now and then.
    let place = prop_oneof![8 => size(), 1 => Just(usize::MAX - 63)];
    (
        (0..ranks, 0..ranks, 0..4usize, size(), place, fault),
        (
            any::<bool>(),
            rare(),
            rare(),
            rare(),
            rare(),
            prop_oneof![3 => Just(1usize), 1 => 2..5usize],
        ),
    )
        .prop_map(
            |(
                (from, to, which, size, place, fault),
                (read, inject, data, quiet, fence, pieces),
            )| {
                MessageStep::OneSided(OneSidedStep {
                    from,
                    to,
                    which,
                    read,
                    size,
                    place,
                    fault,
                    inject,
                    data,
                    quiet,
                    pieces,
                    fence,
                })
            },
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read_as_it_was_written() {
        let steps = vec![
            MessageStep::Send {
                from: 0,
                to: 1,
                tagged: true,
                tag: u64::MAX,
                size: 9,
                inject: false,
                data: true,
                quiet: false,
                pieces: 2,
                deliver: false,
                fence: true,
            },
            MessageStep::Settle,
            MessageStep::Atomic(AtomicStep {
                from: 1,
                times: 3,
                spread: true,
                to: 0,
                which: 1,
                form: 2,
                operator: 10,
                datatype: 15,
                count: 2,
                place: 64,
                fault: OneSidedFault::Alignment,
                operand: -8,
                compare: Some(4),
                inject: false,
                quiet: true,
                pieces: 2,
                fence: false,
            }),
            MessageStep::Claimed {
                at: 1,
                which: 0,
                room: None,
            },
        ];
        let program = RankProgram {
            ranks: 2,
            warm: true,
            table: true,
            counts_remote: true,
            steps,
        };
        let text = format!("# a comment\n\n{}", program.to_text());
        assert_eq!(RankProgram::from_text(&text), Ok(program));
        let wrong = text.replace("settle", "nonesuch");
        let why = RankProgram::<MessageStep>::from_text(&wrong).unwrap_err();
        assert!(why.contains("line 5") && why.contains("nonesuch"), "{why}");
    }
}
