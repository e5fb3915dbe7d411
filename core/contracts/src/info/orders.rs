//! The orders of operations in hints and offers (fi_endpoint(3), `msg_order`).

use super::{EpAttr, Info, RxAttr, TxAttr, caps};
use crate::atomics::MAX_ATOMIC_BYTES;
use crate::flags::Order;

/// The target carries out the atomic operations of an initiator in the order of their calls.
const ATOMIC_ORDERS: Order = Order::ATOMIC_RAR
    .union(Order::ATOMIC_RAW)
    .union(Order::ATOMIC_WAR)
    .union(Order::ATOMIC_WAW);

/// The orders that one-sided operations have to wait for (`docs/adr/0065`). An offer has those that
/// the hints name.
pub const ORDERS_ON_REQUEST: Order = Order::RAR
    .union(Order::RAW)
    .union(Order::RAS)
    .union(Order::WAR)
    .union(Order::WAW)
    .union(Order::WAS)
    .union(Order::SAR)
    .union(Order::SAW)
    .union(Order::RMA_RAR)
    .union(Order::RMA_RAW)
    .union(Order::RMA_WAR)
    .union(Order::RMA_WAW);

/// All orders that one-sided operations may have.
pub(super) const ONE_SIDED_ORDERS: Order = ATOMIC_ORDERS.union(ORDERS_ON_REQUEST);

/// The same offer with all orders that its endpoints may have, up to the longest operation. The
/// offer of a domain has those alone that its own hints have named. An endpoint may have others.
#[must_use]
pub fn with_all_orders(info: Info) -> Info {
    if !caps::has_remote_access(info.caps) {
        return info;
    }
    let size = info.ep.max_msg_size;
    Info {
        tx: TxAttr {
            msg_order: info.tx.msg_order | ONE_SIDED_ORDERS,
            ..info.tx
        },
        rx: RxAttr {
            msg_order: info.rx.msg_order | ONE_SIDED_ORDERS,
            ..info.rx
        },
        ep: EpAttr {
            max_order_raw_size: size,
            max_order_war_size: size,
            max_order_waw_size: size,
            ..info.ep
        },
        ..info
    }
}

/// The orders of an offer, for those in the hints.
pub(super) fn grant(asked: Order, offered: Order) -> Order {
    offered - (ORDERS_ON_REQUEST - asked)
}

/// The bytes up to which operations keep an order that the hints do not name: those of the longest
/// atomic operation, or as many as the hints ask for.
pub(super) fn size_without_request(asked: usize, offered: usize) -> usize {
    asked.max(MAX_ATOMIC_BYTES).min(offered)
}
