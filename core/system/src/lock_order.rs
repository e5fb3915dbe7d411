//! The order of the two locks that a change of an address vector may need: the turn of its writers,
//! which processes may share, and the lock of its domain (`docs/adr/0045`).
//!
//! No thread has both but one that got the turn without waiting. In debug builds a thread that
//! would break this fails at once, in whatever test it is, where it would wait for ever only now
//! and then.

#[cfg(all(debug_assertions, not(loom)))]
mod counted {
    use std::cell::Cell;

    thread_local! {
        static TURNS: Cell<u32> = const { Cell::new(0) };
        static DOMAINS: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) fn count_turns(more: i32) {
        // A thread that ends may drop what it holds after its counts.
        let _ = TURNS.try_with(|turns| turns.set(turns.get().wrapping_add_signed(more)));
    }

    pub(super) fn count_domains(more: i32) {
        let _ = DOMAINS.try_with(|domains| domains.set(domains.get().wrapping_add_signed(more)));
    }

    pub(super) fn turns() -> u32 {
        TURNS.try_with(Cell::get).unwrap_or(0)
    }

    pub(super) fn domains() -> u32 {
        DOMAINS.try_with(Cell::get).unwrap_or(0)
    }
}

#[cfg(not(all(debug_assertions, not(loom))))]
mod counted {
    #[inline(always)]
    pub(super) fn count_turns(_: i32) {}

    #[inline(always)]
    pub(super) fn count_domains(_: i32) {}

    #[inline(always)]
    pub(super) fn turns() -> u32 {
        0
    }

    #[inline(always)]
    pub(super) fn domains() -> u32 {
        0
    }
}

/// The calling thread will wait until it has a turn.
#[inline(always)]
pub fn about_to_wait_for_a_turn() {
    debug_assert_eq!(
        counted::domains(),
        0,
        "a thread waits for a turn and has a domain locked"
    );
}

/// The calling thread will wait until it has a domain locked.
#[inline(always)]
pub(crate) fn about_to_lock_a_domain() {
    debug_assert_eq!(
        counted::turns(),
        0,
        "a thread waits for the lock of a domain in its turn"
    );
}

/// The calling thread has a domain locked, `more` often.
#[inline(always)]
pub(crate) fn count_domain(more: i32) {
    counted::count_domains(more);
}

/// The calling thread has a turn as long as this is there.
pub struct InTurn(());

/// It has.
#[inline(always)]
pub fn in_turn() -> InTurn {
    counted::count_turns(1);
    InTurn(())
}

impl Drop for InTurn {
    #[inline(always)]
    fn drop(&mut self) {
        counted::count_turns(-1);
    }
}
