//! Address vectors with authorization keys (fi_av(3)): what is done with keys, and with addresses that have one.

use super::Backend;
use super::av::AvHandle;
use crate::addr::{Address, AuthKey, KeyedAddr, NativeAddr};
use crate::av::{AuthKeys, Found, Report, Wanted, format};
use crate::error::{Errno, Error, Result};
use crate::peer::PeerAv;
use crate::types::FiAddr;

/// An address with its key, and as it was inserted if it says more than that.
type WithKey = (NativeAddr, Option<KeyedAddr>);

impl<B: Backend> AvHandle<B> {
    /// The keys.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the domain was not opened for keys of address vectors.
    pub(super) fn auth_keys(&self, doing: &'static str) -> Result<&AuthKeys> {
        self.table.auth_keys().ok_or_else(|| {
            Error::new(Errno::EOPNOTSUPP, doing, "authorization key").mend(
                "open the domain for the keys of address vectors: domain_attr->auth_key_size = FI_AV_AUTH_KEY",
            )
        })
    }

    /// # Errors
    ///
    /// `EINVAL` where each address needs a key.
    pub(super) fn check_unkeyed(&self) -> Result<()> {
        match self.table.auth_keys() {
            None => Ok(()),
            Some(_) => Err(
                Error::new(Errno::EINVAL, "insert into", "address vector with authorization keys")
                    .mend("say with which key each address is to be reached: FI_AUTH_KEY, and its handle in fi_addr"),
            ),
        }
    }

    pub(super) fn insert_auth_key_bytes(&self, key: &[u8]) -> Result<FiAddr> {
        let keys = self.auth_keys("insert")?;
        let key = AuthKey::from_bytes(key).map_err(|why| {
            Error::new(Errno::EINVAL, "insert", "authorization key").mend(why.to_string())
        })?;
        drop(self.domain.lock_to("insert into", "address vector")?);
        keys.insert(key)
    }

    pub(super) fn lookup_auth_key_of(&self, addr: FiAddr) -> Result<AuthKey> {
        let keys = self.auth_keys("look up")?;
        drop(self.domain.lock_to("look up in", "address vector")?);
        let of_entry = || keys.key_of(&self.table.lookup(addr)?);
        keys.key(addr).or_else(of_entry).ok_or_else(|| {
            Error::new(Errno::EINVAL, "look up the key of", format!("{addr:?}"))
                .mend("it is neither a key nor an address of this address vector")
        })
    }

    /// The addresses with their keys.
    fn with_keys(
        &self,
        names: &mut dyn Iterator<Item = (&[u8], FiAddr)>,
    ) -> Result<Vec<Result<WithKey>>> {
        let keys = self.auth_keys("insert with")?;
        let all = names.map(|(name, handle)| {
            let key = keys.key(handle).ok_or_else(|| {
                Error::new(Errno::EINVAL, "insert", format!("address with {handle:?}"))
                    .mend("that is no authorization key of this address vector")
            })?;
            match format::parse(self.naming.format, name)? {
                Address::Keyed(name) => Ok((name.with_key(key), Some(name))),
                Address::Native(name) if name.verbs.is_some() => {
                    Ok((name.with_auth_key(key), None))
                }
                _ => Err(Error::new(Errno::EINVAL, "insert", "address")
                    .mend("it is that of an endpoint without queue pairs")),
            }
        });
        Ok(all.collect())
    }

    pub(super) fn insert_now_with_keys(
        &self,
        names: &mut dyn Iterator<Item = (&[u8], FiAddr)>,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        let keys = self.auth_keys("insert with")?;
        let all = self.with_keys(names)?;
        let inserted: Vec<_> = all.iter().map(as_inserted).collect();
        let names = all
            .into_iter()
            .map(|one| one.map(|(name, _)| Found::from(name)));
        self.insert_now(names, &mut |i, placed| {
            if let (Ok(addr), Some(inserted)) = (&placed, inserted[i]) {
                keys.remember(*addr, inserted);
            }
            report(i, placed);
        })
    }

    pub(super) fn begin_with_keys(
        &self,
        names: &mut dyn Iterator<Item = (&[u8], FiAddr)>,
        context: u64,
        mut report: Report,
    ) -> Result<()> {
        let all = self.with_keys(names)?;
        let inserted: Vec<_> = all.iter().map(as_inserted).collect();
        let names = all.into_iter().map(|one| one.map(|(name, _)| name));
        let table = self.table.clone();
        let remembering: Report = Box::new(move |i, placed| {
            if let (Ok(addr), Some(keys), Some(inserted)) = (placed, table.auth_keys(), inserted[i])
            {
                keys.remember(addr, inserted);
            }
            report(i, placed);
        });
        self.begin(
            Wanted::Found(names.collect()),
            Vec::new(),
            context,
            remembering,
        )
    }

    /// What was inserted as `addr`, if that was the address of an endpoint with keys.
    pub(super) fn inserted(&self, addr: FiAddr) -> Option<KeyedAddr> {
        self.table.auth_keys()?.inserted(addr)
    }
}

fn as_inserted(one: &Result<WithKey>) -> Option<KeyedAddr> {
    one.as_ref().ok().and_then(|(_, inserted)| *inserted)
}
