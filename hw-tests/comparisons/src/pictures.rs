//! Pictures of rows: for each suite, path and bench one, another for cores that are far from each
//! other; ours and every peer over the message size.

use std::collections::BTreeSet;

use ferro::plot::{OURS, Point};

use crate::row::Row;

/// The points of all rows. A picture is named `SUITE-BENCH`, or `SUITE-PATH-BENCH` where the suite
/// is not named after the path; names of pictures for far cores end in `-far`.
pub(crate) fn points(rows: &[Row]) -> Vec<Point> {
    let mut points = Vec::new();
    let mut own_sizes = BTreeSet::new();
    for row in rows {
        let point = |line: &str, value| Point {
            picture: picture_of(row),
            caption: match row.near {
                true => format!("{}: {}", row.path, row.bench),
                false => format!("{}: {}, far cores", row.path, row.bench),
            },
            axes: ("message size".to_owned(), row.metric.replace('_', " ")),
            line: line.to_owned(),
            at: (row.size as f64, value),
        };
        points.extend(row.theirs.map(|theirs| point(&row.peer, theirs)));
        // Each peer's row has our figure.
        let ours = row
            .ours
            .filter(|_| own_sizes.insert((picture_of(row), row.size)));
        points.extend(ours.map(|ours| point(OURS, ours)));
    }
    points
}

fn picture_of(row: &Row) -> String {
    let cores = if row.near { "" } else { "-far" };
    match row.suite == row.path {
        true => format!("{}-{}{cores}", row.suite, row.bench),
        false => format!("{}-{}-{}{cores}", row.suite, row.path, row.bench),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(suite: &str, path: &str) -> Row {
        serde_json::from_value(serde_json::json!({
            "suite": suite, "bench": "x_latency", "path": path, "size": 8, "peer": "p",
            "metric": "latency_us", "better": "lower", "ours": 1.0, "theirs": 2.0, "ratio": 0.5,
            "rounds": 1, "near": true, "ours_min": 1.0, "theirs_min": 2.0
        }))
        .unwrap()
    }

    #[test]
    fn a_picture_for_each_path() {
        assert_eq!(picture_of(&row("shm", "shm")), "shm-x_latency");
        assert_eq!(picture_of(&row("mpi", "verbs")), "mpi-verbs-x_latency");
        let far = Row {
            near: false,
            ..row("mpi", "shm")
        };
        assert_eq!(picture_of(&far), "mpi-shm-x_latency-far");
    }

    #[test]
    fn our_figure_is_one_point_beside_several_peers() {
        let other = Row {
            peer: "q".to_owned(),
            ..row("shm", "shm")
        };
        let points = points(&[row("shm", "shm"), other]);
        let lines: Vec<&str> = points.iter().map(|point| point.line.as_str()).collect();
        assert_eq!(lines, ["p", OURS, "q"]);
    }
}
