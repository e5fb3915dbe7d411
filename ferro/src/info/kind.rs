//! How kinds of endpoints are called.

use ferrofabric_contracts::info::{AV_AUTH_KEY, EpType, Info};

pub(super) fn type_name(ep_type: EpType) -> &'static str {
    match ep_type {
        EpType::Unspec => "any",
        EpType::Rdm => "rdm",
        EpType::Dgram => "dgram",
        EpType::Msg => "msg",
    }
}

/// The type, what buffers must have in front, and whether endpoints have the keys of address
/// vectors: the same domain may be offered with these and without.
pub(super) fn type_and_mode(info: &Info) -> String {
    let name = type_name(info.ep.ep_type);
    match (info.ep.msg_prefix_size, info.domain.auth_key_size) {
        (_, AV_AUTH_KEY) => format!("{name}+keys"),
        (0, _) => name.to_owned(),
        (bytes, _) => format!("{name}+{bytes}"),
    }
}
