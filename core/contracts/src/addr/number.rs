//! An endpoint's number: the 56 bits of its native address that are its own. All else is its
//! node's, so an address vector can keep the two apart (`docs/adr/0032`).
//!
//! The number is the QPN and 32 bits of incarnation, or 56 bits of incarnation where there is no
//! queue pair; the name of the shared-memory endpoint is the number. A Q_Key that was drawn for the
//! endpoint is the low 31 bits of the incarnation. Peers need not follow: all other fields of an
//! address are its node's part.

use super::NATIVE_LEN;
use super::native::{FLAGS_AT, HAS_SHM, HAS_VERBS, NativeAddr, NativeWords, QPN_AT, VerbsAddr};

/// Bits of a number.
pub const NUMBER_BITS: u32 = 56;

/// Bits of incarnation in the number of an endpoint that has a queue pair; the QPN's are above.
const INCARNATION_BITS: u32 = 32;

/// Bits of a Q_Key: the highest bit of the field marks those of privileged processes.
const QKEY_BITS: u32 = 31;

/// In place of a Q_Key that was drawn for its endpoint. It is no Q_Key of an unprivileged process.
pub const DRAWN_QKEY: u32 = 1 << QKEY_BITS;

impl NativeAddr {
    /// The address of an endpoint that is being opened; `random` distinguishes it from those
    /// before.
    pub fn of_new(node: u64, verbs: Option<VerbsAddr>, has_shm: bool, random: u64) -> Self {
        let incarnation = match verbs {
            Some(_) => low(random, INCARNATION_BITS),
            None => low(random, NUMBER_BITS),
        };
        let qpn = verbs.map_or(0, |verbs| verbs.qpn);
        let number = (u64::from(qpn) << INCARNATION_BITS) | incarnation;
        Self {
            incarnation,
            node,
            shm: has_shm.then_some(number),
            verbs,
        }
    }

    /// The Q_Key of an endpoint without an authorization key whose incarnation has these low bits;
    /// `random` as for [`of_new`](Self::of_new).
    pub fn drawn_qkey(random: u64) -> u32 {
        low(random, QKEY_BITS) as u32
    }

    /// Whether its Q_Key was drawn for it: it has no authorization key.
    pub fn has_drawn_qkey(&self) -> bool {
        (self.verbs).is_some_and(|verbs| verbs.qkey == Self::drawn_qkey(self.incarnation))
    }

    /// The address without the fields that a restart changes: incarnation and shared-memory name
    /// are 0, and a drawn Q_Key is [`DRAWN_QKEY`].
    pub fn place(&self) -> [u8; NATIVE_LEN] {
        let is_drawn = self.has_drawn_qkey();
        let verbs = self.verbs.map(|verbs| VerbsAddr {
            qkey: if is_drawn { DRAWN_QKEY } else { verbs.qkey },
            ..verbs
        });
        let place = Self {
            incarnation: 0,
            shm: self.shm.map(|_| 0),
            verbs,
            ..*self
        };
        place.to_bytes()
    }
}

/// A native address as its node's part, with zeros in place of the number, and the number. An
/// address that does not come about so is all its node's, with the number 0. By the word, as
/// `to_words` has it: a later read by words need not wait for stores of parts.
#[inline]
pub fn split(addr: &NativeWords) -> (NativeWords, u64) {
    let [first, keys, gid, rest, incarnation, of_node, shm, last] = *addr;
    let (qpn, has_verbs, has_shm) = of_first(first);
    let own_bits = match has_verbs {
        false => NUMBER_BITS,
        true => INCARNATION_BITS,
    };
    let number = (qpn << INCARNATION_BITS) | incarnation;
    let expected = match has_shm {
        false => 0,
        true => number,
    };
    let stray_qpn = !has_verbs && qpn != 0;
    let too_long = qpn >> 24 != 0 || incarnation >> own_bits != 0;
    let qkey = keys as u32;
    if shm != expected || stray_qpn || too_long || qkey == DRAWN_QKEY {
        return (*addr, 0);
    }
    let first = low(first, QPN_AT);
    let is_drawn = number != 0 && qkey == NativeAddr::drawn_qkey(incarnation);
    let keys = match is_drawn {
        true => keys ^ u64::from(qkey ^ DRAWN_QKEY),
        false => keys,
    };
    ([first, keys, gid, rest, 0, of_node, 0, last], number)
}

/// The address of a node's endpoint with this number.
#[inline]
pub fn join(node: &NativeWords, number: u64) -> NativeWords {
    let [first, keys, gid, rest, incarnation, of_node, shm, last] = *node;
    let (_, has_verbs, has_shm) = of_first(first);
    let (qpn, own) = match has_verbs {
        false => (0, number),
        true => (number >> INCARNATION_BITS, low(number, INCARNATION_BITS)),
    };
    let own_shm = match has_shm {
        false => 0,
        true => number,
    };
    let is_drawn = number != 0 && keys as u32 == DRAWN_QKEY;
    let keys = match is_drawn {
        true => keys ^ u64::from(NativeAddr::drawn_qkey(own) ^ DRAWN_QKEY),
        false => keys,
    };
    // An address that is all its node's has its own in place, and the number 0.
    [
        first | (qpn << QPN_AT),
        keys,
        gid,
        rest,
        incarnation | own,
        of_node,
        shm | own_shm,
        last,
    ]
}

/// The fields of an address's first word: the QPN, and whether it has a queue pair and a
/// shared-memory endpoint.
#[inline]
fn of_first(first: u64) -> (u64, bool, bool) {
    let flags = (first >> FLAGS_AT) as u8;
    let qpn = first >> QPN_AT;
    (qpn, flags & HAS_VERBS != 0, flags & HAS_SHM != 0)
}

#[inline]
fn low(value: u64, bits: u32) -> u64 {
    value & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::GidKind;
    use crate::addr::native::tests::any_addr;
    use proptest::prelude::*;

    proptest! {
        /// Covers: AV-9
        #[test]
        fn any_bytes_come_back(
            addr in any::<[u8; 64]>(),
            flags in 0u8..4,
            clear in any::<[bool; 3]>(),
            qkey in 0..3,
        ) {
            let mut addr = addr;
            addr[3] = flags;
            for (field, clear) in [4..8, 32..40, 48..56].into_iter().zip(clear) {
                if clear {
                    addr[field].fill(0);
                }
            }
            let mut addr: NativeWords = zerocopy::transmute!(addr);
            let qkey = match qkey {
                0 => addr[1] as u32,
                1 => NativeAddr::drawn_qkey(addr[4]),
                _ => DRAWN_QKEY,
            };
            addr[1] = (addr[1] >> 32 << 32) | u64::from(qkey);
            let (node, number) = split(&addr);
            prop_assert!(number >> NUMBER_BITS == 0);
            prop_assert_eq!(join(&node, number), addr);
        }

        /// Endpoints of one node and queue pairs of one port differ in their numbers alone.
        ///
        /// Covers: AV-9
        #[test]
        fn new_endpoints_of_a_node_share_its_part(
            like in any_addr(),
            randoms in any::<[u64; 2]>(),
            qpns in any::<[u32; 2]>(),
            has_key in any::<bool>(),
        ) {
            let addr = |i: usize| {
                let verbs = like.verbs.map(|verbs| VerbsAddr {
                    qpn: qpns[i] >> 8,
                    qkey: match has_key {
                        true => verbs.qkey & !DRAWN_QKEY,
                        false => NativeAddr::drawn_qkey(randoms[i]),
                    },
                    ..verbs
                });
                NativeAddr::of_new(like.node, verbs, like.shm.is_some(), randoms[i])
            };
            let [(node, one), (same, other)] = [addr(0), addr(1)].map(|addr| split(&addr.to_words()));
            prop_assert_eq!(node, same);
            prop_assert_eq!(one == other, addr(0) == addr(1));
            prop_assert_eq!(join(&node, other), addr(1).to_words());
            prop_assert_eq!(NativeAddr::from_bytes(&addr(0).to_bytes()), Ok(addr(0)));
        }
    }

    /// Covers: AV-9
    #[test]
    fn an_address_that_came_about_otherwise_is_all_its_nodes() {
        let verbs = VerbsAddr {
            gid: [0; 16],
            gid_kind: GidKind::RoceV2,
            qpn: 17,
            qkey: 1,
            lid: 0,
            pkey: 0xffff,
            sl: 0,
            port: 1,
            mtu_bytes: 4096,
        };
        let regular = NativeAddr::of_new(1, Some(verbs), true, u64::MAX);
        let (incarnation, shm) = (regular.incarnation, regular.shm);
        assert_eq!(incarnation, 0xffff_ffff);
        assert_eq!(shm, Some((17 << 32) | incarnation));
        let mut others = vec![
            NativeAddr {
                incarnation: 1 << 32,
                ..regular
            },
            NativeAddr {
                shm: Some(0),
                ..regular
            },
            NativeAddr {
                shm: Some(17 << 32),
                ..regular
            },
        ];
        others.push(NativeAddr {
            incarnation: 1 << NUMBER_BITS,
            verbs: None,
            ..regular
        });
        for other in others {
            assert_eq!(split(&other.to_words()), (other.to_words(), 0), "{other}");
        }
    }
}
