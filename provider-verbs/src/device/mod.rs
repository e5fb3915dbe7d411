//! RDMA devices: their list, their abilities, and the choice of the GID to send from.
//!
//! [`Device::list`] looks at everything that this process can see, `DeviceContext::open` takes
//! one for use. All other verbs objects (protection domain, queues, regions) hold their parent by
//! `Arc`, so that none outlives it.

#[cfg_attr(not(feature = "raw-verbs"), allow(dead_code, unreachable_pub))]
mod context;
mod event_counts;
mod event_reader;
#[cfg_attr(not(feature = "raw-verbs"), allow(dead_code, unreachable_pub))]
mod events;
mod facts;
mod failure;
mod fork;
mod gid;
mod gid_choice;
mod gid_wish;
mod inline;
mod last_receives;
mod limits;
mod memory_lock;
mod namespace;
mod numa;
mod pkey;
mod port;
mod quirks;
mod shortage;

use std::sync::Arc;

use ferrofabric_contracts::error::{Error, Result};

#[cfg(not(feature = "raw-verbs"))]
pub(crate) use context::DeviceContext;
#[cfg(feature = "raw-verbs")]
pub use context::DeviceContext;
pub(crate) use event_reader::{EventReader, EventSubscription};
#[cfg(feature = "raw-verbs")]
pub use events::DeviceEvent;
#[cfg(not(feature = "raw-verbs"))]
pub(crate) use events::EventSubject;
#[cfg(feature = "raw-verbs")]
pub use events::EventSubject;
pub use facts::{DeviceFacts, PciFacts};
pub(crate) use failure::{
    clear_errno, device_failed, device_queue_failed, failed, last_errno, not_loaded,
};
pub use ferrofabric_contracts::addr::GidKind;
pub(crate) use fork::{ForkSafety, fork_safety};
pub use gid::{Gid, GidEntry, GidScope};
use gid_choice::choose_gid;
pub use gid_choice::{GidChoice, GidReason, GidRequest, GidSelection};
pub(crate) use gid_wish::GidWish;
pub(crate) use inline::{InlineLimit, find_inline_limit, inline_limit};
pub use limits::DeviceLimits;
pub(crate) use memory_lock::memory_lock_advice;
pub(crate) use namespace::ip_of;
pub(crate) use numa::NumaDistances;
pub(crate) use pkey::{default_slot, slot_of};
pub use port::{LinkLayer, Mtu, PhysicalState, PortAttributes, PortState};
pub use quirks::Quirks;
pub(crate) use shortage::QueuePairShortage;

/// The devices of this machine, as far as this process may see them.
#[derive(Debug)]
pub struct Device;

impl Device {
    /// Looks at every device. One that cannot be opened is listed with the reason.
    ///
    /// # Errors
    ///
    /// When libibverbs cannot be loaded, or cannot list. No device is not an error: the list is
    /// empty.
    pub fn list() -> Result<Vec<DeviceInfo>> {
        Ok(DeviceContext::device_names()?
            .into_iter()
            .map(|name| DeviceInfo::of(&name))
            .collect())
    }
}

/// The result of [`Device::list`] for one device.
#[derive(Debug)]
pub struct DeviceInfo {
    /// The kernel's name, such as `mlx5_0`.
    pub name: String,
    /// Facts in sysfs; available even when the device cannot be opened.
    pub facts: DeviceFacts,
    /// The properties of the opened device, or the reason why it could not be opened.
    pub opened: Result<OpenedDevice>,
}

/// The properties of an opened device.
#[derive(Debug)]
pub struct OpenedDevice {
    /// Its limits and abilities.
    pub limits: DeviceLimits,
    /// Its known defects.
    pub quirks: Quirks,
    /// Its ports, from number 1 on.
    pub ports: Vec<PortInfo>,
}

/// One port and its GIDs.
#[derive(Debug)]
pub struct PortInfo {
    /// State, speed, sizes.
    pub attributes: PortAttributes,
    /// The GIDs in use.
    pub gids: Vec<GidEntry>,
    /// The GID that Ferrofabric would choose, the reason, and the GIDs that it would pass over.
    pub selection: Result<GidSelection>,
}

impl DeviceInfo {
    fn of(name: &str) -> Self {
        match DeviceContext::open(name) {
            Ok(context) => Self {
                name: name.to_owned(),
                facts: context.facts().clone(),
                opened: OpenedDevice::of(&context),
            },
            Err(error) => Self {
                name: name.to_owned(),
                facts: DeviceFacts::read(name),
                opened: Err(error),
            },
        }
    }
}

impl OpenedDevice {
    fn of(context: &Arc<DeviceContext>) -> Result<Self> {
        let ports = (1..=context.limits().ports)
            .map(|number| PortInfo::of(context, number))
            .collect::<Result<_, Error>>()?;
        Ok(Self {
            limits: context.limits().clone(),
            quirks: context.quirks(),
            ports,
        })
    }
}

impl PortInfo {
    fn of(context: &Arc<DeviceContext>, number: u8) -> Result<Self> {
        let attributes = context.port(number)?;
        let gids = context.gid_table(number)?;
        let selection = choose_gid(&gids, attributes.link_layer, GidRequest::Best)
            .map_err(|error| error.on(context.name(), number));
        Ok(Self {
            attributes,
            gids,
            selection,
        })
    }
}
