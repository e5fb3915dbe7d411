//! The shape of this tree.

#![allow(missing_docs)]

use std::path::Path;

use ferrofabric_shape::{Shape, Tree};

#[test]
fn the_package_at_the_root_is_checked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::read(&root).unwrap_or_else(|e| panic!("{e}"));
    let names: Vec<_> = tree.packages.iter().map(|it| it.name.as_str()).collect();
    assert!(names.contains(&"ferrofabric"), "{names:?}");
}

#[test]
fn no_circles_and_no_crate_above_its_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shape = Tree::read(&root).and_then(|tree| Shape::of(&tree));
    let shape = shape.unwrap_or_else(|e| panic!("{e}"));
    assert!(
        shape.circles.is_empty() && shape.layers.is_empty(),
        "{shape}"
    );
}
