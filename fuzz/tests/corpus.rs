//! Every target takes its corpus, and some random inputs.

use ferrofabric_fuzz::{RunOptions, checks_overflow, drawn_seed, run, targets};

/// Covers: GI-8
#[test]
fn no_target_breaks() {
    assert!(checks_overflow(), "built without overflow checks");
    let seed = drawn_seed();
    println!("seed {seed}");
    let mut broken = Vec::new();
    for target in targets::ALL {
        let report = run(target, RunOptions { inputs: 5000, seed });
        println!(
            "{}: {} inputs, {} seen",
            report.target, report.inputs, report.seen
        );
        assert!(
            report.seen > 3,
            "{} sees nothing, seed {seed}",
            report.target
        );
        broken.extend(report.broken);
    }
    assert!(broken.is_empty(), "seed {seed}: {broken:?}");
}
