//! Settings, and the little texts of sysfs.

use ferrofabric_contracts::config::{self, Settings};
use ferrofabric_contracts::info::PciAddr;

use super::seed;
use crate::{FuzzTarget, saw};

/// The number of a setting, then its value.
pub(super) const SETTINGS: FuzzTarget = FuzzTarget {
    name: "settings",
    take,
    seeds,
    words: &[
        "on",
        "off",
        "auto",
        "read",
        "write",
        "us",
        "ms",
        "s",
        "K",
        "M",
        "G",
        "0",
        "1",
        "18446744073709551615",
        "0000:3b:00.0",
        ":",
        ".",
    ],
};

fn take(bytes: &[u8]) -> u64 {
    let Some((which, value)) = bytes.split_first() else {
        return 0;
    };
    let value = String::from_utf8_lossy(value);
    let place = PciAddr::parse(&value).is_some();
    let setting = &config::SETTINGS[usize::from(*which) % config::SETTINGS.len()];
    let variable = format!("FERRO_{}", setting.name.to_uppercase());
    let read = Settings::read(|name| (name == variable).then(|| value.clone().into_owned()));
    if let Err(error) = &read {
        let text = error.to_string();
        assert!(text.contains(&variable), "{text}");
    }
    saw((setting.name, read.is_ok(), place))
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let one = |(i, setting): (usize, &config::SettingInfo)| {
        seed(
            setting.name,
            [&[i as u8], setting.default.as_bytes()].concat(),
        )
    };
    config::SETTINGS.iter().enumerate().map(one).collect()
}
