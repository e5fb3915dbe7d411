//! `fi_info` to and from ours, field by field. [`ferrofabric_contracts::info`] explains the fields.

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;

use ferrofabric_contracts::addr::{AUTH_KEY_LEN, AddrFormats, Address, AuthKey};
use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::{Flags, Mode, MrMode, Order};
use ferrofabric_contracts::info::{
    AV_AUTH_KEY, AddrFormat, DomainAttr, EpAttr, EpType, FabricAttr, Info, Progress, ResourceMgmt,
    RxAttr, Threading, TxAttr,
};
use ferrofabric_contracts::types::AvType;

use crate::abi::{
    FI_PEER, fi_av_type, fi_domain_attr, fi_ep_attr, fi_ep_type, fi_fabric_attr, fi_info,
    fi_progress, fi_resource_mgmt, fi_rx_attr, fi_threading, fi_tx_attr, read_as_of,
};
use crate::guard::Refused;
use crate::host::Host;
use crate::memory::{key_bytes, text};

/// The addresses of an info that count. The others are not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsedAddresses {
    pub(crate) src: bool,
    pub(crate) dest: bool,
}

impl UsedAddresses {
    /// As an info describes what is opened.
    pub(crate) const BOTH: Self = Self {
        src: true,
        dest: true,
    };

    /// As an info describes another provider's objects.
    pub(crate) const NONE: Self = Self {
        src: false,
        dest: false,
    };
}

/// The hints of an application that was written for a version of the interface; NULL attributes
/// want nothing.
///
/// # Safety
///
/// `info` and all that it points to is there or NULL, as long as it is in that version, and strings
/// end.
///
/// # Errors
///
/// `EINVAL` for a number that stands for nothing, and an address that is none of its format. With
/// `FI_PEER` such a destination is ignored.
pub(crate) unsafe fn wanted(
    version: u32,
    info: *const fi_info,
    counting: UsedAddresses,
) -> Result<Info, Refused> {
    // SAFETY: as the caller says, for all that follows.
    unsafe {
        let from = read_as_of(version, info).ok_or(Errno::EINVAL)?;
        // libfabric's lnx links us by the hints of its application, whose destination is an address
        // of its own.
        let is_linked = from.caps & FI_PEER != 0;
        let format = from.addr_format;
        Ok(Info {
            caps: Flags::from_bits_retain(from.caps),
            mode: Mode::from_bits_retain(from.mode),
            addr_format: AddrFormat(from.addr_format),
            addr_formats: AddrFormats::empty(),
            src_addr: match counting.src {
                true => address(format, from.src_addr, from.src_addrlen, "source")?,
                false => None,
            },
            dest_addr: match counting.dest {
                true => match address(format, from.dest_addr, from.dest_addrlen, "destination") {
                    Err(_) if is_linked => None,
                    read => read?,
                },
                false => None,
            },
            tx: read_as_of(version, from.tx_attr).map_or_else(TxAttr::default, |tx| tx_wanted(&tx)),
            rx: read_as_of(version, from.rx_attr).map_or_else(RxAttr::default, |rx| rx_wanted(&rx)),
            ep: match read_as_of(version, from.ep_attr) {
                Some(ep) => ep_wanted(&ep)?,
                None => EpAttr::default(),
            },
            domain: match read_as_of(version, from.domain_attr) {
                Some(domain) => domain_wanted(&domain)?,
                None => DomainAttr::default(),
            },
            fabric: match read_as_of(version, from.fabric_attr) {
                Some(fabric) => FabricAttr {
                    name: text(fabric.name).unwrap_or_default().into_owned(),
                    // libfabric has chosen us by it.
                    provider: String::new(),
                    provider_version: fabric.prov_version,
                    api_version: fabric.api_version,
                },
                None => FabricAttr::default(),
            },
            nic: None,
        })
    }
}

/// # Safety
///
/// `addr` has that many bytes, or is NULL.
unsafe fn address(
    format: u32,
    addr: *const c_void,
    len: usize,
    which: &str,
) -> Result<Option<Address>, Error> {
    // A length without an address is ignored (fi_getinfo(3)).
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), len) };
    Address::from_bytes(AddrFormat(format), bytes)
        .map(Some)
        .map_err(|why| {
            Error::new(
                Errno::EINVAL,
                "read",
                format!("{which} address of {len} bytes"),
            )
            .mend(why.to_string())
        })
}

fn tx_wanted(from: &fi_tx_attr) -> TxAttr {
    TxAttr {
        caps: Flags::from_bits_retain(from.caps),
        mode: Mode::from_bits_retain(from.mode),
        op_flags: Flags::from_bits_retain(from.op_flags),
        msg_order: Order::from_bits_retain(from.msg_order),
        comp_order: Order::from_bits_retain(from.comp_order),
        inject_size: from.inject_size,
        size: from.size,
        iov_limit: from.iov_limit,
        rma_iov_limit: from.rma_iov_limit,
        tclass: from.tclass,
    }
}

fn rx_wanted(from: &fi_rx_attr) -> RxAttr {
    RxAttr {
        caps: Flags::from_bits_retain(from.caps),
        mode: Mode::from_bits_retain(from.mode),
        op_flags: Flags::from_bits_retain(from.op_flags),
        msg_order: Order::from_bits_retain(from.msg_order),
        comp_order: Order::from_bits_retain(from.comp_order),
        total_buffered_recv: from.total_buffered_recv,
        size: from.size,
        iov_limit: from.iov_limit,
    }
}

/// # Safety
///
/// The key is there or NULL.
unsafe fn ep_wanted(from: &fi_ep_attr) -> Result<EpAttr, Refused> {
    Ok(EpAttr {
        ep_type: known("ep_attr->type", from.type_.0, EpType::from_number)?,
        protocol: from.protocol,
        protocol_version: from.protocol_version,
        max_msg_size: from.max_msg_size,
        msg_prefix_size: from.msg_prefix_size,
        max_order_raw_size: from.max_order_raw_size,
        max_order_war_size: from.max_order_war_size,
        max_order_waw_size: from.max_order_waw_size,
        mem_tag_format: from.mem_tag_format,
        tx_ctx_cnt: from.tx_ctx_cnt,
        rx_ctx_cnt: from.rx_ctx_cnt,
        auth_key_size: from.auth_key_size,
        // SAFETY: as the caller says.
        auth_key: unsafe { auth_key(from.auth_key, from.auth_key_size) }?,
    })
}

/// A key, where there is one.
///
/// # Safety
///
/// It has as many bytes as the size says, or is NULL.
unsafe fn auth_key(key: *const u8, size: usize) -> Result<Option<AuthKey>, Refused> {
    if key.is_null() || size == 0 {
        return Ok(None);
    }
    if size == AV_AUTH_KEY {
        return Err(Error::new(Errno::EINVAL, "read", "authorization key")
            .mend("with FI_AV_AUTH_KEY it is NULL: keys are inserted into address vectors")
            .into());
    }
    // SAFETY: as the caller says.
    let bytes = unsafe { key_bytes(key.cast(), size) }?;
    AuthKey::from_bytes(&bytes).map(Some).map_err(|why| {
        Error::new(Errno::EINVAL, "read", "authorization key")
            .mend(why.to_string())
            .into()
    })
}

/// Whether there is a key wherever a size says so, in what is to be opened.
///
/// # Errors
///
/// `EINVAL`.
pub(crate) fn check_keys(info: &Info) -> Result<(), Refused> {
    let (domain, ep) = (&info.domain, &info.ep);
    let missing = |size, key: Option<AuthKey>| size == AUTH_KEY_LEN && key.is_none();
    match missing(domain.auth_key_size, domain.auth_key) || missing(ep.auth_key_size, ep.auth_key) {
        false => Ok(()),
        true => Err(Error::new(Errno::EINVAL, "open", "domain or endpoint")
            .mend("auth_key_size is set, and auth_key is NULL")
            .into()),
    }
}

/// # Safety
///
/// The name is a string or NULL, the key is there or NULL.
unsafe fn domain_wanted(from: &fi_domain_attr) -> Result<DomainAttr, Refused> {
    let progress = |field, progress: fi_progress| known(field, progress.0, Progress::from_number);
    // SAFETY: both views of the union are the same number.
    let data_progress = unsafe { from.__bindgen_anon_1.data_progress };
    Ok(DomainAttr {
        // SAFETY: as the caller says.
        name: unsafe { text(from.name) }.unwrap_or_default().into_owned(),
        threading: known(
            "domain_attr->threading",
            from.threading.0,
            Threading::from_number,
        )?,
        control_progress: progress("domain_attr->control_progress", from.control_progress)?,
        data_progress: progress("domain_attr->data_progress", data_progress)?,
        resource_mgmt: known(
            "domain_attr->resource_mgmt",
            from.resource_mgmt.0,
            ResourceMgmt::from_number,
        )?,
        av_type: match from.av_type {
            fi_av_type::FI_AV_UNSPEC => None,
            fi_av_type::FI_AV_MAP => Some(AvType::Map),
            fi_av_type::FI_AV_TABLE => Some(AvType::Table),
            other => return Err(unknown("domain_attr->av_type", other.0)),
        },
        mr_mode: MrMode::from_bits_retain(from.mr_mode as u32),
        mr_key_size: from.mr_key_size,
        cq_data_size: from.cq_data_size,
        cq_cnt: from.cq_cnt,
        ep_cnt: from.ep_cnt,
        tx_ctx_cnt: from.tx_ctx_cnt,
        rx_ctx_cnt: from.rx_ctx_cnt,
        max_ep_tx_ctx: from.max_ep_tx_ctx,
        max_ep_rx_ctx: from.max_ep_rx_ctx,
        max_ep_stx_ctx: from.max_ep_stx_ctx,
        max_ep_srx_ctx: from.max_ep_srx_ctx,
        cntr_cnt: from.cntr_cnt,
        mr_iov_limit: from.mr_iov_limit,
        caps: Flags::from_bits_retain(from.caps),
        mode: Mode::from_bits_retain(from.mode),
        auth_key_size: from.auth_key_size,
        // SAFETY: as the caller says.
        auth_key: unsafe { auth_key(from.auth_key, from.auth_key_size) }?,
        max_err_data: from.max_err_data,
        mr_cnt: from.mr_cnt,
        tclass: from.tclass,
        max_ep_auth_key: from.max_ep_auth_key,
        max_group_id: from.max_group_id,
        // No caller chooses them.
        max_cntr_value: 0,
        max_err_cntr_value: 0,
    })
}

fn known<T>(field: &str, number: u32, of: impl Fn(u32) -> Option<T>) -> Result<T, Refused> {
    of(number).ok_or_else(|| unknown(field, number))
}

fn unknown(field: &str, number: u32) -> Refused {
    Error::new(Errno::EINVAL, "read", format!("hints: {field} {number}"))
        .mend("there is no such number")
        .into()
}

/// An offer, in memory of libfabric's.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn offered(info: &Info, host: &Host) -> Result<NonNull<fi_info>, Errno> {
    let new = host.new_info().ok_or(Errno::ENOMEM)?;
    // SAFETY: it is new, with all attributes there and nobody else's.
    let filled = unsafe { fill(&mut *new.as_ptr(), info, host) };
    if let Err(errno) = filled {
        // SAFETY: as above.
        unsafe { host.free_info(new) };
        return Err(errno);
    }
    Ok(new)
}

/// # Safety
///
/// `to` has all its attributes, and no strings or addresses yet.
unsafe fn fill(to: &mut fi_info, info: &Info, host: &Host) -> Result<(), Errno> {
    to.caps = info.caps.bits();
    to.mode = info.mode.bits();
    to.addr_format = info.addr_format.0;
    (to.src_addr, to.src_addrlen) = own_address(info.src_addr, info.addr_format)?;
    (to.dest_addr, to.dest_addrlen) = own_address(info.dest_addr, info.addr_format)?;
    if let Some(attr) = &info.nic {
        to.nic = crate::nic::new(attr);
    }
    // SAFETY: as the caller says.
    unsafe {
        tx_offered(&mut *to.tx_attr, &info.tx);
        rx_offered(&mut *to.rx_attr, &info.rx);
        ep_offered(&mut *to.ep_attr, &info.ep)?;
        domain_offered(to.domain_attr, &info.domain, host.version())?;
        fabric_offered(&mut *to.fabric_attr, &info.fabric)
    }
}

fn tx_offered(to: &mut fi_tx_attr, tx: &TxAttr) {
    *to = fi_tx_attr {
        caps: tx.caps.bits(),
        mode: tx.mode.bits(),
        op_flags: tx.op_flags.bits(),
        msg_order: tx.msg_order.bits(),
        comp_order: tx.comp_order.bits(),
        inject_size: tx.inject_size,
        size: tx.size,
        iov_limit: tx.iov_limit,
        rma_iov_limit: tx.rma_iov_limit,
        tclass: tx.tclass,
    };
}

fn rx_offered(to: &mut fi_rx_attr, rx: &RxAttr) {
    *to = fi_rx_attr {
        caps: rx.caps.bits(),
        mode: rx.mode.bits(),
        op_flags: rx.op_flags.bits(),
        msg_order: rx.msg_order.bits(),
        comp_order: rx.comp_order.bits(),
        total_buffered_recv: rx.total_buffered_recv,
        size: rx.size,
        iov_limit: rx.iov_limit,
    };
}

fn ep_offered(to: &mut fi_ep_attr, ep: &EpAttr) -> Result<(), Errno> {
    to.type_ = fi_ep_type(ep.ep_type.number());
    to.protocol = ep.protocol;
    to.protocol_version = ep.protocol_version;
    to.max_msg_size = ep.max_msg_size;
    to.msg_prefix_size = ep.msg_prefix_size;
    to.max_order_raw_size = ep.max_order_raw_size;
    to.max_order_war_size = ep.max_order_war_size;
    to.max_order_waw_size = ep.max_order_waw_size;
    to.mem_tag_format = ep.mem_tag_format;
    to.tx_ctx_cnt = ep.tx_ctx_cnt;
    to.rx_ctx_cnt = ep.rx_ctx_cnt;
    to.auth_key_size = ep.auth_key_size;
    to.auth_key = own_key(ep.auth_key)?;
    Ok(())
}

/// A key in memory that libfabric frees.
fn own_key(key: Option<AuthKey>) -> Result<*mut u8, Errno> {
    let Some(key) = key else {
        return Ok(std::ptr::null_mut());
    };
    // SAFETY: room for all of it, or NULL.
    unsafe {
        let to = libc::malloc(AUTH_KEY_LEN).cast::<u8>();
        if to.is_null() {
            return Err(Errno::ENOMEM);
        }
        to.copy_from(key.to_bytes().as_ptr(), AUTH_KEY_LEN);
        Ok(to)
    }
}

/// Since then the structure has room for the largest values of counters.
const COUNTER_LIMITS: u32 = (2 << 16) | 5;

/// # Safety
///
/// `to` is the library's structure, as long as it is in that version: never a reference, which
/// would be to all of ours.
unsafe fn domain_offered(
    to: *mut fi_domain_attr,
    domain: &DomainAttr,
    version: u32,
) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    unsafe {
        (*to).name = string(&domain.name)?;
        (*to).threading = fi_threading(domain.threading.number());
        (*to).control_progress = fi_progress(domain.control_progress.number());
        (*to).__bindgen_anon_1.data_progress = fi_progress(domain.data_progress.number());
        (*to).resource_mgmt = fi_resource_mgmt(domain.resource_mgmt.number());
        (*to).av_type = match domain.av_type {
            None => fi_av_type::FI_AV_UNSPEC,
            Some(AvType::Map) => fi_av_type::FI_AV_MAP,
            Some(AvType::Table) => fi_av_type::FI_AV_TABLE,
        };
        (*to).mr_mode = domain.mr_mode.bits() as i32;
        (*to).mr_key_size = domain.mr_key_size;
        (*to).cq_data_size = domain.cq_data_size;
        (*to).cq_cnt = domain.cq_cnt;
        (*to).ep_cnt = domain.ep_cnt;
        (*to).tx_ctx_cnt = domain.tx_ctx_cnt;
        (*to).rx_ctx_cnt = domain.rx_ctx_cnt;
        (*to).max_ep_tx_ctx = domain.max_ep_tx_ctx;
        (*to).max_ep_rx_ctx = domain.max_ep_rx_ctx;
        (*to).max_ep_stx_ctx = domain.max_ep_stx_ctx;
        (*to).max_ep_srx_ctx = domain.max_ep_srx_ctx;
        (*to).cntr_cnt = domain.cntr_cnt;
        (*to).mr_iov_limit = domain.mr_iov_limit;
        (*to).caps = domain.caps.bits();
        (*to).mode = domain.mode.bits();
        (*to).auth_key_size = domain.auth_key_size;
        (*to).auth_key = own_key(domain.auth_key)?;
        (*to).max_err_data = domain.max_err_data;
        (*to).mr_cnt = domain.mr_cnt;
        (*to).tclass = domain.tclass;
        (*to).max_ep_auth_key = domain.max_ep_auth_key;
        (*to).max_group_id = domain.max_group_id;
        if version >= COUNTER_LIMITS {
            (*to).max_cntr_value = domain.max_cntr_value;
            (*to).max_err_cntr_value = domain.max_err_cntr_value;
        }
    }
    Ok(())
}

fn fabric_offered(to: &mut fi_fabric_attr, fabric: &FabricAttr) -> Result<(), Errno> {
    // The provider's name is libfabric's to fill in.
    to.name = string(&fabric.name)?;
    to.prov_version = fabric.provider_version;
    to.api_version = fabric.api_version;
    Ok(())
}

/// An address in memory that libfabric frees.
fn own_address(addr: Option<Address>, format: AddrFormat) -> Result<(*mut c_void, usize), Errno> {
    let Some(addr) = addr else {
        return Ok((std::ptr::null_mut(), 0));
    };
    // The offer has both in its format.
    let bytes = addr.to_bytes(format).map_err(|_| Errno::EINVAL)?;
    // SAFETY: room for all of them, or NULL.
    unsafe {
        let to = libc::malloc(bytes.len());
        if to.is_null() {
            return Err(Errno::ENOMEM);
        }
        to.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len());
        Ok((to, bytes.len()))
    }
}

/// A string in memory that libfabric frees.
fn string(text: &str) -> Result<*mut c_char, Errno> {
    // SAFETY: `strndup` reads no more than that.
    let string = unsafe { libc::strndup(text.as_ptr().cast(), text.len()) };
    match string.is_null() {
        true => Err(Errno::ENOMEM),
        false => Ok(string),
    }
}
