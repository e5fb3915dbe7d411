//! Settings as libfabric's parameters: `fi_info -e` shows them, and its configuration file may set
//! them.

use ferrofabric_contracts::config::{SETTINGS, Settings, variables};
use ferrofabric_contracts::error::Result;

use crate::host::Host;

/// libfabric puts this prefix before the name of each of our parameters.
const PREFIX: &str = "FI_FERRO_";

/// Defines each setting as a parameter of libfabric.
pub fn define(host: &Host) {
    for setting in SETTINGS {
        let help = setting.help.trim();
        let default = match setting.default {
            "" => "none",
            default => default,
        };
        let help = format!("{help} Takes {}. (default: {default})", setting.values);
        if let Err(error) = host.define_param(setting.name, &help) {
            tracing::warn!(
                "setting {} is not known to libfabric: {error}",
                setting.name
            );
        }
    }
}

/// Reads the settings: `FERRO_NAME` of the environment, else what libfabric says of
/// `FI_FERRO_NAME`, which takes its configuration file into account. Without a libfabric, both are
/// the environment's.
///
/// # Errors
///
/// As [`Settings::read`]: `EINVAL` that names the variable, its value and what it takes.
pub fn settings() -> Result<Settings> {
    let Some(host) = Host::get() else {
        return Settings::from_env();
    };
    variables::warn_once();
    Settings::read(|variable| match variable.strip_prefix(PREFIX) {
        Some(name) => host.param(&name.to_lowercase()),
        None => std::env::var(variable).ok(),
    })
}
