//! The orders that an endpoint's operations keep on request (`docs/adr/0065`), as sets of
//! operations.

use bitflags::bitflags;
use ferrofabric_contracts::flags::{Flags, Order};
use ferrofabric_contracts::types::{RmaKind, RmaOp};

bitflags! {
    /// The effects of operations that orders tell apart.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub(crate) struct Effects: u8 {
        const SEND = 1 << 0;
        const READ = 1 << 1;
        const WRITE = 1 << 2;
        const ATOMIC_READ = 1 << 3;
        const ATOMIC_WRITE = 1 << 4;
    }
}

impl Effects {
    const READS: Self = Self::READ.union(Self::ATOMIC_READ);
    const WRITES: Self = Self::WRITE.union(Self::ATOMIC_WRITE);
    const ATOMIC: Self = Self::ATOMIC_READ.union(Self::ATOMIC_WRITE);

    /// Of an operation on a peer's memory, whose flags have `ATOMIC` if it is atomic.
    #[inline]
    pub(crate) fn of(kind: RmaKind, flags: Flags) -> Self {
        match (kind, flags.contains(Flags::ATOMIC)) {
            (RmaKind::Read, false) => Self::READ,
            (RmaKind::Write, false) => Self::WRITE,
            (RmaKind::Read, true) => Self::ATOMIC,
            (RmaKind::Write, true) => Self::ATOMIC_WRITE,
        }
    }
}

/// The effects that must be over before an operation with another one begins, unless a transport
/// keeps that order by itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct Orders {
    sends: Effects,
    reads: Effects,
    writes: Effects,
    atomic_reads: Effects,
    atomic_writes: Effects,
}

impl Orders {
    /// Of the orders that an endpoint has. Sends after sends, and atomic operations after atomic
    /// operations, keep their order anyway.
    pub(crate) fn of(order: Order) -> Self {
        let after = |pairs: &[(Order, Effects)]| {
            let asked = pairs.iter().filter(|(bits, _)| order.intersects(*bits));
            asked
                .map(|(_, effects)| *effects)
                .fold(Effects::empty(), Effects::union)
        };
        let (reads, writes) = (Effects::READS, Effects::WRITES);
        let read = after(&[
            (Order::RAR, reads),
            (Order::RAW, writes),
            (Order::RAS, Effects::SEND),
        ]);
        let write = after(&[
            (Order::WAR, reads),
            (Order::WAW, writes),
            (Order::WAS, Effects::SEND),
        ]);
        Self {
            sends: after(&[(Order::SAR, reads), (Order::SAW, writes)]),
            reads: read
                | after(&[
                    (Order::RMA_RAR, Effects::READ),
                    (Order::RMA_RAW, Effects::WRITE),
                ]),
            writes: write
                | after(&[
                    (Order::RMA_WAR, Effects::READ),
                    (Order::RMA_WAW, Effects::WRITE),
                ]),
            atomic_reads: read - Effects::ATOMIC,
            atomic_writes: write - Effects::ATOMIC,
        }
    }

    /// Whether sends wait for other operations.
    pub(crate) fn hold_sends(&self) -> bool {
        !self.sends.is_empty()
    }

    /// Whether there is any order that the transports do not keep by themselves.
    pub(crate) fn is_any(&self) -> bool {
        let Self {
            sends,
            reads,
            writes,
            atomic_reads,
            atomic_writes,
        } = *self;
        !(sends | reads | writes | atomic_reads | atomic_writes).is_empty()
    }

    /// The effects that must be over before an operation.
    pub(crate) fn before(&self, effects: Effects) -> Effects {
        let of = [
            (Effects::SEND, self.sends),
            (Effects::READ, self.reads),
            (Effects::WRITE, self.writes),
            (Effects::ATOMIC_READ, self.atomic_reads),
            (Effects::ATOMIC_WRITE, self.atomic_writes),
        ];
        (of.iter().filter(|(effect, _)| effects.contains(*effect)))
            .map(|(_, before)| *before)
            .fold(Effects::empty(), Effects::union)
    }
}

/// The effects of a read or a write.
#[inline]
pub(crate) fn effects_of(op: &RmaOp) -> Effects {
    Effects::of(op.kind, op.flags - Flags::ATOMIC)
}

/// The operations before which a device carries out an operation by itself, in the order of their
/// requests on one queue pair: a read is answered after the writes and the reads before it, and
/// a write is carried out after the writes, but not after the answers to the reads.
pub(crate) fn kept_by_devices(effects: Effects) -> Effects {
    match effects {
        Effects::READ => Effects::READ | Effects::WRITE,
        Effects::WRITE => Effects::WRITE,
        _ => Effects::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: GI-2
    #[test]
    fn each_order_names_what_comes_before() {
        let (s, r, w) = (Effects::SEND, Effects::READ, Effects::WRITE);
        let cases = [
            (Order::RAR, r, Effects::READS),
            (Order::RAW, r, Effects::WRITES),
            (Order::RAS, r, s),
            (Order::WAR, w, Effects::READS),
            (Order::WAW, w, Effects::WRITES),
            (Order::WAS, w, s),
            (Order::SAR, s, Effects::READS),
            (Order::SAW, s, Effects::WRITES),
            (Order::RMA_RAR, r, r),
            (Order::RMA_RAW, r, w),
            (Order::RMA_WAR, w, r),
            (Order::RMA_WAW, w, w),
            (Order::RAW, Effects::ATOMIC_READ, w),
            (Order::WAR, Effects::ATOMIC_WRITE, r),
            (Order::WAW | Order::RAS, Effects::ATOMIC, w | s),
        ];
        for (order, effects, before) in cases {
            assert_eq!(Orders::of(order).before(effects), before, "{order:?}");
        }
        for kept in [Order::SAS, Order::ATOMIC_RAR, Order::ATOMIC_WAW] {
            assert!(!Orders::of(kept).is_any());
        }
    }
}
