//! The order of the requests for atomic operations that come.

use std::collections::VecDeque;

use ferrofabric_contracts::part::RemotePlace;
use ferrofabric_contracts::types::FiAddr;
use rustc_hash::FxHashMap;

/// The operations that peers have requested of an endpoint.
#[derive(Default)]
pub(crate) struct AtomicArrivals {
    /// The requests of each source that come, in the order of their announcements.
    arrivals: FxHashMap<FiAddr, VecDeque<ArrivingRequest>>,
    /// How many were carried out here.
    pub(crate) carried_out: u64,
}

/// A request of a peer.
#[derive(Clone, Copy)]
struct ArrivingRequest {
    /// The room for its bytes.
    room: u64,
    /// What it is for, once its bytes are there.
    whole: Option<RemotePlace>,
}

impl AtomicArrivals {
    /// Number of requests of a source that come.
    pub(crate) fn requests_of(&self, src: FiAddr) -> usize {
        self.arrivals.get(&src).map_or(0, VecDeque::len)
    }

    /// A request begins to come into a room.
    pub(crate) fn announced(&mut self, src: FiAddr, room: u64) {
        let requests = self.arrivals.entry(src).or_default();
        requests.push_back(ArrivingRequest { room, whole: None });
    }

    /// The bytes of a request are there.
    pub(crate) fn set_whole(&mut self, src: FiAddr, room: u64, at: RemotePlace) {
        let mut requests = self.arrivals.get_mut(&src).into_iter().flatten();
        if let Some(request) = requests.find(|request| request.room == room) {
            request.whole = Some(at);
        }
    }

    /// The bytes of a request will not come, or it is not to be carried out.
    pub(crate) fn drop_request_of(&mut self, src: FiAddr, room: u64) {
        if let Some(requests) = self.arrivals.get_mut(&src) {
            requests.retain(|request| request.room != room);
            self.drop_if_empty(src);
        }
    }

    /// Takes out the request of a source whose turn it is: the first one, if its bytes are there.
    /// Long ones may be overtaken on their way, and are not here.
    pub(crate) fn take_next(&mut self, src: FiAddr) -> Option<(u64, RemotePlace)> {
        let requests = self.arrivals.get_mut(&src)?;
        let &ArrivingRequest { room, whole } = requests.front()?;
        let whole = whole?;
        requests.pop_front();
        self.drop_if_empty(src);
        Some((room, whole))
    }

    fn drop_if_empty(&mut self, src: FiAddr) {
        if self.requests_of(src) == 0 {
            self.arrivals.remove(&src);
        }
    }

    /// Number of requests that come.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.arrivals.values().map(VecDeque::len).sum()
    }
}
