//! The report on a device: a profile of the fake device, with the facts that were found here.

use std::collections::BTreeMap;

use ferrofabric_verbs::device::LinkLayer;
use ferrofabric_verbs::probe::{BeyondInline, InlineFindings, LateSend};
use serde::Serialize;
use serde_json::{Value, json};

use super::examination::{Examination, Traffic};

/// A profile, in the form of `hw-tests/fake-device/profiles`: each fact, and its source.
#[derive(Debug, Default, Serialize)]
pub(super) struct Profile {
    about: String,
    #[serde(flatten)]
    facts: BTreeMap<&'static str, Value>,
    sources: BTreeMap<&'static str, &'static str>,
}

/// Sources of facts.
const STATED: &str = "stated by the device (ibv_query_device)";
const TRIED: &str = "tried out by ferro doctor";
const MEASURED: &str = "measured by ferro doctor: the shortest time to make a queue pair";

impl Profile {
    /// The facts that were found. Facts that could not be tried out are left out.
    pub(super) fn of(found: &Examination) -> Self {
        let mut this = Self {
            about: about(found),
            ..Self::default()
        };
        this.add_limits(found);
        this.add(TRIED, "connections", found.connections.is_ok());
        this.add(TRIED, "datagrams", found.datagrams.is_ok());
        this.add(TRIED, "shared_receives", found.shared_receives.is_ok());
        if let Ok(made) = &found.queue_pairs {
            let stated = found.probe.limits().queue_pairs;
            match made.refusal {
                None => this.add(STATED, "queue_pairs", stated),
                Some(_) => this.add(TRIED, "queue_pairs", made.made),
            }
            if let Some(shortest) = made.shortest {
                this.add(MEASURED, "control_call_us", shortest.as_micros() as u64);
            }
        }
        if let Ok(reuses) = found.reuses_keys {
            this.add(TRIED, "reuses_keys", reuses);
        }
        if let Ok(inline) = &found.inline {
            this.add(
                TRIED,
                "inline",
                inline_rules(inline, found.traffic.as_ref()),
            );
        }
        if let Some(traffic) = &found.traffic {
            this.add_traffic(found, traffic);
        }
        this
    }

    fn add(&mut self, source: &'static str, fact: &'static str, value: impl Into<Value>) {
        self.facts.insert(fact, value.into());
        self.sources.insert(fact, source);
    }

    fn add_limits(&mut self, found: &Examination) {
        let limits = found.probe.limits();
        for (fact, value) in [
            ("vendor_id", limits.vendor_id),
            ("entries", limits.entries),
            ("read_entries", limits.read_entries),
            ("reads_as_target", limits.reads_as_target.into()),
            ("reads_as_initiator", limits.reads_as_initiator.into()),
            ("requests", limits.queue_depth),
            ("completions", limits.completion_depth),
        ] {
            self.add(STATED, fact, value);
        }
        if found.shared_receives.is_ok() {
            self.add(STATED, "shared_entries", limits.shared_receive_entries);
        }
        self.add(STATED, "atomics", limits.atomics);
        self.add(STATED, "on_demand_paging", limits.on_demand_paging);
    }

    fn add_traffic(&mut self, found: &Examination, traffic: &Traffic) {
        if let Some(Ok(loopback)) = &traffic.loopback {
            if let Some(added) = &loopback.atomics {
                self.add(TRIED, "atomics", added.is_ok());
            }
        }
        if let Some(Ok(flush)) = &traffic.flush {
            let refuses = matches!(flush.late_send, LateSend::Refused(_));
            self.add(TRIED, "refuses_posts_in_error", refuses);
        }
        if let Some(Ok(announces)) = traffic.announces_last_receive {
            self.add(TRIED, "announces_last_receive", announces);
        }
        if let Some(Ok(stops)) = traffic.datagram_failure_stops_sends {
            self.add(TRIED, "datagram_failure_stops_sends", stops);
        }
        if let Ok(port) = found.probe.port(traffic.port) {
            const PORT: &str = "stated by the port (ibv_query_port)";
            self.add(PORT, "grh_required", port.grh_required);
            self.add(PORT, "message_bytes", port.message_bytes);
            if port.link_layer == LinkLayer::InfiniBand {
                self.add(PORT, "lid", port.lid);
            }
        }
        if let Ok(keys) = found.probe.partition_keys(traffic.port) {
            // Slots behind the last key are empty.
            let used = keys
                .iter()
                .rposition(|key| *key != 0)
                .map_or(0, |at| at + 1);
            self.add(
                "stated by the port (ibv_query_pkey)",
                "partition_keys",
                &keys[..used],
            );
        }
    }
}

fn about(found: &Examination) -> String {
    let (facts, limits) = (found.probe.facts(), found.probe.limits());
    let mut parts = vec![format!("part {:#x}", limits.vendor_part_id)];
    parts.extend(
        facts
            .driver
            .as_ref()
            .map(|driver| format!("driver {driver}")),
    );
    if !limits.firmware.is_empty() {
        parts.push(format!("firmware {}", limits.firmware));
    }
    format!("Found by ferro doctor: {}.", parts.join(", "))
}

fn inline_rules(inline: &InlineFindings, traffic: Option<&Traffic>) -> Value {
    let loopback = traffic.and_then(|traffic| traffic.loopback.as_ref()?.as_ref().ok());
    let takes = loopback.and_then(|loopback| *loopback.takes_inline.as_ref().ok()?);
    json!({
        "most": inline.most,
        "grants": rule_of_grants(inline),
        "beyond": match inline.beyond {
            BeyondInline::Refused(None) => "no_errno",
            BeyondInline::Refused(Some(_)) => "einval",
            BeyondInline::GrantsLess | BeyondInline::Unlimited => "grants_less",
        },
        "flag_is_ignored": takes == Some(false),
    })
}

/// A rule of grants: the bytes for a request, and the most there are.
type Rule = fn(u32, u32) -> u32;

/// The rules that are known, by the names that profiles have for them.
const RULES: [(&str, Rule); 5] = [
    ("requested", |bytes, _| bytes),
    ("most", |_, most| most),
    ("power_of_two", |bytes, most| match bytes {
        0 => 0,
        bytes => bytes.next_power_of_two().min(most),
    }),
    ("blocks", |bytes, most| match bytes {
        0 => 0,
        bytes => ((bytes + 4).next_multiple_of(64) - 4).min(most),
    }),
    // The queue pairs that were tried have one entry.
    ("entries", |bytes, most| bytes.max(16).min(most)),
];

/// The first rule that agrees with all grants, or else with most of them.
fn rule_of_grants(inline: &InlineFindings) -> &'static str {
    let disagreements = |rule: &Rule| {
        let grants = inline.grants.iter();
        grants
            .filter(|(bytes, granted)| rule(*bytes, inline.most) != *granted)
            .count()
    };
    let best = RULES.iter().min_by_key(|(_, rule)| disagreements(rule));
    best.map_or("requested", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(most: u32, grants: &[(u32, u32)]) -> &'static str {
        rule_of_grants(&InlineFindings {
            most,
            grants: grants.to_vec(),
            beyond: BeyondInline::GrantsLess,
        })
    }

    #[test]
    fn rules_are_known_by_their_grants() {
        assert_eq!(rule(101, &[(0, 0), (20, 20), (70, 70)]), "requested");
        assert_eq!(rule(96, &[(0, 96), (20, 96)]), "most");
        assert_eq!(rule(32, &[(0, 0), (1, 1), (20, 32)]), "power_of_two");
        assert_eq!(rule(1020, &[(0, 0), (1, 60), (70, 124)]), "blocks");
        assert_eq!(rule(512, &[(0, 16), (1, 16), (20, 20)]), "entries");
        assert_eq!(rule(0, &[(0, 0)]), "requested");
        // One grant of four is of no rule.
        assert_eq!(
            rule(512, &[(0, 16), (1, 16), (20, 20), (70, 99)]),
            "entries"
        );
    }
}
