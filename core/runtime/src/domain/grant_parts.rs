//! The parts about grants (`docs/adr/0063`), as they come and go: queries, grants, revocations.

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Matched};
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, RemoteKind, RmaOp, SendOp};

use super::NO_CNTR;
use super::grants::GrantFields;
use super::owner::EndpointOwner;
use super::part_outbox::{PartBytes, RemoteSend};
use super::srx::SharedRx;

impl SharedRx {
    /// Queries the target of an operation for a grant, if it is time for that.
    pub(super) fn query_if_due(&mut self, op: &RmaOp, lane: u64) {
        if let Some(query) = self.remote.held.missed(op.dest, op.key, lane) {
            let op = about_grant(RemoteKind::Query, op.dest, op.key, query);
            self.send_part(RemoteSend {
                op,
                from: PartBytes::NONE,
            });
        }
    }

    /// Revokes the grants of a region.
    pub(super) fn revoke(&mut self, region: usize) {
        for grant in self.remote.given.of_region(region) {
            self.remote.given.revoked += 1;
            self.send_part(RemoteSend {
                op: about_grant(RemoteKind::Revoke, grant.holder, grant.number, 0),
                from: PartBytes::NONE,
            });
        }
    }

    /// No operation uses a grant any more that its peer has revoked.
    pub(super) fn send_revoked(&mut self, peer: FiAddr, grant: u64) {
        self.send_part(RemoteSend {
            op: about_grant(RemoteKind::Revoked, peer, grant, 0),
            from: PartBytes::NONE,
        });
    }
}

/// A part about a grant.
fn about_grant(kind: RemoteKind, dest: FiAddr, tag: u64, data: u64) -> SendOp {
    SendOp {
        kind: MsgKind::Remote(kind),
        dest,
        tag,
        data,
        desc: MrDesc::NONE,
        context: 0,
        flags: Flags::RMA | Flags::REMOTE_CQ_DATA | Flags::INJECT,
    }
}

impl EndpointOwner<'_> {
    /// A part about a grant has come.
    pub(super) fn part_of_grant_came(
        &mut self,
        kind: RemoteKind,
        m: &Matched,
        a: &Arrived,
        is_lost: bool,
    ) {
        match kind {
            RemoteKind::Grant => {
                let bytes = self.srx.remote.take_room(m.context);
                let fields = bytes.filter(|_| a.data != 0 && !is_lost);
                let fields =
                    fields.and_then(|(_, bytes)| GrantFields::from_bytes(bytes.first_chunk()?));
                self.srx.remote.held.answered(a.tag, a.data, fields);
            }
            _ if is_lost => {}
            RemoteKind::Query => self.answer_query(a),
            RemoteKind::Revoke => {
                self.srx.remote.held.revoke(a.src, a.tag);
                if self.srx.remote.shortcuts.revoke(a.src, a.tag) {
                    self.srx.send_revoked(a.src, a.tag);
                }
            }
            RemoteKind::Revoked => self.srx.remote.returned(a.tag, a.src),
            _ => {}
        }
    }

    /// Answers a peer that queries for a grant. A device's operations count nowhere at the target,
    /// so none is granted where counters are bound. Nor is one to a source outside the address
    /// vector: no address leads there to revoke it.
    fn answer_query(&mut self, a: &Arrived) {
        if !a.src.is_some() {
            let none = about_grant(RemoteKind::Grant, FiAddr::NOTAVAIL, a.data, 0);
            return self.srx.remote.refusals.push(none);
        }
        let counts = [
            self.binding.remote_read_cntr,
            self.binding.remote_write_cntr,
        ];
        let granted = match counts == [NO_CNTR; 2] {
            true => self.srx.remote.grant(a.src, a.tag),
            false => None,
        };
        let number = granted.map_or(0, |(number, _)| number);
        self.srx.send_part(RemoteSend {
            op: about_grant(RemoteKind::Grant, a.src, a.data, number),
            from: granted.map_or(PartBytes::NONE, |(_, fields)| {
                PartBytes::Copied(fields.to_bytes().to_vec())
            }),
        });
    }
}
