//! Fabrics (fi_fabric(3)), on which domains are opened. A fabric has no state of a device.

/// A fabric.
pub(crate) struct FabricObject {
    /// The version of the interface that the application was written for; 0: the newest.
    pub(crate) api_version: u32,
}

impl FabricObject {
    /// The version of the interface that the application was written for: greater than any where
    /// that is the newest.
    pub(crate) fn version(&self) -> u32 {
        match self.api_version {
            0 => u32::MAX,
            version => version,
        }
    }

    /// Whether the application was written for this version of the interface or a newer one.
    pub(crate) fn speaks(&self, version: u32) -> bool {
        self.version() >= version
    }
}
