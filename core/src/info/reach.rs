//! Which addresses a domain has, and which it can reach.

use super::Mismatch;
use crate::addr::NativeAddr;
use crate::flags::Flags;

/// Whether endpoints of the domain at `own` have addresses as `asked`: the same node and port. A new endpoint has a queue
/// pair and an incarnation of its own, so these can not be asked for.
pub(super) fn speaks_from(asked: &NativeAddr, own: &NativeAddr) -> Result<(), Mismatch> {
    let port = |addr: &NativeAddr| addr.verbs.map(|v| (v.gid, v.gid_kind, v.port));
    match asked.node == own.node && port(asked) == port(own) {
        true => Ok(()),
        false => Err(Mismatch::new("src_addr", asked, own)),
    }
}

/// Whether the domain at `own` has a way to `peer`, as far as addresses tell.
pub(super) fn reaches(peer: &NativeAddr, own: &NativeAddr, caps: Flags) -> Result<(), Mismatch> {
    let shared_memory = caps.contains(Flags::LOCAL_COMM)
        && peer.node == own.node
        && peer.shm.is_some()
        && own.shm.is_some();
    let queue_pairs = caps.contains(Flags::REMOTE_COMM)
        && peer
            .verbs
            .zip(own.verbs)
            .is_some_and(|(peer, own)| peer.gid_kind == own.gid_kind);
    if shared_memory || queue_pairs {
        return Ok(());
    }
    let offered = match (caps.contains(Flags::LOCAL_COMM), own.verbs) {
        (_, Some(verbs)) if caps.contains(Flags::REMOTE_COMM) => {
            format!("queue pairs with GIDs of kind {:?}", verbs.gid_kind)
        }
        (true, _) => format!("shared memory on node {:#x}", own.node),
        (false, _) => "no way to it".to_owned(),
    };
    Err(Mismatch {
        field: "dest_addr",
        asked: peer.to_string(),
        offered,
    })
}
