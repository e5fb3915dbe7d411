//! `ferro info`: every domain of this machine with its facts, and what is missing.

mod explain;
mod kind;

use clap::Args;
use ferrofabric_contracts::config::{SETTINGS, Settings};
use ferrofabric_contracts::info::{AV_AUTH_KEY, Info};
use serde_json::{Value, json};

use self::explain::Wanted;
use self::kind::{type_and_mode, type_name};
use crate::failure::{Failure, Result};
use crate::providers::providers;
use crate::report::{Table, print_json, print_text};
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
    /// Say of every domain whether an application gets it, and if not which field rules it out and
    /// what would mend it
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    wanted: Wanted,
}

/// Prints what the options ask for.
///
/// # Errors
///
/// When a setting is wrong, or when there is no domain at all.
pub(crate) fn run(options: &InfoOptions) -> Result<()> {
    if options.settings {
        return print_settings(options.json);
    }
    if options.explain {
        return explain::run(&options.wanted, options.json);
    }
    let settings = Settings::from_env()?;
    let (mut infos, mut missing) = (Vec::new(), Vec::new());
    for provider in providers() {
        let found = provider.discover(&settings);
        infos.extend(found.candidates);
        missing.extend(found.notices.iter().map(ToString::to_string));
    }
    if options.json {
        print_json(&json!({
            "domains": infos.iter().map(domain_json).collect::<Vec<_>>(),
            "missing": missing,
        }))?;
    } else {
        print_text(&text(&infos, &missing))?;
    }
    match infos.is_empty() {
        true => Err(Failure::new("no domain: nothing can be sent from here")),
        false => Ok(()),
    }
}

fn text(infos: &[Info], missing: &[String]) -> String {
    let mut table = Table::new(
        &[
            "PROVIDER",
            "DOMAIN",
            "TYPE",
            "MAX MESSAGE",
            "INJECT",
            "CAPABILITIES",
            "DEVICE",
        ],
        7,
    );
    for info in infos {
        table.row(vec![
            info.fabric.provider.clone(),
            info.domain.name.clone(),
            type_and_mode(info),
            sizes::print(info.ep.max_msg_size),
            sizes::print(info.tx.inject_size),
            capabilities(info).join(" "),
            device(info),
        ]);
    }
    let mut text = match infos.is_empty() {
        true => String::new(),
        false => table.to_string(),
    };
    for why in missing {
        text.push_str(&format!("\nmissing: {why}\n"));
    }
    text
}

fn capabilities(info: &Info) -> Vec<String> {
    info.caps
        .iter_names()
        .map(|(name, _)| name.to_lowercase())
        .collect()
}

fn device(info: &Info) -> String {
    let Some(nic) = &info.nic else {
        return "-".to_owned();
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
    if as_json {
        let all: Vec<Value> = SETTINGS
            .iter()
            .map(|s| {
                json!({"variable": variable(s.name), "values": s.values, "default": s.default, "help": s.help.trim()})
            })
            .collect();
        return print_json(&all);
    }
    let mut table = Table::new(&["VARIABLE", "DEFAULT", "VALUES", "WHAT IT DOES"], 4);
    for s in SETTINGS {
        table.row(vec![
            variable(s.name),
            s.default.to_owned(),
            s.values.to_owned(),
            s.help.trim().to_owned(),
        ]);
    }
    print_text(&table.to_string())
}

fn variable(name: &str) -> String {
    format!("FERRO_{}", name.to_uppercase())
}
