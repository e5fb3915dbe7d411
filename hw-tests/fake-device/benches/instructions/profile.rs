//! Where the instructions go.

use std::collections::BTreeMap;
use std::process::ExitCode;

use crate::MESSAGES;
use crate::measured::SubjectCounts;

/// Functions with fewer instructions per message are not shown.
const LEAST: f64 = 1.0;

/// Prints what each function costs by itself, then what each source file and each of its lines
/// does, per message.
pub(crate) fn print(dumps: &[SubjectCounts]) -> ExitCode {
    for counted in dumps {
        println!(
            "{}: {} instructions a message",
            counted.subject,
            counted.per_message()
        );
        for (name, cost) in largest(&counted.by_function) {
            println!("{cost:>10.1}  {name}");
        }
        let mut files: BTreeMap<String, u64> = BTreeMap::new();
        for (place, cost) in &counted.by_line {
            let (file, _) = place.rsplit_once(':').unwrap_or((place, ""));
            *files.entry(file.to_owned()).or_default() += cost;
        }
        for (file, cost) in largest(&files) {
            let of_file: BTreeMap<String, u64> = counted
                .by_line
                .iter()
                .filter_map(|(place, &cost)| {
                    let (of, line) = place.rsplit_once(':')?;
                    (of == file).then(|| (line.to_owned(), cost))
                })
                .collect();
            let lines = largest(&of_file);
            let lines: Vec<_> = lines
                .iter()
                .map(|(at, cost)| format!("{at}: {cost:.1}"))
                .collect();
            println!(
                "\n{cost:>10.1}  {file}\n{:>10}  by line: {}",
                "",
                lines.join(", ")
            );
        }
    }
    ExitCode::SUCCESS
}

/// Costs per message, the largest first.
fn largest(costs: &BTreeMap<String, u64>) -> Vec<(&str, f64)> {
    let mut costs: Vec<_> = costs
        .iter()
        .map(|(name, &cost)| (name.as_str(), cost as f64 / MESSAGES as f64))
        .filter(|&(_, cost)| cost >= LEAST)
        .collect();
    costs.sort_by(|a, b| b.1.total_cmp(&a.1));
    costs
}
