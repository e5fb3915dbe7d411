//! Atomic operations of random programs.

use ferrofabric_contracts::atomics::{AtomicForm, AtomicOperator, Datatype};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::{MessageStep, OneSidedFault};

/// Atomic operations on a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtomicStep {
    /// The rank that begins it.
    pub from: u8,
    /// Operations of this kind, one after the other. The first operand of each is greater by 1 than
    /// that of the one before.
    pub times: u8,
    /// Each is begun by the rank behind that of the one before.
    pub spread: bool,
    /// The rank whose memory it is.
    pub to: u8,
    /// The place in the list of that rank's regions.
    pub which: usize,
    /// The number of the form on the wire.
    pub form: u8,
    /// libfabric's number of the operator.
    pub operator: u8,
    /// libfabric's number of the type.
    pub datatype: u8,
    /// Elements; no more than an operation, the region, and an inject may have, if it is one.
    pub count: usize,
    /// Bytes from its place to the end of the region. If it can not be there, a place is looked for
    /// that no other operation uses.
    pub place: usize,
    /// The fault in it.
    pub fault: OneSidedFault,
    /// The first operand; the next ones are greater by 1 each.
    pub operand: i8,
    /// The first compare value. None: they are the elements of the target from before the
    /// operations that are under way.
    pub compare: Option<i8>,
    /// With `FI_INJECT`.
    pub inject: bool,
    /// Without `FI_COMPLETION`.
    pub quiet: bool,
    /// Local buffers of each kind, no more than the offer allows.
    pub pieces: usize,
    /// With `FI_FENCE`, where that is offered: perhaps at the place of a read or a write before it
    /// to this peer.
    pub fence: bool,
}

/// Each form with the operators and types that it has. Sums and types of one word are as many as
/// all others.
fn kinds() -> impl Strategy<Value = (AtomicForm, AtomicOperator, Datatype)> {
    let mut all = Vec::new();
    for form in AtomicForm::ALL {
        for operator in AtomicOperator::ALL {
            for datatype in Datatype::ALL {
                if form.has(*operator, *datatype) {
                    all.push((*form, *operator, *datatype));
                }
            }
        }
    }
    const WORDS: &[Datatype] = &[Datatype::Uint64, Datatype::Uint32, Datatype::Double];
    const FORMS: &[AtomicForm] = &[AtomicForm::Base, AtomicForm::Fetch, AtomicForm::Fetch];
    prop_oneof![
        prop::sample::select(all),
        (
            prop::sample::select(FORMS),
            Just(AtomicOperator::Sum),
            prop::sample::select(&WORDS[..1])
        ),
        (
            prop::sample::select(FORMS),
            Just(AtomicOperator::Sum),
            prop::sample::select(WORDS)
        ),
    ]
}

/// Atomic operations of any form. Most of them are on few words of few regions, so that they meet.
pub(super) fn atomic<S: Strategy<Value = usize>>(
    ranks: u8,
    size: impl Fn() -> S,
) -> impl Strategy<Value = MessageStep> {
    let rare = || prop::bool::weighted(0.2);
    let fault = prop_oneof![
        16 => Just(OneSidedFault::None),
        1 => Just(OneSidedFault::Key),
        1 => Just(OneSidedFault::Range),
        1 => Just(OneSidedFault::Overflow),
        1 => Just(OneSidedFault::Alignment),
    ];
    let target = prop_oneof![1 => Just(0), 1 => 0..ranks];
    let which = prop_oneof![2 => Just(0), 1 => 0..4usize];
    let count = prop_oneof![4 => Just(1usize), 3 => 2..5usize, 1 => 5..600usize];
    let place = prop_oneof![4 => Just(64usize), 2 => 1..9usize, 1 => size()];
    let times = prop_oneof![2 => Just(1u8), 1 => 2..7u8];
    (
        (0..ranks, times, any::<bool>()),
        (target, which, kinds(), count, place),
        (
            fault,
            any::<i8>(),
            prop::option::of(-4..4i8),
            rare(),
            rare(),
            prop_oneof![3 => Just(1usize), 1 => 2..5usize],
            rare(),
        ),
    )
        .prop_map(
            |(
                (from, times, spread),
                (to, which, (form, operator, datatype), count, place),
                (fault, operand, compare, inject, quiet, pieces, fence),
            )| {
                MessageStep::Atomic(AtomicStep {
                    from,
                    times,
                    spread,
                    to,
                    which,
                    form: form as u8,
                    operator: operator as u8,
                    datatype: datatype as u8,
                    count,
                    place: match place {
                        place @ 1..9 => place * 8,
                        place => place,
                    },
                    fault,
                    operand,
                    compare,
                    inject,
                    quiet,
                    pieces,
                    fence,
                })
            },
        )
}
