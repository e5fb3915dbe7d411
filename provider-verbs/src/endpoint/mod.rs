//! Endpoints: how messages travel over a verbs device.

pub(crate) mod dgram;
pub(crate) mod rdm;
