//! Address vectors with authorization keys (fi_av(3)): calls for keys, and calls for addresses that
//! have one.

use super::Backend;
use super::av::AvHandle;
use ferrofabric_av::async_insert::keyless;
use ferrofabric_av::{AuthKeys, Services, format};
use ferrofabric_contracts::addr::{AuthKey, KeyedAddr};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::types::FiAddr;

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
    /// `EINVAL` if each address needs a key.
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
        self.domain.admit_to("insert into", "address vector")?;
        keys.insert(key)
    }

    pub(super) fn lookup_auth_key_of(&self, addr: FiAddr) -> Result<AuthKey> {
        let keys = self.auth_keys("look up")?;
        self.domain.admit_to("look up in", "address vector")?;
        let of_entry = || match self.table.key_of_socket(addr) {
            None => keys.key_of(&self.table.name(addr)?),
            known => known,
        };
        keys.key(addr).or_else(of_entry).ok_or_else(|| {
            Error::new(Errno::EINVAL, "look up the key of", format!("{addr:?}"))
                .mend("it is neither a key nor an address of this address vector")
        })
    }

    /// The keys that handles stand for.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` as [`auth_keys`](Self::auth_keys); for a handle without a key, `EINVAL`.
    pub(super) fn keys_of(&self, handles: &[FiAddr]) -> Result<Vec<Result<AuthKey>>> {
        let keys = self.auth_keys("insert with")?;
        Ok(handles.iter().map(|handle| key_of(keys, *handle)).collect())
    }

    pub(super) fn insert_now_with_keys(
        &self,
        names: &mut dyn Iterator<Item = (&[u8], FiAddr)>,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        let keys = self.auth_keys("insert with")?;
        let sought = names.map(|(name, handle)| {
            let key = key_of(keys, handle)?;
            let addr = format::parse(self.naming.format, name)?;
            self.naming.with_key(&addr, key)
        });
        self.insert_now(sought, report)
    }

    pub(super) fn insert_services_now_with_keys(
        &self,
        services: &Services,
        handles: &[FiAddr],
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        let mut keys = self.keys_of(handles)?.into_iter();
        let addresses = services.addresses(self.naming);
        let sought = addresses.map(|addr| {
            let key = keys.next().unwrap_or_else(|| Err(keyless()))?;
            self.naming.with_key(&addr?, key)
        });
        self.insert_now(sought, report)
    }

    /// The address that was inserted as `addr`, if it belongs to an endpoint with keys.
    pub(super) fn inserted(&self, addr: FiAddr) -> Option<KeyedAddr> {
        self.table.auth_keys()?.inserted(addr)
    }
}

fn key_of(keys: &AuthKeys, handle: FiAddr) -> Result<AuthKey> {
    keys.key(handle).ok_or_else(|| {
        Error::new(Errno::EINVAL, "insert", format!("address with {handle:?}"))
            .mend("that is no authorization key of this address vector")
    })
}
