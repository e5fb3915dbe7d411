//! How a callback finds its owner: by the call into C in which it comes.
//!
//! A call leaves the owner in a variable of its thread. A callback takes the owner out for as long
//! as it runs, so that one owner is never lent twice. A callback on another thread, within another
//! callback, or outside of any call finds none.

use std::cell::Cell;
use std::ptr::null;

use ferrofabric_contracts::peer::AnyOwner;
use ferrofabric_system::foreign::ForeignCall;

use super::objects::ObjectBlock;

/// A call into C.
struct OwnerScope {
    block: &'static ObjectBlock,
    /// Lent for the time of the call.
    owner: *mut (dyn AnyOwner + 'static),
}

thread_local! {
    /// The innermost call of this thread; null outside of calls and within callbacks.
    static CURRENT: Cell<*const OwnerScope> = const { Cell::new(null()) };
}

/// Restores the variable, however the call ends.
struct RestoredScope {
    /// The variable, which is there as long as its thread.
    current: *const Cell<*const OwnerScope>,
    before: *const OwnerScope,
}

impl RestoredScope {
    #[inline(always)]
    fn replace(scope: *const OwnerScope) -> Self {
        // One look-up of the variable serves both changes.
        CURRENT.with(|current| Self {
            current,
            before: current.replace(scope),
        })
    }
}

impl Drop for RestoredScope {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this value does not leave its thread.
        unsafe { &*self.current }.set(self.before);
    }
}

/// Runs a call into C in which callbacks with objects of that block find the owner.
#[inline]
pub(super) fn enter<R>(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    call: impl FnOnce() -> R,
) -> R {
    let owner = std::ptr::from_mut(owner);
    let scope = OwnerScope {
        block,
        // SAFETY: only the lifetime of the owner's type goes, and the pointer is used no longer
        // than the call runs.
        owner: unsafe {
            std::mem::transmute::<*mut (dyn AnyOwner + '_), *mut (dyn AnyOwner + 'static)>(owner)
        },
    };
    let _restored = RestoredScope::replace(&raw const scope);
    let _call = ForeignCall::begin();
    call()
}

/// Runs a callback with its owner, if `find` finds its object among those of the innermost call.
/// `None`: the callback has no owner.
#[inline(always)]
pub(super) fn with_owner<T, R>(
    find: impl FnOnce(&'static ObjectBlock) -> Option<T>,
    callback: impl FnOnce(&'static ObjectBlock, &mut dyn AnyOwner, T) -> R,
) -> Option<R> {
    let taken = RestoredScope::replace(null());
    // SAFETY: the call has it on its stack, and has not returned.
    let scope = unsafe { taken.before.as_ref() }?;
    let found = find(scope.block)?;
    // SAFETY: the call has the owner for itself, and lends it to one callback at a time: this one
    // has taken the scope out of the variable.
    Some(callback(scope.block, unsafe { &mut *scope.owner }, found))
}
