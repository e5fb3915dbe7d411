//! Endpoints: how messages travel over a verbs device.

pub(crate) mod rdm;
