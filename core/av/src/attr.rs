//! The attributes that an address vector is opened with, and the make-up of its addresses: which
//! bits of an `FiAddr` are the entry, its generation and the receive context.

use std::sync::Arc;

use super::chunk::GENERATION;
use super::service::Resolve;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::types::{AvType, FiAddr};

/// The attributes of an address vector. By default it is a MAP, whose stale addresses are caught.
#[derive(Clone, Debug)]
pub struct AvAttr {
    /// Type of the addresses; `None` leaves the choice to the provider (`FI_AV_UNSPEC`), see
    /// `Av::av_type`.
    pub av_type: Option<AvType>,
    /// High bits of an address that number a receive context ([`FiAddr::rx_addr`]).
    pub rx_ctx_bits: u32,
    /// Number of addresses to make room for at once; more may be inserted.
    pub count: usize,
    /// Endpoints that each node has; 0 where nobody knows.
    pub ep_per_node: usize,
    /// Nodes have many endpoints each: keeps what those have in common once, and takes as many
    /// bytes for the rest of an address as it has to (`FI_SYMMETRIC`). Any address may be inserted.
    /// Ranges of socket addresses are resolved when they are used (`docs/adr/0036`). One with a
    /// name is as without this.
    pub symmetric: bool,
    /// Shares the address vector with all processes of this user and node that open one of this
    /// name on a domain of the same name. It is made where there is none, and goes with its last
    /// holder.
    pub name: Option<String>,
    /// Opens a named one that is there, and does not change it (`FI_READ`).
    pub read_only: bool,
    /// Where an application wants a named one mapped; 0 for anywhere (`Av::map_addr`).
    pub map_addr: usize,
    /// Completions report IDs that the application gives to addresses (`FI_AV_USER_ID`), and
    /// [`FiAddr::NOTAVAIL`] for an address without one.
    pub user_ids: bool,
    /// Insertions are asynchronous (`FI_EVENT`): they end with events of the queue that is bound.
    pub events: bool,
    /// Finds endpoints by socket address; `None` takes the domain's own way, if it has one.
    pub resolver: Option<Arc<dyn Resolve>>,
}

impl Default for AvAttr {
    fn default() -> Self {
        Self {
            av_type: Some(AvType::Map),
            rx_ctx_bits: 0,
            count: 0,
            ep_per_node: 0,
            symmetric: false,
            name: None,
            read_only: false,
            map_addr: 0,
            user_ids: false,
            events: false,
            resolver: None,
        }
    }
}

/// Bits of an address that number the entry.
const INDEX_BITS: u32 = 32;

/// Bits of a MAP address for the generation of its entry: at most, and at least.
const GENERATION_BITS: (u32, u32) = (24, 8);

const _: () = assert!(GENERATION == (1 << GENERATION_BITS.0) - 1);

/// How the addresses of one vector are made up: the entry's number in the low 32 bits; above it, in
/// a MAP address, its generation; above that what is free for receive contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddrModel {
    pub(super) av_type: AvType,
    generation_bits: u32,
}

impl AddrModel {
    /// # Errors
    ///
    /// `EINVAL`: the receive context bits leave too few for the rest.
    pub(super) fn new(av_type: AvType, rx_ctx_bits: u32) -> Result<Self> {
        let (most, least) = match av_type {
            AvType::Table => (0, 0),
            AvType::Map => GENERATION_BITS,
        };
        match (u64::BITS - INDEX_BITS).checked_sub(rx_ctx_bits) {
            Some(left) if left >= least => Ok(Self {
                av_type,
                generation_bits: left.min(most),
            }),
            _ => {
                let object = format!("address vector with {rx_ctx_bits} receive context bits");
                let left = u64::BITS - INDEX_BITS - least;
                Err(Error::new(Errno::EINVAL, "open", object)
                    .mend(format!("there is room for {left}")))
            }
        }
    }

    /// High bits of an address that are free for receive contexts.
    pub(super) fn free_bits(self) -> u32 {
        u64::BITS - INDEX_BITS - self.generation_bits
    }

    /// The address of an entry of this generation or incarnation. It is neither
    /// [`FiAddr::NOTAVAIL`] nor [`FiAddr::UNSPEC`], which both end in the number of an entry that no
    /// table has.
    #[inline]
    pub(super) fn addr(self, entry: u32, generation: u32) -> FiAddr {
        match self.av_type {
            AvType::Table => FiAddr(entry.into()),
            AvType::Map => {
                let generation = u64::from(generation & GENERATION);
                FiAddr((generation << INDEX_BITS) | u64::from(entry))
            }
        }
    }

    /// The entry that an address may be of.
    #[inline]
    pub(super) fn entry(self, addr: FiAddr) -> Option<u32> {
        match self.av_type {
            AvType::Table => u32::try_from(addr.0).ok(),
            AvType::Map => Some(addr.0 as u32),
        }
    }

    /// Whether an entry that was freed with this generation may be taken again: a MAP address is
    /// never made twice.
    pub(super) fn is_reusable(self, generation: u32) -> bool {
        match self.av_type {
            AvType::Table => true,
            AvType::Map => (u64::from(generation) + 1) >> self.generation_bits == 0,
        }
    }

    /// As a number, for the head of a table that is shared.
    pub(super) fn number(self) -> u64 {
        (u64::from(self.generation_bits) << 8) | u64::from(self.av_type == AvType::Table)
    }

    /// From that number.
    pub(super) fn from_number(number: u64) -> Self {
        Self {
            av_type: match number & 1 {
                1 => AvType::Table,
                _ => AvType::Map,
            },
            generation_bits: ((number >> 8) as u32).min(GENERATION_BITS.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: AV-3
    #[test]
    fn bits_that_leave_too_few_are_refused() {
        for (av_type, most) in [(AvType::Map, 24), (AvType::Table, 32)] {
            assert!(AddrModel::new(av_type, most).is_ok());
            let refused = AddrModel::new(av_type, most + 1).unwrap_err();
            assert_eq!(refused.errno(), Errno::EINVAL);
            assert!(refused.to_string().contains(&format!("room for {most}")));
        }
        assert!(AddrModel::new(AvType::Map, u32::MAX).is_err());
    }

    /// Covers: AV-3, AV-17
    #[test]
    fn the_last_generation_leaves_the_reserved_bits_alone() {
        let model = AddrModel::new(AvType::Map, 24).unwrap();
        assert!(model.is_reusable(254) && !model.is_reusable(256));
        assert_eq!(model.addr(u32::MAX, 255).0 >> 40, 0);
    }
}
