//! The port of a domain: its GID, and its place in a partition.

use std::sync::Arc;

use ferrofabric_contracts::addr::AuthKey;
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error, Result};

use crate::device::{DeviceContext, GidRequest, GidWish, default_slot, slot_of};
use crate::port::{LocalPort, PathMarks, PathRecordWish};

/// The port as a member of a key's partition.
///
/// # Errors
///
/// `EINVAL`: the port is no member of the partition.
pub(super) fn in_partition(
    context: &Arc<DeviceContext>,
    port: LocalPort,
    key: AuthKey,
) -> Result<LocalPort> {
    let table = context.pkey_table(port.number)?;
    let Some(slot) = slot_of(&table, key.pkey()) else {
        let there: Vec<_> = table
            .iter()
            .filter(|pkey| **pkey != 0)
            .map(|pkey| format!("{pkey:#06x}"))
            .collect();
        let wanted = format!(
            "P_Key {:#06x} on port {} of {}",
            key.pkey(),
            port.number,
            context.name()
        );
        return Err(Error::new(Errno::EINVAL, "use", wanted).mend(format!(
            "the port's table has {}: use one of these, or have the subnet manager add it",
            there.join(", ")
        )));
    };
    Ok(LocalPort {
        pkey: table[usize::from(slot)],
        pkey_index: slot,
        ..port
    })
}

/// The port as endpoints use it: with the GID of the settings, or else the preferred GID or the
/// best one.
pub(crate) fn local_port(
    context: &Arc<DeviceContext>,
    number: u8,
    wish: GidWish,
    settings: &Settings,
) -> Result<LocalPort> {
    let attributes = context.port(number)?;
    let request = match settings.gid_index.0 {
        Some(index) => GidRequest::Index(index as u32),
        None if wish == GidWish::Any => GidRequest::Best,
        None => wish.request(&context.gid_table(number)?, attributes.link_layer),
    };
    let chosen = context.choose_gid(number, request)?.chosen;
    let table = context.gid_table(number)?;
    let entry = table.iter().find(|entry| entry.index == chosen.index);
    let pkey_index = default_slot(&context.pkey_table(number)?);
    Ok(LocalPort {
        number,
        gid: chosen.gid,
        gid_kind: chosen.kind,
        gid_index: chosen.index as u8,
        lid: attributes.lid,
        pkey: context.pkey(number, pkey_index)?,
        pkey_index,
        mtu: attributes.active_mtu,
        interface: entry.and_then(|entry| entry.interface).unwrap_or(0),
        grh_required: attributes.grh_required,
        path_records: PathRecordWish::of(settings),
        marks: PathMarks::of(settings, chosen.kind),
    })
}
