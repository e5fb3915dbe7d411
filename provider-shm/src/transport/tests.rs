//! Tests of the names that endpoints draw.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;

/// Covers: AV-9
#[test]
fn a_taken_name_is_drawn_again() {
    let node = crate::node_id();
    let first = ShmTransport::open(ShmConfig::default(), node, 0).unwrap();
    let taken = first.native();
    assert_eq!(taken.shm, Some(taken.incarnation));
    let free = NativeAddr::of_new(node, None, true, taken.incarnation ^ 1);
    let mut names = [taken, taken, free].into_iter();
    let second = ShmTransport::open_drawn(ShmConfig::default(), 0, || Ok(names.next().unwrap()));
    assert_eq!(second.unwrap().native(), free);
    let never = ShmTransport::open_drawn(ShmConfig::default(), 0, || Ok(taken));
    assert_eq!(never.err().unwrap().errno(), Errno::EADDRINUSE);
}
