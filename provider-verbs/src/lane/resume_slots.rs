//! Where a Resume lies that the device does not take inline.

use std::sync::Arc;

use ferrofabric_contracts::error::Result;
use ferrofabric_protocol::wire::data::MAX_NOTICE_BYTES;
use ferrofabric_verbs_sys::ibv_sge;

use crate::gather::entry;
use crate::mr::Access;
use crate::pd::Pd;
use crate::post::{SendFlags, inline_sge};
use crate::slots::SlotPool;
use crate::tuning::Tuning;

/// Slots of an endpoint, at most: 64 KiB or less.
const MOST: usize = 1024;

/// Registered slots for Resumes: none on a device that takes a Resume inline. They are apart from
/// the bounce buffers, so that no message keeps a session from its next lane.
pub(crate) struct ResumeSlots(Option<SlotPool>);

/// The place of a Resume, as a work request names it.
pub(crate) struct ResumePlace {
    pub(crate) entry: ibv_sge,
    pub(crate) flags: SendFlags,
    /// It lies in this slot, and not in the work request.
    pub(crate) slot: Option<u32>,
}

impl ResumeSlots {
    /// Two slots a lane: one lane may end while the next begins. Of more lanes, not all begin at
    /// the same time; a lane that finds no slot is given up, and the next one finds one.
    pub(crate) fn create(pd: &Arc<Pd>, tuning: &Tuning) -> Result<Self> {
        if tuning.inline_bytes >= MAX_NOTICE_BYTES {
            return Ok(Self(None));
        }
        let count = (2 * tuning.max_lanes).min(MOST);
        let slots = SlotPool::create(pd, count, MAX_NOTICE_BYTES, Access::empty())?;
        Ok(Self(Some(slots)))
    }

    /// Finds a place for a Resume. `None`: all slots are in use.
    pub(crate) fn place(&mut self, resume: &[u8]) -> Option<ResumePlace> {
        let Some(slots) = &mut self.0 else {
            return Some(ResumePlace {
                entry: inline_sge(resume),
                flags: SendFlags::INLINE,
                slot: None,
            });
        };
        let slot = slots.take()?;
        let at = slots.address(slot);
        // SAFETY: a slot holds any Resume, and is ours until its request is over.
        unsafe { at.copy_from_nonoverlapping(resume.as_ptr(), resume.len()) };
        Some(ResumePlace {
            entry: entry(at as u64, resume.len(), slots.lkey()),
            flags: SendFlags::empty(),
            slot: Some(slot),
        })
    }

    /// The request that read from a slot is over.
    pub(crate) fn give(&mut self, slot: u32) {
        if let Some(slots) = &mut self.0 {
            slots.give(slot);
        }
    }
}
