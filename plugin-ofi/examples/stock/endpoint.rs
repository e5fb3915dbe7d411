//! An endpoint of a libfabric provider with its completion queue and its address vector; the same
//! with one peer and a domain of its own.

use std::ffi::{CStr, c_int};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use ferro_fi::abi::{
    FI_ENABLE, FI_MR_ALLOCATED, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_RECV, FI_TRANSMIT,
    fi_addr_t, fi_av_attr, fi_av_type, fi_cq_attr, fi_cq_err_entry, fi_cq_format,
    fi_cq_tagged_entry, fi_info, fid, fid_av, fid_cq, fid_domain, fid_ep,
};

use super::{Libfabric, call, done};

/// How long an operation may take: many threads may share a core.
const PATIENCE: Duration = Duration::from_secs(60);

/// Modes of memory registration for providers that need some.
const MR_MODES: c_int = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// Polls that find nothing before the clock is looked at.
const IDLE_POLLS: u32 = 1024;

/// An endpoint, bound to its completion queue and its address vector.
pub(crate) struct BoundEndpoint {
    pub(crate) ep: *mut fid_ep,
    av: *mut fid_av,
    cq: *mut fid_cq,
}

impl BoundEndpoint {
    /// Opens and enables one of an offer, whose queue has room for so many completions.
    pub(crate) fn open(
        domain: *mut fid_domain,
        info: *mut fi_info,
        completions: usize,
    ) -> Result<Self, String> {
        let mut opened = Self {
            ep: null_mut(),
            av: null_mut(),
            cq: null_mut(),
        };
        match opened.fill(domain, info, completions) {
            Ok(()) => Ok(opened),
            Err(why) => {
                opened.close();
                Err(why)
            }
        }
    }

    fn fill(
        &mut self,
        domain: *mut fid_domain,
        info: *mut fi_info,
        completions: usize,
    ) -> Result<(), String> {
        let mut av_attr = fi_av_attr {
            type_: fi_av_type::FI_AV_TABLE,
            ..fi_av_attr::default()
        };
        let mut cq_attr = fi_cq_attr {
            format: fi_cq_format::FI_CQ_FORMAT_TAGGED,
            size: completions,
            ..fi_cq_attr::default()
        };
        // SAFETY: as the manual pages have it.
        unsafe {
            let av = &raw mut self.av;
            let code = call!(domain, ops.av_open(&raw mut av_attr, av, null_mut()));
            done("fi_av_open", code)?;
            let cq = &raw mut self.cq;
            let code = call!(domain, ops.cq_open(&raw mut cq_attr, cq, null_mut()));
            done("fi_cq_open", code)?;
            let ep = &raw mut self.ep;
            let code = call!(domain, ops.endpoint(info, ep, null_mut()));
            done("fi_endpoint", code)?;
            let fid: *mut fid = self.ep.cast();
            let ops = *(*fid).ops;
            let bind = ops.bind.unwrap();
            done("fi_ep_bind", bind(fid, self.av.cast(), 0))?;
            let both = FI_TRANSMIT | FI_RECV;
            done("fi_ep_bind", bind(fid, self.cq.cast(), both))?;
            let control = ops.control.unwrap();
            done("fi_enable", control(fid, FI_ENABLE, null_mut()))
        }
    }

    /// Its address.
    pub(crate) fn name(&self) -> Result<Vec<u8>, String> {
        let mut name = vec![0u8; 256];
        let mut len = name.len();
        // SAFETY: as fi_getname(3) has it.
        let got = unsafe {
            let getname = (*(*self.ep).cm).getname.unwrap();
            getname(self.ep.cast(), name.as_mut_ptr().cast(), &raw mut len)
        };
        done("fi_getname", got)?;
        name.truncate(len);
        Ok(name)
    }

    /// Inserts the endpoint of an address.
    pub(crate) fn insert(&self, name: &[u8]) -> Result<fi_addr_t, String> {
        let (name, mut addr) = (name.as_ptr().cast(), 0);
        // SAFETY: as fi_av(3) has it.
        match unsafe { call!(self.av, ops.insert(name, 1, &raw mut addr, 0, null_mut())) } {
            1 => Ok(addr),
            code => Err(format!("fi_av_insert: {code}")),
        }
    }

    /// Reads completions; returns their number.
    #[inline]
    pub(crate) fn read(&self, entries: &mut [fi_cq_tagged_entry]) -> Result<usize, String> {
        let (room, len) = (entries.as_mut_ptr().cast(), entries.len());
        // SAFETY: `room` has `len` entries.
        match unsafe { call!(self.cq, ops.read(room, len)) } {
            n if n >= 0 => Ok(n as usize),
            n if n == -(libc::EAGAIN as isize) => Ok(0),
            n => Err(self.why_not(n)),
        }
    }

    /// The error of a read that returned this code: of the operation that failed, if one did.
    #[cold]
    fn why_not(&self, code: isize) -> String {
        let mut failed = fi_cq_err_entry::default();
        let entry = &raw mut failed;
        // SAFETY: as fi_cq(3) has it.
        match unsafe { call!(self.cq, ops.readerr(entry, 0)) } {
            1 => format!("an operation failed: {}, {}", failed.err, failed.prov_errno),
            _ => format!("fi_cq_read: {code}"),
        }
    }

    /// Closes what is open.
    fn close(&self) {
        for fid in [self.ep.cast(), self.cq.cast(), self.av.cast()] {
            close(fid);
        }
    }
}

/// Closes an object, if there is one.
pub(crate) fn close(fid: *mut fid) {
    // SAFETY: an object begins with its fid; it is open, goes before that on which it was opened,
    // and nobody uses it any more.
    unsafe {
        if let Some(close) = fid.as_ref().and_then(|fid| (*fid.ops).close) {
            close(fid);
        }
    }
}

/// An endpoint with a domain and a peer. Closed with this value: the provider would leave files
/// behind.
pub(crate) struct StockEndpoint {
    info: *mut fi_info,
    pub(crate) domain: *mut fid_domain,
    pub(crate) bound: BoundEndpoint,
    pub(crate) peer: fi_addr_t,
    /// The fabric, which is not closed, needs it until the process ends.
    _libfabric: ManuallyDrop<Libfabric>,
}

/// Polls of one wait that found nothing.
#[derive(Default)]
pub(crate) struct Waited {
    idle: u32,
    since: Option<Instant>,
}

impl StockEndpoint {
    /// Opens one of a provider with these capabilities.
    pub(crate) fn open(provider: &CStr, caps: u64) -> Result<Self, String> {
        let libfabric = Libfabric::load()?;
        let offer = |mr_mode| {
            libfabric.find(provider, |hints: &mut fi_info| {
                hints.caps = caps;
                // SAFETY: the hints' attributes live as long as they.
                unsafe { (*hints.domain_attr).mr_mode = mr_mode };
            })
        };
        // Where `shm` may use virtual addresses, its short writes take several times as long.
        let found = match offer(0)? {
            Some(info) => Some(info),
            None => offer(MR_MODES)?,
        };
        let info = found.ok_or_else(|| {
            let provider = provider.to_string_lossy();
            format!("libfabric has no {provider} provider for this here")
        })?;
        let domain = libfabric.domain(info)?;
        let bound = BoundEndpoint::open(domain, info, 128);
        let bound = bound.inspect_err(|_| close(domain.cast()))?;
        Ok(Self {
            info,
            domain,
            bound,
            peer: 0,
            _libfabric: ManuallyDrop::new(libfabric),
        })
    }

    /// The offer that it was opened from.
    pub(crate) fn info(&self) -> &fi_info {
        // SAFETY: libfabric's, which this program never frees.
        unsafe { &*self.info }
    }

    /// Whether it has one of the modes of memory registration (`FI_MR_…`).
    pub(crate) fn has_mr_mode(&self, mode: c_int) -> bool {
        // SAFETY: the offer's attributes live as long as it.
        unsafe { (*self.info().domain_attr).mr_mode & mode != 0 }
    }

    /// Makes the endpoint of an address its peer.
    pub(crate) fn meet(&mut self, name: &[u8]) -> Result<(), String> {
        self.peer = self.bound.insert(name)?;
        Ok(())
    }

    /// Reads a completion if there is one; else once in many calls sees whether it takes too long.
    #[inline]
    pub(crate) fn poll(&self, waited: &mut Waited) -> Result<bool, String> {
        if self.bound.read(&mut [fi_cq_tagged_entry::default()])? == 1 {
            return Ok(true);
        }
        waited.idle += 1;
        if waited.idle == IDLE_POLLS {
            waited.idle = 0;
            if waited.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(format!("nothing came within {PATIENCE:?}"));
            }
        }
        Ok(false)
    }

    /// Makes a call until there is room for what it wants. Returns how many completions were read
    /// meanwhile.
    #[inline]
    pub(crate) fn post(&self, what: &str, post: impl Fn() -> isize) -> Result<u64, String> {
        let (mut waited, mut over) = (Waited::default(), 0);
        loop {
            match post() {
                0 => return Ok(over),
                code if code == -(libc::EAGAIN as isize) => {
                    over += u64::from(self.poll(&mut waited)?);
                }
                code => return Err(format!("{what}: {code}")),
            }
        }
    }

    /// Waits for a completion.
    #[inline]
    pub(crate) fn wait(&self) -> Result<(), String> {
        let mut waited = Waited::default();
        while !self.poll(&mut waited)? {}
        Ok(())
    }

    /// As [`post`](Self::post), and waits for the completion of this operation, the only one.
    #[inline]
    pub(crate) fn complete(&self, what: &str, post: impl Fn() -> isize) -> Result<(), String> {
        match self.post(what, post)? {
            0 => self.wait(),
            _ => Err(format!("{what}: completed before it was posted")),
        }
    }
}

impl Drop for StockEndpoint {
    fn drop(&mut self) {
        self.bound.close();
        close(self.domain.cast());
    }
}
