//! A region of memory that peers may reach (fi_mr(3)).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::domain::{Backend, DeferredTask, DomainState, Inner, neighbours};
use crate::fabric::{Cntr, KeptKey, Mr, MrAttr};
use ferrofabric_contracts::atomics::Datatype;
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Transport;
use ferrofabric_contracts::types::MrDesc;
use ferrofabric_system::locks::Mutex;

/// How long a close waits for the holders of grants to return them, so that no operation of one
/// that is at work fails at the device.
const RETURN_TIME: Duration = Duration::from_millis(100);

/// How long it waits until it requests from the processes of those holders that they drive their
/// endpoints. A holder that is at work has mostly returned its grant by then.
const BEFORE_REQUEST: Duration = Duration::from_micros(50);

/// The time between two such requests, of which each may be lost.
const BETWEEN_REQUESTS: Duration = Duration::from_millis(5);

/// How long it waits for the parts of operations that are on their way, before it ends them.
const PARTS_TIME: Duration = Duration::from_secs(1);

/// The time between two attempts to end parts.
const INTERVAL: Duration = Duration::from_millis(1);

struct RegionHandle<B: Backend> {
    number: usize,
    key: u64,
    mr: Arc<dyn Mr>,
    domain: Arc<Inner<B>>,
    /// Those that count operations on the region. They close after it.
    counters: Mutex<Vec<Arc<dyn Cntr>>>,
}

/// Checks the number of pieces of a region that is to be.
pub(in crate::domain) fn check_pieces(attr: &MrAttr<'_>, limit: usize) -> Result<()> {
    let pieces = 1 + attr.further.len();
    if pieces > limit {
        return Err(
            Error::new(Errno::EINVAL, "register", format!("{pieces} buffers"))
                .mend(format!("a region has {limit} at most (mr_iov_limit)")),
        );
    }
    Ok(())
}

/// Whether peers may reach a region by themselves: in one piece, and if it is for atomic operations
/// alone, by the processor's instructions in memory that they map.
fn is_for_shortcuts(attr: &MrAttr<'_>) -> bool {
    let is_reached = |elements: Datatype| elements.is_one_word() && attr.backing.is_some();
    attr.further.is_empty() && attr.elements.is_none_or(is_reached)
}

/// Adds registered memory to the regions of a domain.
pub(in crate::domain) fn open<B: Backend>(
    domain: &Arc<Inner<B>>,
    mr: Arc<dyn Mr>,
    attr: &MrAttr<'_>,
) -> Result<Arc<dyn Mr>> {
    let (number, key) = domain.regions.enter(attr, mr.desc())?;
    // Before a peer can have a key of a device.
    let weak = Arc::downgrade(domain);
    mr.on_lost_key(Box::new(move |key| {
        if let Some(domain) = weak.upgrade() {
            lost_key(&domain, number, key);
        }
    }));
    domain.regions.set_device(number, mr.clone());
    if is_for_shortcuts(attr) {
        domain.backend.show_region(number, key, attr);
    }
    Ok(Arc::new(RegionHandle {
        number,
        key,
        mr,
        domain: domain.clone(),
        counters: Mutex::default(),
    }))
}

/// A key of a device has ended: the peers that hold grants of it get to know that.
fn lost_key<B: Backend>(domain: &Inner<B>, region: usize, key: Box<dyn KeptKey>) {
    if domain.regions.lose_key(region, key) {
        domain.defer(std::iter::once(DeferredTask::Revoke(region)));
    }
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

    fn device_key(&self) -> Option<u32> {
        self.mr.device_key()
    }

    fn refresh(&self) -> Result<()> {
        self.domain.regions.note_holes(self.number);
        self.mr.refresh()
    }

    fn count_remote(&self, cntr: &Arc<dyn Cntr>, counted: Flags) -> Result<()> {
        let index = self.domain.own(cntr.id(), "counter of a region")?;
        // The counter is to see each operation.
        self.domain.backend.hide_region(self.number);
        if self.domain.regions.count(self.number, index, counted)? {
            let revoke = DeferredTask::Revoke(self.number);
            self.domain.defer(std::iter::once(revoke));
        }
        self.counters.lock().push(cntr.clone());
        Ok(())
    }
}

impl<B: Backend> Drop for RegionHandle<B> {
    /// Nothing reads or writes the memory by messages any more at return, nor does the device when
    /// the registration ends behind this. A peer that has not returned its grant by then still knows
    /// the key of the device, which is kept from other memory until it does.
    fn drop(&mut self) {
        if self.domain.is_inherited() {
            return;
        }
        let defer = |task| self.domain.defer(std::iter::once(task));
        let is_granted = self.domain.regions.begin_close(self.number);
        if is_granted {
            defer(DeferredTask::Revoke(self.number));
        }
        let backend = &self.domain.backend;
        backend.hide_region(self.number);
        let begun = Instant::now();
        let mut request_due = begun + BEFORE_REQUEST;
        let mut end_due = begun + PARTS_TIME;
        while backend.is_region_in_use(self.number) || !self.domain.regions.is_over(self.number) {
            let now = Instant::now();
            if now >= begun + RETURN_TIME
                && !backend.is_region_in_use(self.number)
                && (self.domain.regions).leave(self.number, || self.mr.keep_device_key())
            {
                break;
            }
            if is_granted && now >= request_due {
                defer(DeferredTask::RequestDrive(self.number));
                request_due = now + BETWEEN_REQUESTS;
            }
            if now >= end_due {
                defer(DeferredTask::EndParts(self.number));
                end_due = now + INTERVAL;
            }
            match self.domain.lock() {
                Ok(mut state) => drop(self.domain.progress(&mut state)),
                // The thread that the domain belongs to drives it.
                Err(_) => std::thread::yield_now(),
            }
            // This thread may be the one that drives the peers.
            neighbours::drive();
        }
    }
}

impl<T: Transport> DomainState<T> {
    /// Revokes the grants of a region.
    #[cold]
    pub(in crate::domain) fn revoke(&mut self, region: usize) {
        for (_, endpoint) in &mut self.endpoints {
            let (transport, mut owner) = endpoint.split(&mut self.cqs, &mut self.cntrs, &self.avs);
            owner.srx.revoke(region);
            owner.start_deferred(transport);
        }
    }

    /// Requests that the processes of the holders of a region's grants drive the endpoints that
    /// hold them.
    #[cold]
    pub(in crate::domain) fn request_drive(&mut self, region: usize) {
        for (_, endpoint) in &mut self.endpoints {
            let (transport, owner) = endpoint.split(&mut self.cqs, &mut self.cntrs, &self.avs);
            for grant in owner.srx.remote.given.of_region(region) {
                transport.request_drive(grant.holder);
            }
        }
    }

    /// Ends the parts of operations that are on their way into a region or out of it.
    #[cold]
    pub(in crate::domain) fn end_parts(&mut self, region: usize) {
        for (_, endpoint) in &mut self.endpoints {
            let (transport, mut owner) = endpoint.split(&mut self.cqs, &mut self.cntrs, &self.avs);
            let parts = owner.srx.remote.parts_of(region);
            if !parts.is_empty() {
                transport.end_parts(&parts, &mut owner);
                owner.srx.end_waiting_replies(&parts);
            }
            owner.start_deferred(transport);
        }
    }
}
