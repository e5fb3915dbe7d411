//! Where the instructions go.

use std::collections::BTreeMap;
use std::process::ExitCode;

use crate::MESSAGES;
use crate::measured::Counted;

/// So many lines of each table are shown.
const LINES: usize = 40;

/// Prints what each function costs by itself, and each source line, per message.
pub(crate) fn print(dumps: &[Counted]) -> ExitCode {
    for counted in dumps {
        println!(
            "{}: {} instructions a message",
            counted.subject,
            counted.per_message()
        );
        table(&counted.by_function);
        println!();
        table(&counted.by_line);
    }
    ExitCode::SUCCESS
}

fn table(costs: &BTreeMap<String, u64>) {
    let mut costs: Vec<_> = costs.iter().collect();
    costs.sort_by_key(|&(_, &cost)| std::cmp::Reverse(cost));
    for (name, &cost) in costs.into_iter().take(LINES) {
        println!("{:>10.1}  {name}", cost as f64 / MESSAGES as f64);
    }
}
