//! The native address: 64 bytes that hold all a peer needs to reach an endpoint, over verbs and
//! through shared memory, with no name service asked. Its layout is part of the wire protocol
//! (`docs/wire-protocol.md`).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::auth_key::AuthKey;
use super::error::AddrError;
use super::format::{NATIVE_LEN, NATIVE_MAGIC, NATIVE_VERSION};
use crate::listed_enum;

/// The bytes of a native address, in words.
pub type NativeWords = [u64; NATIVE_LEN / 8];

pub(super) const HAS_VERBS: u8 = 1 << 0;
pub(super) const HAS_SHM: u8 = 1 << 1;

/// Where the first word of an address has the flags and the QPN.
pub(super) const FLAGS_AT: u32 = 24;
pub(super) const QPN_AT: u32 = 32;

listed_enum! {
    /// How a GID is carried: it decides the network header that a device puts in front of packets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum GidKind: u8 {
        /// InfiniBand.
        Ib = 0,
        /// RoCE version 1: an Ethernet type of its own.
        RoceV1 = 1,
        /// RoCE version 2: over UDP.
        RoceV2 = 2,
    }
}

/// Where an endpoint's UD queue pair is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VerbsAddr {
    /// Global identifier of the port.
    pub gid: [u8; 16],
    /// How the GID is carried.
    pub gid_kind: GidKind,
    /// Number of the UD queue pair, 24 bits.
    pub qpn: u32,
    /// Key that datagrams to it carry.
    pub qkey: u32,
    /// Local identifier of the port, 0 on Ethernet.
    pub lid: u16,
    /// Partition key.
    pub pkey: u16,
    /// Service level.
    pub sl: u8,
    /// Port number on its device, from 1.
    pub port: u8,
    /// Largest packet payload that the port takes, in bytes: 256 to 4096, a power of two.
    pub mtu_bytes: u16,
}

/// The address of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeAddr {
    /// Drawn at random when the endpoint was enabled ([`of_new`](Self::of_new)): a restarted
    /// process has another one than before.
    pub incarnation: u64,
    /// Identity of the node: equal addresses hint at shared memory, the handshake proves it.
    pub node: u64,
    /// Name of the shared-memory endpoint, `None` where shared memory is off.
    pub shm: Option<u64>,
    /// The queue pair, `None` where there is no device.
    pub verbs: Option<VerbsAddr>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    magic: U16,
    version: u8,
    flags: u8,
    qpn: U32,
    qkey: U32,
    lid: U16,
    pkey: U16,
    gid: [u8; 16],
    incarnation: U64,
    node: U64,
    shm: U64,
    sl: u8,
    port: u8,
    gid_kind: u8,
    reserved: u8,
    mtu_bytes: U16,
    reserved_tail: U16,
}

const _: () = assert!(size_of::<Wire>() == NATIVE_LEN);

/// In place of a queue pair that there is not.
const NO_VERBS: VerbsAddr = VerbsAddr {
    gid: [0; 16],
    gid_kind: GidKind::Ib,
    qpn: 0,
    qkey: 0,
    lid: 0,
    pkey: 0,
    sl: 0,
    port: 0,
    mtu_bytes: 0,
};

impl NativeAddr {
    /// The address as bytes, for the wire and for address vectors.
    pub fn to_bytes(&self) -> [u8; NATIVE_LEN] {
        zerocopy::transmute!(self.to_words())
    }

    /// The same as words, in which an address vector's table has it: a later read by words need not
    /// wait for stores of parts.
    #[inline]
    pub fn to_words(self) -> NativeWords {
        let mut flags = 0;
        if self.verbs.is_some() {
            flags |= HAS_VERBS;
        }
        if self.shm.is_some() {
            flags |= HAS_SHM;
        }
        let v = self.verbs.as_ref().unwrap_or(&NO_VERBS);
        let [gid, rest]: [u64; 2] = zerocopy::transmute!(v.gid);
        // As `Wire` has it.
        let words = [
            u64::from(NATIVE_MAGIC)
                | (u64::from(NATIVE_VERSION) << 16)
                | (u64::from(flags) << FLAGS_AT)
                | (u64::from(v.qpn) << QPN_AT),
            u64::from(v.qkey) | (u64::from(v.lid) << 32) | (u64::from(v.pkey) << 48),
            u64::from_le(gid),
            u64::from_le(rest),
            self.incarnation,
            self.node,
            self.shm.unwrap_or(0),
            u64::from(v.sl)
                | (u64::from(v.port) << 8)
                | (u64::from(v.gid_kind as u8) << 16)
                | (u64::from(v.mtu_bytes) << 32),
        ];
        words.map(u64::to_le)
    }

    /// Reads an address from exactly [`NATIVE_LEN`] bytes that somebody else wrote.
    ///
    /// # Errors
    ///
    /// [`AddrError`] names what is wrong; each value has one form, so that equal addresses are
    /// equal bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddrError> {
        let w = Wire::ref_from_bytes(bytes).map_err(|_| AddrError::Length(bytes.len()))?;
        if w.magic.get() != NATIVE_MAGIC {
            return Err(AddrError::Magic(w.magic.get()));
        }
        if w.version != NATIVE_VERSION {
            return Err(AddrError::Version(w.version));
        }
        if w.flags & !(HAS_VERBS | HAS_SHM) != 0 {
            return Err(AddrError::Field("set of flags"));
        }
        if w.reserved != 0 || w.reserved_tail.get() != 0 {
            return Err(AddrError::Field("reserved field"));
        }
        let addr = Self::of_wire(w).ok_or(AddrError::Field("GID type"))?;
        addr.validate()?;
        if addr.to_bytes() != *bytes {
            return Err(AddrError::Field("field of a path that it does not have"));
        }
        Ok(addr)
    }

    /// The address in words that were checked before, which is not done again; so other words are
    /// some address, or none.
    #[inline]
    pub fn from_checked_words(words: &NativeWords) -> Option<Self> {
        let wire: Wire = zerocopy::transmute!(*words);
        Self::of_wire(&wire)
    }

    /// The address with these fields; `None` for an unknown type of GID.
    #[inline]
    fn of_wire(w: &Wire) -> Option<Self> {
        Some(Self {
            incarnation: w.incarnation.get(),
            node: w.node.get(),
            shm: (w.flags & HAS_SHM != 0).then(|| w.shm.get()),
            verbs: match w.flags & HAS_VERBS != 0 {
                true => Some(VerbsAddr {
                    gid: w.gid,
                    gid_kind: GidKind::from_number(w.gid_kind)?,
                    qpn: w.qpn.get(),
                    qkey: w.qkey.get(),
                    lid: w.lid.get(),
                    pkey: w.pkey.get(),
                    sl: w.sl,
                    port: w.port,
                    mtu_bytes: w.mtu_bytes.get(),
                }),
                false => None,
            },
        })
    }

    /// The same endpoint, to be reached with a key. Of the P_Key the membership is that of a full
    /// member, whichever it is: so equal endpoints have equal addresses.
    pub fn with_auth_key(mut self, key: AuthKey) -> Self {
        let key = key.in_addresses();
        if let Some(verbs) = &mut self.verbs {
            (verbs.qkey, verbs.pkey) = (key.qkey(), key.pkey());
        }
        self
    }

    /// The key that it is reached with, where it is one that an application can have.
    pub fn auth_key(&self) -> Option<AuthKey> {
        let verbs = self.verbs.as_ref()?;
        AuthKey::new(verbs.pkey, verbs.qkey).ok()
    }

    /// Whether each field holds what it can.
    pub(super) fn validate(&self) -> Result<(), AddrError> {
        if let Some(v) = &self.verbs {
            validate_queue_pair(&v.gid, v.qpn, v.sl)?;
            if v.port == 0 {
                return Err(AddrError::Field("port (from 1)"));
            }
            if !(v.mtu_bytes.is_power_of_two() && (256..=4096).contains(&v.mtu_bytes)) {
                return Err(AddrError::Field("MTU (256 to 4096, a power of two)"));
            }
        } else if self.shm.is_none() {
            return Err(AddrError::Field("set of paths (none)"));
        }
        Ok(())
    }
}

/// Whether a queue pair and the path to it are as they can be.
pub(super) fn validate_queue_pair(gid: &[u8; 16], qpn: u32, sl: u8) -> Result<(), AddrError> {
    if gid[0] == 0xff {
        return Err(AddrError::Field("GID (a multicast group)"));
    }
    if qpn >> 24 != 0 {
        return Err(AddrError::Field("queue pair number (24 bits)"));
    }
    if sl > 15 {
        return Err(AddrError::Field("service level (0 to 15)"));
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in super::super) fn any_addr() -> impl Strategy<Value = NativeAddr> {
        let verbs = (
            any::<[u8; 16]>(),
            prop::sample::select(GidKind::ALL),
            (0u32..1 << 24, any::<u32>(), any::<u16>(), any::<u16>()),
            (0u8..16, 1u8.., 8u32..=12),
        )
            .prop_map(|(gid, gid_kind, (qpn, qkey, lid, pkey), (sl, port, mtu))| {
                VerbsAddr {
                    gid,
                    gid_kind,
                    qpn,
                    qkey,
                    lid,
                    pkey,
                    sl,
                    port,
                    mtu_bytes: 1 << mtu,
                }
            });
        (
            any::<u64>(),
            any::<u64>(),
            proptest::option::of(any::<u64>()),
            proptest::option::of(verbs),
        )
            .prop_map(|(incarnation, node, shm, verbs)| NativeAddr {
                incarnation,
                node,
                shm,
                verbs,
            })
            .prop_filter("an address has a path", |a| a.validate().is_ok())
    }

    proptest! {
        #[test]
        fn bytes_give_the_address_back(addr in any_addr()) {
            prop_assert_eq!(NativeAddr::from_bytes(&addr.to_bytes()), Ok(addr));
        }

        #[test]
        fn text_gives_the_address_back(addr in any_addr()) {
            prop_assert_eq!(addr.to_string().parse::<NativeAddr>(), Ok(addr));
        }

        #[test]
        fn hostile_bytes_are_refused_or_have_one_form(
            mut bytes in any::<[u8; NATIVE_LEN]>(),
            sound in any_addr(),
            kept in 0..=NATIVE_LEN,
        ) {
            // It begins as an address does.
            bytes[..kept].copy_from_slice(&sound.to_bytes()[..kept]);
            if let Ok(addr) = NativeAddr::from_bytes(&bytes) {
                prop_assert_eq!(addr.to_bytes(), bytes);
            }
        }

        #[test]
        fn hostile_text_never_panics(text in ".{0,200}", tail in "[a-z0-9=;:.-]{0,120}") {
            let _ = text.parse::<NativeAddr>();
            let _ = format!("ferro://{tail}").parse::<NativeAddr>();
        }
    }

    #[test]
    fn a_wrong_length_is_named() {
        assert_eq!(NativeAddr::from_bytes(&[0; 63]), Err(AddrError::Length(63)));
        assert_eq!(NativeAddr::from_bytes(&[]), Err(AddrError::Length(0)));
    }
}
