//! Protection domains: regions, windows, queues and handles work together only within one.

use std::ptr::NonNull;
use std::sync::Arc;

use ferrofabric_contracts::error::Result;
use ferrofabric_verbs_sys::ibv_pd;

use crate::device::{DeviceContext, failed, last_errno};

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<ibv_pd>,
    context: Arc<DeviceContext>,
}

// SAFETY: libibverbs takes calls on a protection domain from any thread, at the same time.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates one.
    ///
    /// # Errors
    ///
    /// When the device has none left.
    pub fn allocate(context: &Arc<DeviceContext>) -> Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (context.verbs().ibv_alloc_pd)(context.as_ptr()) })
            .ok_or_else(|| {
                failed(
                    last_errno(),
                    "allocate",
                    format!("protection domain on {}", context.name()),
                )
            })?;
        Ok(Arc::new(Self {
            raw,
            context: Arc::clone(context),
        }))
    }

    /// The device.
    pub fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }

    /// The raw protection domain. It lives as long as `self`.
    pub fn as_ptr(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if !self.context.is_own() {
            return;
        }
        // SAFETY: freed once; the objects made in it held it and are gone.
        let rc = unsafe { (self.context.verbs().ibv_dealloc_pd)(self.as_ptr()) };
        if rc != 0 {
            tracing::warn!(
                "{}",
                failed(
                    rc,
                    "free",
                    format!("protection domain on {}", self.context.name())
                )
            );
        }
    }
}
