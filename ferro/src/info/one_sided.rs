//! `ferro info --one-sided`: the ways of one-sided operations, as a table of rules.

use ferrofabric_runtime::rma::plan::Rule;
use serde_json::{Value, json};

use crate::failure::Result;
use crate::report::{Table, TableColumn, print_json, print_text};

/// Prints the rules.
///
/// # Errors
///
/// When standard output is closed.
pub(super) fn run(as_json: bool) -> Result<()> {
    if as_json {
        return print_json(
            &json!({ "rules": Rule::ALL.iter().map(rule_json).collect::<Vec<_>>() }),
        );
    }
    let mut table = Table::new(&[
        TableColumn::words("ROUTE", 5),
        TableColumn::words("OPERATIONS", 13),
        TableColumn::words("WAY", 7),
        TableColumn::words("COST", 13),
        TableColumn::words("WHEN, IF NO RULE ABOVE APPLIES", 30),
    ]);
    for rule in Rule::ALL {
        let row = rule.row();
        let cells = [
            row.route,
            row.operations,
            row.way.name(),
            row.way.cost().name(),
            row.condition,
        ];
        table.row(cells.map(str::to_owned).to_vec());
    }
    print_text(&table.to_string())
}

fn rule_json(rule: &Rule) -> Value {
    let row = rule.row();
    json!({
        "rule": format!("{rule:?}"),
        "route": row.route,
        "operations": row.operations,
        "way": row.way.name(),
        "cost": row.way.cost().name(),
        "condition": row.condition,
    })
}
