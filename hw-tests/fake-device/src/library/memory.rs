//! Protection domains, memory regions and address handles.

use std::ffi::{c_int, c_void};

use ferrofabric_verbs_sys::{
    ibv_access_flags, ibv_ah, ibv_ah_attr, ibv_context, ibv_grh, ibv_mr, ibv_pd, ibv_wc,
};

use super::device::{on_ethernet, reaches_port, source};
use super::{act, busy, make, missing, release};
use crate::fault::PathView;
use crate::memory::FakeRegion;
use crate::model::{AddressHandle, DeviceModel, place};
use crate::route::DatagramRoute;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    make("ibv_alloc_pd", |model| {
        on_ethernet(model, context)?;
        let pd = place(ibv_pd { context, handle: 0 });
        model.domains.insert(pd as usize, context as usize);
        Ok(pd)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let freed = act("ibv_dealloc_pd", |model| {
        let at = pd as usize;
        let in_use = model.regions.values().any(|region| region.pd == at)
            || model.handles.values().any(|handle| handle.pd == at)
            || model.shared_receive_queues.values().any(|srq| srq.pd == at)
            || model.queue_pairs.values().any(|qp| qp.pd == at);
        if in_use {
            return busy(model, "a protection domain");
        }
        match model.domains.remove(&at) {
            Some(_) => Ok(()),
            None => missing(model, "a protection domain"),
        }
    });
    if freed == 0 {
        release(pd);
    }
    freed
}

pub(super) fn context_of(
    model: &mut DeviceModel,
    pd: *mut ibv_pd,
) -> Result<*mut ibv_context, i32> {
    match model.domains.get(&(pd as usize)) {
        Some(&context) => Ok(context as *mut ibv_context),
        None => missing(model, "a protection domain"),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    make("ibv_reg_mr", |model| {
        let context = context_of(model, pd)?;
        if length == 0 || (addr as u64).checked_add(length as u64).is_none() {
            return Err(libc::EINVAL);
        }
        let on_demand = access as u32 & ibv_access_flags::IBV_ACCESS_ON_DEMAND.0 != 0;
        if on_demand && !model.profile().on_demand_paging {
            return Err(libc::EINVAL);
        }
        let used_before = match model.profile().reuses_keys {
            true => model.free_keys.pop(),
            false => None,
        };
        let key = used_before.unwrap_or_else(|| {
            model.next_key += 1;
            // Not small, so that a number that is no key is none.
            0x4b00_0000 | model.next_key
        });
        let handle = place(ibv_mr {
            context,
            pd,
            addr,
            length,
            handle: 0,
            lkey: key,
            rkey: key,
        });
        let region = FakeRegion {
            handle: handle as usize,
            pd: pd as usize,
            addr: addr as u64,
            len: length as u64,
            access: access as u32,
        };
        model.regions.insert(key, region);
        Ok(handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let freed = act("ibv_dereg_mr", |model| {
        let at = model
            .regions
            .iter()
            .find(|(_, region)| region.handle == mr as usize);
        match at.map(|(&key, _)| key) {
            Some(key) => {
                model.regions.remove(&key);
                model.free_keys.push(key);
                Ok(())
            }
            None => missing(model, "a memory region"),
        }
    });
    if freed == 0 {
        release(mr);
    }
    freed
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    make("ibv_create_ah", |model| {
        let context = context_of(model, pd)?;
        let ethernet = on_ethernet(model, context)?;
        // SAFETY: the caller's attributes are complete.
        let attributes = unsafe { &*attributes };
        let from = source(model, context, attributes)?;
        let reached = reaches_port(model, context, attributes)?;
        let lacks_header = model.profile().grh_required && attributes.is_global == 0;
        if attributes.port_num != 1 || lacks_header {
            return Err(libc::EINVAL);
        }
        if !reached {
            return Err(libc::ETIMEDOUT);
        }
        let handle = place(ibv_ah {
            context,
            pd,
            handle: 0,
        });
        let route = match attributes.is_global {
            0 => DatagramRoute::Lid(model.profile().lid),
            _ => {
                let (grh, kind) = (&attributes.grh, ethernet);
                DatagramRoute::global(&from, &grh.dgid, grh.traffic_class, kind)
            }
        };
        let address_handle = AddressHandle {
            pd: pd as usize,
            path: PathView::of(attributes),
            route,
        };
        model.handles.insert(handle as usize, address_handle);
        Ok(handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    let freed = act("ibv_destroy_ah", |model| {
        match model.handles.remove(&(ah as usize)) {
            Some(_) => Ok(()),
            None => missing(model, "an address handle"),
        }
    });
    if freed == 0 {
        release(ah);
    }
    freed
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    _port: u8,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _attributes: *mut ibv_ah_attr,
) -> c_int {
    libc::EOPNOTSUPP
}
