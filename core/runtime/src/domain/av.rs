//! Address vector objects (fi_av(3)): handles of an application, which insert, remove and look up
//! addresses, and inform the transports of the domain about each change.

use std::sync::{Arc, OnceLock};

use super::endpoint_state::EndpointState;
use super::owner::EndpointOwner;
use super::{Backend, DeferredTask, DomainState, Inner, ObjectKey};
use crate::fabric::{Av, ObjectId};
use ferrofabric_av::async_insert::{AsyncInserter, InsertContext, OnInserted, RequestKeys};
use ferrofabric_av::follow::TableFollower;
use ferrofabric_av::format::{Naming, ParsedAddr};
use ferrofabric_av::{
    AvAttr, AvTable, InsertReport, InsertRequest, Paused, RefoundEndpoint, ResolverPool, Services,
    Unresolved, admit, admit_nodes,
};
use ferrofabric_contracts::addr::{Address, AuthKey, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::info::AV_AUTH_KEY;
use ferrofabric_contracts::peer::{PEER_REPLACED, PeerAv, PeerEq, Routed, Transport};
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_system::locks::Mutex;

pub(super) struct AvHandle<B: Backend> {
    async_inserter: OnceLock<AsyncInserter>,
    pub(super) domain: Arc<Inner<B>>,
    index: usize,
    pub(super) table: Arc<AvTable>,
    pub(super) naming: Naming,
    asynchronous: bool,
    /// Resolves socket addresses in the background.
    pool: Option<Arc<ResolverPool>>,
    /// Whether ranges are stored and resolved at their use.
    keeps_ranges: bool,
    /// Held by each synchronous insertion, so that the addresses of two calls do not mix.
    calls: Mutex<()>,
}

/// Addresses inserted in one batch: between batches other threads insert and remove, and the
/// transports are informed.
const INSERT_BATCH: usize = 32;

/// Addresses that are announced to transports under one lock of the domain: between such batches
/// other threads get the lock.
const ANNOUNCE_BATCH: usize = 8;

pub(super) fn open<B: Backend>(domain: &Arc<Inner<B>>, attr: &AvAttr) -> Result<Arc<dyn Av>> {
    let info = domain.backend.info();
    let table = AvTable::open(attr, &info.domain.name)?;
    let table = Arc::new(match info.domain.auth_key_size {
        AV_AUTH_KEY => table.with_auth_keys(),
        _ => table,
    });
    let mut state = domain.lock_to("open", "address vector")?;
    let index = state.avs.insert(table.clone());
    if table.is_shared() {
        state.followed.push((index, TableFollower::new(&table)));
    }
    drop(state);
    let naming = Naming {
        format: info.addr_format,
        common: domain.backend.common_address(),
        host: info.src_addr.as_ref().and_then(Address::ip),
    };
    let resolver = attr.resolver.clone().or_else(|| domain.backend.resolver());
    let keeps_ranges = table.takes_ranges() && naming.keeps_sockets();
    let pool = resolver.map(|resolver| {
        let (announce, domain) = (announcer(domain, index, &table), domain.clone());
        let announce = Box::new(
            move |new: &[FiAddr], refound: &[RefoundEndpoint], is_awaited: bool| {
                announce(new);
                // The transports leave the former endpoint before sends go to the next one.
                let left = refound.iter().map(|one| DeferredTask::Refound(index, *one));
                let resolved = is_awaited.then_some(DeferredTask::Resolved);
                if is_awaited || !refound.is_empty() {
                    domain.defer(left.chain(resolved));
                }
            },
        );
        Arc::new(ResolverPool::new(table.clone(), resolver, announce))
    });
    // From here on, dropping the handle closes the address vector.
    let handle = AvHandle {
        async_inserter: OnceLock::new(),
        domain: domain.clone(),
        index,
        table,
        naming,
        asynchronous: attr.events,
        pool,
        keeps_ranges,
        calls: Mutex::new(()),
    };
    if let Some(pool) = handle.pool.as_ref().filter(|_| handle.table.is_shared()) {
        // Other processes insert socket addresses that this process may have to resolve.
        pool.start()?;
    }
    Ok(Arc::new(handle))
}

/// A function that defers the announcement of an inserted address to the next holder of the
/// domain's lock, for vectors whose transports must be informed.
fn announcer<B: Backend>(domain: &Arc<Inner<B>>, av: usize, table: &Arc<AvTable>) -> OnInserted {
    let (domain, table) = (domain.clone(), table.clone());
    Box::new(move |new| {
        if !new.is_empty() && table.is_awaited() {
            domain.defer(new.iter().map(|addr| DeferredTask::Announce(av, *addr)));
        }
    })
}

impl<T: Transport> DomainState<T> {
    /// Informs the transports of changes in named address vectors, by this process or another. To
    /// be called before a route is used.
    #[inline(always)]
    pub(super) fn follow_changes(&mut self) {
        if !self.followed.is_empty() {
            self.follow();
        }
    }

    #[cold]
    fn follow(&mut self) {
        let mut followed = std::mem::take(&mut self.followed);
        for (av, follower) in &mut followed {
            let Some(table) = self.avs.get(*av).cloned() else {
                continue;
            };
            if !follower.is_behind(&table) {
                continue;
            }
            let changes = follower.changes(&table);
            self.look_at_waiting |= self.waiting_sends != 0;
            for addr in changes.removed {
                self.retract(*av, addr);
            }
            for addr in changes.replaced {
                self.reroute(*av, addr);
            }
            // The transports have ended their operations with the removed addresses, and have
            // reported them by the IDs.
            for (entry, generation) in changes.changed {
                table.forget_earlier(entry, generation);
            }
            for (addr, name) in changes.inserted {
                self.announce(*av, addr, &name);
            }
        }
        self.followed = followed;
    }

    /// Announces an inserted address to the transports of its address vector's endpoints, if the
    /// address is still in.
    pub(super) fn announce_new(&mut self, av: usize, addr: FiAddr) {
        let table = self.avs.get(av).filter(|table| !table.is_shared());
        if let Some(name) = table.and_then(|table| table.lookup(addr)) {
            self.announce(av, addr, &name);
        }
    }

    /// The endpoint of an address that had lost its own has been found: informs those transports.
    #[cold]
    pub(super) fn refound(&mut self, av: usize, found: RefoundEndpoint) {
        let Some(table) = self.avs.get(av).cloned() else {
            return;
        };
        match (found.is_replaced, table.is_shared()) {
            (true, true) => self.follow(),
            (true, false) => self.reroute(av, found.addr),
            (false, _) => {}
        }
        if let Some(name) = table.note_refound(found.addr) {
            self.announce(av, found.addr, &name);
        }
        // One may have been begun since the endpoint was found.
        self.look_at_waiting |= self.waiting_sends != 0;
    }

    /// Another endpoint is at an address: those transports leave the former one.
    #[cold]
    fn reroute(&mut self, av: usize, addr: FiAddr) {
        self.each_transport(av, |transport, owner| {
            if owner.srx.remote.given.has_holder(addr) {
                transport.cut_off(addr, owner);
            }
            // Operations of an endpoint without a route wait for the next endpoint.
            if transport.has_route(addr) {
                owner
                    .srx
                    .fail_remote(addr, Errno::ECONNRESET, PEER_REPLACED);
            }
            transport.peer_replaced(addr, owner);
        });
    }

    /// Announces an address to those transports.
    fn announce(&mut self, av: usize, addr: FiAddr, name: &NativeAddr) {
        self.each_transport(av, |transport, owner| {
            transport.peer_inserted(addr, name, owner);
        });
    }

    /// Informs those transports of a removal.
    fn retract(&mut self, av: usize, addr: FiAddr) {
        self.each_transport(av, |transport, owner| {
            // Afterwards nothing leads to its lane.
            if owner.srx.remote.given.has_holder(addr) {
                transport.cut_off(addr, owner);
            }
            transport.peer_removed(addr, owner);
        });
    }

    /// Calls a function for the transport of each endpoint of an address vector.
    fn each_transport(
        &mut self,
        av: usize,
        mut each: impl FnMut(&mut Routed<T>, &mut EndpointOwner<'_>),
    ) {
        for (_, endpoint) in &mut self.endpoints {
            if endpoint.binding.av == av {
                let (transport, mut owner) =
                    endpoint.split(&mut self.cqs, &mut self.cntrs, &self.avs);
                each(transport, &mut owner);
                owner.start_deferred(transport);
            }
        }
    }

    /// Informs the transport of a new endpoint of the addresses of its node that are in.
    #[cold]
    pub(super) fn inform_of_all(&mut self, index: usize, node: u64) {
        let endpoint = &mut self.endpoints[index];
        let av = endpoint.binding.av;
        let (transport, mut owner) = endpoint.split(&mut self.cqs, &mut self.cntrs, &self.avs);
        if !transport.has_unknown_sources() {
            return;
        }
        let table = &*self.avs[av];
        let mut inform = |addr, name: NativeAddr| transport.peer_inserted(addr, &name, &mut owner);
        match self.followed.iter().find(|(followed, _)| *followed == av) {
            None => table.each_on_node(node, &mut inform),
            // The addresses that the follower knows: it reports the removal of each.
            Some((_, follower)) => follower
                .known(table)
                .filter(|(_, name)| name.node == node)
                .for_each(|(addr, name)| inform(addr, name)),
        }
        owner.start_deferred(transport);
    }

    /// Whether those transports have messages of unknown sources.
    fn has_unknown_sources(&self, av: usize) -> bool {
        let of_this_av = |endpoint: &EndpointState<T>| endpoint.binding.av == av;
        let mut endpoints = self.endpoints.iter().map(|(_, endpoint)| endpoint);
        endpoints.any(|endpoint| of_this_av(endpoint) && endpoint.transport.has_unknown_sources())
    }
}

impl<B: Backend> Av for AvHandle<B> {
    fn av_type(&self) -> AvType {
        self.table.av_type()
    }

    fn count(&self) -> usize {
        self.table.len()
    }

    fn map_addr(&self) -> usize {
        self.table.map_addr()
    }

    fn insert_all(
        &self,
        names: &mut dyn Iterator<Item = &[u8]>,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        self.check_unkeyed()?;
        let sought = names.map(|name| self.naming.parse(name).map(ParsedAddr::from));
        self.insert_now(sought, report)
    }

    fn insert_services(
        &self,
        services: &Services,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        self.check_unkeyed()?;
        let is_range = self.keeps_ranges && services.is_range();
        if let Some(pool) = self.pool.as_ref().filter(|_| is_range) {
            return self.insert_range(pool, services, report);
        }
        let addresses = services.addresses(self.naming);
        self.insert_now(
            addresses.map(|addr| Ok(self.naming.target(&addr?)?.into())),
            report,
        )
    }

    fn bind_events(&self, events: Arc<dyn PeerEq>, source: u64) -> Result<()> {
        let place = InsertContext {
            table: self.table.clone(),
            naming: self.naming,
            pool: self.pool.clone(),
            keeps_ranges: self.keeps_ranges,
            announce: announcer(&self.domain, self.index, &self.table),
        };
        let async_inserter = AsyncInserter::new(place, events, source);
        self.async_inserter.set(async_inserter).map_err(|_| {
            Error::new(Errno::EINVAL, "bind", "event queue")
                .mend("the address vector has one already")
        })
    }

    fn insert_later(
        &self,
        wanted: InsertRequest,
        user_ids: Vec<FiAddr>,
        context: u64,
        report: InsertReport,
    ) -> Result<()> {
        self.check_unkeyed()?;
        self.begin(wanted, None, user_ids, context, report)
    }

    fn insert_later_with_keys(
        &self,
        wanted: InsertRequest,
        handles: &[FiAddr],
        context: u64,
        report: InsertReport,
    ) -> Result<()> {
        let keys = self.keys_of(handles)?;
        self.begin(wanted, Some(keys), Vec::new(), context, report)
    }

    fn insert_all_with_keys(
        &self,
        names: &mut dyn Iterator<Item = (&[u8], FiAddr)>,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        self.insert_now_with_keys(names, report)
    }

    fn insert_services_with_keys(
        &self,
        services: &Services,
        handles: &[FiAddr],
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        self.insert_services_now_with_keys(services, handles, report)
    }

    fn insert_auth_key(&self, key: &[u8]) -> Result<FiAddr> {
        self.insert_auth_key_bytes(key)
    }

    fn lookup_auth_key(&self, addr: FiAddr) -> Result<AuthKey> {
        self.lookup_auth_key_of(addr)
    }

    fn remove_auth_key(&self, handle: FiAddr) -> Result<()> {
        let keys = self.auth_keys("remove")?;
        self.domain.admit_to("remove from", "address vector")?;
        keys.remove(handle)
    }

    fn remove(&self, addr: FiAddr) -> Result<()> {
        self.domain.admit_to("remove from", "address vector")?;
        let lock = || self.domain.lock_to("remove from", "address vector");
        self.table.remove_and_notify(addr, lock, |state, again| {
            match self.table.is_shared() {
                true => {
                    state.follow();
                    // Generations are compared: another thread may have reused the entry since.
                    state.settle_unresolved();
                }
                false => {
                    state.retract(self.index, addr);
                    state.fail_unresolved(self.index, addr);
                }
            }
            if again.is_some() {
                state.announce_new(self.index, again);
            }
            // The address of a send that waits for capacity may be gone.
            state.may_have_capacity = true;
            self.domain.wake(state);
        })
    }

    fn lookup(&self, addr: FiAddr) -> Result<NativeAddr> {
        // The table needs no lock, but a domain with one thread refuses all others.
        self.domain.admit_to("look up in", "address vector")?;
        let found = self.table.name(addr);
        let found = found.map_or_else(|| self.resolve_entry(addr), Ok);
        self.pool.as_ref().inspect(|pool| pool.catch_up());
        found
    }

    fn lookup_all(
        &self,
        addrs: &[FiAddr],
        report: &mut dyn FnMut(usize, Result<NativeAddr>),
    ) -> Result<()> {
        self.domain.admit_to("look up in", "address vector")?;
        self.table.lookup_all(addrs, |number, found| {
            report(
                number,
                found.map_or_else(|| self.resolve_entry(addrs[number]), Ok),
            );
        });
        self.pool.as_ref().inspect(|pool| pool.catch_up());
        Ok(())
    }

    fn address(&self, addr: FiAddr) -> Result<Address> {
        self.domain.admit_to("look up in", "address vector")?;
        let format = self.naming.format;
        let keeps_sockets = self.naming.keeps_sockets();
        let socket = keeps_sockets.then(|| self.table.socket(addr)).flatten();
        if let Some(at) = socket.and_then(|at| Address::of_socket(at, format)) {
            return Ok(at);
        }
        let name = self.lookup(addr)?;
        if let Some(keyed) = self.inserted(addr) {
            return Ok(Address::Keyed(keyed));
        }
        Ok(Address::of_endpoint(name, format).unwrap_or(Address::Native(name)))
    }

    fn set_auth_key_user_id(&self, handle: FiAddr, id: FiAddr) -> Result<()> {
        let keys = self.auth_keys("set the ID of")?;
        if !self.table.has_user_ids() {
            return Err(
                Error::new(Errno::EINVAL, "set the ID of", "authorization key")
                    .mend("open the address vector for IDs of your own"),
            );
        }
        keys.set_user_id(handle, id)
    }

    fn set_user_id(&self, addr: FiAddr, id: FiAddr) -> Result<()> {
        if !self.table.has_user_ids() {
            return Err(
                Error::new(Errno::EINVAL, "set the ID of", format!("{addr:?}"))
                    .mend("open the address vector for IDs of your own"),
            );
        }
        self.table.set_user_id(addr, id)
    }

    fn tag_inserted(&self, addr: FiAddr, id: FiAddr) -> Result<()> {
        self.check_unkeyed()?;
        if self.table.has_user_ids() {
            return Err(
                Error::new(Errno::EINVAL, "set the ID of", format!("{addr:?}"))
                    .mend("the address vector is one for IDs: they are set one by one"),
            );
        }
        self.table.tag(addr, id)
    }

    fn id(&self) -> ObjectId {
        ObjectId {
            domain: self.domain.id(),
            index: self.index,
        }
    }
}

impl<B: Backend> AvHandle<B> {
    fn start_pool(&self) -> Result<()> {
        self.pool.as_ref().map_or(Ok(()), |pool| pool.start())
    }

    fn begin(
        &self,
        wanted: InsertRequest,
        keys: RequestKeys,
        user_ids: Vec<FiAddr>,
        context: u64,
        report: InsertReport,
    ) -> Result<()> {
        let into = |errno| Error::new(errno, "insert into", "address vector");
        if !self.asynchronous {
            return Err(into(Errno::EINVAL).mend("it was not opened for events"));
        }
        let Some(async_inserter) = self.async_inserter.get() else {
            return Err(into(Errno::ENOEQ).mend("bind an event queue first"));
        };
        if !user_ids.is_empty() && self.table.has_user_ids() {
            return Err(into(Errno::EINVAL).mend("its IDs are set one by one"));
        }
        async_inserter.begin(wanted, keys, user_ids, context, report)
    }

    fn check_synchronous(&self) -> Result<()> {
        match self.asynchronous {
            false => Ok(()),
            true => Err(Error::new(Errno::EINVAL, "insert into", "address vector")
                .mend("it was opened for events: its insertions are asynchronous")),
        }
    }

    /// Inserts a range, whose endpoints are resolved at their use.
    fn insert_range(
        &self,
        pool: &ResolverPool,
        range: &Services,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        self.check_synchronous()?;
        self.domain.admit_to("insert into", "address vector")?;
        let mut nodes = range.nodes(&self.naming, &|| false)?;
        admit_nodes(&mut nodes, pool.resolver());
        let _calls = self.calls.lock();
        pool.start()?;
        let runs = self.table.insertion()?.insert_range(&nodes, &[]);
        let mut inserted = 0;
        for (number, placed) in self.table.outcomes(runs).enumerate() {
            inserted += usize::from(placed.is_ok());
            report(number, placed);
        }
        Ok(inserted)
    }

    /// The endpoint of an address without a native address. Starts the resolution of an unresolved
    /// entry.
    #[cold]
    fn resolve_entry(&self, addr: FiAddr) -> Result<NativeAddr> {
        let no = |errno| Error::new(errno, "look up", format!("{addr:?}"));
        let absent = || no(Errno::EINVAL).mend("it is not in this address vector");
        match self.table.resolve_for_lookup(addr) {
            None => Err(absent()),
            Some(Unresolved::Resolved) => self.table.name(addr).ok_or_else(absent),
            Some(Unresolved::Resolving(_)) => Err(no(Errno::EAGAIN).mend("it is being resolved")),
            Some(Unresolved::Failed(errno)) => {
                Err(no(errno).mend("nobody was found at its socket address"))
            }
            Some(Unresolved::Same(first)) => self.table.name(first).ok_or_else(absent),
        }
    }

    pub(super) fn insert_now(
        &self,
        sought: impl Iterator<Item = Result<ParsedAddr>>,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize> {
        self.check_synchronous()?;
        self.domain.admit_to("insert into", "address vector")?;
        let _calls = self.calls.lock();
        let resolver = self.pool.as_ref().map(|pool| pool.resolver());
        let admitted = sought.map(|one| {
            let sought = admit(one?, resolver)?;
            if sought.target.endpoint().is_none() {
                self.start_pool()?;
            }
            Ok(sought)
        });
        let mut found = admitted.enumerate();
        let mut chunk = Vec::with_capacity(found.size_hint().0.min(INSERT_BATCH));
        let mut new = Vec::new();
        let mut outcomes = Vec::new();
        let mut paused: Option<Paused<'_>> = None;
        let mut inserted = 0;
        loop {
            // Without the turn of the table: the iterator may block.
            chunk.extend(found.by_ref().take(INSERT_BATCH));
            let is_last = chunk.len() < INSERT_BATCH;
            let begun = match paused.take() {
                None => Ok(self.table.insertion()?),
                Some(paused) => paused.resume(),
            };
            let mut insertion = match begun {
                Ok(insertion) => insertion,
                Err(error) => {
                    let rest = chunk.drain(..).chain(found);
                    rest.for_each(|(number, _)| report(number, Err(error.clone())));
                    return Ok(inserted);
                }
            };
            if chunk.len() > 1 {
                let names = chunk.iter().filter_map(|(_, one)| one.as_ref().ok());
                insertion.expect(names.filter_map(|sought| sought.target.endpoint()));
            }
            for (number, one) in chunk.drain(..) {
                let placed = insertion.enter(one, None);
                inserted += usize::from(placed.is_ok());
                new.extend(placed.as_ref().ok().filter(|p| p.new).map(|p| p.addr));
                outcomes.push((number, placed.map(|placed| placed.addr)));
            }
            match is_last {
                true => drop(insertion),
                false => paused = Some(insertion.pause()),
            }
            // Without the turn of the table: the caller's report may need it, or the lock of the
            // domain. And before the announcement to transports, since the report may set IDs.
            for (number, placed) in outcomes.drain(..) {
                report(number, placed);
            }
            if self.table.is_awaited() {
                self.announce(&new)?;
            }
            new.clear();
            if is_last {
                return Ok(inserted);
            }
        }
    }

    /// Announces new addresses to the transports.
    #[cold]
    fn announce(&self, new: &[FiAddr]) -> Result<()> {
        let at_once = match self.table.is_shared() {
            true => usize::MAX,
            false => ANNOUNCE_BATCH,
        };
        for some in new.chunks(at_once) {
            let mut guard = self.domain.lock_to("insert into", "address vector")?;
            let state = &mut *guard;
            match self.table.is_shared() {
                true => state.follow(),
                false => (some.iter()).for_each(|addr| state.announce_new(self.index, *addr)),
            }
            if !state.has_unknown_sources(self.index) {
                self.table.unsubscribe_from_sources();
            }
            // An insertion has the table, and sends to unresolved addresses wait for that.
            state.may_have_capacity = true;
            self.domain.wake(state);
            guard.hand_over();
        }
        Ok(())
    }
}

impl<B: Backend> Drop for AvHandle<B> {
    fn drop(&mut self) {
        // Its threads defer tasks to the domain until they have ended.
        drop(self.async_inserter.take());
        drop(self.pool.take());
        self.domain.close(ObjectKey::Av(self.index));
    }
}
