//! Buffers of the application in memory that it has registered.

use std::sync::Arc;

use ferrofabric_contracts::types::IoBuf;

use crate::registration::MemoryRegion;

/// Memory of the application's that it has registered.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) buf: IoBuf,
    /// The application may close it meanwhile.
    pub(crate) region: Arc<MemoryRegion>,
}
