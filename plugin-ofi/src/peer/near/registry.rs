//! The endpoints of this process at providers written in C, and when those that were closed go.
//!
//! `shm` reaches an endpoint of its own process through that endpoint's mapping. It keeps the
//! pointer after the other endpoint has closed, and follows it when it sends, and when its address
//! vector closes. So an endpoint that was closed here stays open at the provider, driven by nobody,
//! until no endpoint is left that may follow such a pointer; and the two forget each other before
//! either goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrofabric_system::forked::Birth;

use super::name_of;
use super::open::ForeignEndpoint;
use crate::peer::owner::ForeignObjects;

/// The endpoint at its provider, and the objects that were lent to it. The endpoint goes first.
pub(super) struct AtProvider {
    pub(super) endpoint: ForeignEndpoint,
    pub(super) objects: ForeignObjects,
}

/// An endpoint of this process.
struct Member {
    /// Those that may hold a pointer to its memory, and whose memory it may point to.
    neighbours: BTreeSet<u64>,
    /// It was closed here.
    retired: Option<AtProvider>,
}

/// Those of a process.
struct ProcessMembers {
    /// The process; `None` before the first member.
    birth: Option<Birth>,
    by_number: BTreeMap<u64, Member>,
}

static MEMBERS: Mutex<ProcessMembers> = Mutex::new(ProcessMembers {
    birth: None,
    by_number: BTreeMap::new(),
});

/// Another endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// It is not of this process, or it is the same one.
    Elsewhere,
    /// It is another one of this process.
    InProcess,
    /// It was one of this process.
    Closed,
}

/// The place of an endpoint among those of this process, until it [retires](Self::retire).
pub(super) struct MemberPlace {
    number: u64,
    birth: Birth,
}

impl MemberPlace {
    /// Of an endpoint that opens.
    pub(super) fn take(number: u64) -> Self {
        let member = Member {
            neighbours: BTreeSet::new(),
            retired: None,
        };
        members().by_number.insert(number, member);
        Self {
            number,
            birth: Birth::here(),
        }
    }

    /// The endpoint inserts the name of another one, which may be of this process.
    pub(super) fn meet(&self, other: u64) -> Met {
        if other == self.number {
            return Met::Elsewhere;
        }
        let members = &mut members().by_number;
        match members.get_mut(&other) {
            None => return Met::Elsewhere,
            Some(there) if there.retired.is_some() => return Met::Closed,
            Some(there) => there.neighbours.insert(self.number),
        };
        if let Some(own) = members.get_mut(&self.number) {
            own.neighbours.insert(other);
        }
        Met::InProcess
    }

    /// The endpoint was closed here. It goes at its provider as soon as none that is open needs it.
    pub(super) fn retire(&self, at_provider: AtProvider) {
        // In a child of fork nothing of it is the child's, nor is the lock.
        if !self.birth.is_this_process() {
            std::mem::forget(at_provider);
            return;
        }
        let members = &mut members().by_number;
        if let Some(own) = members.get_mut(&self.number) {
            own.retired = Some(at_provider);
        }
        while let Some(number) = unneeded(members) {
            close(members, number);
        }
    }
}

/// Those of this process. A child of fork has none of its parent's.
fn members() -> MutexGuard<'static, ProcessMembers> {
    let mut members = MEMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    if members.birth.is_none_or(|birth| !birth.is_this_process()) {
        std::mem::forget(std::mem::take(&mut members.by_number));
        members.birth = Some(Birth::here());
    }
    members
}

/// A closed endpoint that no open one needs.
fn unneeded(members: &BTreeMap<u64, Member>) -> Option<u64> {
    let is_open = |number| members.get(number).is_some_and(|m| m.retired.is_none());
    members
        .iter()
        .find(|(_, member)| member.retired.is_some() && !member.neighbours.iter().any(is_open))
        .map(|(&number, _)| number)
}

/// Closes an endpoint at its provider. All of its neighbours were closed here, so nobody drives
/// them.
fn close(members: &mut BTreeMap<u64, Member>, number: u64) {
    let Some(member) = members.remove(&number) else {
        return;
    };
    for other in &member.neighbours {
        let Some(neighbour) = members.get_mut(other) else {
            continue;
        };
        neighbour.neighbours.remove(&number);
        if let Some(theirs) = &neighbour.retired {
            theirs.endpoint.forget(&name_of(number));
        }
        if let Some(own) = &member.retired {
            own.endpoint.forget(&name_of(*other));
        }
    }
}
