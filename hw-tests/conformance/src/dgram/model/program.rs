//! Programs for the ranks of a run: a list of steps, done one after another.

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::fabric::{Fabric, MAX_RANKS};
use crate::model::program::RankProgram;

/// Steps of a program, fewer than.
const MAX_STEPS: usize = 80;

/// One step of a program. Numbers of ranks count modulo the number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DatagramStep {
    /// A send of any form: fi_send, fi_sendv, fi_senddata, fi_inject, fi_injectdata, fi_sendmsg.
    Send {
        from: u8,
        to: u8,
        /// Bytes, one more perhaps than there may be.
        size: usize,
        /// With `FI_INJECT`.
        inject: bool,
        /// With `FI_REMOTE_CQ_DATA`. A datagram that is too short to be known by its content has it
        /// always.
        data: bool,
        /// Without `FI_COMPLETION`.
        quiet: bool,
        /// Buffers that the datagram is gathered from, no more than the offer allows.
        pieces: usize,
        /// From memory that is registered, if it is one buffer.
        registered: bool,
    },
    /// A receive.
    Receive {
        at: u8,
        /// Bytes of the buffer behind the prefix.
        room: usize,
        /// Buffers that the datagram is scattered to, no more than the offer allows.
        pieces: usize,
        /// Into memory that is registered, if it is one buffer.
        registered: bool,
    },
    /// Takes back the `which`th receive that is posted, if there is one.
    Cancel { at: u8, which: usize },
    /// Drives one rank, and no other.
    Progress { at: u8 },
    /// Drives all ranks until all sends are over, and every datagram that must arrive has arrived.
    Settle,
    /// Takes an address out of a rank's address vector.
    Remove { at: u8, peer: u8 },
    /// Puts it back in.
    Insert { at: u8, peer: u8 },
    /// Closes a rank's endpoint and opens another, which all others insert in its place.
    Reopen { at: u8 },
}

/// Programs for a fabric, with datagrams of all sizes that make a difference to it.
pub(super) fn programs(
    fabric: &Fabric,
) -> impl Strategy<Value = RankProgram<DatagramStep>> + use<> {
    let longest = fabric.info().ep.max_msg_size;
    let mut edges = fabric.edges(longest);
    edges.extend([511, 512, 513, longest - 1, longest]);
    // With a step left out, different values would be drawn, which is another program. So programs
    // shrink by their steps alone.
    (2..=MAX_RANKS, any::<bool>())
        .no_shrink()
        .prop_flat_map(move |(ranks, warm)| {
            let steps = prop::collection::vec(step(ranks as u8, &edges, longest), 1..MAX_STEPS);
            steps.prop_map(move |steps| RankProgram {
                ranks,
                warm,
                table: false,
                counts_remote: false,
                steps,
            })
        })
}

fn step(ranks: u8, edges: &[usize], longest: usize) -> impl Strategy<Value = DatagramStep> + use<> {
    let rank = move || 0..ranks;
    let edges = edges.to_vec();
    let sizes = move || prop::sample::select(edges.clone());
    let size = prop_oneof![4 => sizes(), 3 => 0..=longest, 1 => Just(longest + 1)];
    let room = prop_oneof![3 => Just(longest), 2 => sizes(), 2 => 0..=longest + 100];
    let pieces = || prop_oneof![3 => Just(1usize), 1 => 2..5usize];
    let rare = || prop::bool::weighted(0.2);
    let send = (
        (rank(), rank(), size),
        (rare(), any::<bool>(), rare(), pieces(), any::<bool>()),
    );
    let send = send.prop_map(
        |((from, to, size), (inject, data, quiet, pieces, registered))| DatagramStep::Send {
            from,
            to,
            size,
            inject,
            data,
            quiet,
            pieces,
            registered,
        },
    );
    let receive = (rank(), room, pieces(), any::<bool>());
    let receive = receive.prop_map(|(at, room, pieces, registered)| DatagramStep::Receive {
        at,
        room,
        pieces,
        registered,
    });
    prop_oneof![
        20 => send,
        20 => receive,
        3 => (rank(), 0..4usize).prop_map(|(at, which)| DatagramStep::Cancel { at, which }),
        10 => rank().prop_map(|at| DatagramStep::Progress { at }),
        5 => Just(DatagramStep::Settle),
        2 => (rank(), rank()).prop_map(|(at, peer)| DatagramStep::Remove { at, peer }),
        3 => (rank(), rank()).prop_map(|(at, peer)| DatagramStep::Insert { at, peer }),
        1 => rank().prop_map(|at| DatagramStep::Reopen { at }),
    ]
}
