//! The address vector of a collective peer: that of its owner, whose addresses it uses.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::cancel::Uncancelled;

use super::domain::PeerDomainObject;
use crate::abi::{
    FI_CLASS_AV, FI_PEER, FI_READ, FI_SYMMETRIC, Roomy, fi_addr_t, fi_av_attr, fi_av_set_attr,
    fi_av_type, fi_ops, fi_ops_av, fi_ops_av_owner, fi_peer_av_context, fid, fid_av, fid_av_set,
    fid_ep, fid_peer_av,
};
use crate::av::set::{SetObject, SetVector};
use crate::fi_addr::given;
use crate::fid::{Given, Object, SharedObject, open_on, ops_of};
use crate::guard::Refused;
use crate::memory::check_size;
use crate::unsupported::Unsupported;

/// An address vector without insertions.
pub(super) struct PeerVectorObject {
    owner: NonNull<fid_peer_av>,
    own_address: OwnAddressFn,
    /// The owner's kind of addresses, and how many there were at the opening.
    is_table: bool,
    count: usize,
    domain: SharedObject<PeerDomainObject>,
}

type OwnAddressFn = unsafe extern "C" fn(*mut fid_peer_av, *mut fid_ep) -> fi_addr_t;

// SAFETY: the owner's address vector is for any thread (fi_peer(3): the owner sees to locks).
unsafe impl Send for PeerVectorObject {}
// SAFETY: as above.
unsafe impl Sync for PeerVectorObject {}

// SAFETY: `fid_av` starts with the `fid`.
unsafe impl Object for PeerVectorObject {
    type Raw = fid_av;
    const CLASS: usize = FI_CLASS_AV;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_av {
        let ops = OPS.as_ptr();
        fid_av { fid, ops }
    }
}

static FID_OPS: fi_ops = ops_of::<PeerVectorObject>();

static OPS: Roomy<fi_ops_av> = Roomy::new(fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(Unsupported::ENOSYS),
    insertsvc: Some(Unsupported::ENOSYS),
    insertsym: Some(Unsupported::ENOSYS),
    remove: Some(Unsupported::ENOSYS),
    lookup: Some(Unsupported::ENOSYS),
    straddr: Some(no_text),
    av_set: Some(open_set),
    insert_auth_key: Some(Unsupported::ENOSYS),
    lookup_auth_key: Some(Unsupported::ENOSYS),
    set_user_id: Some(Unsupported::ENOSYS),
});

impl PeerVectorObject {
    /// # Errors
    ///
    /// `EINVAL`: no `FI_PEER`, events or user IDs, or the context has no address vector with its
    /// operations. The owner's.
    ///
    /// # Safety
    ///
    /// `context` is as fi_peer(3) has it, or NULL.
    pub(super) unsafe fn open(
        domain: SharedObject<PeerDomainObject>,
        attr: Option<&fi_av_attr>,
        context: *const fi_peer_av_context,
    ) -> Result<Self, Refused> {
        // The rights of the application, and whether addresses are the same everywhere.
        let owners = FI_READ | FI_SYMMETRIC;
        if attr.is_none_or(|attr| attr.flags & !owners != FI_PEER) {
            let error = Error::new(Errno::EINVAL, "open", "address vector of a collective peer");
            let mend = "it imports that of its owner: set FI_PEER, and no events and user IDs";
            return Err(error.mend(mend).into());
        }
        // SAFETY: as the caller says; the owner's address vector is open for as long as this one.
        unsafe {
            check_size(context)?;
            let owner = NonNull::new((*context).av).ok_or(Errno::EINVAL)?;
            let ops: *const fi_ops_av_owner = owner.as_ref().owner_ops;
            check_size(ops)?;
            let query = (*ops).query.ok_or(Errno::EINVAL)?;
            let own_address = (*ops).ep_addr.ok_or(Errno::EINVAL)?;
            let mut found = fi_av_attr::default();
            let _uncancelled = Uncancelled::begin();
            match query(owner.as_ptr(), &raw mut found) {
                0 => {}
                error @ -4095..0 => return Err(Errno(-error).into()),
                _ => return Err(Errno::EINVAL.into()),
            }
            Ok(Self {
                owner,
                own_address,
                is_table: found.type_ == fi_av_type::FI_AV_TABLE,
                count: found.count,
                domain,
            })
        }
    }

    /// The address of the owner's endpoint, if it is in.
    pub(super) fn address_of(&self, ep: NonNull<fid_ep>) -> FiAddr {
        let _uncancelled = Uncancelled::begin();
        // SAFETY: both are the owner's, and open.
        given(unsafe { (self.own_address)(self.owner.as_ptr(), ep.as_ptr()) })
    }

    /// Whether it was opened on that domain.
    pub(super) fn is_of(&self, domain: &PeerDomainObject) -> bool {
        std::ptr::eq(&**self.domain, domain)
    }
}

/// The owner alone knows which addresses are in.
impl SetVector for Given<PeerVectorObject> {
    fn has(&self, addr: FiAddr) -> bool {
        addr != FiAddr::NOTAVAIL && addr != FiAddr::UNSPEC
    }

    fn is_table(&self) -> bool {
        self.is_table
    }

    fn count(&self) -> usize {
        self.count
    }
}

/// The owner has the text of its addresses.
unsafe extern "C" fn no_text(
    _av: *mut fid_av,
    _addr: *const c_void,
    _buf: *mut c_char,
    _len: *mut usize,
) -> *const c_char {
    std::ptr::null()
}

/// `fi_av_set`.
unsafe extern "C" fn open_set(
    av: *mut fid_av,
    attr: *mut fi_av_set_attr,
    set: *mut *mut fid_av_set,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as C calls us: the address vector is open, attributes are there or NULL; there is
    // room for the pointer.
    unsafe {
        open_on(av, context, set, |av: SharedObject<PeerVectorObject>| {
            SetObject::open(av, attr.as_ref().ok_or(Errno::EINVAL)?, context)
        })
    }
}
