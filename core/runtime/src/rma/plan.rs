//! How a one-sided operation is carried out: the one place of that choice (`docs/adr/0093`).
//!
//! [`plan`] takes an operation, what it must not overtake, and the route to the target's memory. It
//! names the [`Rule`] that applies, which has the way and its cost. The rules are a table that
//! `ferro info --one-sided` prints.
//!
//! The endpoint asks first, without a route: operations behind sends, and fenced ones, go as messages
//! at once. Else the transport looks the route up and asks again. Whether the target gives the right to the
//! bytes is part of the route: a window contains them
//! ([`RegionWindow`](ferrofabric_contracts::region_window::RegionWindow)), or the memory counts as
//! hidden or not granted. Then messages carry the operation, and the target's answer counts.

use ferrofabric_contracts::atomics::Datatype;
use ferrofabric_contracts::flags::RECEIVER_LEVELS;
use ferrofabric_contracts::types::{RmaKind, RmaOp};

/// What an operation asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A read.
    Read,
    /// A write that may complete before the target's processor sees its bytes.
    Write,
    /// A write that completes when the bytes are in the target's memory
    /// (`FI_DELIVERY_COMPLETE`).
    VisibleWrite,
    /// An atomic operation on elements of one word.
    AtomicWord,
    /// An atomic operation on elements of two words.
    AtomicPair,
}

impl Operation {
    /// Of a read or a write.
    #[inline(always)]
    #[must_use]
    pub const fn of(op: &RmaOp) -> Self {
        match op.kind {
            RmaKind::Read => Self::Read,
            RmaKind::Write => match op.flags.intersects(RECEIVER_LEVELS) {
                true => Self::VisibleWrite,
                false => Self::Write,
            },
        }
    }

    /// Of an atomic operation on elements of a type.
    #[inline(always)]
    #[must_use]
    pub const fn atomic(datatype: Datatype) -> Self {
        match datatype.is_one_word() {
            true => Self::AtomicWord,
            false => Self::AtomicPair,
        }
    }
}

/// What the operations that this one must not overtake leave open (`docs/adr/0065`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Any way: there are none, or they have completed.
    Nothing,
    /// Only the device that carries them out in the order of their requests.
    Device,
    /// Only messages: they are messages that were sent, or the operation is fenced.
    Messages,
}

/// The route to the target's memory, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The transport has not looked it up.
    Unknown,
    /// The transport has, and leaves the operation to messages.
    Declined,
    /// There is no link and no lane of queue pairs, or messages to the peer wait in line.
    NotReady,
    /// A link over shared memory.
    Link(LinkMemory),
    /// A lane of queue pairs of a device.
    Lane(LaneMemory),
}

/// The target's memory, over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkMemory {
    /// The target's board shows no window with these bytes and the right to them, or the operation
    /// is longer than a copy may be.
    Hidden,
    /// It is mapped into this process.
    Mapped,
    /// It is not mapped, and the kernel copies to and from it as fast as messages.
    Copyable,
    /// It is not mapped. The kernel must not or could not copy, or messages are faster.
    NotCopyable,
}

/// The target's memory, over a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneMemory {
    /// The operation is longer than the device carries out at one time, has more pieces than a
    /// request, or has no bytes.
    Unfit,
    /// The target has granted no window with these bytes and the right to them.
    NotGranted,
    /// The lane's queue is full.
    Full,
    /// Other lanes need the work requests.
    Scarce,
    /// This side can not read the bytes back to see that they are there.
    Unreadable,
    /// No bounce buffer is free now, or this side's buffers can not be registered.
    Unregistered,
    /// The device can carry the operation out.
    Granted,
}

/// The way of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The device of the lane carries it out.
    Device,
    /// This process does, by loads, stores and atomic instructions on mapped memory.
    Mapped,
    /// The kernel copies between the processes.
    Kernel,
    /// The target's process carries it out: it travels as messages.
    Message,
    /// None now (`FI_EAGAIN`).
    Again,
    /// The transport has to look the route up.
    LookUp,
}

impl Way {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Mapped => "mapped",
            Self::Kernel => "kernel",
            Self::Message => "message",
            Self::Again => "again",
            Self::LookUp => "look up",
        }
    }

    /// What it costs.
    #[must_use]
    pub const fn cost(self) -> Cost {
        match self {
            Self::Device => Cost::RoundTrip,
            Self::Mapped => Cost::Instructions,
            Self::Kernel => Cost::SystemCall,
            Self::Message => Cost::TwoProcesses,
            Self::Again => Cost::Wait,
            Self::LookUp => Cost::None,
        }
    }
}

/// The cost of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cost {
    /// None: another rule follows.
    None,
    /// Instructions of this process.
    Instructions,
    /// A system call of this process.
    SystemCall,
    /// A round trip between two devices.
    RoundTrip,
    /// A round trip, and steps of both processes.
    TwoProcesses,
    /// Another call, once operations before it have completed.
    Wait,
}

impl Cost {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Instructions => "instructions",
            Self::SystemCall => "system call",
            Self::RoundTrip => "round trip",
            Self::TwoProcesses => "two processes",
            Self::Wait => "wait",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where it applies: `any`, `link` (shared memory), `lane` (devices).
    pub route: &'static str,
    /// The operations that it is for.
    pub operations: &'static str,
    /// When it applies, if none above it does.
    pub condition: &'static str,
    /// The way.
    pub way: Way,
}

macro_rules! rules {
    ($($(#[$meta:meta])* $rule:ident: $route:literal, $operations:literal, $way:ident,
        $condition:literal;)+) => {
        /// A rule of the choice, in the order of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Rule {
            $($(#[$meta])* #[doc = $condition] $rule,)+
        }

        impl Rule {
            /// All of them, in their order.
            pub const ALL: &'static [Self] = &[$(Self::$rule),+];

            /// The way of the operations that it applies to.
            #[inline(always)]
            #[must_use]
            pub const fn way(self) -> Way {
                match self {
                    $(Self::$rule => Way::$way,)+
                }
            }

            /// Its row of the table.
            #[must_use]
            pub const fn row(self) -> Row {
                let (route, operations, condition) = match self {
                    $(Self::$rule => ($route, $operations, $condition),)+
                };
                Row { route, operations, condition, way: self.way() }
            }
        }
    };
}

rules! {
    BehindMessages: "any", "all", Message,
        "fenced (FI_FENCE), or ordered behind messages that were sent (msg_order)";
    AtomicOnPairs: "any", "atomic", Message,
        "elements of two words: only the target's process locks them";
    LookUp: "any", "all", LookUp,
        "the transport looks for a link or a lane to the peer";
    NotReady: "any", "all", Message,
        "no link and no lane of queue pairs, or messages to the peer wait in line";
    Declined: "any", "all", Message,
        "the transport leaves it to messages by one of the rules below";
    Hidden: "link", "all", Message,
        "the board shows no window with these bytes and the right, or more than 64 MiB";
    Mapped: "link", "all", Mapped,
        "the memory is mapped here; atomic: aligned, and none before it goes as messages";
    AtomicNotMapped: "link", "atomic", Message,
        "the memory is not mapped here";
    Copyable: "link", "read, write", Kernel,
        "the kernel may copy, and was not slower than messages, or the peer sleeps";
    NotCopyable: "link", "read, write", Message,
        "the kernel may not copy, pages were missing of late, or messages were faster";
    AtomicByNetwork: "lane", "atomic", Message,
        "a device and the target's processor are not atomic to each other";
    Unfit: "lane", "read, write", Message,
        "longer than the device carries out at once, too many pieces, or no bytes";
    NotGranted: "lane", "read, write", Message,
        "the target has granted no window with these bytes and the right; it may be queried";
    Full: "lane", "read, write", Again,
        "the queue of the lane is full";
    Scarce: "lane", "read, write", Message,
        "other lanes need the work requests";
    Unreadable: "lane", "visible write", Message,
        "FI_DELIVERY_COMPLETE, and this side can not read the bytes back";
    Unregistered: "lane", "read, write", Message,
        "no bounce buffer is free, or this side's buffers can not be registered";
    Granted: "lane", "read, write", Device,
        "the target has granted the memory for this lane";
    BehindDevice: "any", "all", Again,
        "in place of each way above but the device: ordered behind what a device carries out";
}

/// The rule for an operation.
#[inline(always)]
#[must_use]
pub const fn plan(operation: Operation, behind: Behind, route: Route) -> Rule {
    use Operation::{AtomicPair, AtomicWord, Read, VisibleWrite, Write};
    let rule = match (operation, route) {
        (AtomicPair, _) => Rule::AtomicOnPairs,
        (_, Route::Unknown) => Rule::LookUp,
        (_, Route::Declined) => Rule::Declined,
        (_, Route::NotReady) => Rule::NotReady,
        (Read | Write | VisibleWrite, Route::Link(memory)) => match memory {
            LinkMemory::Hidden => Rule::Hidden,
            LinkMemory::Mapped => Rule::Mapped,
            LinkMemory::Copyable => Rule::Copyable,
            LinkMemory::NotCopyable => Rule::NotCopyable,
        },
        (AtomicWord, Route::Link(memory)) => match memory {
            LinkMemory::Hidden => Rule::Hidden,
            LinkMemory::Mapped => Rule::Mapped,
            LinkMemory::Copyable | LinkMemory::NotCopyable => Rule::AtomicNotMapped,
        },
        (Read | Write, Route::Lane(LaneMemory::Unreadable)) => Rule::Granted,
        (Read | Write | VisibleWrite, Route::Lane(memory)) => match memory {
            LaneMemory::Unfit => Rule::Unfit,
            LaneMemory::NotGranted => Rule::NotGranted,
            LaneMemory::Full => Rule::Full,
            LaneMemory::Scarce => Rule::Scarce,
            LaneMemory::Unreadable => Rule::Unreadable,
            LaneMemory::Unregistered => Rule::Unregistered,
            LaneMemory::Granted => Rule::Granted,
        },
        (AtomicWord, Route::Lane(_)) => Rule::AtomicByNetwork,
    };
    match (behind, rule.way()) {
        (Behind::Messages, _) => Rule::BehindMessages,
        (Behind::Device, Way::Message | Way::Mapped | Way::Kernel) => Rule::BehindDevice,
        (Behind::Nothing | Behind::Device, _) => rule,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const OPERATIONS: [Operation; 5] = [
        Operation::Read,
        Operation::Write,
        Operation::VisibleWrite,
        Operation::AtomicWord,
        Operation::AtomicPair,
    ];
    const BEHIND: [Behind; 3] = [Behind::Nothing, Behind::Device, Behind::Messages];
    const ROUTES: [Route; 14] = [
        Route::Unknown,
        Route::Declined,
        Route::NotReady,
        Route::Link(LinkMemory::Hidden),
        Route::Link(LinkMemory::Mapped),
        Route::Link(LinkMemory::Copyable),
        Route::Link(LinkMemory::NotCopyable),
        Route::Lane(LaneMemory::Unfit),
        Route::Lane(LaneMemory::NotGranted),
        Route::Lane(LaneMemory::Full),
        Route::Lane(LaneMemory::Scarce),
        Route::Lane(LaneMemory::Unreadable),
        Route::Lane(LaneMemory::Unregistered),
        Route::Lane(LaneMemory::Granted),
    ];

    fn all() -> impl Iterator<Item = (Operation, Behind, Route)> {
        OPERATIONS.into_iter().flat_map(|operation| {
            BEHIND.into_iter().flat_map(move |behind| {
                ROUTES
                    .into_iter()
                    .map(move |route| (operation, behind, route))
            })
        })
    }

    fn is_atomic(operation: Operation) -> bool {
        matches!(operation, Operation::AtomicWord | Operation::AtomicPair)
    }

    /// What is printed is what is done: each row applies to something, and to nothing but the
    /// operations and the routes that it names.
    #[test]
    fn each_row_of_the_table_applies_where_it_says() {
        let mut applied = HashSet::new();
        for (operation, behind, route) in all() {
            let rule = plan(operation, behind, route);
            applied.insert(rule);
            let row = rule.row();
            let is_for_it = match row.operations {
                "all" => true,
                "atomic" => is_atomic(operation),
                "read, write" => !is_atomic(operation),
                "visible write" => operation == Operation::VisibleWrite,
                other => panic!("{other} names no operations"),
            };
            let is_on_it = match row.route {
                "any" => true,
                "link" => matches!(route, Route::Link(_)),
                "lane" => matches!(route, Route::Lane(_)),
                other => panic!("{other} names no route"),
            };
            assert!(
                is_for_it && is_on_it,
                "{operation:?} {behind:?} {route:?} {row:?}"
            );
        }
        let all: HashSet<_> = Rule::ALL.iter().copied().collect();
        assert_eq!(applied, all);
    }

    /// A way round the target's process needs memory that the target gives this side the right to.
    #[test]
    fn memory_that_is_not_given_is_reached_only_by_messages() {
        let given = [
            (Route::Link(LinkMemory::Mapped), Way::Mapped),
            (Route::Link(LinkMemory::Copyable), Way::Kernel),
            (Route::Lane(LaneMemory::Granted), Way::Device),
            (Route::Lane(LaneMemory::Unreadable), Way::Device),
        ];
        for (operation, behind, route) in all() {
            let way = plan(operation, behind, route).way();
            let is_around = matches!(way, Way::Mapped | Way::Kernel | Way::Device);
            if is_around {
                assert!(
                    given.contains(&(route, way)),
                    "{operation:?} {route:?} {way:?}"
                );
            }
        }
    }

    /// Only processors carry out atomic operations on a region, by the same instructions.
    #[test]
    fn no_device_and_no_kernel_carries_out_atomic_operations() {
        for (operation, behind, route) in all().filter(|(of, ..)| is_atomic(*of)) {
            let way = plan(operation, behind, route).way();
            assert!(!matches!(way, Way::Device | Way::Kernel), "{route:?}");
        }
    }

    /// An operation overtakes nothing that it has to follow.
    #[test]
    fn ways_keep_the_order() {
        for (operation, _, route) in all() {
            let way = |behind| plan(operation, behind, route).way();
            assert_eq!(way(Behind::Messages), Way::Message);
            match way(Behind::Nothing) {
                way_now @ (Way::Device | Way::Again | Way::LookUp) => {
                    assert_eq!(way(Behind::Device), way_now);
                }
                Way::Message | Way::Mapped | Way::Kernel => {
                    assert_eq!(way(Behind::Device), Way::Again);
                }
            }
        }
    }
}
