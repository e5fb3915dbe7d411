//! Protection domains: regions, windows, queues and handles work together only within one.

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Arc;

use ferrofabric_contracts::error::Result;
use ferrofabric_runtime::fabric::KeptKey;
use ferrofabric_system::locks::Mutex;
use ferrofabric_verbs_sys::ibv_pd;

use crate::device::{DeviceContext, failed, last_errno};

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<ibv_pd>,
    context: Arc<DeviceContext>,
    /// Keys that peers know of memory that is deregistered, or will be.
    kept_keys: Mutex<BTreeSet<u32>>,
}

/// Keeps a key from other memory of its protection domain until it is dropped.
#[derive(Debug)]
pub struct KeptRkey {
    pd: Arc<Pd>,
    rkey: u32,
}

impl KeptKey for KeptRkey {}

impl Drop for KeptRkey {
    fn drop(&mut self) {
        self.pd.with_kept_keys(|keys| keys.remove(&self.rkey));
    }
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
            kept_keys: Mutex::default(),
        }))
    }

    /// Keeps the key of memory that is still registered.
    pub fn keep_key(self: &Arc<Self>, rkey: u32) -> KeptRkey {
        self.with_kept_keys(|keys| keys.insert(rkey));
        KeptRkey {
            pd: self.clone(),
            rkey,
        }
    }

    /// Whether peers may still know a key from before.
    pub(crate) fn is_kept(&self, rkey: u32) -> bool {
        self.with_kept_keys(|keys| keys.contains(&rkey))
    }

    fn with_kept_keys<R>(&self, act: impl FnOnce(&mut BTreeSet<u32>) -> R) -> R {
        act(&mut self.kept_keys.lock())
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
