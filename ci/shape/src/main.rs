//! `cargo run -p ferrofabric-shape` prints the lines of each crate, and fails on modules that import
//! each other in a circle and on a crate that depends on one above it; `-- --pairs` also prints the
//! parents and children that import each other.

use std::path::Path;
use std::process::ExitCode;

use ferrofabric_shape::{Shape, Tree};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let with_pairs = arguments == ["--pairs"];
    if !with_pairs && !arguments.is_empty() {
        eprintln!("usage: ferrofabric-shape [--pairs]");
        return ExitCode::from(2);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shape = match Tree::read(&root).and_then(|tree| Shape::of(&tree)) {
        Ok(shape) => shape,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if with_pairs {
        shape.pairs.iter().for_each(|pair| print!("{pair}"));
        println!();
    }
    print!("{shape}");
    match shape.circles.is_empty() && shape.layers.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
