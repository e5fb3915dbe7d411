//! Tests that start their own program again, to run a test of it in another process.

/// The full name of a test that is in the same module as the calling test, as `--exact` expects it.
/// The calling thread is the test's own, to which the harness gives the test's name. A name with
/// its module is full already.
///
/// # Panics
///
/// If the thread has no such name.
pub fn name_beside_this_test(test: &str) -> String {
    if test.contains("::") {
        return test.to_owned();
    }
    let thread = std::thread::current();
    let module = thread.name().and_then(|name| name.rsplit_once("::"));
    let (module, _) = module.expect("the thread has the name of a test in a module");
    format!("{module}::{test}")
}
