//! The flags of a packet, and the envelope that they say it has.

use super::{CQ_DATA, DataEnvelope, PART, RTS, RawHeader, TAGGED, WRITES, WireError};
use ferrofabric_contracts::types::RemoteKind;

/// Place of that number in the flags.
const PART_SHIFT: u32 = 3;

impl DataEnvelope {
    #[inline]
    pub(super) fn flags(&self) -> u8 {
        let tagged = if self.tag.is_some() { TAGGED } else { 0 };
        let cq_data = if self.cq_data.is_some() { CQ_DATA } else { 0 };
        let part = self.part.map_or(0, |part| (part as u8) << PART_SHIFT);
        tagged | cq_data | part
    }
}

impl RawHeader {
    #[inline]
    pub(super) fn envelope(&self, cq_data: Option<u64>) -> Result<DataEnvelope, WireError> {
        let tagged = self.flags & TAGGED != 0;
        let known = match self.kind {
            RTS => TAGGED | CQ_DATA | PART | WRITES,
            _ => TAGGED | CQ_DATA | PART,
        };
        if self.flags & !known != 0 || !tagged && self.tag.get() != 0 {
            return Err(WireError::Field);
        }
        let part = match self.flags & PART {
            0 => None,
            _ => Some(self.part()?),
        };
        Ok(DataEnvelope {
            tag: tagged.then(|| self.tag.get()),
            cq_data,
            part,
        })
    }

    #[cold]
    fn part(&self) -> Result<RemoteKind, WireError> {
        const FIELDS: u8 = TAGGED | CQ_DATA;
        match RemoteKind::from_number((self.flags & PART) >> PART_SHIFT) {
            Some(part) if self.flags & FIELDS == FIELDS => Ok(part),
            _ => Err(WireError::Field),
        }
    }
}
