//! Discovery (fi_getinfo(3)): the offer of a provider for messages, and the part of it that the
//! suite reads.

use std::ffi::CString;

use ferro_fi::abi::{
    FI_COMPLETION, FI_CONTEXT, FI_CONTEXT2, FI_DELIVERY_COMPLETE, FI_DIRECTED_RECV, FI_FENCE,
    FI_MATCH_COMPLETE, FI_MSG, FI_MULTI_RECV, FI_ORDER_SAS, FI_SHARED_AV, FI_SOURCE, FI_SOURCE_ERR,
    FI_TAGGED, FI_TAGGED_DIRECTED_RECV, FI_TAGGED_MULTI_RECV, fi_ep_type, fi_info, fi_threading,
};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{EpAttr, Info, RxAttr, TxAttr};

use crate::client::{Info as InfoList, Libfabric};

/// Capabilities that the scenarios use where a provider has them.
const OPTIONAL: [u64; 8] = [
    FI_SOURCE,
    FI_DIRECTED_RECV,
    FI_TAGGED_DIRECTED_RECV,
    FI_MULTI_RECV,
    FI_TAGGED_MULTI_RECV,
    FI_SOURCE_ERR,
    FI_FENCE,
    FI_SHARED_AV,
];

/// Those that our offer has not whose local peers are a provider's in C.
const NOT_BESIDE: [u64; 2] = [FI_SOURCE_ERR, FI_FENCE];

/// Completion levels that the scenarios use where a provider has them.
const LEVELS: [u64; 2] = [FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE];

/// The offer that domains are opened with.
pub struct Offer {
    pub list: InfoList<'static>,
    pub described: Info,
}

// SAFETY: nobody changes the list, and any thread may read it.
unsafe impl Send for Offer {}
// SAFETY: as above.
unsafe impl Sync for Offer {}

/// A question to libfabric.
struct Request {
    provider: CString,
    /// The domain's name, empty for any.
    domain: CString,
    caps: u64,
    /// Flags of sends, beside `FI_COMPLETION`.
    levels: u64,
}

impl Request {
    fn ask(&self, libfabric: &'static Libfabric) -> Option<InfoList<'static>> {
        let hints = libfabric.hints_of(&self.provider);
        // SAFETY: the hints are this function's, and have all their parts; the string is libc's.
        unsafe {
            let all: &mut fi_info = &mut *hints.info;
            all.caps = self.caps;
            all.mode = FI_CONTEXT | FI_CONTEXT2;
            (*all.ep_attr).type_ = fi_ep_type::FI_EP_RDM;
            (*all.domain_attr).threading = fi_threading::FI_THREAD_SAFE;
            if !self.domain.is_empty() {
                (*all.domain_attr).name = libc::strdup(self.domain.as_ptr());
            }
            (*all.tx_attr).op_flags = FI_COMPLETION | self.levels;
            (*all.tx_attr).msg_order = FI_ORDER_SAS;
            (*all.rx_attr).op_flags = FI_COMPLETION;
            (*all.rx_attr).msg_order = FI_ORDER_SAS;
        }
        let version = libfabric.version;
        libfabric.ask(version, None, None, 0, Some(&hints)).ok()
    }
}

impl Offer {
    /// The first offer for messages, with and without tags, with all the abilities for which the
    /// provider has one, or without those that ours has not beside a provider in C. `None`: it has
    /// none for messages.
    pub fn find(
        libfabric: &'static Libfabric,
        provider: &str,
        domain: &str,
        has_all: bool,
    ) -> Option<Self> {
        let [provider, domain] = [provider, domain].map(|name| CString::new(name).unwrap());
        let mut request = Request {
            provider,
            domain,
            caps: FI_MSG | FI_TAGGED,
            levels: 0,
        };
        request.ask(libfabric)?;
        for cap in OPTIONAL {
            if !has_all && NOT_BESIDE.contains(&cap) {
                continue;
            }
            request.caps |= cap;
            if request.ask(libfabric).is_none() {
                request.caps &= !cap;
            }
        }
        let mut levels = 0;
        for level in LEVELS.into_iter().filter(|_| has_all) {
            request.levels = level;
            if request.ask(libfabric).is_some() {
                levels |= level;
            }
        }
        request.levels = 0;
        let list = request.ask(libfabric)?;
        let described = describe(&list, levels);
        Some(Self { list, described })
    }
}

/// The fields that the scenarios read.
fn describe(list: &InfoList<'_>, levels: u64) -> Info {
    let levels = Flags::from_bits_retain(levels);
    // SAFETY: the offer is there, and has all its parts.
    unsafe {
        let info = &*list.info;
        let (tx, rx, ep) = (&*info.tx_attr, &*info.rx_attr, &*info.ep_attr);
        Info {
            caps: Flags::from_bits_retain(info.caps),
            tx: TxAttr {
                caps: Flags::from_bits_retain(tx.caps),
                op_flags: Flags::from_bits_retain(tx.op_flags) | levels,
                inject_size: tx.inject_size,
                size: tx.size,
                iov_limit: tx.iov_limit,
                ..TxAttr::default()
            },
            rx: RxAttr {
                caps: Flags::from_bits_retain(rx.caps),
                op_flags: Flags::from_bits_retain(rx.op_flags),
                size: rx.size,
                iov_limit: rx.iov_limit,
                ..RxAttr::default()
            },
            ep: EpAttr {
                max_msg_size: ep.max_msg_size,
                msg_prefix_size: ep.msg_prefix_size,
                ..EpAttr::default()
            },
            ..Info::default()
        }
    }
}
