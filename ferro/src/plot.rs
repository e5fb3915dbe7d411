//! Pictures of results (SVG): one for each kind of figure, in it a line for each series, both axes
//! logarithmic.

use std::collections::BTreeMap;
use std::path::Path;

use plotters::prelude::*;

use crate::failure::{Failure, Result};
use crate::sizes;

const PICTURE: (u32, u32) = (900, 560);

/// A point of a line of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Name of the picture's file, without its ending.
    pub picture: String,
    /// Text above the picture.
    pub caption: String,
    /// Texts at the axes.
    pub axes: (String, String),
    /// Name of the line.
    pub line: String,
    /// The place; a size of 0 stands at 1, since 0 has no logarithm.
    pub at: (f64, f64),
}

/// A result that pictures show.
pub(crate) trait Plotted {
    /// The points of one result.
    fn points(&self) -> Vec<Point>;
}

/// Draws all results, if there is a folder to draw into.
///
/// # Errors
///
/// As [`draw`].
pub(crate) fn results<R: Plotted>(results: &[R], folder: Option<&Path>) -> Result<()> {
    match folder {
        Some(folder) => draw(results.iter().flat_map(Plotted::points), folder),
        None => Ok(()),
    }
}

/// Writes `PICTURE.svg` into a folder for each picture that some points belong to. The folder is
/// made where it is missing.
///
/// # Errors
///
/// When a file can not be written.
pub fn draw(points: impl IntoIterator<Item = Point>, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .map_err(|e| Failure::io(format!("make {}", folder.display()), e))?;
    let mut pictures: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for mut point in points {
        point.at.0 = point.at.0.max(1.0);
        pictures
            .entry(point.picture.clone())
            .or_default()
            .push(point);
    }
    for (name, points) in pictures {
        let file = folder.join(format!("{name}.svg"));
        picture(&points, &file).map_err(|e| Failure::io(format!("write {}", file.display()), e))?;
    }
    Ok(())
}

fn picture(points: &[Point], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let all = || points.iter().map(|point| point.at);
    let (Some(x), Some(y), Some(first)) = (
        span(all().map(|p| p.0)),
        span(all().map(|p| p.1)),
        points.first(),
    ) else {
        return Ok(());
    };
    let area = SVGBackend::new(file, PICTURE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(&first.caption, ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((x.0..x.1).log_scale(), (y.0..y.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(&first.axes.0)
        .y_desc(&first.axes.1)
        .x_label_formatter(&|size| sizes::print(*size as usize))
        .draw()?;
    for (index, (name, line)) in lines(points).into_iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let width = if name == OURS { 3 } else { 1 };
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(width)).point_size(3))?
            .label(name)
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

/// The line of Ferrofabric among those of others; it is drawn thicker.
pub const OURS: &str = "ferrofabric";

/// The points of each line, from left to right.
fn lines(points: &[Point]) -> BTreeMap<&str, Vec<(f64, f64)>> {
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for point in points {
        lines.entry(&point.line).or_default().push(point.at);
    }
    for line in lines.values_mut() {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
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

    fn point(picture: &str, line: &str, at: (f64, f64)) -> Point {
        Point {
            picture: picture.to_owned(),
            caption: "caption".to_owned(),
            axes: ("size".to_owned(), "ns".to_owned()),
            line: line.to_owned(),
            at,
        }
    }

    #[test]
    fn each_picture_has_its_file_and_lines() {
        let folder = std::env::temp_dir().join(format!("ferro-plot-{}", std::process::id()));
        let points = [
            point("one", "a", (8.0, 1.0)),
            point("one", "b", (0.0, 2.0)),
            point("two", "a", (64.0, 3.0)),
        ];
        draw(points, &folder).unwrap();
        let text = std::fs::read_to_string(folder.join("one.svg")).unwrap();
        assert!(
            text.contains("caption") && text.contains("<circle"),
            "{text}"
        );
        assert!(folder.join("two.svg").is_file());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_line_goes_from_left_to_right() {
        let points = [point("p", "a", (64.0, 1.0)), point("p", "a", (8.0, 2.0))];
        assert_eq!(lines(&points)["a"], [(8.0, 2.0), (64.0, 1.0)]);
    }
}
