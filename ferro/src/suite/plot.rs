//! Plots of rows: for each suite, path and bench one picture, another for cores that are far from
//! each other; ours and every peer over the message size.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use plotters::prelude::*;

use super::row::Row;
use crate::failure::{Failure, Result};
use crate::sizes;

const PICTURE: (u32, u32) = (900, 560);

/// The points of a line: size and value.
type Points = Vec<(f64, f64)>;

/// Writes `SUITE-BENCH.svg` for each into a folder, `SUITE-PATH-BENCH.svg` where the suite is not
/// named after the path. Names of pictures for far cores end in `-far`.
///
/// # Errors
///
/// When a file can not be written.
pub(super) fn all(rows: &[Row], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .map_err(|e| Failure::io(format!("make {}", folder.display()), e))?;
    let pictures: BTreeSet<String> = rows.iter().map(picture_of).collect();
    for name in pictures {
        let of_picture: Vec<&Row> = rows.iter().filter(|r| picture_of(r) == name).collect();
        let file = folder.join(format!("{name}.svg"));
        picture(&of_picture, &file)
            .map_err(|e| Failure::io(format!("write {}", file.display()), e))?;
    }
    Ok(())
}

fn picture_of(row: &Row) -> String {
    let cores = if row.near { "" } else { "-far" };
    match row.suite == row.path {
        true => format!("{}-{}{cores}", row.suite, row.bench),
        false => format!("{}-{}-{}{cores}", row.suite, row.path, row.bench),
    }
}

fn picture(rows: &[&Row], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let lines = lines(rows);
    let points = || lines.values().flatten();
    let (Some(x), Some(y)) = (span(points().map(|p| p.0)), span(points().map(|p| p.1))) else {
        return Ok(());
    };
    let area = SVGBackend::new(file, PICTURE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(
            match rows[0].near {
                true => format!("{}: {}", rows[0].path, rows[0].bench),
                false => format!("{}: {}, far cores", rows[0].path, rows[0].bench),
            },
            ("sans-serif", 22),
        )
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((x.0..x.1).log_scale(), (y.0..y.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("message size")
        .y_desc(rows[0].metric.replace('_', " "))
        .x_label_formatter(&|bytes| sizes::print(*bytes as usize))
        .draw()?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let width = if name == OURS { 3 } else { 1 };
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), color.stroke_width(width)).point_size(3),
            )?
            .label(name.as_str())
            .legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 16, y)], color.stroke_width(width))
            });
    }
    chart
        .configure_series_labels()
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .draw()?;
    area.present()?;
    Ok(())
}

const OURS: &str = "ferrofabric";

fn lines(rows: &[&Row]) -> BTreeMap<String, Points> {
    let mut lines: BTreeMap<String, Points> = BTreeMap::new();
    let mut own_sizes = BTreeSet::new();
    for row in rows {
        // A logarithm of 0 there is not.
        let size = row.size.max(1) as f64;
        if let Some(theirs) = row.theirs {
            lines
                .entry(row.peer.clone())
                .or_default()
                .push((size, theirs));
        }
        if let Some(ours) = row.ours.filter(|_| own_sizes.insert(row.size)) {
            lines.entry(OURS.to_owned()).or_default().push((size, ours));
        }
    }
    for points in lines.values_mut() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

/// From a little below the smallest to a little above the largest.
fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let ends = values
        .filter(|v| *v > 0.0)
        .fold(None, |ends: Option<(f64, f64)>, v| {
            Some(ends.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
        })?;
    Some((ends.0 / 1.3, ends.1 * 1.3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_for_each_path() {
        let row = |suite: &str, path: &str| -> Row {
            serde_json::from_value(serde_json::json!({
                "suite": suite, "bench": "x_latency", "path": path, "size": 8, "peer": "p",
                "metric": "latency_us", "better": "lower", "ours": 1.0, "theirs": 2.0, "ratio": 0.5,
                "rounds": 1, "near": true, "ours_min": 1.0, "theirs_min": 2.0
            }))
            .unwrap()
        };
        assert_eq!(picture_of(&row("shm", "shm")), "shm-x_latency");
        assert_eq!(picture_of(&row("mpi", "verbs")), "mpi-verbs-x_latency");
        let far = Row {
            near: false,
            ..row("mpi", "shm")
        };
        assert_eq!(picture_of(&far), "mpi-shm-x_latency-far");
    }
}
