//! The verbs devices behind the domains: their limits, and their ports with addresses and
//! partitions.

use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::Error;
use ferrofabric_verbs::device::{GidChoice, PortAttributes};
use ferrofabric_verbs::probe::{self, DeviceProbe, EndpointInline};
use serde_json::{Value, json};

use crate::report::Block;

/// A device and the resources that endpoints get, or the reason why it cannot be used.
pub(super) struct ListedDevice {
    name: String,
    opened: Result<UsableDevice, Error>,
}

struct UsableDevice {
    probe: DeviceProbe,
    inline: EndpointInline,
    ports: Vec<Result<ListedPort, Error>>,
}

struct ListedPort {
    attributes: PortAttributes,
    partition_keys: Vec<(u16, u16)>,
    gids: Result<Vec<ListedGid>, Error>,
}

struct ListedGid {
    choice: GidChoice,
    interface: Option<String>,
    is_chosen: bool,
}

/// The names of all devices, unless the settings switch verbs off.
pub(super) fn names(settings: &Settings) -> Vec<String> {
    match settings.verbs {
        // Discovery says why the library cannot list.
        true => probe::devices().unwrap_or_default(),
        false => Vec::new(),
    }
}

/// The same devices with all that is shown of them.
pub(super) fn all(settings: &Settings) -> Vec<ListedDevice> {
    let listed = |name: String| ListedDevice {
        opened: UsableDevice::open(&name, settings),
        name,
    };
    names(settings).into_iter().map(listed).collect()
}

impl UsableDevice {
    fn open(name: &str, settings: &Settings) -> Result<Self, Error> {
        let probe = DeviceProbe::open(name, settings)?;
        let numbers = 1..=probe.limits().ports;
        Ok(Self {
            inline: probe.endpoint_inline(),
            ports: numbers.map(|port| ListedPort::of(&probe, port)).collect(),
            probe,
        })
    }
}

impl ListedPort {
    fn of(probe: &DeviceProbe, number: u8) -> Result<Self, Error> {
        let slots = (0..).zip(probe.partition_keys(number)?);
        Ok(Self {
            attributes: probe.port(number)?,
            partition_keys: slots.filter(|(_, key)| *key != 0).collect(),
            gids: gids(probe, number),
        })
    }
}

/// The GIDs of a port in the order of their slots.
fn gids(probe: &DeviceProbe, number: u8) -> Result<Vec<ListedGid>, Error> {
    let table = probe.gids(number)?;
    let selection = probe.chosen_gid(number)?;
    let chosen = selection.chosen.index;
    let choices = std::iter::once(selection.chosen).chain(selection.passed_over);
    let mut gids: Vec<ListedGid> = choices
        .map(|choice| {
            let entry = table.iter().find(|entry| entry.index == choice.index);
            ListedGid {
                choice,
                interface: entry.and_then(|entry| entry.interface_name()),
                is_chosen: choice.index == chosen,
            }
        })
        .collect();
    gids.sort_by_key(|gid| gid.choice.index);
    Ok(gids)
}

/// A block for the device, and one for each port.
pub(super) fn blocks(device: &ListedDevice) -> Vec<String> {
    let heading = Block::new(format!("device {}", device.name));
    match &device.opened {
        Err(error) => vec![heading.fact("missing:", error.to_string()).to_string()],
        Ok(opened) => {
            let ports = (1..).zip(&opened.ports);
            let ports = ports.map(|(number, port): (usize, _)| {
                port_block(&format!("port {}:{number}", device.name), port)
            });
            std::iter::once(device_block(heading, opened))
                .chain(ports)
                .collect()
        }
    }
}

fn device_block(heading: Block, opened: &UsableDevice) -> String {
    let (limits, facts) = (opened.probe.limits(), opened.probe.facts());
    let mut kind = vec![format!("vendor {:#06x}", limits.vendor_id)];
    kind.extend(facts.driver.clone());
    if !limits.firmware.is_empty() {
        kind.push(format!("firmware {}", limits.firmware));
    }
    kind.extend(facts.pci.as_ref().map(|pci| pci.address.clone()));
    let atomics = match limits.atomics {
        true => "atomics",
        false => "no atomics",
    };
    let paging = match limits.on_demand_paging {
        true => ", on-demand paging",
        false => "",
    };
    heading
        .fact("kind:", kind.join(", "))
        .fact("inline:", inline(&opened.inline))
        .fact(
            "requests:",
            format!(
                "{} a queue, of {} pieces (reads {}, shared receives {})",
                limits.queue_depth,
                limits.entries,
                limits.read_entries,
                limits.shared_receive_entries
            ),
        )
        .fact(
            "queues:",
            format!(
                "{} queue pairs, {} completion queues of {} entries, {} shared receive queues of \
                 {} receives",
                limits.queue_pairs,
                limits.completion_queues,
                limits.completion_depth,
                limits.shared_receive_queues,
                limits.shared_receive_depth
            ),
        )
        .fact("memory:", format!("{} regions{paging}", limits.regions))
        .fact(
            "reads:",
            format!(
                "{} in flight, {} served at once, {atomics}",
                limits.reads_as_initiator, limits.reads_as_target
            ),
        )
        .to_string()
}

fn inline(inline: &EndpointInline) -> String {
    let granted = |name: &str, granted: &Result<u32, Error>| match granted {
        Ok(bytes) => format!("{name} {bytes}"),
        Err(_) => format!("no {name} queue pairs"),
    };
    format!(
        "{}, {} of the {} bytes that endpoints request",
        granted("RC", &inline.connections),
        granted("UD", &inline.datagrams),
        inline.requested
    )
}

fn port_block(heading: &str, port: &Result<ListedPort, Error>) -> String {
    let block = Block::new(heading);
    let port = match port {
        Ok(port) => port,
        Err(error) => return block.fact("missing:", error.to_string()).to_string(),
    };
    let attributes = &port.attributes;
    let keys = port.partition_keys.iter();
    let keys: Vec<_> = keys.map(|(_, key)| format!("{key:#06x}")).collect();
    let block = block
        .fact(
            "state:",
            format!("{} ({})", attributes.state, attributes.physical),
        )
        .fact(
            "link:",
            format!("{}, {}", attributes.link_layer, rate(attributes)),
        )
        .fact(
            "MTU:",
            format!("{} of {}", attributes.active_mtu, attributes.max_mtu),
        )
        .fact("LID:", attributes.lid.to_string())
        .fact("P_Keys:", keys.join(" "));
    let block = match &port.gids {
        Err(error) => block.fact("GID:", error.to_string()),
        Ok(gids) => gids
            .iter()
            .fold(block, |block, gid| block.fact("GID:", gid.text())),
    };
    block.to_string()
}

impl ListedGid {
    fn text(&self) -> String {
        let GidChoice {
            index, gid, reason, ..
        } = self.choice;
        let kind = self.choice.kind_name();
        let interface = self.interface.as_deref();
        let interface = interface.map_or(String::new(), |name| format!(", {name}"));
        let chosen = if self.is_chosen { "chosen, " } else { "" };
        format!("{index} {gid} ({kind}{interface}): {chosen}{reason}")
    }
}

/// The rate of a link, and the lanes that it is spread over.
fn rate(port: &PortAttributes) -> String {
    let gigabits = |mbps: u64| mbps as f64 / 1e3;
    match (port.speed_mbps, port.link_width) {
        (Some(speed), Some(lanes)) => format!(
            "{} Gb/s ({lanes} x {})",
            gigabits(speed),
            gigabits(speed / u64::from(lanes))
        ),
        _ => "rate unknown".to_owned(),
    }
}

/// All of it as JSON.
pub(super) fn json(device: &ListedDevice) -> Value {
    let opened = match &device.opened {
        Ok(opened) => opened,
        Err(error) => return json!({"name": device.name, "error": error.to_string()}),
    };
    let (limits, facts) = (opened.probe.limits(), opened.probe.facts());
    json!({
        "name": device.name,
        "vendor_id": limits.vendor_id,
        "part_id": limits.vendor_part_id,
        "firmware": limits.firmware,
        "driver": facts.driver,
        "address": facts.pci.as_ref().map(|pci| &pci.address),
        "numa_node": facts.numa_node,
        "inline": {
            "requested_bytes": opened.inline.requested,
            "rc_bytes": opened.inline.connections.as_ref().ok(),
            "ud_bytes": opened.inline.datagrams.as_ref().ok(),
        },
        "limits": {
            "requests": limits.queue_depth,
            "entries": limits.entries,
            "read_entries": limits.read_entries,
            "shared_receive_entries": limits.shared_receive_entries,
            "queue_pairs": limits.queue_pairs,
            "completion_queues": limits.completion_queues,
            "completions": limits.completion_depth,
            "shared_receive_queues": limits.shared_receive_queues,
            "shared_receives": limits.shared_receive_depth,
            "regions": limits.regions,
            "reads_as_initiator": limits.reads_as_initiator,
            "reads_as_target": limits.reads_as_target,
            "atomics": limits.atomics,
            "on_demand_paging": limits.on_demand_paging,
        },
        "ports": (1..).zip(&opened.ports).map(port_json).collect::<Vec<_>>(),
    })
}

fn port_json((number, port): (u32, &Result<ListedPort, Error>)) -> Value {
    let port = match port {
        Ok(port) => port,
        Err(error) => return json!({"number": number, "error": error.to_string()}),
    };
    let attributes = &port.attributes;
    let keys = port.partition_keys.iter();
    json!({
        "number": number,
        "state": attributes.state.to_string(),
        "physical_state": attributes.physical.to_string(),
        "link_layer": attributes.link_layer.to_string(),
        "bits_per_second": attributes.speed_mbps.map(|mbps| mbps * 1_000_000),
        "lanes": attributes.link_width,
        "mtu_bytes": attributes.active_mtu.bytes(),
        "max_mtu_bytes": attributes.max_mtu.bytes(),
        "lid": attributes.lid,
        "sm_lid": attributes.sm_lid,
        "partition_keys": keys.map(|(slot, key)| json!({"index": slot, "key": key})).collect::<Vec<_>>(),
        "gids": port.gids.iter().flatten().map(|gid| json!({
            "index": gid.choice.index,
            "gid": gid.choice.gid.to_string(),
            "type": gid.choice.kind_name(),
            "interface": gid.interface,
            "chosen": gid.is_chosen,
            "why": gid.choice.reason.to_string(),
        })).collect::<Vec<_>>(),
        "gid_error": port.gids.as_ref().err().map(ToString::to_string),
    })
}
