//! The parts about grants (`docs/adr/0063`), as they come and go: queries, grants, revocations.

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::part::Part;
use ferrofabric_contracts::types::{FiAddr, MrDesc, RmaOp, SendOp};

use crate::domain::owner::EndpointOwner;
use crate::domain::srx::SharedRx;
use crate::rma::as_target::regions::NO_CNTR;
use crate::rma::grants::{GrantFields, NO_GRANT};
use crate::rma::outbox::{PartBytes, RemoteSend};

impl SharedRx {
    /// Queries the target of an operation for a grant, if it is time for that.
    pub(in crate::domain) fn query_if_due(&mut self, op: &RmaOp, lane: u64) {
        if let Some(query) = self.remote.held.missed(op.dest, op.key, lane) {
            let part = Part::Query { key: op.key, query };
            self.send_about_grant(part, op.dest);
        }
    }

    /// Revokes the grants of a region.
    pub(in crate::domain) fn revoke(&mut self, region: usize) {
        for grant in self.remote.given.of_region(region) {
            self.remote.given.revoked += 1;
            let part = Part::Revoke {
                grant: grant.number,
            };
            self.send_about_grant(part, grant.holder);
        }
    }

    /// No operation uses a grant any more that its peer has revoked.
    pub(in crate::domain) fn send_revoked(&mut self, peer: FiAddr, grant: u64) {
        self.send_about_grant(Part::Revoked { grant }, peer);
    }

    fn send_about_grant(&mut self, part: Part, dest: FiAddr) {
        self.send_part(RemoteSend {
            op: about_grant(part, dest),
            from: PartBytes::NONE,
        });
    }
}

/// The message of a part about a grant.
fn about_grant(part: Part, dest: FiAddr) -> SendOp {
    part.message(dest, MrDesc::NONE, 0, Flags::INJECT)
}

impl EndpointOwner<'_> {
    /// The answer to a query has come: into a room the fields of the grant, unless they are lost.
    pub(in crate::domain) fn grant_came(
        &mut self,
        room: u64,
        query: u64,
        grant: Option<u64>,
        is_lost: bool,
    ) {
        let bytes = self.srx.remote.take_room(room);
        let bytes = bytes.filter(|_| grant.is_some() && !is_lost);
        let fields = bytes.and_then(|(_, bytes)| GrantFields::from_bytes(bytes.first_chunk()?));
        let grant = grant.unwrap_or(NO_GRANT);
        self.srx.remote.held.answered(query, grant, fields);
    }

    /// A peer revokes a grant.
    pub(in crate::domain) fn grant_is_revoked(&mut self, peer: FiAddr, grant: u64) {
        self.srx.remote.held.revoke(peer, grant);
        if self.srx.remote.shortcuts.revoke(peer, grant) {
            self.srx.send_revoked(peer, grant);
        }
    }

    /// Answers a peer that queries for a grant. A device's operations count nowhere at the target,
    /// so none is granted where counters are bound. Nor is one to a source outside the address
    /// vector: no address leads there to revoke it.
    pub(in crate::domain) fn answer_query(&mut self, peer: FiAddr, key: u64, query: u64) {
        if !peer.is_some() {
            let none = Part::Grant { query, grant: None };
            let none = about_grant(none, FiAddr::NOTAVAIL);
            return self.srx.remote.refusals.push(none);
        }
        let counts = [
            self.binding.remote_read_cntr,
            self.binding.remote_write_cntr,
        ];
        let granted = match counts == [NO_CNTR; 2] {
            true => self.srx.remote.grant(peer, key),
            false => None,
        };
        let (grant, fields) = granted.unzip();
        self.srx.send_part(RemoteSend {
            op: about_grant(Part::Grant { query, grant }, peer),
            from: fields.map_or(PartBytes::NONE, |fields| {
                PartBytes::Copied(fields.to_bytes().to_vec())
            }),
        });
    }
}
