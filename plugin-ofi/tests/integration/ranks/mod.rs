//! Endpoints with collective operations in terms of C (fi_collective(3)), driven in turn.

mod deaths;
mod elements;
mod oracle;
mod processes;

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use ferro_fi::abi::{
    FI_ADDR_NOTAVAIL, FI_COLLECTIVE, FI_EAVAIL, FI_ENABLE, FI_JOIN_COMPLETE, FI_MSG, FI_RECV,
    FI_SEND, FI_TAGGED, fi_addr_t, fi_av_attr, fi_av_set_attr, fi_av_type, fi_cntr_attr,
    fi_collective_addr, fi_cq_attr, fi_cq_err_entry, fi_cq_format, fi_cq_tagged_entry, fi_datatype,
    fi_ep_type, fi_eq_attr, fi_eq_entry, fi_eq_err_entry, fi_op, fi_wait_obj, fid, fid_av,
    fid_av_set, fid_cntr, fid_cq, fid_domain, fid_ep, fid_eq, fid_mc,
};

use crate::client::{Info, Libfabric, Opened, close, owned_string};

pub use deaths::{a_rank_is_killed, a_root_is_killed};
pub use oracle::Members;
pub use processes::{RankProcess, RanksHere, in_processes};

/// The limit of a test for one step.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The first offer with collectives, of a domain or (empty) of any.
pub fn offer<'a>(libfabric: &'a Libfabric, domain: &str) -> Result<Info<'a>, c_int> {
    let hints = libfabric.hints();
    // SAFETY: hints have all attributes.
    unsafe {
        (*hints.info).caps = FI_MSG | FI_TAGGED | FI_COLLECTIVE;
        (*(*hints.info).ep_attr).type_ = fi_ep_type::FI_EP_RDM;
        if !domain.is_empty() {
            (*(*hints.info).domain_attr).name = owned_string(domain);
        }
    }
    libfabric.ask(libfabric.version, None, None, 0, Some(&hints))
}

/// An endpoint with what it is bound to.
pub struct Rank {
    pub ep: *mut fid_ep,
    pub av: *mut fid_av,
    pub cq: *mut fid_cq,
    /// A queue of receives, if it has one.
    pub rx_cq: Option<*mut fid_cq>,
    pub eq: *mut fid_eq,
    pub cntr: *mut fid_cntr,
    /// The addresses of all ranks.
    pub addrs: Vec<fi_addr_t>,
}

impl Rank {
    pub fn open(opened: &Opened, info: &Info<'_>) -> Self {
        Self::open_with(opened, info, 0)
    }

    /// With further flags for the binding of the completion queue.
    pub fn open_with(opened: &Opened, info: &Info<'_>, of_queue: u64) -> Self {
        Self::open_reporting(opened, info, of_queue, fi_eq_attr::default(), null_mut())
    }

    /// With attributes and a context of the event queue, too.
    pub fn open_reporting(
        opened: &Opened,
        info: &Info<'_>,
        of_queue: u64,
        of_eq: fi_eq_attr,
        eq_context: *mut c_void,
    ) -> Self {
        let cq = queue(opened, fi_wait_obj::FI_WAIT_UNSPEC);
        Self::open_by(opened, info, (cq, None, of_queue), (of_eq, eq_context))
    }

    /// With a queue for sends, another for receives, and descriptors to wait on.
    pub fn open_with_descriptors(opened: &Opened, info: &Info<'_>) -> Self {
        let [tx, rx] = [(); 2].map(|()| queue(opened, fi_wait_obj::FI_WAIT_FD));
        let of_eq = fi_eq_attr {
            wait_obj: fi_wait_obj::FI_WAIT_FD,
            ..fi_eq_attr::default()
        };
        Self::open_by(opened, info, (tx, Some(rx), 0), (of_eq, null_mut()))
    }

    /// With a completion queue that is there.
    pub fn open_at(opened: &Opened, info: &Info<'_>, cq: *mut fid_cq, of_queue: u64) -> Self {
        let of_eq = (fi_eq_attr::default(), null_mut());
        Self::open_by(opened, info, (cq, None, of_queue), of_eq)
    }

    fn open_by(
        opened: &Opened,
        info: &Info<'_>,
        (cq, rx_cq, of_queue): (*mut fid_cq, Option<*mut fid_cq>, u64),
        (mut of_eq, eq_context): (fi_eq_attr, *mut c_void),
    ) -> Self {
        let (domain, fabric) = (opened.domain, opened.fabric);
        let (mut ep, mut av) = (null_mut(), null_mut());
        let (mut eq, mut cntr) = (null_mut(), null_mut());
        let mut of_av = fi_av_attr {
            type_: fi_av_type::FI_AV_TABLE,
            ..fi_av_attr::default()
        };
        let mut of_cntr = fi_cntr_attr::default();
        // SAFETY: as the manual pages have it.
        let results = unsafe {
            [
                call!(domain, ops.av_open(&raw mut of_av, &raw mut av, null_mut())),
                call!(fabric, ops.eq_open(&raw mut of_eq, &raw mut eq, eq_context)),
                call!(
                    domain,
                    ops.cntr_open(&raw mut of_cntr, &raw mut cntr, null_mut())
                ),
                call!(domain, ops.endpoint(info.info, &raw mut ep, null_mut())),
            ]
        };
        assert_eq!(results, [0; 4]);
        let this = Self {
            ep,
            av,
            cq,
            rx_cq,
            eq,
            cntr,
            addrs: Vec::new(),
        };
        assert_eq!(this.bind(av.cast(), 0), 0);
        let directions = match rx_cq {
            Some(rx_cq) => {
                assert_eq!(this.bind(rx_cq.cast(), FI_RECV), 0);
                FI_SEND
            }
            None => FI_SEND | FI_RECV,
        };
        assert_eq!(this.bind(cq.cast(), directions | of_queue), 0);
        assert_eq!(this.bind(eq.cast(), 0), 0);
        assert_eq!(this.bind(cntr.cast(), FI_SEND | FI_RECV), 0);
        // SAFETY: the endpoint is open.
        let enabled =
            unsafe { (*(*ep).fid.ops).control.unwrap()(ep.cast(), FI_ENABLE, null_mut()) };
        assert_eq!(enabled, 0);
        this
    }

    fn bind(&self, to: *mut fid, flags: u64) -> c_int {
        // SAFETY: both are open.
        unsafe { (*(*self.ep).fid.ops).bind.unwrap()(self.ep.cast(), to, flags) }
    }

    /// Inserts the addresses of all ranks.
    pub fn insert(&mut self, names: &[Vec<u8>]) {
        self.addrs = vec![0; names.len()];
        let (bytes, av) = (names.concat(), self.av);
        // SAFETY: as fi_av(3) has it.
        let inserted = unsafe {
            let (at, addrs) = (bytes.as_ptr().cast(), self.addrs.as_mut_ptr());
            call!(av, ops.insert(at, names.len(), addrs, 0, null_mut()))
        };
        assert_eq!(inserted, names.len() as c_int);
    }

    /// A set of these ranks.
    pub fn set(&self, ranks: &[usize]) -> *mut fid_av_set {
        let (mut set, av) = (null_mut(), self.av);
        let mut attr = fi_av_set_attr {
            count: ranks.len(),
            start_addr: FI_ADDR_NOTAVAIL,
            end_addr: FI_ADDR_NOTAVAIL,
            ..fi_av_set_attr::default()
        };
        // SAFETY: as fi_av_set(3) has it.
        unsafe {
            assert_eq!(
                call!(av, ops.av_set(&raw mut attr, &raw mut set, null_mut())),
                0
            );
            for &rank in ranks {
                assert_eq!(call!(set, ops.insert(self.addrs[rank])), 0);
            }
        }
        set
    }

    /// `fi_join_collective`.
    pub fn join(
        &self,
        coll_addr: fi_addr_t,
        set: *mut fid_av_set,
        context: usize,
    ) -> Result<*mut fid_mc, c_int> {
        let addr = fi_collective_addr { set, coll_addr };
        let mut mc = null_mut();
        // SAFETY: as fi_collective(3) has it.
        let joined = unsafe {
            (*(*self.ep).cm).join.unwrap()(
                self.ep,
                (&raw const addr).cast(),
                FI_COLLECTIVE,
                &raw mut mc,
                context as *mut c_void,
            )
        };
        match joined {
            0 => Ok(mc),
            error => Err(error),
        }
    }

    pub fn barrier(&self, group: fi_addr_t, context: usize) -> isize {
        // SAFETY: as fi_collective(3) has it.
        unsafe { call!(self.ep, collective.barrier(group, context as *mut c_void)) }
    }

    pub fn allreduce(
        &self,
        (from, to): (&[u8], &mut [u8]),
        count: usize,
        (datatype, op): (fi_datatype, fi_op),
        group: fi_addr_t,
        context: usize,
    ) -> isize {
        let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
        let (none, context) = (null_mut(), context as *mut c_void);
        // SAFETY: as fi_collective(3) has it; the test keeps the buffers.
        unsafe {
            call!(
                self.ep,
                collective.allreduce(from, count, none, to, none, group, datatype, op, 0, context)
            )
        }
    }

    pub fn allgather(
        &self,
        (from, to): (&[u8], &mut [u8]),
        count: usize,
        datatype: fi_datatype,
        group: fi_addr_t,
        context: usize,
    ) -> isize {
        let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
        let (none, context) = (null_mut(), context as *mut c_void);
        // SAFETY: as above.
        unsafe {
            call!(
                self.ep,
                collective.allgather(from, count, none, to, none, group, datatype, 0, context)
            )
        }
    }

    pub fn scatter(
        &self,
        (from, to): (Option<&[u8]>, &mut [u8]),
        count: usize,
        datatype: fi_datatype,
        (group, root): (fi_addr_t, fi_addr_t),
        context: usize,
    ) -> isize {
        let from = from.map_or(std::ptr::null(), |from| from.as_ptr().cast());
        let (none, to, context) = (null_mut(), to.as_mut_ptr().cast(), context as *mut c_void);
        // SAFETY: as above.
        unsafe {
            call!(
                self.ep,
                collective.scatter(
                    from, count, none, to, none, group, root, datatype, 0, context
                )
            )
        }
    }

    pub fn broadcast(
        &self,
        data: &mut [u8],
        count: usize,
        datatype: fi_datatype,
        (group, root): (fi_addr_t, fi_addr_t),
        context: usize,
    ) -> isize {
        let (data, context) = (data.as_mut_ptr().cast(), context as *mut c_void);
        // SAFETY: as above.
        unsafe {
            call!(
                self.ep,
                collective.broadcast(data, count, null_mut(), group, root, datatype, 0, context)
            )
        }
    }

    /// `fi_cq_read` of one entry; `None`: nothing.
    pub fn read(&self) -> Option<fi_cq_tagged_entry> {
        let mut entry = fi_cq_tagged_entry::default();
        // SAFETY: there is room for one.
        match unsafe { call!(self.cq, ops.read((&raw mut entry).cast(), 1)) } {
            1 => Some(entry),
            error => {
                assert_eq!(error, -(libc::EAGAIN as isize));
                None
            }
        }
    }

    /// The next end of a collective, by `fi_cq_read`; `None`: nothing.
    pub fn end(&self) -> Option<Result<usize, c_int>> {
        let mut entry = fi_cq_tagged_entry::default();
        // SAFETY: there is room for one.
        let read = unsafe { call!(self.cq, ops.read((&raw mut entry).cast(), 1)) };
        self.end_of(read, &entry)
    }

    /// The same by `fi_cq_sread`, which waits.
    pub fn wait_for_end(&self) -> Option<Result<usize, c_int>> {
        let mut entry = fi_cq_tagged_entry::default();
        let limit = PATIENCE.as_millis() as c_int;
        // SAFETY: there is room for one.
        let read = unsafe {
            let at = (&raw mut entry).cast();
            call!(self.cq, ops.sread(at, 1, std::ptr::null(), limit))
        };
        self.end_of(read, &entry)
    }

    fn end_of(&self, read: isize, entry: &fi_cq_tagged_entry) -> Option<Result<usize, c_int>> {
        const NOTHING: isize = -(libc::EAGAIN as isize);
        match read {
            NOTHING => None,
            1 => {
                assert_eq!(entry.flags, FI_COLLECTIVE);
                Some(Ok(entry.op_context as usize))
            }
            error => {
                assert_eq!(error, -(FI_EAVAIL as isize));
                let mut entry = fi_cq_err_entry::default();
                // SAFETY: there is room for one.
                assert_eq!(unsafe { call!(self.cq, ops.readerr(&raw mut entry, 0)) }, 1);
                assert_eq!(entry.flags, FI_COLLECTIVE);
                Some(Err(entry.err))
            }
        }
    }

    /// The next event, which is that of a join; `None`: nothing.
    pub fn event(&self) -> Option<fi_eq_entry> {
        self.join_end().map(|end| end.expect("a join failed"))
    }

    /// The end of a join: its event, or the context and the errno of one that failed; `None`:
    /// nothing.
    pub fn join_end(&self) -> Option<Result<fi_eq_entry, (usize, c_int)>> {
        let (mut number, mut entry) = (0, fi_eq_entry::default());
        let eq = self.eq;
        // SAFETY: as fi_eq(3) has it.
        let read = unsafe {
            let at = (&raw mut entry).cast();
            call!(
                eq,
                ops.read(&raw mut number, at, size_of::<fi_eq_entry>(), 0)
            )
        };
        if read == -(FI_EAVAIL as isize) {
            let mut error = fi_eq_err_entry::default();
            // SAFETY: as above.
            let read = unsafe { call!(eq, ops.readerr(&raw mut error, 0)) };
            assert_eq!(read, size_of::<fi_eq_err_entry>() as isize);
            return Some(Err((error.context as usize, error.err)));
        }
        if read == -(libc::EAGAIN as isize) {
            return None;
        }
        assert_eq!(
            (read, number),
            (size_of::<fi_eq_entry>() as isize, FI_JOIN_COMPLETE)
        );
        Some(Ok(entry))
    }

    /// Closes all objects, with these groups and sets first.
    pub fn close(self, groups: &[*mut fid_mc], sets: &[*mut fid_av_set]) {
        for &group in groups {
            assert_eq!(close(group.cast()), 0);
        }
        for fid in [
            self.ep.cast(),
            self.cq.cast(),
            self.cntr.cast(),
            self.eq.cast(),
        ] {
            assert_eq!(close(fid), 0);
        }
        (self.rx_cq.into_iter()).for_each(|cq| assert_eq!(close(cq.cast()), 0));
        for &set in sets {
            assert_eq!(close(set.cast()), 0);
        }
        assert_eq!(close(self.av.cast()), 0);
    }
}

/// A completion queue.
fn queue(opened: &Opened, wait_obj: fi_wait_obj) -> *mut fid_cq {
    let (mut cq, domain) = (null_mut(), opened.domain);
    let mut attr = fi_cq_attr {
        format: fi_cq_format::FI_CQ_FORMAT_TAGGED,
        wait_obj,
        ..fi_cq_attr::default()
    };
    // SAFETY: as fi_cq(3) has it.
    let result = unsafe { call!(domain, ops.cq_open(&raw mut attr, &raw mut cq, null_mut())) };
    assert_eq!(result, 0);
    cq
}

/// `fi_mc_addr`.
pub fn address_of(group: *mut fid_mc) -> fi_addr_t {
    // SAFETY: the group is open.
    unsafe { (*group).fi_addr }
}

/// Ranks of one process and one domain.
pub struct Ranks {
    pub opened: Opened,
    pub ranks: Vec<Rank>,
}

impl Ranks {
    pub fn open(info: &Info<'_>, number: usize) -> Self {
        let opened = Opened::new(info);
        let mut ranks: Vec<_> = (0..number).map(|_| Rank::open(&opened, info)).collect();
        let names: Vec<_> = ranks
            .iter()
            .map(|rank| crate::two::name_of(rank.ep))
            .collect();
        ranks.iter_mut().for_each(|rank| rank.insert(&names));
        Self { opened, ranks }
    }

    /// Has these ranks join a group of these members, and waits for all.
    pub fn join(
        &self,
        members: &[usize],
        parent: Option<&[*mut fid_mc]>,
    ) -> Vec<(*mut fid_mc, *mut fid_av_set)> {
        let joined: Vec<_> = (members.iter().enumerate())
            .map(|(at, &member)| {
                let rank = &self.ranks[member];
                let set = rank.set(members);
                let mut addr = 0;
                // SAFETY: the set is open.
                assert_eq!(unsafe { call!(set, ops.addr(&raw mut addr)) }, 0);
                if let Some(parent) = parent {
                    addr = address_of(parent[at]);
                }
                (rank.join(addr, set, 1000 + at).unwrap(), set)
            })
            .collect();
        let mut missing: BTreeSet<usize> = (0..members.len()).collect();
        self.until("a join", || {
            for (at, &member) in members.iter().enumerate() {
                if let Some(event) = self.ranks[member].event() {
                    assert_eq!(event.context as usize, 1000 + at);
                    assert!(missing.remove(&at));
                }
            }
            missing.is_empty()
        });
        joined
    }

    /// The members of a group of the first ranks.
    pub fn members(&self, joined: &[(*mut fid_mc, *mut fid_av_set)]) -> Members<'_> {
        let member = |(rank, &(group, _)): (usize, &(*mut fid_mc, _))| {
            (rank, &self.ranks[rank], address_of(group))
        };
        let here = joined.iter().enumerate().map(member).collect();
        Members::new(joined.len(), here)
    }

    /// Drives until something holds.
    pub fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < until, "never: {what}");
        }
    }

    /// Waits until each of these ranks has the completion of one collective with this context.
    pub fn complete(&self, members: &[usize], context: usize) {
        let mut missing: BTreeSet<usize> = members.iter().copied().collect();
        let until = Instant::now() + PATIENCE;
        while !missing.is_empty() {
            for &member in members {
                if let Some(entry) = self.ranks[member].read() {
                    let got = (entry.op_context as usize, entry.flags);
                    assert_eq!(got, (context, FI_COLLECTIVE));
                    assert!(missing.remove(&member), "twice");
                }
            }
            assert!(
                Instant::now() < until,
                "not complete: {context} at {missing:?}"
            );
        }
    }

    /// Closes all objects.
    pub fn close(self, joined: &[(usize, *mut fid_mc, *mut fid_av_set)]) {
        for (at, rank) in self.ranks.into_iter().enumerate() {
            let of = |&&(member, ..): &&(usize, *mut fid_mc, *mut fid_av_set)| member == at;
            let groups: Vec<_> = joined
                .iter()
                .filter(of)
                .map(|&(_, group, _)| group)
                .collect();
            let sets: Vec<_> = joined.iter().filter(of).map(|&(.., set)| set).collect();
            rank.close(&groups, &sets);
        }
        self.opened.close();
    }
}

/// Whether a domain has a collective for elements of a type (`fi_query_collective`).
pub fn reduces(domain: *mut fid_domain, datatype: fi_datatype, op: fi_op) -> bool {
    use ferro_fi::abi::{fi_collective_attr, fi_collective_op};
    let mut attr = fi_collective_attr {
        op,
        datatype,
        datatype_attr: ferro_fi::abi::fi_atomic_attr::default(),
        max_members: 0,
        mode: 0,
    };
    let coll = fi_collective_op::FI_ALLREDUCE;
    // SAFETY: the domain is open.
    unsafe { call!(domain, ops.query_collective(coll, &raw mut attr, 0)) == 0 }
}
