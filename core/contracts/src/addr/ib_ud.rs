//! `FI_ADDR_IB_UD`: 32 bytes about a datagram queue pair, as libfabric's verbs provider lays them
//! out.

use super::error::AddrError;
use super::format::IB_UD_LEN;
use super::native::{NativeAddr, VerbsAddr, validate_queue_pair};
use super::socket::part;

/// A datagram queue pair. The two sides have the fields that it leaves out (Q_Key, GID type, MTU)
/// in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IbUdAddr {
    /// Global identifier of the port.
    pub gid: [u8; 16],
    /// Number of the queue pair, 24 bits.
    pub qpn: u32,
    /// Local identifier of the port, 0 on Ethernet.
    pub lid: u16,
    /// Partition key.
    pub pkey: u16,
    /// A number of the application's; 0 for none.
    pub service: u16,
    /// Service level, 0 to 15.
    pub sl: u8,
}

impl IbUdAddr {
    /// The queue pair of an address; `None` where it has none.
    pub fn of(addr: &NativeAddr) -> Option<Self> {
        addr.verbs.map(|verbs| Self {
            gid: verbs.gid,
            qpn: verbs.qpn,
            lid: verbs.lid,
            pkey: verbs.pkey,
            service: 0,
            sl: verbs.sl,
        })
    }

    /// The address with what it has in common with `own`.
    pub fn native(&self, own: &VerbsAddr) -> NativeAddr {
        NativeAddr {
            incarnation: 0,
            node: 0,
            shm: None,
            verbs: Some(VerbsAddr {
                gid: self.gid,
                qpn: self.qpn,
                lid: self.lid,
                pkey: self.pkey,
                sl: self.sl,
                ..*own
            }),
        }
    }

    pub(super) fn validate(&self) -> Result<(), AddrError> {
        validate_queue_pair(&self.gid, self.qpn, self.sl)
    }

    /// Reads an address from exactly [`IB_UD_LEN`] bytes, whose padding nobody has to clear.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, AddrError> {
        let addr = Self {
            gid: part(bytes, 0)?,
            qpn: u32::from_ne_bytes(part(bytes, 16)?),
            lid: u16::from_ne_bytes(part(bytes, 20)?),
            pkey: u16::from_ne_bytes(part(bytes, 22)?),
            service: u16::from_ne_bytes(part(bytes, 24)?),
            sl: part::<1>(bytes, 26)?[0],
        };
        addr.validate()?;
        Ok(addr)
    }

    /// The address as bytes.
    pub fn to_bytes(&self) -> [u8; IB_UD_LEN] {
        let mut bytes = [0; IB_UD_LEN];
        bytes[..16].copy_from_slice(&self.gid);
        bytes[16..20].copy_from_slice(&self.qpn.to_ne_bytes());
        bytes[20..22].copy_from_slice(&self.lid.to_ne_bytes());
        bytes[22..24].copy_from_slice(&self.pkey.to_ne_bytes());
        bytes[24..26].copy_from_slice(&self.service.to_ne_bytes());
        bytes[26] = self.sl;
        bytes
    }
}
