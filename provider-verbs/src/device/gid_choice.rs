//! The choice of the GID that a port sends from.
//!
//! On Ethernet the slots of a table differ: RoCE v2 over IPv4 is routed and works wherever IP does,
//! RoCE v1 only within one Ethernet segment, and slot 0 is mostly the link-local address, which
//! many networks do not carry. A container sees the GIDs of its host and of other containers, from
//! which it can send nothing. On InfiniBand the first slot is the port's own.

use std::cmp::Reverse;
use std::fmt;

use ferrofabric_contracts::addr::GidKind;
use ferrofabric_contracts::error::{Errno, Error};

use super::gid::{Gid, GidEntry, GidScope};
use super::port::LinkLayer;

/// The request for a GID: a slot of the table, or a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidRequest {
    /// The best by rank, the lowest slot among equals.
    Best,
    /// This slot, whatever its rank.
    Index(u32),
}

/// A slot, and the reason why it was chosen or passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidChoice {
    /// The slot.
    pub index: u32,
    /// The address in it.
    pub gid: Gid,
    /// Its encapsulation.
    pub kind: GidKind,
    /// Why it was chosen, or not.
    pub reason: GidReason,
}

/// The reason why a slot was chosen or passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidReason {
    /// Chosen: no other is of a better rank, nor equal with a lower slot.
    Best,
    /// Chosen: the request names this slot.
    AskedFor,
    /// Passed over: slot `chosen` is of a better rank.
    RankedBelow {
        /// The slot that was chosen.
        chosen: u32,
    },
    /// Passed over: the GID's interface is in another network namespace.
    Elsewhere,
    /// Passed over: slot `chosen` is as good and comes first.
    Later {
        /// The slot that was chosen.
        chosen: u32,
    },
    /// Passed over: the request names another slot.
    NotAskedFor,
    /// Passed over: the address names no single port.
    Unusable,
    /// Passed over: an InfiniBand GID on Ethernet, or the reverse.
    WrongLink,
    /// Passed over: queue pairs name a slot in 8 bits.
    OutOfReach,
}

/// The chosen slot, and the others, each with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidSelection {
    /// The slot to use.
    pub chosen: GidChoice,
    /// All others, in the table's order.
    pub passed_over: Vec<GidChoice>,
}

/// No slot is usable, or not the requested one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoGid {
    asked: GidRequest,
    verdicts: Vec<GidChoice>,
}

/// Chooses from a port's table.
///
/// # Errors
///
/// When nothing in the table can be used, or the slot asked for is not in it or out of reach.
pub(crate) fn choose_gid(
    table: &[GidEntry],
    link: LinkLayer,
    request: GidRequest,
) -> Result<GidSelection, NoGid> {
    let best = table
        .iter()
        .filter(|entry| match request {
            GidRequest::Best => rank(entry, link).is_ok(),
            GidRequest::Index(index) => entry.index == index && index <= LAST_IN_REACH,
        })
        .min_by_key(|entry| (Reverse(rank(entry, link).ok()), entry.index));
    let Some(best) = best else {
        return Err(NoGid {
            asked: request,
            verdicts: table
                .iter()
                .map(|entry| {
                    verdict(
                        entry,
                        rank(entry, link).err().unwrap_or(GidReason::NotAskedFor),
                    )
                })
                .collect(),
        });
    };
    let reason_against = |entry: &GidEntry| match (request, rank(entry, link)) {
        (_, Err(reason)) => reason,
        (GidRequest::Best, Ok(_)) if entry.is_elsewhere && !best.is_elsewhere => {
            GidReason::Elsewhere
        }
        (GidRequest::Index(_), Ok(_)) => GidReason::NotAskedFor,
        (GidRequest::Best, Ok(rank_here)) if Ok(rank_here) == rank(best, link) => {
            GidReason::Later { chosen: best.index }
        }
        (GidRequest::Best, Ok(_)) => GidReason::RankedBelow { chosen: best.index },
    };
    let reason_for = match request {
        GidRequest::Best => GidReason::Best,
        GidRequest::Index(_) => GidReason::AskedFor,
    };
    Ok(GidSelection {
        chosen: verdict(best, reason_for),
        passed_over: table
            .iter()
            .filter(|entry| !std::ptr::eq(*entry, best))
            .map(|entry| verdict(entry, reason_against(entry)))
            .collect(),
    })
}

/// `sgid_index` has 8 bits.
const LAST_IN_REACH: u32 = 255;

/// The rank of a slot (more is better), or the reason why it cannot be used.
fn rank(entry: &GidEntry, link: LinkLayer) -> Result<u8, GidReason> {
    if entry.index > LAST_IN_REACH {
        return Err(GidReason::OutOfReach);
    }
    let scope = entry.gid.scope();
    if scope == GidScope::Unusable {
        return Err(GidReason::Unusable);
    }
    if (entry.kind == GidKind::Ib) == (link == LinkLayer::Ethernet) {
        return Err(GidReason::WrongLink);
    }
    let reach = match (entry.kind, scope) {
        // All slots have one rank: the lowest is the port's own GID, others belong to its guests.
        (GidKind::Ib, _) => 0,
        (GidKind::RoceV2, GidScope::Ipv4(_)) => 4,
        (GidKind::RoceV2, GidScope::Ipv6Global) => 3,
        (GidKind::RoceV2, _) => 2,
        (GidKind::RoceV1, GidScope::Ipv4(_) | GidScope::Ipv6Global) => 1,
        (GidKind::RoceV1, _) => 0,
    };
    Ok(match entry.is_elsewhere {
        true => reach,
        // Above all that are elsewhere.
        false => reach + 5,
    })
}

fn verdict(entry: &GidEntry, reason: GidReason) -> GidChoice {
    GidChoice {
        index: entry.index,
        gid: entry.gid,
        kind: entry.kind,
        reason,
    }
}

impl NoGid {
    /// Returns this as an error about a device's port.
    pub(crate) fn on(self, device: &str, port: u8) -> Error {
        let object = match self.asked {
            GidRequest::Best => format!("GID of {device} port {port}"),
            GidRequest::Index(index) => format!("GID index {index} of {device} port {port}"),
        };
        let error = Error::new(Errno::EADDRNOTAVAIL, "choose", object);
        if self.verdicts.is_empty() {
            return error.mend(
                "the port has no GID: give its network interface an IP address and bring it up, or let a subnet manager \
                 set the port up",
            );
        }
        let found: Vec<_> = self.verdicts.iter().map(ToString::to_string).collect();
        error.mend(format!("there are: {}", found.join("; ")))
    }
}

impl GidChoice {
    /// The encapsulation, in words.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            GidKind::Ib => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        }
    }
}

impl fmt::Display for GidChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, reason) = (self.kind_name(), self.reason);
        write!(f, "index {} {} ({kind}): {reason}", self.index, self.gid)
    }
}

impl fmt::Display for GidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Best => f.write_str("the best there is"),
            Self::AskedFor => f.write_str("asked for"),
            Self::RankedBelow { chosen } => write!(f, "index {chosen} reaches further"),
            Self::Elsewhere => f.write_str("its interface is in another network namespace"),
            Self::Later { chosen } => write!(f, "index {chosen} is as good and comes first"),
            Self::NotAskedFor => f.write_str("the request names another slot"),
            Self::Unusable => f.write_str("names no single port"),
            Self::WrongLink => f.write_str("not for this kind of link"),
            Self::OutOfReach => f.write_str("beyond index 255, which queue pairs cannot name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;

    use super::*;

    fn entry(index: u32, gid: &str, kind: GidKind) -> GidEntry {
        GidEntry {
            index,
            gid: Gid(gid.parse::<Ipv6Addr>().expect("an address").octets()),
            kind,
            interface: None,
            is_elsewhere: false,
        }
    }

    fn best(table: &[GidEntry], link: LinkLayer) -> u32 {
        choose_gid(table, link, GidRequest::Best)
            .expect("one is usable")
            .chosen
            .index
    }

    #[test]
    fn soft_roce_takes_the_ipv4_address_and_says_why_not_the_first() {
        let table = [
            entry(0, "fe80::98df:d5ff:fec8:14af", GidKind::RoceV2),
            entry(1, "::ffff:10.1.0.1", GidKind::RoceV2),
        ];
        let selection = choose_gid(&table, LinkLayer::Ethernet, GidRequest::Best).expect("usable");
        assert_eq!(
            (selection.chosen.index, selection.chosen.reason),
            (1, GidReason::Best)
        );
        assert_eq!(selection.passed_over.len(), 1);
        assert_eq!(
            selection.passed_over[0].reason,
            GidReason::RankedBelow { chosen: 1 }
        );
    }

    #[test]
    fn the_order_of_ranks() {
        let ranked = [
            ("::ffff:10.0.0.1", GidKind::RoceV2),
            ("2001:db8::1", GidKind::RoceV2),
            ("fe80::1", GidKind::RoceV2),
            ("::ffff:10.0.0.1", GidKind::RoceV1),
            ("fe80::1", GidKind::RoceV1),
        ];
        for better in 0..ranked.len() {
            for worse in better + 1..ranked.len() {
                // The better one stands later in the table.
                let table = [
                    entry(0, ranked[worse].0, ranked[worse].1),
                    entry(1, ranked[better].0, ranked[better].1),
                ];
                assert_eq!(
                    best(&table, LinkLayer::Ethernet),
                    1,
                    "{:?} before {:?}",
                    ranked[better],
                    ranked[worse]
                );
            }
        }
        let local = [
            entry(0, "::ffff:169.254.0.1", GidKind::RoceV2),
            entry(1, "2001:db8::1", GidKind::RoceV2),
        ];
        assert_eq!(best(&local, LinkLayer::Ethernet), 1);
    }

    #[test]
    fn a_gid_of_another_namespace_is_the_last_resort() {
        let elsewhere = |index, gid| GidEntry {
            is_elsewhere: true,
            ..entry(index, gid, GidKind::RoceV2)
        };
        let mut table = vec![
            elsewhere(0, "::ffff:10.0.0.1"),
            entry(1, "fe80::1", GidKind::RoceV1),
        ];
        let selection = choose_gid(&table, LinkLayer::Ethernet, GidRequest::Best).expect("usable");
        assert_eq!(selection.chosen.index, 1);
        assert_eq!(selection.passed_over[0].reason, GidReason::Elsewhere);
        table[1].is_elsewhere = true;
        assert_eq!(best(&table, LinkLayer::Ethernet), 0);
    }

    #[test]
    fn infiniband_takes_its_first_slot() {
        let table = [
            entry(0, "fe80::2:c903:1:2", GidKind::Ib),
            entry(1, "2001:db8::1", GidKind::Ib),
        ];
        assert_eq!(best(&table, LinkLayer::InfiniBand), 0);
    }

    #[test]
    fn a_slot_asked_for_is_taken_and_a_missing_one_refused_with_the_list() {
        let table = [
            entry(0, "fe80::1", GidKind::RoceV2),
            entry(1, "::ffff:10.0.0.1", GidKind::RoceV2),
        ];
        let asked =
            choose_gid(&table, LinkLayer::Ethernet, GidRequest::Index(0)).expect("it is there");
        assert_eq!(
            (asked.chosen.index, asked.chosen.reason),
            (0, GidReason::AskedFor)
        );
        let text = choose_gid(&table, LinkLayer::Ethernet, GidRequest::Index(7))
            .expect_err("not there")
            .on("rxe0", 1)
            .to_string();
        assert!(
            text.contains("index 7 of rxe0 port 1") && text.contains("10.0.0.1"),
            "{text}"
        );
    }

    #[test]
    fn an_empty_table_says_what_to_do() {
        let text = choose_gid(&[], LinkLayer::Ethernet, GidRequest::Best)
            .expect_err("empty")
            .on("rxe0", 1)
            .to_string();
        assert!(text.contains("IP address"), "{text}");
    }

    fn any_table() -> impl Strategy<Value = Vec<GidEntry>> {
        let gid = prop_oneof![
            any::<[u8; 4]>().prop_map(|v4| std::net::Ipv4Addr::from(v4).to_ipv6_mapped().octets()),
            any::<[u8; 16]>(),
            any::<[u8; 8]>().prop_map(|low| {
                let mut gid = [0; 16];
                gid[..2].copy_from_slice(&[0xfe, 0x80]);
                gid[8..].copy_from_slice(&low);
                gid
            }),
            Just([0; 16]),
        ];
        let kind = prop_oneof![
            Just(GidKind::Ib),
            Just(GidKind::RoceV1),
            Just(GidKind::RoceV2)
        ];
        proptest::collection::btree_map(0..400u32, (gid, kind, any::<bool>()), 0..20).prop_map(
            |slots| {
                slots
                    .into_iter()
                    .map(|(index, (gid, kind, is_elsewhere))| GidEntry {
                        index,
                        gid: Gid(gid),
                        kind,
                        interface: None,
                        is_elsewhere,
                    })
                    .collect()
            },
        )
    }

    proptest! {
        #[test]
        fn the_choice_is_the_best_and_every_slot_gets_a_verdict(table in any_table(), ethernet: bool) {
            let link = if ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
            match choose_gid(&table, link, GidRequest::Best) {
                Ok(selection) => {
                    let chosen = table.iter().find(|e| e.index == selection.chosen.index).expect("from the table");
                    let rank_chosen = rank(chosen, link).expect("usable");
                    for entry in &table {
                        if let Ok(rank_here) = rank(entry, link) {
                            prop_assert!((Reverse(rank_chosen), chosen.index) <= (Reverse(rank_here), entry.index));
                        }
                    }
                    prop_assert_eq!(selection.passed_over.len() + 1, table.len());
                    prop_assert!(selection.passed_over.iter().all(|v| v.reason != GidReason::Best));
                }
                Err(none) => {
                    prop_assert!(table.iter().all(|entry| rank(entry, link).is_err()));
                    prop_assert_eq!(none.verdicts.len(), table.len());
                }
            }
        }

        #[test]
        fn a_slot_in_reach_can_always_be_asked_for(table in any_table(), at: prop::sample::Index) {
            prop_assume!(!table.is_empty());
            let entry = table[at.index(table.len())];
            match choose_gid(&table, LinkLayer::Ethernet, GidRequest::Index(entry.index)) {
                Ok(selection) => prop_assert_eq!((selection.chosen.index, selection.chosen.gid), (entry.index, entry.gid)),
                Err(_) => prop_assert!(entry.index > 255),
            }
        }

        #[test]
        fn the_order_of_the_table_does_not_matter(table in any_table()) {
            let mut turned = table.clone();
            turned.reverse();
            let chosen = |t: &[GidEntry]| choose_gid(t, LinkLayer::Ethernet, GidRequest::Best).ok().map(|s| s.chosen);
            prop_assert_eq!(chosen(&table), chosen(&turned));
        }
    }
}
