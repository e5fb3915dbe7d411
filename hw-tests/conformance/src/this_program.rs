//! Tests that start their own program again, to run a test of it in another process.

/// The full name of a test that is in the same module as the calling test, as `--exact` expects it.
/// The calling thread is the test's own, to which the harness gives the test's name. A name with
/// its module is full already.
pub fn name_beside_this_test(test: &str) -> String {
    if test.contains("::") {
        return test.to_owned();
    }
    let thread = std::thread::current();
    match thread.name().and_then(|name| name.rsplit_once("::")) {
        Some((module, _)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}
