//! Domains (fi_domain(3)), each with a fabric of its own, and the objects that are opened on them.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ferro_fi::abi::{fid_domain, fid_fabric};
use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::info::Info;
use ferrofabric_runtime::fabric::{
    Av, Cntr, CntrAttr, Cq, CqAttr, Domain, Endpoint, EndpointConfig, Mr, MrAttr, ObjectId,
};

use super::contexts::Contexts;
use super::counter::CounterByC;
use super::endpoint::EndpointByC;
use super::offer::Offer;
use super::queue::QueueByC;
use super::vector::VectorByC;
use super::{control, missing};
use crate::client::close;

/// A fabric and a domain, which close after all that is opened on them.
pub struct OpenDomain {
    pub fabric: *mut fid_fabric,
    pub domain: *mut fid_domain,
    pub offer: Offer,
    // Freed when the domain has closed.
    pub contexts: Contexts,
}

// SAFETY: the domain is opened for calls of any threads (`FI_THREAD_SAFE`).
unsafe impl Send for OpenDomain {}
// SAFETY: as above.
unsafe impl Sync for OpenDomain {}

impl Drop for OpenDomain {
    fn drop(&mut self) {
        closed(close(self.domain.cast()), "domain");
        closed(close(self.fabric.cast()), "fabric");
    }
}

/// The result of closing an object, each of which closes before those that it uses.
pub fn closed(result: c_int, what: &str) {
    if !std::thread::panicking() {
        assert_eq!(result, 0, "a {what} does not close");
    }
}

/// A domain of one of libfabric's providers.
pub struct DomainByC {
    open: Arc<OpenDomain>,
    number: usize,
    opened: AtomicUsize,
    vectors: OpenObjects<VectorByC>,
    queues: OpenObjects<QueueByC>,
    counters: OpenObjects<CounterByC>,
}

impl DomainByC {
    /// Opens a fabric and a domain on it.
    pub fn open(offer: Offer) -> Result<Self> {
        static DOMAINS: AtomicUsize = AtomicUsize::new(0);
        let (info, mut fabric, mut domain) = (offer.list.info, null_mut(), null_mut());
        // SAFETY: as fi_fabric(3) and fi_domain(3) have it, with an offer of libfabric's.
        unsafe {
            let opened = offer.list.open_fabric((*info).fabric_attr, &raw mut fabric);
            control(opened, "fi_fabric")?;
            let opened = call!(fabric, ops.domain(info, &raw mut domain, null_mut()));
            control(opened, "fi_domain")?;
        }
        Ok(Self {
            open: Arc::new(OpenDomain {
                fabric,
                domain,
                offer,
                contexts: Contexts::default(),
            }),
            number: DOMAINS.fetch_add(1, Ordering::Relaxed),
            opened: AtomicUsize::new(0),
            vectors: OpenObjects::new(|vector| vector.id),
            queues: OpenObjects::new(|queue| queue.id),
            counters: OpenObjects::new(|counter| counter.id),
        })
    }

    fn next(&self) -> usize {
        self.opened.fetch_add(1, Ordering::Relaxed)
    }

    fn next_id(&self) -> ObjectId {
        ObjectId::new(self.number, self.next())
    }

    fn counter(&self, given: Option<&Arc<dyn Cntr>>) -> Result<Option<Arc<CounterByC>>> {
        given.map(|cntr| self.counters.find(cntr.id())).transpose()
    }
}

impl Domain for DomainByC {
    fn info(&self) -> &Info {
        &self.open.offer.described
    }

    fn open_cq(&self, attr: &CqAttr) -> Result<Arc<dyn Cq>> {
        let queue = QueueByC::open(&self.open, attr, self.next_id())?;
        Ok(self.queues.add(queue))
    }

    fn open_cntr(&self, attr: &CntrAttr) -> Result<Arc<dyn Cntr>> {
        let counter = CounterByC::open(&self.open, attr, self.next_id())?;
        Ok(self.counters.add(counter))
    }

    fn open_av(&self, attr: &AvAttr) -> Result<Arc<dyn Av>> {
        let vector = VectorByC::open(&self.open, attr, self.next_id())?;
        Ok(self.vectors.add(vector))
    }

    fn open_endpoint(&self, config: EndpointConfig) -> Result<Arc<dyn Endpoint>> {
        if config.source.is_some() || config.auth_key.is_some() {
            return Err(missing("fi_endpoint with a source address or a key"));
        }
        let one_sided = [
            &config.read_cntr,
            &config.write_cntr,
            &config.remote_read_cntr,
            &config.remote_write_cntr,
        ];
        if one_sided.into_iter().any(Option::is_some) {
            return Err(missing("fi_ep_bind of a counter of one-sided operations"));
        }
        let bound = BoundObjects {
            vector: self.vectors.find(config.av.id())?,
            tx: self.queues.find(config.tx_cq.id())?,
            rx: self.queues.find(config.rx_cq.id())?,
            sent: self.counter(config.tx_cntr.as_ref())?,
            received: self.counter(config.rx_cntr.as_ref())?,
        };
        let endpoint = EndpointByC::open(&self.open, self.next(), &config, bound)?;
        Ok(Arc::new(endpoint))
    }

    unsafe fn register_region(&self, _: &MrAttr<'_>) -> Result<Arc<dyn Mr>> {
        Err(missing("fi_mr_reg"))
    }
}

/// The objects that an endpoint is bound to, which close after it.
pub struct BoundObjects {
    pub vector: Arc<VectorByC>,
    pub tx: Arc<QueueByC>,
    pub rx: Arc<QueueByC>,
    pub sent: Option<Arc<CounterByC>>,
    pub received: Option<Arc<CounterByC>>,
}

/// The open objects of a kind: the suite hands them back as traits.
struct OpenObjects<T> {
    objects: Mutex<Vec<Weak<T>>>,
    id: fn(&T) -> ObjectId,
}

impl<T> OpenObjects<T> {
    fn new(id: fn(&T) -> ObjectId) -> Self {
        let objects = Mutex::default();
        Self { objects, id }
    }

    fn add(&self, object: T) -> Arc<T> {
        let object = Arc::new(object);
        let mut objects = self.objects.lock().unwrap();
        objects.retain(|one| one.strong_count() > 0);
        objects.push(Arc::downgrade(&object));
        object
    }

    fn find(&self, id: ObjectId) -> Result<Arc<T>> {
        let objects = self.objects.lock().unwrap();
        let mut open = objects.iter().filter_map(Weak::upgrade);
        open.find(|object| (self.id)(object) == id)
            .ok_or_else(|| Error::new(Errno::EDOMAIN, "bind", "object of another domain"))
    }
}
