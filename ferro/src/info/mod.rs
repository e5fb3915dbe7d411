//! `ferro info`: every domain of this machine with its facts, the devices and ports behind them,
//! and each missing part.

mod devices;
mod explain;
mod kind;
mod one_sided;

use std::fmt::Display;

use clap::Args;
use ferrofabric_contracts::config::{SETTINGS, Settings, variables};
use ferrofabric_contracts::info::{AV_AUTH_KEY, Info};
use serde_json::{Value, json};

use self::devices::ListedDevice;
use self::explain::Wanted;
use self::kind::{type_and_mode, type_name};
use crate::failure::{Failure, Result};
use crate::providers::providers;
use crate::report::{Block, print_json, print_text, wrapped};
use crate::sizes;

/// Options of `ferro info`.
#[derive(Debug, Args)]
pub(crate) struct InfoOptions {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the settings (environment variables) in place of the domains
    #[arg(long, conflicts_with = "explain")]
    settings: bool,
    /// Print the ways of one-sided operations, and when each is taken, in place of the domains
    #[arg(long, conflicts_with_all = ["explain", "settings"])]
    one_sided: bool,
    /// Explain for every domain why an application gets it, or the field that rules it out with a
    /// remedy
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    wanted: Wanted,
}

/// Prints the domains, their explanation, the settings or the ways of one-sided operations.
///
/// # Errors
///
/// When a setting is wrong, or when there is no domain at all.
pub(crate) fn run(options: &InfoOptions) -> Result<()> {
    if options.settings {
        return print_settings(options.json);
    }
    if options.one_sided {
        return one_sided::run(options.json);
    }
    if options.explain {
        return explain::run(&options.wanted, options.json);
    }
    let settings = Settings::from_env()?;
    let devices = devices::all(&settings);
    let (mut infos, mut missing) = (Vec::new(), Vec::new());
    for provider in providers() {
        let found = provider.discover(&settings);
        infos.extend(found.candidates);
        missing.extend(found.notices.iter().map(ToString::to_string));
    }
    if options.json {
        print_json(&json!({
            "domains": infos.iter().map(domain_json).collect::<Vec<_>>(),
            "devices": devices.iter().map(devices::json).collect::<Vec<_>>(),
            "missing": missing,
        }))?;
    } else {
        print_text(&text(&infos, &devices, &missing))?;
    }
    match infos.is_empty() {
        true => Err(Failure::new("no domain: nothing can be sent from here")),
        false => Ok(()),
    }
}

fn text(infos: &[Info], devices: &[ListedDevice], missing: &[String]) -> String {
    let mut parts = Vec::new();
    for info in infos {
        let block = Block::new(format!("{} {}", info.domain.name, type_and_mode(info)))
            .fact("provider:", &info.fabric.provider)
            .fact("messages:", messages(info))
            .fact("capabilities:", capabilities(info).join(" "))
            .fact("device:", device(info));
        parts.push(block.to_string());
    }
    parts.extend(devices.iter().flat_map(devices::blocks));
    parts.extend(missing.iter().map(missing_line));
    parts.join("\n")
}

/// A line about a missing part of the machine.
fn missing_line(why: impl Display) -> String {
    wrapped(&format!("missing: {why}"), "", "  ")
}

fn messages(info: &Info) -> String {
    format!(
        "up to {}, injected up to {}",
        sizes::print(info.ep.max_msg_size),
        sizes::print(info.tx.inject_size)
    )
}

fn capabilities(info: &Info) -> Vec<String> {
    info.caps
        .iter_names()
        .map(|(name, _)| name.to_lowercase())
        .collect()
}

fn device(info: &Info) -> String {
    let Some(nic) = &info.nic else {
        return "none".to_owned();
    };
    let mut facts = vec![nic.device.clone()];
    for fact in [&nic.network, &nic.driver, &nic.address] {
        if !fact.is_empty() {
            facts.push(fact.clone());
        }
    }
    if nic.speed_bps != 0 {
        facts.push(format!("{} Gb/s", nic.speed_bps as f64 / 1e9));
    }
    facts.push(format!("MTU {}", nic.mtu_bytes));
    facts.push(if nic.up { "up" } else { "down" }.to_owned());
    facts.join(", ")
}

fn domain_json(info: &Info) -> Value {
    json!({
        "provider": info.fabric.provider,
        "fabric": info.fabric.name,
        "domain": info.domain.name,
        "type": type_name(info.ep.ep_type),
        "prefix_bytes": info.ep.msg_prefix_size,
        "address_vector_keys": info.domain.auth_key_size == AV_AUTH_KEY,
        "capabilities": capabilities(info),
        "max_message_bytes": info.ep.max_msg_size,
        "inject_bytes": info.tx.inject_size,
        "cq_data_bytes": info.domain.cq_data_size,
        "device": info.nic.as_ref().map(|nic| json!({
            "name": nic.device,
            "id": format!("{}:{}", nic.vendor_id, nic.device_id),
            "firmware": nic.firmware,
            "driver": nic.driver,
            "address": nic.address,
            "bits_per_second": nic.speed_bps,
            "mtu_bytes": nic.mtu_bytes,
            "up": nic.up,
            "numa_node": nic.numa_node,
            "network": nic.network,
        })),
    })
}

fn print_settings(as_json: bool) -> Result<()> {
    variables::warn_once();
    if as_json {
        let all: Vec<Value> = SETTINGS
            .iter()
            .map(|s| {
                json!({"variable": variable(s.name), "values": s.values, "default": s.default, "help": s.help.trim()})
            })
            .collect();
        return print_json(&all);
    }
    let blocks = SETTINGS.iter().map(|setting| {
        let default = match setting.default {
            "" => "none",
            default => default,
        };
        let heading = format!("{} (default: {default})", variable(setting.name));
        let block = Block::new(heading)
            .fact("", format!("Takes {}.", setting.values))
            .fact("", setting.help.trim());
        block.to_string()
    });
    print_text(&blocks.collect::<Vec<_>>().join("\n"))
}

fn variable(name: &str) -> String {
    format!("FERRO_{}", name.to_uppercase())
}
