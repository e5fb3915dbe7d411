//! `ferro info --explain`: the answer to an application's question. A domain that does not fit has
//! its reason and a remedy, and each address of a port has the reason why the port uses it or not.

use clap::{Args, ValueEnum};
use ferrofabric_contracts::addr::AddrFormat;
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{EpType, Info, Mismatch, SystemResolver};
use ferrofabric_runtime::discovery::{DiscoveryQuery, DiscoveryResult, QueryFlags, explain};
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_verbs::device::GidChoice;
use ferrofabric_verbs::probe::DeviceProbe;
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::providers::providers;
use crate::report::{Block, print_json, print_text};
use crate::sizes::one_size;

use super::kind::type_and_mode;
use super::{devices, missing_line};

/// The question of an application.
#[derive(Debug, Args)]
#[command(next_help_heading = "Question of the application (with --explain)")]
pub(super) struct Wanted {
    /// Host name, number, or address as text [default: none]
    #[arg(long, requires = "explain", group = "place")]
    node: Option<String>,
    /// Port, or name of a service [default: none]
    #[arg(long, requires = "explain", group = "place")]
    service: Option<String>,
    /// Node and service are this side's (FI_SOURCE)
    #[arg(long, requires = "explain", requires = "place")]
    source: bool,
    /// The node is a number (FI_NUMERICHOST)
    #[arg(long, requires = "explain")]
    numeric: bool,
    /// Capabilities, such as msg,tagged,remote_comm [default: any]
    #[arg(long, requires = "explain", value_delimiter = ',', value_parser = capability)]
    caps: Vec<Flags>,
    /// Type of endpoints [default: any]
    #[arg(long = "type", requires = "explain")]
    ep_type: Option<Type>,
    /// Format of addresses [default: any]
    #[arg(long, requires = "explain")]
    format: Option<Format>,
    /// The one domain [default: any]
    #[arg(long, requires = "explain")]
    domain: Option<String>,
    /// Largest message, such as 64K or 1G [default: any]
    #[arg(long, requires = "explain", value_name = "SIZE", value_parser = one_size)]
    max_message: Option<usize>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Type {
    Rdm,
    Dgram,
    Msg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Sockaddr,
    SockaddrIn,
    SockaddrIn6,
    SockaddrIb,
    Str,
    IbUd,
}

fn capability(text: &str) -> Result<Flags, String> {
    Flags::from_name(&text.to_uppercase()).ok_or_else(|| format!("{text} is no capability"))
}

impl Wanted {
    /// The hints of an application that supports every mode; none where the question has an address
    /// alone.
    fn hints(&self) -> Option<Info> {
        let mut hints = Info::null_hints();
        hints.caps = self.caps.iter().copied().collect();
        hints.ep.ep_type = match self.ep_type {
            None => EpType::Unspec,
            Some(Type::Rdm) => EpType::Rdm,
            Some(Type::Dgram) => EpType::Dgram,
            Some(Type::Msg) => EpType::Msg,
        };
        hints.addr_format = match self.format {
            None => AddrFormat::UNSPEC,
            Some(Format::Sockaddr) => AddrFormat::SOCKADDR,
            Some(Format::SockaddrIn) => AddrFormat::SOCKADDR_IN,
            Some(Format::SockaddrIn6) => AddrFormat::SOCKADDR_IN6,
            Some(Format::SockaddrIb) => AddrFormat::SOCKADDR_IB,
            Some(Format::Str) => AddrFormat::STR,
            Some(Format::IbUd) => AddrFormat::IB_UD,
        };
        hints.domain.name = self.domain.clone().unwrap_or_default();
        hints.ep.max_msg_size = self.max_message.unwrap_or_default();
        (hints != Info::null_hints()).then_some(hints)
    }
}

/// Queries as an application would, and prints the answer with its reasons.
///
/// # Errors
///
/// When a setting or the question is wrong, or when nothing fits.
pub(super) fn run(wanted: &Wanted, as_json: bool) -> Result<()> {
    let settings = Settings::from_env()?;
    let hints = wanted.hints();
    let mut flags = QueryFlags::empty();
    flags.set(QueryFlags::SOURCE, wanted.source);
    flags.set(QueryFlags::NUMERICHOST, wanted.numeric);
    let query = DiscoveryQuery {
        version: 0,
        node: wanted.node.as_deref(),
        service: wanted.service.as_deref(),
        flags,
        hints: hints.as_ref(),
    };
    let all = providers();
    let all: Vec<&dyn Provider> = all.iter().map(Box::as_ref).collect();
    let found = explain(&all, &query, &SystemResolver, &settings).map_err(wrong_question)?;
    let ports = ports(&settings);
    match as_json {
        true => print_json(&json(&found, &ports))?,
        false => print_text(&text(&found, &ports))?,
    }
    match found.infos.is_empty() {
        true => Err(Failure::new("nothing fits")),
        false => Ok(()),
    }
}

/// The question comes from the command line, so a malformed one is wrong usage.
fn wrong_question(error: Error) -> Failure {
    match error.errno() {
        Errno::EINVAL => Failure::usage(error.to_string()),
        _ => error.into(),
    }
}

/// A port's GIDs with the verdict on each, the chosen one first.
struct Port {
    name: String,
    gids: Result<Vec<GidChoice>, String>,
}

fn ports(settings: &Settings) -> Vec<Port> {
    let names = devices::names(settings).into_iter();
    // Discovery says why a device cannot be opened.
    let probes = names.filter_map(|name| DeviceProbe::open(&name, settings).ok());
    probes.flat_map(|probe| ports_of(&probe)).collect()
}

fn ports_of(probe: &DeviceProbe) -> Vec<Port> {
    let numbers = 1..=probe.limits().ports;
    numbers
        .map(|number| Port {
            name: format!("{}:{number}", probe.name()),
            gids: match probe.chosen_gid(number) {
                Ok(selection) => {
                    let chosen = std::iter::once(selection.chosen);
                    Ok(chosen.chain(selection.passed_over).collect())
                }
                Err(error) => Err(error.to_string()),
            },
        })
        .collect()
}

fn text(found: &DiscoveryResult, ports: &[Port]) -> String {
    let mut blocks = Vec::new();
    for info in &found.infos {
        let shown = |addr: Option<_>| addr.map_or("-".to_owned(), |addr| format!("{addr}"));
        let heading = format!("{} {} fits", info.domain.name, type_and_mode(info));
        let block = Block::new(heading)
            .fact("format:", info.addr_format.to_string())
            .fact("source:", shown(info.src_addr))
            .fact("destination:", shown(info.dest_addr));
        blocks.push(block.to_string());
    }
    for (info, why) in &found.ruled_out {
        let Mismatch {
            field,
            asked,
            offered,
            mend,
        } = why;
        let (name, kind) = (&info.domain.name, type_and_mode(info));
        let block = Block::new(format!("{name} {kind} does not fit: {field}"))
            .fact("asked:", asked)
            .fact("offered:", offered)
            .fact("mend:", mend);
        blocks.push(block.to_string());
    }
    for Port { name, gids } in ports {
        let heading = format!("addresses of {name} (setting gid_index chooses another)");
        let block = Block::new(heading);
        let block = match gids {
            Ok(gids) => gids
                .iter()
                .fold(block, |block, gid| block.fact("", gid.to_string())),
            Err(error) => block.fact("", error),
        };
        blocks.push(block.to_string());
    }
    if !found.choices.is_empty() {
        let block = Block::new("order of equal domains".to_owned());
        let block = (found.choices.iter()).fold(block, |block, choice| block.fact("", choice));
        blocks.push(block.to_string());
    }
    blocks.extend(found.notices.iter().map(missing_line));
    blocks.join("\n")
}

fn json(found: &DiscoveryResult, ports: &[Port]) -> Value {
    json!({
        "fits": found.infos.iter().map(|info| json!({
            "domain": info.domain.name,
            "type": type_and_mode(info),
            "format": info.addr_format.to_string(),
            "source": info.src_addr.map(|addr| addr.to_string()),
            "destination": info.dest_addr.map(|addr| addr.to_string()),
        })).collect::<Vec<_>>(),
        "ruled_out": found.ruled_out.iter().map(|(info, why)| json!({
            "domain": info.domain.name,
            "type": type_and_mode(info),
            "field": why.field,
            "asked": why.asked,
            "offered": why.offered,
            "mend": why.mend,
        })).collect::<Vec<_>>(),
        "ports": ports.iter().map(|port| json!({
            "name": port.name,
            "addresses": port.gids.as_ref().map_or_else(|_| Vec::new(), |gids| gids.iter().map(|gid| json!({
                "index": gid.index,
                "gid": gid.gid.to_string(),
                "why": gid.reason.to_string(),
            })).collect()),
            "error": port.gids.as_ref().err(),
        })).collect::<Vec<_>>(),
        "choices": found.choices,
        "missing": found.notices.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_go_by_their_names() {
        assert_eq!(capability("tagged"), Ok(Flags::TAGGED));
        assert_eq!(capability("REMOTE_COMM"), Ok(Flags::REMOTE_COMM));
        assert!(capability("speed").is_err());
    }
}
