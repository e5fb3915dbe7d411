//! `ferro doctor`: tries out the devices and the shared memory of this machine, and says what is
//! wrong with a remedy. `--report` writes what it has found out about a device as a profile of the
//! fake device (`hw-tests/fake-device/profiles`), so that tests run on a NIC that nobody here has.

mod device;
mod examination;
mod finding;
mod host;
mod profile;
mod shared_memory;

use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::Error;
use serde_json::json;

use self::examination::Examination;
use self::finding::{Finding, Severity};
use self::profile::Profile;
use crate::cli::DoctorOptions;
use crate::failure::{Failure, Result};
use crate::report::{print_json, print_text};

/// A device that libibverbs lists.
type Examined = (String, Result<Examination, Error>);

/// Examines everything, and prints the findings.
///
/// # Errors
///
/// An error is among the findings, or there is no device for the report.
pub(crate) fn run(options: &DoctorOptions) -> Result<()> {
    let prints_report = options.report.as_deref() == Some("-");
    if prints_report && options.json {
        return Err(Failure::usage(
            "--json: standard output has the report already; write that to a file",
        ));
    }
    let settings = Settings::from_env()?;
    let mut findings = host::findings();
    let examined = examine(options, &settings, &mut findings)?;
    let report = options
        .report
        .as_ref()
        .map(|file| (file, report(&examined)));
    for (name, outcome) in &examined {
        findings.extend(device::findings(name, outcome));
    }
    findings.extend(shared_memory::findings(&settings));
    if !prints_report {
        print(&findings, options.json)?;
    }
    if let Some((file, report)) = report {
        write(file, &report?)?;
    }
    let is_error = |finding: &&Finding| finding.severity == Severity::Error;
    match findings.iter().filter(is_error).count() {
        0 => Ok(()),
        1 => Err(Failure::new("the doctor has found an error")),
        count => Err(Failure::new(format!("the doctor has found {count} errors"))),
    }
}

/// Examines the devices that options and settings name.
fn examine(
    options: &DoctorOptions,
    settings: &Settings,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Examined>> {
    if !settings.verbs {
        let off = "they are switched off by the setting verbs";
        let remedy = "set FERRO_VERBS=on to have them examined";
        findings.push(Finding::new(Severity::Note, "devices", off, remedy));
        return Ok(Vec::new());
    }
    let (of_library, listed) = host::library();
    findings.extend(of_library);
    let wanted = match &options.device {
        Some(name) => Some(name.as_str()),
        None => Some(settings.device.as_str()).filter(|name| !name.is_empty()),
    };
    if let Some(unknown) = wanted.filter(|name| listed.iter().all(|own| own != name)) {
        let there = match listed.is_empty() {
            true => "there is none".to_owned(),
            false => format!("there are: {}", listed.join(", ")),
        };
        let text = format!("no device is named {unknown}; {there}");
        return Err(match options.device {
            Some(_) => Failure::usage(text),
            None => Failure::new(text),
        });
    }
    let is_wanted = |name: &String| wanted.is_none_or(|one| one == name);
    let chosen: Vec<String> = listed.into_iter().filter(is_wanted).collect();
    if options.report.is_some() && chosen.len() > 1 {
        return Err(Failure::usage(format!(
            "--report: it is about one device; choose one of {} by --device",
            chosen.join(", ")
        )));
    }
    let chosen = chosen.into_iter();
    let examined = chosen.map(|name| {
        let outcome = Examination::of(&name, settings);
        (name, outcome)
    });
    Ok(examined.collect())
}

/// The profile of the one device that was examined.
fn report(examined: &[Examined]) -> Result<Profile> {
    match examined.first() {
        Some((_, Ok(examination))) => Ok(Profile::of(examination)),
        Some((_, Err(error))) => Err(error.clone().into()),
        None => Err(Failure::new("--report: there is no device to report on")),
    }
}

fn print(findings: &[Finding], as_json: bool) -> Result<()> {
    if as_json {
        let count = |severity| {
            let such = findings
                .iter()
                .filter(|finding| finding.severity == severity);
            such.count()
        };
        return print_json(&json!({
            "findings": findings,
            "errors": count(Severity::Error),
            "warnings": count(Severity::Warning),
        }));
    }
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    print_text(&lines.concat())
}

fn write(file: &str, report: &Profile) -> Result<()> {
    if file == "-" {
        return print_json(report);
    }
    let failed = |error: &dyn std::fmt::Display| Failure::io(format!("write {file}"), error);
    let text = serde_json::to_string_pretty(report).map_err(|error| failed(&error))?;
    std::fs::write(file, text + "\n").map_err(|error| failed(&error))
}
