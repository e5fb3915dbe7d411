//! Address vectors (fi_av(3)). Insertions are synchronous, of addresses and not of names.

use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use ferro_fi::abi::{
    FI_ADDR_NOTAVAIL, FI_AV_USER_ID, FI_READ, FI_SYMMETRIC, FI_SYNC_ERR, fi_av_attr, fi_av_type,
    fid_av,
};
use ferrofabric_av::{AvAttr, InsertReport, InsertRequest, Services};
use ferrofabric_contracts::addr::{Address, AuthKey, MAX_ADDR_BYTES, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::peer::PeerEq;
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_runtime::fabric::{Av, ObjectId};

use super::domain::OpenDomain;
use super::{control, from_c, missing, names, to_c};
use crate::client::close;

/// An address vector.
pub struct VectorByC {
    pub av: *mut fid_av,
    pub id: ObjectId,
    av_type: AvType,
    map_addr: usize,
    _domain: Arc<OpenDomain>,
}

// SAFETY: the domain is opened for calls of any threads (`FI_THREAD_SAFE`).
unsafe impl Send for VectorByC {}
// SAFETY: as above.
unsafe impl Sync for VectorByC {}

impl VectorByC {
    pub fn open(domain: &Arc<OpenDomain>, attr: &AvAttr, id: ObjectId) -> Result<Self> {
        if attr.events || attr.resolver.is_some() {
            return Err(missing("asynchronous insertions"));
        }
        let name = attr.name.as_deref().map(|name| CString::new(name).unwrap());
        let flags = [
            (attr.symmetric, FI_SYMMETRIC),
            (attr.read_only, FI_READ),
            (attr.user_ids, FI_AV_USER_ID),
        ];
        let mut wanted = fi_av_attr {
            type_: match attr.av_type {
                Some(AvType::Map) => fi_av_type::FI_AV_MAP,
                Some(AvType::Table) => fi_av_type::FI_AV_TABLE,
                None => fi_av_type::FI_AV_UNSPEC,
            },
            rx_ctx_bits: c_int::try_from(attr.rx_ctx_bits).unwrap(),
            count: attr.count,
            ep_per_node: attr.ep_per_node,
            name: name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr()),
            map_addr: attr.map_addr as *mut c_void,
            flags: flags.iter().filter(|one| one.0).map(|one| one.1).sum(),
        };
        let (at, mut av) = (domain.domain, null_mut());
        // SAFETY: as fi_av(3) has it; the name is there until the call returns.
        let opened = unsafe { call!(at, ops.av_open(&raw mut wanted, &raw mut av, null_mut())) };
        control(opened, "fi_av_open")?;
        Ok(Self {
            av,
            id,
            av_type: match wanted.type_ {
                fi_av_type::FI_AV_TABLE => AvType::Table,
                _ => AvType::Map,
            },
            map_addr: match attr.name {
                Some(_) => wanted.map_addr as usize,
                None => 0,
            },
            _domain: domain.clone(),
        })
    }

    /// One call for all these addresses; the result of each.
    fn insert_bytes(&self, addresses: &[Vec<u8>]) -> Result<Vec<Result<FiAddr>>> {
        let count = addresses.len();
        let bytes = addresses.concat();
        let mut inserted = vec![FI_ADDR_NOTAVAIL; count];
        let mut errors: Vec<c_int> = vec![0; count];
        // SAFETY: as fi_av(3) has it, with room for the results and the errors.
        let done = unsafe {
            let (at, to) = (bytes.as_ptr().cast(), inserted.as_mut_ptr());
            let context = errors.as_mut_ptr().cast();
            call!(self.av, ops.insert(at, count, to, FI_SYNC_ERR, context))
        };
        if done < 0 {
            control(done, "fi_av_insert")?;
        }
        let results: Vec<Result<FiAddr>> = (inserted.into_iter().zip(errors))
            .map(|(addr, error)| match error {
                0 => Ok(from_c(addr)),
                error => Err(Error::new(Errno(error.abs()), "insert", "address")),
            })
            .collect();
        let good = results.iter().filter(|one| one.is_ok()).count();
        assert_eq!(usize::try_from(done).unwrap(), good, "{results:?}");
        Ok(results)
    }
}

impl Av for VectorByC {
    fn av_type(&self) -> AvType {
        self.av_type
    }

    /// libfabric has no such call.
    fn count(&self) -> usize {
        0
    }

    fn map_addr(&self) -> usize {
        self.map_addr
    }

    fn insert_all(
        &self,
        names: &mut dyn Iterator<Item = &[u8]>,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        let addresses: Vec<Option<Vec<u8>>> = names.map(names::bytes).collect();
        let known: Vec<Vec<u8>> = addresses.iter().flatten().cloned().collect();
        let mut results = self.insert_bytes(&known)?.into_iter();
        let mut inserted = 0;
        for (number, address) in addresses.iter().enumerate() {
            let unknown = || Error::new(Errno::EINVAL, "insert", "address of no endpoint");
            let one = match address {
                Some(_) => results.next().unwrap(),
                None => Err(unknown()),
            };
            inserted += usize::from(one.is_ok());
            report(number, one);
        }
        Ok(inserted)
    }

    fn remove(&self, addr: FiAddr) -> Result<()> {
        let mut addr = to_c(addr);
        // SAFETY: a list of one.
        let removed = unsafe { call!(self.av, ops.remove(&raw mut addr, 1, 0)) };
        control(removed, "fi_av_remove")
    }

    fn lookup(&self, addr: FiAddr) -> Result<NativeAddr> {
        let (mut out, mut len) = ([0u8; MAX_ADDR_BYTES], MAX_ADDR_BYTES);
        // SAFETY: there is room for `len` bytes.
        let found = unsafe {
            let at = out.as_mut_ptr().cast();
            call!(self.av, ops.lookup(to_c(addr), at, &raw mut len))
        };
        control(found, "fi_av_lookup")?;
        Ok(names::native(&out[..len]))
    }

    fn lookup_all(
        &self,
        addrs: &[FiAddr],
        report: &mut dyn FnMut(usize, Result<NativeAddr>),
    ) -> Result<()> {
        for (number, addr) in addrs.iter().enumerate() {
            report(number, self.lookup(*addr));
        }
        Ok(())
    }

    fn address(&self, addr: FiAddr) -> Result<Address> {
        self.lookup(addr).map(Address::Native)
    }

    fn set_user_id(&self, addr: FiAddr, id: FiAddr) -> Result<()> {
        // SAFETY: the address vector is open.
        let set = unsafe { call!(self.av, ops.set_user_id(to_c(addr), id.0, 0)) };
        control(set, "fi_av_set_user_id")
    }

    fn insert_services(
        &self,
        _: &Services,
        _: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        Err(missing("fi_av_insertsvc"))
    }

    fn bind_events(&self, _: Arc<dyn PeerEq>, _: u64) -> Result<()> {
        Err(missing("fi_av_bind"))
    }

    fn insert_later(
        &self,
        _: InsertRequest,
        _: Vec<FiAddr>,
        _: u64,
        _: InsertReport,
    ) -> Result<()> {
        Err(missing("fi_av_insert with FI_EVENT"))
    }

    /// Inserts the address once more, with the ID.
    fn tag_inserted(&self, addr: FiAddr, id: FiAddr) -> Result<()> {
        let name = names::bytes(&self.lookup(addr)?.to_bytes()).unwrap();
        let mut tagged = id.0;
        // SAFETY: as fi_av(3) has it: the ID comes in, the address goes out.
        let inserted = unsafe {
            let (at, to) = (name.as_ptr().cast(), &raw mut tagged);
            call!(self.av, ops.insert(at, 1, to, FI_AV_USER_ID, null_mut()))
        };
        match inserted {
            1 => assert_eq!(tagged, addr.0, "an address that is there stays"),
            error => control(error, "fi_av_insert")?,
        }
        Ok(())
    }

    fn insert_auth_key(&self, _: &[u8]) -> Result<FiAddr> {
        Err(missing("fi_av_insert_auth_key"))
    }

    fn lookup_auth_key(&self, _: FiAddr) -> Result<AuthKey> {
        Err(missing("fi_av_lookup_auth_key"))
    }

    fn remove_auth_key(&self, _: FiAddr) -> Result<()> {
        Err(missing("fi_av_remove of a key"))
    }

    fn set_auth_key_user_id(&self, _: FiAddr, _: FiAddr) -> Result<()> {
        Err(missing("fi_av_set_user_id of a key"))
    }

    fn insert_all_with_keys(
        &self,
        _: &mut dyn Iterator<Item = (&[u8], FiAddr)>,
        _: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        Err(missing("fi_av_insert with keys"))
    }

    fn insert_services_with_keys(
        &self,
        _: &Services,
        _: &[FiAddr],
        _: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        Err(missing("fi_av_insertsvc with keys"))
    }

    fn insert_later_with_keys(
        &self,
        _: InsertRequest,
        _: &[FiAddr],
        _: u64,
        _: InsertReport,
    ) -> Result<()> {
        Err(missing("fi_av_insert with FI_EVENT and keys"))
    }

    fn id(&self) -> ObjectId {
        self.id
    }
}

impl Drop for VectorByC {
    fn drop(&mut self) {
        super::domain::closed(close(self.av.cast()), "address vector");
    }
}
