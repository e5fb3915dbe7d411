//! The address of an endpoint with authorization keys: the endpoint has a queue pair for each key,
//! and the address names all of them, but no key. Its 64 bytes are those of a [`NativeAddr`] with
//! other queue pairs in the place of the keys (`docs/wire-protocol.md`).
//!
//! A hash of the key selects the queue pair; each key of an endpoint has another hash. A key that
//! the endpoint does not have also selects one, whose device drops the packets.

use std::fmt;
use std::str::FromStr;

use super::auth_key::AuthKey;
use super::error::AddrError;
use super::format::NATIVE_LEN;
use super::native::NativeAddr;
use super::native_text;
use super::uri::Uri;

/// The most keys of an endpoint: an address has room for this number of queue pairs.
pub const MAX_EP_AUTH_KEYS: usize = 4;

/// In the flags of the address.
const HAS_KEYS: u8 = 1 << 2;
const FLAGS: usize = 3;
/// Where the hash's salt lies, and the other queue pairs: byte by byte in place of the keys, and
/// where a plain address has zeros.
const SALT: usize = 7;
const OTHERS: [[usize; 3]; MAX_EP_AUTH_KEYS - 1] = [[8, 9, 10], [14, 15, 59], [62, 63, 11]];

pub(super) const SCHEME: &str = "ferro-keys";

/// The address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyedAddr {
    /// All but the queue pairs; its own is the first, its keys are 0.
    common: NativeAddr,
    salt: u8,
    /// Those after the first, 0 where there are no more.
    others: [u32; MAX_EP_AUTH_KEYS - 1],
}

/// Which queue pair is for which key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySlots {
    salt: u8,
    slots: Vec<usize>,
}

impl KeySlots {
    /// A slot for each of these keys, none of which admits another.
    ///
    /// `None` for no key, for more than [`MAX_EP_AUTH_KEYS`], for two that are the same.
    pub fn of(keys: &[AuthKey]) -> Option<Self> {
        if keys.is_empty() || keys.len() > MAX_EP_AUTH_KEYS {
            return None;
        }
        (0..=u8::MAX).find_map(|salt| {
            let slots: Vec<_> = keys.iter().map(|k| slot(salt, *k, keys.len())).collect();
            let taken = slots.iter().fold(0u32, |taken, slot| taken | (1 << slot));
            (taken.count_ones() as usize == keys.len()).then_some(Self { salt, slots })
        })
    }

    /// The slots, by the numbers of the keys.
    pub fn slots(&self) -> &[usize] {
        &self.slots
    }
}

/// The queue pair of `n` that is for a key.
fn slot(salt: u8, key: AuthKey, n: usize) -> usize {
    // The last step of SplitMix64: part of the wire protocol.
    let mut x = key.identity() ^ (u64::from(salt) << 56);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) % n as u64) as usize
}

impl KeyedAddr {
    /// The address of an endpoint whose parts, one for each slot, have these, which were made of
    /// one number that was drawn ([`NativeAddr::of_new`]). The first says what all have in common.
    ///
    /// `None` for parts that are none of one endpoint.
    pub fn of(slots: &KeySlots, parts: &[NativeAddr]) -> Option<Self> {
        let mut common = *parts.first()?;
        let verbs = common.verbs.as_mut()?;
        (verbs.qkey, verbs.pkey) = (0, 0);
        let mut others = [0; MAX_EP_AUTH_KEYS - 1];
        for (other, part) in others.iter_mut().zip(&parts[1..]) {
            *other = part.verbs?.qpn;
        }
        let addr = Self {
            common,
            salt: slots.salt,
            others,
        };
        let whole = parts.len() == slots.slots.len() && addr.validate().is_ok();
        whole.then_some(addr)
    }

    /// How the endpoint is reached with a key.
    pub fn with_key(&self, key: AuthKey) -> NativeAddr {
        let slot = slot(self.salt, key, self.count());
        let mut verbs = self.common.verbs;
        if let (Some(verbs), Some(other)) = (&mut verbs, slot.checked_sub(1)) {
            verbs.qpn = self.others[other];
        }
        let NativeAddr {
            node,
            shm,
            incarnation,
            ..
        } = self.common;
        NativeAddr::of_new(node, verbs, shm.is_some(), incarnation).with_auth_key(key)
    }

    /// The port's GID.
    pub fn gid(&self) -> [u8; 16] {
        self.common.verbs.map_or([0; 16], |verbs| verbs.gid)
    }

    /// Number of its keys.
    pub fn count(&self) -> usize {
        1 + self.others.iter().filter(|qpn| **qpn != 0).count()
    }

    /// Whether bytes claim to be such an address.
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.len() == NATIVE_LEN && bytes[FLAGS] & HAS_KEYS != 0
    }

    /// The address as bytes.
    pub fn to_bytes(&self) -> [u8; NATIVE_LEN] {
        let mut bytes = self.common.to_bytes();
        bytes[FLAGS] |= HAS_KEYS;
        bytes[SALT] = self.salt;
        for (qpn, places) in self.others.iter().zip(OTHERS) {
            for (byte, place) in qpn.to_le_bytes().into_iter().zip(places) {
                bytes[place] = byte;
            }
        }
        bytes
    }

    /// Reads an address that somebody else wrote.
    ///
    /// # Errors
    ///
    /// As [`NativeAddr::from_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddrError> {
        let mut plain: [u8; NATIVE_LEN] = bytes
            .try_into()
            .map_err(|_| AddrError::Length(bytes.len()))?;
        if !Self::is_one(bytes) {
            return Err(AddrError::Field("set of flags (no authorization keys)"));
        }
        plain[FLAGS] &= !HAS_KEYS;
        plain[SALT] = 0;
        let others = OTHERS.map(|places| {
            let [low, middle, high] = places.map(|place| std::mem::take(&mut plain[place]));
            u32::from_le_bytes([low, middle, high, 0])
        });
        let addr = Self {
            common: NativeAddr::from_bytes(&plain)?,
            salt: bytes[SALT],
            others,
        };
        addr.validate()?;
        Ok(addr)
    }

    fn validate(&self) -> Result<(), AddrError> {
        let verbs = self.common.verbs.as_ref();
        let verbs = verbs.ok_or(AddrError::Field("set of paths (keys are of queue pairs)"))?;
        if (verbs.qkey, verbs.pkey) != (0, 0) {
            return Err(AddrError::Field("key"));
        }
        let NativeAddr {
            node,
            shm,
            incarnation,
            ..
        } = self.common;
        let made = NativeAddr::of_new(node, Some(*verbs), shm.is_some(), incarnation);
        if made != self.common {
            return Err(AddrError::Field("incarnation or shared-memory name"));
        }
        let all = [[verbs.qpn].as_slice(), &self.others[..self.count() - 1]].concat();
        let known = |at: usize| all[..at].contains(&all[at]);
        if all.contains(&0) || self.others.iter().any(|qpn| qpn >> 24 != 0) {
            return Err(AddrError::Field("queue pair number"));
        }
        if (0..all.len()).any(known) {
            return Err(AddrError::Field("queue pair number (each once)"));
        }
        Ok(())
    }
}

/// As a native address, with all queue pairs and the salt among the keys, and another scheme.
impl fmt::Display for KeyedAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        native_text::print_as(SCHEME, &self.common, f)?;
        write!(f, "&salt={:x}&more=", self.salt)?;
        let others = &self.others[..self.count() - 1];
        for (i, qpn) in others.iter().enumerate() {
            write!(f, "{}{qpn}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for KeyedAddr {
    type Err = AddrError;

    fn from_str(text: &str) -> Result<Self, AddrError> {
        let mut uri = Uri::parse(text)?;
        let salt = uri
            .take("salt")
            .and_then(|t| u8::from_str_radix(t, 16).ok());
        let salt = salt.ok_or(AddrError::Field("salt"))?;
        let more = uri.take("more").ok_or(AddrError::Field("more"))?;
        let mut others = [0; MAX_EP_AUTH_KEYS - 1];
        for (i, qpn) in more.split(',').filter(|qpn| !qpn.is_empty()).enumerate() {
            let place = others.get_mut(i).ok_or(AddrError::Field("more"))?;
            *place = qpn.parse().map_err(|_| AddrError::Field("more"))?;
        }
        let addr = Self {
            common: native_text::parse_as(SCHEME, uri)?,
            salt,
            others,
        };
        addr.validate()?;
        Ok(addr)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::auth_key::tests::any_key;
    use super::super::native::tests::any_addr;
    use super::*;
    use proptest::prelude::*;

    /// Parts of one endpoint, and its keys.
    fn any_parts() -> impl Strategy<Value = (Vec<AuthKey>, Vec<NativeAddr>)> {
        (
            proptest::collection::vec(any_key(), 1..=MAX_EP_AUTH_KEYS),
            any_addr().prop_filter("a queue pair", |addr| addr.verbs.is_some()),
            1u32..(1 << 24) - 300,
        )
            .prop_filter("keys that differ", |(keys, ..)| {
                (1..keys.len()).all(|i| !keys[..i].iter().any(|k| k.admits(keys[i])))
            })
            .prop_map(|(keys, first, qpn)| {
                let part = |slot: usize| {
                    let verbs = first.verbs.map(|verbs| super::super::VerbsAddr {
                        qpn: qpn + 100 * slot as u32,
                        ..verbs
                    });
                    NativeAddr::of_new(first.node, verbs, first.shm.is_some(), first.incarnation)
                };
                let parts = (0..keys.len()).map(part).collect();
                (keys, parts)
            })
    }

    pub(in super::super) fn any_keyed() -> impl Strategy<Value = KeyedAddr> {
        any_parts()
            .prop_map(|(keys, parts)| KeyedAddr::of(&KeySlots::of(&keys).unwrap(), &parts).unwrap())
    }

    proptest! {
        /// Covers: AV-21
        #[test]
        fn each_key_leads_to_its_own_part((keys, parts) in any_parts(), other in any_key()) {
            let slots = KeySlots::of(&keys).unwrap();
            let addr = KeyedAddr::of(&slots, &parts).unwrap();
            prop_assert_eq!(addr.count(), keys.len());
            for (key, slot) in keys.iter().zip(slots.slots()) {
                let mut part = parts[*slot];
                part = part.with_auth_key(*key);
                prop_assert_eq!(addr.with_key(*key), part);
                prop_assert!(part.auth_key().unwrap().admits(*key));
            }
            // Any other key leads somewhere, and goes there as itself.
            let verbs = addr.with_key(other).verbs.unwrap();
            prop_assert!(parts.iter().any(|part| part.verbs.unwrap().qpn == verbs.qpn));
            prop_assert_eq!((verbs.qkey, verbs.pkey), (other.qkey(), other.pkey() | 0x8000));
        }

        /// Covers: AV-19, AV-21
        #[test]
        fn bytes_and_text_give_the_address_back(addr in any_keyed()) {
            prop_assert_eq!(KeyedAddr::from_bytes(&addr.to_bytes()), Ok(addr));
            prop_assert_eq!(addr.to_string().parse(), Ok(addr));
            // It is no plain address: a reader without keys gets an error.
            prop_assert!(NativeAddr::from_bytes(&addr.to_bytes()).is_err());
            prop_assert!(addr.to_string().parse::<NativeAddr>().is_err());
        }

        #[test]
        fn hostile_bytes_are_refused_or_have_one_form(addr in any_keyed(), at in 0usize..NATIVE_LEN, byte: u8) {
            let mut bytes = addr.to_bytes();
            bytes[at] = byte;
            if let Ok(addr) = KeyedAddr::from_bytes(&bytes) {
                prop_assert_eq!(addr.to_bytes(), bytes);
            }
        }

        #[test]
        fn hostile_text_never_panics(tail in "[a-z0-9=;:.&,-]{0,120}") {
            let _ = format!("{SCHEME}://{tail}").parse::<KeyedAddr>();
            let _ = format!("{SCHEME}://[::1]:7?more=1,2,3,4,5&salt=1&{tail}").parse::<KeyedAddr>();
        }
    }

    #[test]
    fn too_many_keys_and_the_same_twice_have_no_slots() {
        let key = |qkey| AuthKey::new(0xffff, qkey).unwrap();
        let keys: Vec<_> = (0..=MAX_EP_AUTH_KEYS as u32).map(key).collect();
        assert!(KeySlots::of(&keys[..MAX_EP_AUTH_KEYS]).is_some());
        assert_eq!(KeySlots::of(&keys), None);
        assert_eq!(KeySlots::of(&[]), None);
        let limited = AuthKey::new(0x7fff, 1).unwrap();
        assert_eq!(KeySlots::of(&[key(1), limited]), None);
    }
}
