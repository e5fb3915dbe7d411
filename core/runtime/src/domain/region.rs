//! A region of memory that peers may reach (fi_mr(3)).

use std::sync::Arc;

use super::{Backend, Inner};
use crate::fabric::{Mr, MrAttr};
use ferrofabric_contracts::error::{OpError, Result};
use ferrofabric_contracts::types::MrDesc;

struct RegionHandle<B: Backend> {
    number: usize,
    key: u64,
    mr: Arc<dyn Mr>,
    domain: Arc<Inner<B>>,
}

/// Adds registered memory to the regions of a domain.
pub(super) fn open<B: Backend>(
    domain: &Arc<Inner<B>>,
    mr: Arc<dyn Mr>,
    attr: &MrAttr,
) -> Result<Arc<dyn Mr>> {
    let (number, key) = domain.regions.enter(attr, mr.desc())?;
    Ok(Arc::new(RegionHandle {
        number,
        key,
        mr,
        domain: domain.clone(),
    }))
}

impl<B: Backend> Mr for RegionHandle<B> {
    fn desc(&self) -> MrDesc {
        self.mr.desc()
    }

    fn key(&self) -> u64 {
        self.key
    }

    /// Transports move bytes with the lock of the domain alone.
    fn with_parts_still(&self, access: &mut dyn FnMut()) -> Result<(), OpError> {
        let _still = self.domain.lock()?;
        access();
        Ok(())
    }
}

impl<B: Backend> Drop for RegionHandle<B> {
    /// Nothing reads or writes the memory any more at return.
    fn drop(&mut self) {
        if self.domain.is_inherited() {
            return;
        }
        self.domain.regions.begin_close(self.number);
        while !self.domain.regions.is_over(self.number) {
            match self.domain.lock() {
                Ok(mut state) => drop(self.domain.progress(&mut state)),
                // The thread that the domain belongs to drives it.
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}
