//! Endpoints: how messages travel over a verbs device.

pub(crate) mod dgram;
mod gather;
pub(crate) mod rdm;
