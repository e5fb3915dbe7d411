//! The parts of one-sided operations (`docs/adr/0061`), by what each of them says: the meaning of a
//! message's tag and CQ data where the message is a part.

use crate::error::Errno;
use crate::flags::Flags;
use crate::types::{FiAddr, MrDesc, MsgKind, RemoteKind, SendOp};

/// A region of the target, as the initiator names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionName {
    /// By its key.
    Key(u64),
    /// By the number of a grant: a device may have carried out the operation (`docs/adr/0084`).
    Grant(u64),
}

/// The place in a region from which on an operation reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePlace {
    /// The region.
    pub region: RegionName,
    /// The place in it.
    pub place: u64,
}

/// A part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes for a region. One that names a grant is a [`NoticedWrite`](Self::NoticedWrite).
    Write(RemotePlace),
    /// The same, where the initiator does more once the bytes are there: it sends a notice, or
    /// begins operations that had to wait.
    NoticedWrite(RemotePlace),
    /// A request for bytes of a region.
    Read(RemotePlace),
    /// A request for an atomic operation (`docs/adr/0064`). It names a key.
    Atomic(RemotePlace),
    /// The answer to a request.
    Reply {
        /// The number of the request.
        request: u64,
        /// Why there are no bytes.
        error: Option<Errno>,
    },
    /// CQ data for the target of a write.
    Notice {
        /// The length of the write.
        len: u64,
        /// The CQ data.
        data: u64,
    },
    /// A request for a grant (`docs/adr/0063`).
    Query {
        /// The key of the region.
        key: u64,
        /// The number of the query.
        query: u64,
    },
    /// The answer to a query.
    Grant {
        /// The number of the query.
        query: u64,
        /// The number of the grant, if there is one: the message has its fields.
        grant: Option<u64>,
    },
    /// A grant is not valid any more.
    Revoke {
        /// Its number.
        grant: u64,
    },
    /// No operation uses a grant any more, or will.
    Revoked {
        /// Its number.
        grant: u64,
    },
}

impl Part {
    /// The part that a message of this kind is, by its tag and its CQ data.
    #[inline]
    #[must_use]
    pub fn of(kind: RemoteKind, tag: u64, data: u64) -> Self {
        let at = |region| RemotePlace {
            region,
            place: data,
        };
        let (key, grant) = (RegionName::Key(tag), RegionName::Grant(tag));
        match kind {
            RemoteKind::Write => Self::Write(at(key)),
            RemoteKind::NoticedWrite => Self::NoticedWrite(at(key)),
            RemoteKind::WriteAgain => Self::NoticedWrite(at(grant)),
            RemoteKind::Read => Self::Read(at(key)),
            RemoteKind::ReadAgain => Self::Read(at(grant)),
            RemoteKind::Atomic => Self::Atomic(at(key)),
            RemoteKind::Reply => Self::Reply {
                request: tag,
                // A number that no target of ours sends is an error all the same.
                error: (data != 0).then(|| i32::try_from(data).map_or(Errno::EACCES, Errno)),
            },
            RemoteKind::Notice => Self::Notice { len: tag, data },
            RemoteKind::Query => Self::Query {
                key: tag,
                query: data,
            },
            RemoteKind::Grant => Self::Grant {
                query: tag,
                grant: (data != 0).then_some(data),
            },
            RemoteKind::Revoke => Self::Revoke { grant: tag },
            RemoteKind::Revoked => Self::Revoked { grant: tag },
        }
    }

    /// The kind of its message, and the message's tag and CQ data.
    #[inline]
    #[must_use]
    pub fn words(self) -> (RemoteKind, u64, u64) {
        let named = |at: RemotePlace, by_key, by_grant| match at.region {
            RegionName::Key(key) => (by_key, key, at.place),
            RegionName::Grant(grant) => (by_grant, grant, at.place),
        };
        match self {
            Self::Write(at) => named(at, RemoteKind::Write, RemoteKind::WriteAgain),
            Self::NoticedWrite(at) => named(at, RemoteKind::NoticedWrite, RemoteKind::WriteAgain),
            Self::Read(at) => named(at, RemoteKind::Read, RemoteKind::ReadAgain),
            Self::Atomic(at) => named(at, RemoteKind::Atomic, RemoteKind::Atomic),
            Self::Reply { request, error } => {
                let number = error.map_or(0, |error| error.0 as u64);
                (RemoteKind::Reply, request, number)
            }
            Self::Notice { len, data } => (RemoteKind::Notice, len, data),
            Self::Query { key, query } => (RemoteKind::Query, key, query),
            Self::Grant { query, grant } => (RemoteKind::Grant, query, grant.unwrap_or(0)),
            Self::Revoke { grant } => (RemoteKind::Revoke, grant, 0),
            Self::Revoked { grant } => (RemoteKind::Revoked, grant, 0),
        }
    }

    /// The message that is this part.
    #[inline]
    #[must_use]
    pub fn message(self, dest: FiAddr, desc: MrDesc, context: u64, flags: Flags) -> SendOp {
        let (kind, tag, data) = self.words();
        SendOp {
            kind: MsgKind::Remote(kind),
            dest,
            tag,
            data,
            desc,
            context,
            flags: flags | Flags::RMA | Flags::REMOTE_CQ_DATA,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each part keeps its meaning on its way, whatever the numbers of its message.
        #[test]
        fn a_part_is_what_its_message_says(
            kind in prop::sample::select(RemoteKind::ALL),
            tag: u64,
            data in prop_oneof![0u64..3, any::<u64>()],
        ) {
            let part = Part::of(kind, tag, data);
            let (again, tag, data) = part.words();
            prop_assert_eq!(again, kind);
            prop_assert_eq!(Part::of(again, tag, data), part);
        }
    }

    #[test]
    fn parts_have_the_tag_and_the_data_of_their_kind() {
        let place = |region| RemotePlace { region, place: 8 };
        let (key, grant) = (place(RegionName::Key(7)), place(RegionName::Grant(7)));
        for (part, words) in [
            (Part::NoticedWrite(grant), (RemoteKind::WriteAgain, 7, 8)),
            (Part::Read(grant), (RemoteKind::ReadAgain, 7, 8)),
            (
                Part::Reply {
                    request: 7,
                    error: Some(Errno::EACCES),
                },
                (RemoteKind::Reply, 7, 13),
            ),
            (
                Part::Grant {
                    query: 7,
                    grant: None,
                },
                (RemoteKind::Grant, 7, 0),
            ),
            (Part::Write(key), (RemoteKind::Write, 7, 8)),
            (Part::NoticedWrite(key), (RemoteKind::NoticedWrite, 7, 8)),
            (Part::Read(key), (RemoteKind::Read, 7, 8)),
            (Part::Atomic(key), (RemoteKind::Atomic, 7, 8)),
            (Part::Notice { len: 7, data: 8 }, (RemoteKind::Notice, 7, 8)),
            (Part::Query { key: 7, query: 8 }, (RemoteKind::Query, 7, 8)),
            (
                Part::Grant {
                    query: 7,
                    grant: Some(8),
                },
                (RemoteKind::Grant, 7, 8),
            ),
            (Part::Revoke { grant: 7 }, (RemoteKind::Revoke, 7, 0)),
            (Part::Revoked { grant: 7 }, (RemoteKind::Revoked, 7, 0)),
        ] {
            assert_eq!(part.words(), words);
        }
        let strange = Part::of(RemoteKind::Reply, 7, 1 << 40);
        let error = Some(Errno::EACCES);
        assert_eq!(strange, Part::Reply { request: 7, error });
    }
}
