//! Domains and transfers of another provider, over stock libfabric: this program is the owner
//! (fi_peer(3)).

use crate::{client, support, two};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_EBADFLAGS, FI_EINVAL, FI_ENOKEY, FI_ENOMEM, FI_PEER, FI_PEER_TRANSFER, FI_RECV, FI_SEND,
    fi_ops, fi_ops_mr, fi_ops_transfer_peer, fi_peer_domain_context, fi_peer_transfer_context,
    fi_progress, fid, fid_domain, fid_ep, fid_mr,
};
use libc::iovec;
use support::edge::GuardedPage;
use two::{alone, everywhere};

/// A registration at the owner: its first buffer, the number of buffers, rights and key.
type Registered = (usize, usize, u64, u64);

/// An owner's domain.
#[repr(C)]
struct OwnerDomain {
    domain: fid_domain,
    mr_ops: fi_ops_mr,
    region_ops: fi_ops,
    registered: Mutex<Vec<Registered>>,
    /// The regions that are open, and the results of the next calls.
    #[allow(clippy::vec_box, reason = "the provider has pointers to them")]
    regions: Mutex<Vec<Box<fid_mr>>>,
    results: Mutex<Vec<c_int>>,
    /// A domain at which each call registers memory, too.
    passes_on_to: AtomicPtr<fid_domain>,
}

impl OwnerDomain {
    fn new() -> Box<Self> {
        let mut owner = Box::new(Self {
            domain: fid_domain::default(),
            mr_ops: fi_ops_mr {
                size: size_of::<fi_ops_mr>(),
                regv: Some(register),
                ..fi_ops_mr::default()
            },
            region_ops: fi_ops {
                size: size_of::<fi_ops>(),
                close: Some(close_region),
                ..fi_ops::default()
            },
            registered: Mutex::default(),
            regions: Mutex::default(),
            results: Mutex::default(),
            passes_on_to: AtomicPtr::default(),
        });
        owner.domain.mr = &raw mut owner.mr_ops;
        owner
    }

    fn context(&self) -> fi_peer_domain_context {
        fi_peer_domain_context {
            size: size_of::<fi_peer_domain_context>(),
            domain: (&raw const self.domain).cast_mut(),
        }
    }

    fn open_regions(&self) -> usize {
        self.regions.lock().unwrap().len()
    }
}

#[allow(clippy::too_many_arguments, reason = "libfabric's signature")]
unsafe extern "C" fn register(
    domain: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    assert_eq!((offset, flags, context), (0, 0, null_mut()));
    // SAFETY: the domain is the first field of an `OwnerDomain`; the list has an entry.
    let (owner, first) = unsafe { (&*domain.cast::<OwnerDomain>(), *iov) };
    let registered = (first.iov_base.addr(), count, access, key);
    owner.registered.lock().unwrap().push(registered);
    let peer = owner.passes_on_to.load(Ordering::Relaxed);
    if !peer.is_null() {
        let region = register_at(peer, &[first], FI_SEND, 0x77).unwrap();
        assert_eq!(close(region.cast()), 0);
    }
    if let Some(result) = owner.results.lock().unwrap().pop() {
        return result;
    }
    let mut region = Box::new(fid_mr::default());
    region.fid.context = domain.cast();
    region.fid.ops = (&raw const owner.region_ops).cast_mut();
    // SAFETY: there is room for the pointer.
    unsafe { mr.write(&raw mut *region) };
    owner.regions.lock().unwrap().push(region);
    0
}

unsafe extern "C" fn close_region(region: *mut fid) -> c_int {
    // SAFETY: the region is one of an `OwnerDomain`.
    let owner = unsafe { &*(*region).context.cast::<OwnerDomain>() };
    let mut regions = owner.regions.lock().unwrap();
    let at = regions
        .iter()
        .position(|one| std::ptr::eq(&raw const one.fid, region));
    regions.remove(at.expect("it is open, and closed once"));
    0
}

/// `fi_domain2`.
fn open(
    opened: &Opened,
    info: &Info<'_>,
    flags: u64,
    context: *mut c_void,
) -> Result<*mut fid_domain, c_int> {
    let (fabric, mut domain) = (opened.fabric, null_mut());
    // SAFETY: the fabric is open; a context is NULL or begins with its size.
    match unsafe {
        call!(
            fabric,
            ops.domain2(info.info, &raw mut domain, flags, context)
        )
    } {
        0 => Ok(domain),
        error => Err(error),
    }
}

fn import(opened: &Opened, info: &Info<'_>, owner: *mut fid_domain) -> *mut fid_domain {
    let mut context = fi_peer_domain_context {
        size: size_of::<fi_peer_domain_context>(),
        domain: owner,
    };
    // The context ends with this call.
    open(opened, info, FI_PEER, (&raw mut context).cast()).unwrap()
}

/// `fi_mr_regv`.
fn register_at(
    domain: *mut fid_domain,
    iov: &[iovec],
    access: u64,
    key: u64,
) -> Result<*mut fid_mr, c_int> {
    let mut mr = null_mut();
    // SAFETY: as fi_mr(3) has it; the tests keep the memory.
    let registered = unsafe {
        (*(*domain).mr).regv.unwrap()(
            domain.cast(),
            iov.as_ptr(),
            iov.len(),
            access,
            0,
            key,
            0,
            &raw mut mr,
            null_mut(),
        )
    };
    match registered {
        0 => Ok(mr),
        error => Err(error),
    }
}

fn iov_of(memory: &mut [u8]) -> iovec {
    iovec {
        iov_base: memory.as_mut_ptr().cast(),
        iov_len: memory.len(),
    }
}

/// Each region is one of the owner's, too, as long as it is open.
///
/// Covers: PEER-6
#[test]
fn memory_is_registered_through_the_owner() {
    everywhere("memory_is_registered_through_the_owner", |info| {
        let opened = Opened::new(info);
        let owner = OwnerDomain::new();
        let domain = import(&opened, info, (&raw const owner.domain).cast_mut());
        let mut memory = vec![0u8; 8192];
        let iov = [iov_of(&mut memory)];
        let at = memory.as_ptr().addr();
        for key in 1..10 {
            let access = FI_SEND | FI_RECV;
            let first = register_at(domain, &iov, access, key).unwrap();
            let second = register_at(domain, &iov, FI_SEND, key + 100).unwrap();
            assert_eq!(owner.open_regions(), 2);
            let registered = std::mem::take(&mut *owner.registered.lock().unwrap());
            assert_eq!(
                registered,
                [(at, 1, access, key), (at, 1, FI_SEND, key + 100)]
            );
            assert_eq!(close(domain.cast()), -libc::EBUSY);
            assert_eq!(close(first.cast()), 0);
            assert_eq!(owner.open_regions(), 1);
            assert_eq!(close(second.cast()), 0);
            assert_eq!(owner.open_regions(), 0);
        }
        // Calls that are wrong do not reach the owner.
        assert_eq!(register_at(domain, &[], FI_SEND, 1), Err(-FI_EINVAL));
        assert_eq!(register_at(domain, &iov, 1 << 60, 1), Err(-FI_EINVAL));
        assert!(owner.registered.lock().unwrap().is_empty());
        // An owner that refuses, or answers nothing.
        for (result, expected) in [
            (-FI_ENOMEM, -FI_ENOMEM),
            (-FI_ENOKEY, -FI_ENOKEY),
            (0, -FI_EINVAL),
            (3, -FI_EINVAL),
            (c_int::MIN, -FI_EINVAL),
        ] {
            owner.results.lock().unwrap().push(result);
            assert_eq!(register_at(domain, &iov, FI_SEND, 1), Err(expected));
        }
        // An owner that registers at its peers, as this one is.
        owner.registered.lock().unwrap().clear();
        owner.passes_on_to.store(domain, Ordering::Relaxed);
        let region = register_at(domain, &iov, FI_SEND, 5).unwrap();
        assert_eq!(*owner.registered.lock().unwrap(), [(at, 1, FI_SEND, 5)]);
        assert_eq!(close(region.cast()), 0);
        assert_eq!(owner.open_regions(), 0);
        assert_eq!(close(domain.cast()), 0);
        opened.close();
    });
}

/// Two owners that register at each other's peers, within their own functions.
///
/// Covers: PEER-6
#[test]
fn owners_that_register_at_each_other() {
    alone("owners_that_register_at_each_other", |info| {
        let opened = Opened::new(info);
        let owners = [OwnerDomain::new(), OwnerDomain::new()];
        let domains = [0, 1].map(|i: usize| {
            let domain = (&raw const owners[i].domain).cast_mut();
            import(&opened, info, domain)
        });
        owners[0].passes_on_to.store(domains[1], Ordering::Relaxed);
        owners[1].passes_on_to.store(domains[0], Ordering::Relaxed);
        let mut memory = vec![0u8; 4096];
        let iov = [iov_of(&mut memory)];
        for first in [0, 1] {
            let region = register_at(domains[first], &iov, FI_SEND, 5).unwrap();
            for owner in &owners {
                let registered = std::mem::take(&mut *owner.registered.lock().unwrap());
                assert_eq!(registered.len(), 1, "{first}");
            }
            assert_eq!(close(region.cast()), 0);
            assert!(owners.iter().all(|owner| owner.open_regions() == 0));
        }
        assert!(domains.iter().all(|domain| close(domain.cast()) == 0));
        opened.close();
    });
}

/// This provider on both sides.
///
/// Covers: PEER-6
#[test]
fn a_domain_of_this_provider_is_imported() {
    everywhere("a_domain_of_this_provider_is_imported", |info| {
        let opened = Opened::new(info);
        let owner = open(&opened, info, 0, null_mut()).unwrap();
        let domain = import(&opened, info, owner);
        let mut memory = vec![0u8; 4096];
        let iov = [iov_of(&mut memory)];
        let region = register_at(domain, &iov, FI_SEND, 1).unwrap();
        assert_eq!(close(owner.cast()), -libc::EBUSY, "it has a region");
        assert_eq!(close(region.cast()), 0);
        assert_eq!(close(domain.cast()), 0);
        assert_eq!(close(owner.cast()), 0);
        opened.close();
    });
}

/// Covers: PEER-1, PEER-6, PEER-12
#[test]
fn domains_that_are_not_imported() {
    alone("domains_that_are_not_imported", |info| {
        let opened = Opened::new(info);
        let mut owner = OwnerDomain::new();
        let with = |owner: &OwnerDomain, change: &dyn Fn(&mut fi_peer_domain_context)| {
            let mut context = owner.context();
            change(&mut context);
            let domain = open(&opened, info, FI_PEER, (&raw mut context).cast())?;
            assert_eq!(close(domain.cast()), 0);
            Ok::<_, c_int>(())
        };
        let refused = Err(-FI_EINVAL);
        assert_eq!(with(&owner, &|_| ()), Ok(()));
        assert_eq!(with(&owner, &|context| context.size += 64), Ok(()));
        assert_eq!(with(&owner, &|context| context.size -= 1), refused);
        assert_eq!(
            with(&owner, &|context| context.domain = null_mut()),
            refused
        );
        let mut bare = fid_domain::default();
        let bare = &raw mut bare;
        assert_eq!(with(&owner, &|context| context.domain = bare), refused);
        assert_eq!(open(&opened, info, FI_PEER, null_mut()), Err(-FI_EINVAL));
        let mut context = owner.context();
        let other = open(&opened, info, FI_PEER | 1, (&raw mut context).cast());
        assert_eq!(other, Err(-FI_EBADFLAGS));
        owner.mr_ops.size -= 1;
        assert_eq!(with(&owner, &|_| ()), refused);
        owner.mr_ops.size += 1;
        owner.mr_ops.regv = None;
        assert_eq!(with(&owner, &|_| ()), refused);
        opened.close();

        // No object of such a domain is another provider's.
        let owner = OwnerDomain::new();
        let automatic = info.copy();
        // SAFETY: the offer is there.
        unsafe {
            let domain = (*automatic.info).domain_attr;
            (*domain).__bindgen_anon_1.data_progress = fi_progress::FI_PROGRESS_AUTO;
        }
        let opened = Opened::new(&automatic);
        let mut context = owner.context();
        let refused = open(&opened, &automatic, FI_PEER, (&raw mut context).cast());
        assert_eq!(refused, Err(-FI_EINVAL));
        opened.close();
    });
}

/// Endpoints with a transport send by nobody else's. An owner that opens one for that gets an
/// error, whatever its context says; nothing of the context is read or written.
///
/// Covers: PEER-11, PEER-12
#[test]
fn endpoints_for_transfers_are_refused() {
    everywhere("endpoints_for_transfers_are_refused", |info| {
        let opened = Opened::new(info);
        let (domain, edge, constant) = (opened.domain, GuardedPage::new(), GuardedPage::new());
        let (offer, mut ep) = (info.copy(), null_mut());
        // SAFETY: the offer is there.
        unsafe { (*offer.info).mode |= FI_PEER_TRANSFER };
        let mut owners = fid_ep::default();
        let whole = fi_peer_transfer_context {
            size: size_of::<fi_peer_transfer_context>(),
            info: offer.info,
            ep: &raw mut owners,
            peer_ops: null_mut::<fi_ops_transfer_peer>(),
        };
        let contexts: [*mut c_void; 4] = [
            null_mut(),
            edge.forbidden().as_ptr().cast(),
            constant.constant(&whole).cast(),
            (&raw const whole).cast_mut().cast(),
        ];
        for context in contexts {
            // SAFETY: the domain is open.
            let opened = unsafe { call!(domain, ops.endpoint(offer.info, &raw mut ep, context)) };
            assert_eq!(opened, -FI_EINVAL);
            assert!(ep.is_null());
        }
        assert!(whole.peer_ops.is_null());
        // Without the mode it is an endpoint as any other.
        // SAFETY: the domain is open.
        let result = unsafe { call!(domain, ops.endpoint(info.info, &raw mut ep, null_mut())) };
        assert_eq!(result, 0);
        assert_eq!(close(ep.cast()), 0);
        opened.close();
    });
}
