//! `ferro bench mr`: the time to register memory for peers, and to close the region again.
//!
//! The memory is written to before, so that its pages are there. Each size is registered over and
//! over at one place: `first` is the first time, and a cache of registrations may serve the others.

use std::time::Instant;

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Threading;
use ferrofabric_contracts::types::IoBuf;
use ferrofabric_runtime::fabric::{Domain, MrAttr};
use memmap2::{MmapMut, MmapRaw};
use serde::Serialize;

use super::matching::median;
use crate::bound::carrier_of;
use crate::cli::RegionOptions;
use crate::failure::{Failure, Result};
use crate::plot::{self, Plotted, Point};
use crate::report::{Results, TableColumn, Tabled, significant};
use crate::sizes;

/// The cost of a region of one size.
#[derive(Debug, Serialize)]
struct RegionCost {
    bench: &'static str,
    size: usize,
    path: &'static str,
    domain: String,
    regions: u64,
    first_register_us: f64,
    register_us: f64,
    close_us: f64,
}

/// Measures each size.
///
/// # Errors
///
/// When there is no domain of the path, or a call fails.
pub(crate) fn run(options: &RegionOptions) -> Result<()> {
    let sizes = &options.sizes.0;
    let mut results = Results::new(options.json, sizes.len());
    let domain = options.path.open(Threading::Domain)?;
    for &size in sizes {
        results
            .progress()
            .step(format!("mr of {}", sizes::print(size)));
        results.add(measure(&*domain, size, options.iters)?)?;
    }
    let results = results.finish("")?;
    plot::results(&results, options.plot.plot.as_deref())
}

#[allow(unsafe_code, reason = "regions end before their memory does")]
fn measure(domain: &dyn Domain, size: usize, regions: u64) -> Result<RegionCost> {
    let no_memory = |e| Failure::io(format!("make a region of {size} bytes"), e);
    let mut mapped = MmapMut::map_anon(size.max(1)).map_err(no_memory)?;
    mapped.fill(1);
    let memory = MmapRaw::from(mapped);
    let rights = Flags::REMOTE_READ | Flags::REMOTE_WRITE;
    let attr = MrAttr::new(IoBuf::new(memory.as_ptr(), size), rights);
    let (mut registered, mut closed) = (Vec::new(), Vec::new());
    let us = |from: Instant| from.elapsed().as_secs_f64() * 1e6;
    for _ in 0..regions {
        let start = Instant::now();
        // SAFETY: the region ends within this turn, and the memory after the last; there is no
        // reference to it.
        let region = unsafe { domain.register_region(&attr)? };
        registered.push(us(start));
        let start = Instant::now();
        drop(region);
        closed.push(us(start));
    }
    Ok(RegionCost {
        bench: "mr",
        size,
        path: carrier_of(domain),
        domain: domain.info().domain.name.clone(),
        regions,
        first_register_us: registered[0],
        register_us: median(&mut registered),
        close_us: median(&mut closed),
    })
}

impl Tabled for RegionCost {
    const COLUMNS: &'static [TableColumn] = &[
        TableColumn::number("SIZE", 5),
        TableColumn::number("FIRST µs", 0),
        TableColumn::number("REGISTER µs", 0),
        TableColumn::number("CLOSE µs", 0),
        TableColumn::number("REGIONS", 0),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            sizes::print(self.size),
            significant(self.first_register_us),
            significant(self.register_us),
            significant(self.close_us),
            self.regions.to_string(),
        ]
    }
}

impl Plotted for RegionCost {
    fn points(&self) -> Vec<Point> {
        let lines = [
            ("register, the first time", self.first_register_us),
            ("register", self.register_us),
            ("close", self.close_us),
        ];
        let point = |(line, us): (&str, f64)| Point {
            picture: self.bench.to_owned(),
            caption: format!("{}: a region", self.path),
            axes: ("size".to_owned(), "µs".to_owned()),
            line: line.to_owned(),
            at: (self.size as f64, us),
        };
        lines.map(point).into()
    }
}
