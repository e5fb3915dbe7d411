//! The findings on a device, in words.

use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_verbs::device::{PortAttributes, PortState};
use ferrofabric_verbs::probe::{FlushFindings, LateSend};

use super::examination::{Examination, QUEUE_PAIRS, Traffic};
use super::finding::{Finding, Severity};

const NO_REMEDY: &str = "none is needed";
const CHECK_DEVICE: &str = "look at the kernel's log (dmesg), and update firmware and driver";

/// The findings on a device, or the reason why it cannot be examined.
pub(super) fn findings(name: &str, examined: &Result<Examination, Error>) -> Vec<Finding> {
    let found = match examined {
        Ok(found) => found,
        Err(error) => {
            let closed = Finding::failed(Severity::Error, name, error, CHECK_DEVICE);
            return vec![closed];
        }
    };
    let mut all = vec![identity(name, found)];
    all.extend(ports(name, found));
    all.extend(
        found
            .traffic
            .as_ref()
            .and_then(|traffic| partition(name, found, traffic.port)),
    );
    all.extend(endpoints(name, found));
    all.push(locked_memory(name, found));
    all.push(inline(name, found));
    all.push(queue_pairs(name, found));
    if let Some(traffic) = &found.traffic {
        all.extend(connection(name, traffic));
        all.extend(traffic.flush.as_ref().map(|flush| flushes(name, flush)));
        all.extend(late_send(name, traffic));
        all.extend(last_receive(name, traffic));
        all.extend(datagram(name, traffic));
        all.extend(failed_datagram(name, traffic));
    }
    all
}

fn identity(name: &str, found: &Examination) -> Finding {
    let facts = found.probe.facts();
    let mut parts = vec![format!(
        "opened, vendor {:#06x}",
        found.probe.limits().vendor_id
    )];
    if let Some(driver) = &facts.driver {
        let version = std::fs::read_to_string(format!("/sys/module/{driver}/version"));
        let version = version.map_or(String::new(), |text| format!(" {}", text.trim()));
        parts.push(format!("kernel module {driver}{version}"));
    }
    if !found.probe.limits().firmware.is_empty() {
        parts.push(format!("firmware {}", found.probe.limits().firmware));
    }
    Finding::ok(name, parts.join(", "))
}

/// A port that is down is an error where no other port of the device is up.
fn ports(name: &str, found: &Examination) -> Vec<Finding> {
    let severity = match found.traffic {
        Some(_) => Severity::Warning,
        None => Severity::Error,
    };
    let numbers = found.probe.port_numbers();
    numbers
        .map(|number| {
            let about = format!("{name}:{number}");
            match found.probe.port(number) {
                Err(error) => Finding::failed(severity, about, &error, CHECK_DEVICE),
                Ok(port) if port.state == PortState::Active => active_port(about, number, found),
                Ok(port) => inactive_port(about, &port, severity),
            }
        })
        .collect()
}

fn active_port(about: String, number: u8, found: &Examination) -> Finding {
    match found.probe.chosen_gid(number) {
        Ok(selection) => Finding::ok(about, format!("active, sends from {}", selection.chosen)),
        Err(error) => {
            let remedy = "give its network interface an IP address";
            Finding::failed(Severity::Error, about, &error, remedy)
        }
    }
}

/// Endpoints without an authorization key send in the partition of slot 0.
fn partition(name: &str, found: &Examination, port: u8) -> Option<Finding> {
    const FULL_MEMBER: u16 = 1 << 15;
    let (slot, key) = found.probe.partition(port).ok()?;
    let about = format!("{name}:{port}");
    let text =
        format!("endpoints without an authorization key use P_Key {key:#06x}, in slot {slot}");
    Some(match (key & !FULL_MEMBER, key & FULL_MEMBER) {
        (0, _) => Finding::new(
            Severity::Warning,
            about,
            "the port is in no partition",
            "have the subnet manager add the port to a partition",
        ),
        (_, 0) => Finding::new(
            Severity::Warning,
            about,
            format!(
                "{text}: a limited membership, and two limited members do not reach each other"
            ),
            "have the subnet manager make the port a full member",
        ),
        _ => Finding::ok(about, text),
    })
}

fn inactive_port(about: String, port: &PortAttributes, severity: Severity) -> Finding {
    let remedy = match port.state {
        PortState::Initialising | PortState::Armed => {
            "start a subnet manager, which makes the port active"
        }
        _ => "connect its cable and bring its network interface up (ip link set dev NAME up)",
    };
    let found = format!(
        "the port is {} ({}, {})",
        port.state, port.physical, port.link_layer
    );
    Finding::new(severity, about, found, remedy)
}

fn endpoints(name: &str, found: &Examination) -> [Finding; 2] {
    let reliable = match &found.abilities.reliable_datagrams {
        Ok(()) => Finding::ok(name, "it carries reliable messages (RDM endpoints)"),
        Err(error) => Finding::new(
            Severity::Error,
            name,
            format!("it cannot carry reliable messages (RDM endpoints): {error}"),
            "use another device, or the provider of the device's vendor, for messages to other \
             nodes",
        ),
    };
    let datagrams = match &found.abilities.datagrams {
        Ok(()) => Finding::ok(name, "it carries datagrams (DGRAM endpoints)"),
        Err(error) => Finding::new(
            Severity::Warning,
            name,
            format!("it cannot carry datagrams (DGRAM endpoints): {error}"),
            "use another device for datagrams",
        ),
    };
    [reliable, datagrams]
}

fn locked_memory(name: &str, found: &Examination) -> Finding {
    match found.probe.memory_lock() {
        None => Finding::ok(name, "the memory of an endpoint can be locked"),
        Some(advice) => Finding::new(
            Severity::Error,
            name,
            "the memory of an endpoint cannot be locked, so that none is offered",
            advice,
        ),
    }
}

fn inline(name: &str, found: &Examination) -> Finding {
    let inline = match &found.inline {
        Ok(inline) => inline,
        Err(error) => return Finding::failed(Severity::Error, name, error, CHECK_DEVICE),
    };
    let wanted = found.endpoint_inline.requested;
    let grants: Vec<String> = (inline.grants.iter())
        .map(|(bytes, granted)| format!("{bytes}: {granted}"))
        .collect();
    let text = format!(
        "inline data of {} bytes at most, of {wanted} that endpoints request (granted for {})",
        inline.most,
        grants.join(", ")
    );
    match inline.most >= wanted {
        true => Finding::ok(name, text),
        false => Finding::new(
            Severity::Note,
            name,
            text,
            "none is needed: longer packets are copied to registered memory",
        ),
    }
}

fn queue_pairs(name: &str, found: &Examination) -> Finding {
    let stated = found.probe.limits().queue_pairs;
    match &found.queue_pairs {
        Err(error) => Finding::failed(Severity::Error, name, error, CHECK_DEVICE),
        Ok(made) => match &made.refusal {
            None => Finding::ok(
                name,
                format!("{QUEUE_PAIRS} queue pairs at the same time; it states {stated}"),
            ),
            Some(refusal) => Finding::new(
                Severity::Warning,
                name,
                format!("only {} queue pairs at the same time: {refusal}", made.made),
                "end other programs that use the device, or set FERRO_MAX_LANES to a lower number",
            ),
        },
    }
}

fn connection(name: &str, traffic: &Traffic) -> Vec<Finding> {
    let loopback = match &traffic.loopback {
        None => return Vec::new(),
        Some(Err(error)) => {
            let remedy = "check that the device allows loopback, and that its port is routed";
            return vec![Finding::failed(Severity::Error, name, error, remedy)];
        }
        Some(Ok(loopback)) => loopback,
    };
    let mut all = vec![match &loopback.write_nothing {
        Ok(()) => Finding::ok(name, "a write of no bytes over a connection completes"),
        Err(error) => Finding::failed(Severity::Error, name, error, CHECK_DEVICE),
    }];
    all.push(match &loopback.atomics {
        None => Finding::new(
            Severity::Note,
            name,
            "it has no atomics",
            "none is needed: no endpoint uses them yet",
        ),
        Some(Ok(())) => Finding::ok(name, "an atomic over a connection adds"),
        Some(Err(error)) => Finding::failed(Severity::Warning, name, error, CHECK_DEVICE),
    });
    match &loopback.takes_inline {
        Ok(Some(true)) => all.push(Finding::ok(name, "inline data travels in the request")),
        Ok(Some(false)) => all.push(Finding::new(
            Severity::Warning,
            name,
            "inline data is not copied at the post, though the device grants it",
            "report this device, which needs a quirk (CONTRIBUTING.md)",
        )),
        Ok(None) => {}
        Err(error) => all.push(Finding::failed(
            Severity::Warning,
            name,
            error,
            CHECK_DEVICE,
        )),
    }
    all
}

fn flushes(name: &str, flush: &Result<FlushFindings>) -> Finding {
    let flush = match flush {
        Ok(flush) => flush,
        Err(error) => return Finding::failed(Severity::Warning, name, error, CHECK_DEVICE),
    };
    let order: Vec<String> = (flush.order.iter())
        .map(|one| {
            let queue = if one.is_send { "send" } else { "receive" };
            format!("{queue} {} ({})", one.number, one.status)
        })
        .collect();
    let text = format!("order of flushes in the error state: {}", order.join(", "));
    let in_order = |sends: bool| {
        let numbers = flush.order.iter().filter(|one| one.is_send == sends);
        numbers.map(|one| one.number).eq(0..2)
    };
    match in_order(true) && in_order(false) {
        true => Finding::ok(name, text),
        false => Finding::new(
            Severity::Warning,
            name,
            format!("{text}; two sends and two receives were posted"),
            "report this device: a lane that breaks may lose receive buffers",
        ),
    }
}

fn late_send(name: &str, traffic: &Traffic) -> Option<Finding> {
    let Some(Ok(flush)) = &traffic.flush else {
        return None;
    };
    Some(match flush.late_send {
        LateSend::Flushed => Finding::ok(name, "a send in the error state is flushed"),
        LateSend::Refused(error) => Finding::new(
            Severity::Note,
            name,
            format!("a send in the error state is refused: {}", error.errno()),
            NO_REMEDY,
        ),
        LateSend::Lost => Finding::new(
            Severity::Warning,
            name,
            "a send in the error state never completes",
            "report this device: a lane that breaks may not be replaced",
        ),
    })
}

fn last_receive(name: &str, traffic: &Traffic) -> Option<Finding> {
    Some(match traffic.announces_last_receive.as_ref()? {
        Ok(true) => Finding::ok(
            name,
            "a queue pair in error reports that it has taken its last shared receive \
             (LAST_WQE_REACHED)",
        ),
        Ok(false) => Finding::new(
            Severity::Note,
            name,
            "a queue pair in error does not report that it has taken its last shared receive \
             (LAST_WQE_REACHED)",
            "none is needed: endpoints empty the completion queue in its place",
        ),
        Err(error) => Finding::failed(Severity::Warning, name, error, CHECK_DEVICE),
    })
}

fn datagram(name: &str, traffic: &Traffic) -> Option<Finding> {
    Some(match traffic.datagram.as_ref()? {
        Ok(()) => Finding::ok(name, "a datagram that the port sends to itself arrives"),
        Err(error) => Finding::new(
            Severity::Warning,
            name,
            format!("a datagram that the port sends to itself does not arrive: {error}"),
            CHECK_DEVICE,
        ),
    })
}

fn failed_datagram(name: &str, traffic: &Traffic) -> Option<Finding> {
    Some(match traffic.datagram_failure_stops_sends.as_ref()? {
        Ok(true) => Finding::ok(
            name,
            "a datagram that fails at its sender stops the send queue alone (SQE)",
        ),
        Ok(false) => Finding::ok(
            name,
            "a datagram that fails at its sender moves the queue pair to error",
        ),
        Err(error) => Finding::failed(Severity::Warning, name, error, CHECK_DEVICE),
    })
}
