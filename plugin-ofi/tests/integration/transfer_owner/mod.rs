//! An owner of a collective peer (fi_peer(3), `FI_PEER_TRANSFER`): a provider in small, whose
//! endpoints send the peer's messages by endpoints of the provider under test.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ferro_fi::abi::{
    FI_ADDR_NOTAVAIL, FI_COLLECTIVE, FI_DELIVERY_COMPLETE, FI_EAVAIL, FI_EINVAL, FI_ENABLE,
    FI_PEER, FI_PEER_TRANSFER, FI_READ, FI_RECV, FI_SEND, FI_SYMMETRIC, fi_addr_t, fi_av_attr,
    fi_av_type, fi_cntr_attr, fi_cq_attr, fi_cq_err_entry, fi_cq_tagged_entry, fi_eq_attr,
    fi_eq_entry, fi_eq_err_entry, fi_msg_tagged, fi_ops, fi_ops_av_owner, fi_ops_cq, fi_ops_ep,
    fi_ops_eq, fi_ops_tagged, fi_ops_transfer_peer, fi_peer_av_context, fi_peer_domain_context,
    fi_peer_transfer_context, fid, fid_av, fid_av_set, fid_cq, fid_domain, fid_ep, fid_eq,
    fid_fabric, fid_mc, fid_peer_av,
};

use crate::client::{Info, Libfabric, Opened, close};
use crate::owner::events::OwnerEvents;
use crate::owner::{OwnerQueue, drive};
use crate::ranks::{Rank, Ranks};
use crate::two::{EAGAIN, Side, name_of, shape};

/// The bit by which the owner knows transfers.
const MARK: u64 = 1 << 63;

/// The offer of a collective peer.
pub fn offer(libfabric: &Libfabric) -> Result<Info<'_>, c_int> {
    let hints = libfabric.hints();
    // SAFETY: hints have all attributes.
    unsafe {
        (*hints.info).caps = FI_PEER | FI_COLLECTIVE;
        (*hints.info).mode = FI_PEER_TRANSFER;
    }
    libfabric.ask(libfabric.version, None, None, 0, Some(&hints))
}

/// The peer's fabric and its domain.
pub struct PeerDomain {
    pub fabric: *mut fid_fabric,
    pub domain: *mut fid_domain,
}

impl PeerDomain {
    /// Opens both, for the owner of a domain.
    pub fn open(info: &Info<'_>, owner: *mut fid_domain) -> Self {
        let (mut fabric, mut domain) = (null_mut(), null_mut());
        let mut context = fi_peer_domain_context {
            size: size_of::<fi_peer_domain_context>(),
            domain: owner,
        };
        // SAFETY: as the manual pages have it.
        unsafe {
            let attr = (*info.info).fabric_attr;
            assert_eq!(info.open_fabric(attr, &raw mut fabric), 0);
            let context = (&raw mut context).cast();
            let opened = call!(
                fabric,
                ops.domain2(info.info, &raw mut domain, FI_PEER, context)
            );
            assert_eq!(opened, 0);
        }
        Self { fabric, domain }
    }

    /// `fi_endpoint` with the context of an owner's transfers.
    pub fn endpoint(
        &self,
        info: &Info<'_>,
        context: *mut fi_peer_transfer_context,
    ) -> Result<*mut fid_ep, c_int> {
        let (mut ep, domain) = (null_mut(), self.domain);
        // SAFETY: as fi_peer(3) has it; a context that the test spoils is to be refused.
        match unsafe { call!(domain, ops.endpoint(info.info, &raw mut ep, context.cast())) } {
            0 => Ok(ep),
            error => Err(error),
        }
    }
}

/// An endpoint of the owner's, with all that it lends. It stays where it is.
pub struct OwnerRank {
    /// The application's queues, which make progress when they are read.
    cq: fid_cq,
    eq: fid_eq,
    /// The objects that are lent.
    pub transfers: fid_ep,
    pub vector: fid_peer_av,
    pub queue: Box<OwnerQueue>,
    pub events: Box<OwnerEvents>,
    /// The endpoint for messages, and its address.
    pub main: Side,
    own: AtomicU64,
    /// The peer's objects.
    pub peer_ep: *mut fid_ep,
    pub peer_cq: *mut fid_cq,
    pub peer_eq: *mut fid_eq,
    pub reports: *mut fi_ops_transfer_peer,
    /// So many transfers are refused for lack of room, and all others with them up to the next
    /// progress. The peer is driven in each call that is refused.
    pub refusals: AtomicUsize,
    is_full: AtomicBool,
    /// The context of the last transfer that was refused.
    pub refused: AtomicUsize,
    /// Messages that end when they are received are refused (`FI_DELIVERY_COMPLETE`).
    pub has_no_delivery: AtomicBool,
    /// The ends of receives that fail are not reported, as by an owner to which no receive fails
    /// where its sender is gone.
    pub hides_failed_receives: AtomicBool,
    /// The number of those messages so far.
    pub deliveries: AtomicUsize,
    /// The number of messages that end when they are sent.
    pub sends: AtomicUsize,
    failed: Mutex<VecDeque<fi_cq_err_entry>>,
    failed_joins: Mutex<VecDeque<fi_eq_err_entry>>,
}

static FID: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(nothing),
    bind: None,
    control: None,
    ops_open: None,
    tostr: None,
    ops_set: None,
};

static CQ: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read_entry),
    readfrom: None,
    readerr: Some(read_error),
    sread: None,
    sreadfrom: None,
    signal: None,
    strerror: None,
};

static EQ: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read_event),
    readerr: Some(read_failed_event),
    write: None,
    sread: None,
    strerror: None,
};

static VECTOR: fi_ops_av_owner = fi_ops_av_owner {
    size: size_of::<fi_ops_av_owner>(),
    query: Some(query),
    ep_addr: Some(own_address),
};

/// The tables of the lent endpoint.
struct LentTables {
    tagged: fi_ops_tagged,
    ep: fi_ops_ep,
}

fn tables() -> &'static LentTables {
    Box::leak(Box::new(LentTables {
        tagged: fi_ops_tagged {
            size: size_of::<fi_ops_tagged>(),
            recvmsg: Some(receive),
            sendmsg: Some(send),
            ..fi_ops_tagged::default()
        },
        ep: fi_ops_ep {
            size: size_of::<fi_ops_ep>(),
            cancel: Some(cancel),
            ..fi_ops_ep::default()
        },
    }))
}

/// The owner of an object.
unsafe fn of<'a>(object: *const fid) -> &'a OwnerRank {
    // SAFETY: the object is one of an owner's, which stays where it is.
    unsafe { &*(*object).context.cast::<OwnerRank>() }
}

impl OwnerRank {
    /// An owner with an endpoint for messages, which has lent nothing yet.
    pub fn new(main: Side) -> Box<Self> {
        let mut this = Box::new(Self {
            cq: fid_cq::default(),
            eq: fid_eq::default(),
            transfers: fid_ep::default(),
            vector: fid_peer_av::default(),
            queue: OwnerQueue::new(),
            events: OwnerEvents::new(),
            main,
            own: AtomicU64::new(FI_ADDR_NOTAVAIL),
            peer_ep: null_mut(),
            peer_cq: null_mut(),
            peer_eq: null_mut(),
            reports: null_mut(),
            refusals: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
            refused: AtomicUsize::new(0),
            has_no_delivery: AtomicBool::new(false),
            hides_failed_receives: AtomicBool::new(false),
            deliveries: AtomicUsize::new(0),
            sends: AtomicUsize::new(0),
            failed: Mutex::default(),
            failed_joins: Mutex::default(),
        });
        let context: *mut c_void = (&raw mut *this).cast();
        let ops = (&raw const FID).cast_mut();
        for fid in [
            &mut this.cq.fid,
            &mut this.eq.fid,
            &mut this.transfers.fid,
            &mut this.vector.fid,
        ] {
            fid.context = context;
            fid.ops = ops;
        }
        this.cq.ops = (&raw const CQ).cast_mut();
        this.eq.ops = (&raw const EQ).cast_mut();
        this.vector.owner_ops = (&raw const VECTOR).cast_mut();
        let lent = tables();
        this.transfers.tagged = (&raw const lent.tagged).cast_mut();
        this.transfers.ops = (&raw const lent.ep).cast_mut();
        this
    }

    /// The context by which a peer imports the transfers, with the attributes of the endpoint.
    pub fn transfer_context(&mut self, info: &Info<'_>) -> fi_peer_transfer_context {
        fi_peer_transfer_context {
            size: size_of::<fi_peer_transfer_context>(),
            info: info.info,
            ep: &raw mut self.transfers,
            peer_ops: null_mut(),
        }
    }

    /// Opens the peer's objects, bound and enabled. Returns the peer's address vector.
    pub fn lend(&mut self, peer: &PeerDomain, offer: &Info<'_>, info: &Info<'_>) -> *mut fid_av {
        let (domain, fabric, mut av) = (peer.domain, peer.fabric, null_mut());
        let mut of_cq = fi_cq_attr {
            flags: FI_PEER,
            ..fi_cq_attr::default()
        };
        let mut of_eq = fi_eq_attr {
            flags: FI_PEER,
            ..fi_eq_attr::default()
        };
        // Those of an application's vector but for the flag of peers.
        let mut of_av = fi_av_attr {
            flags: FI_PEER | FI_READ | FI_SYMMETRIC,
            name: c"the owner's".as_ptr(),
            ..fi_av_attr::default()
        };
        let mut cq_context = self.queue.context();
        let mut eq_context = self.events.context();
        let mut av_context = fi_peer_av_context {
            size: size_of::<fi_peer_av_context>(),
            av: &raw mut self.vector,
        };
        // SAFETY: as the manual pages have it.
        let results = unsafe {
            let (cq_context, eq_context, av_context) = (
                (&raw mut cq_context).cast(),
                (&raw mut eq_context).cast(),
                (&raw mut av_context).cast(),
            );
            let (cq, eq) = (&raw mut self.peer_cq, &raw mut self.peer_eq);
            [
                call!(domain, ops.cq_open(&raw mut of_cq, cq, cq_context)),
                call!(fabric, ops.eq_open(&raw mut of_eq, eq, eq_context)),
                call!(domain, ops.av_open(&raw mut of_av, &raw mut av, av_context)),
            ]
        };
        assert_eq!(results, [0; 3]);
        let mut context = self.transfer_context(info);
        let ep = peer.endpoint(offer, &raw mut context).unwrap();
        (self.peer_ep, self.reports) = (ep, context.peer_ops);
        // SAFETY: the endpoint and the objects are open.
        let results = unsafe {
            let ops = &*(*ep).fid.ops;
            let bind = ops.bind.unwrap();
            [
                bind(ep.cast(), av.cast(), 0),
                bind(ep.cast(), self.peer_cq.cast(), FI_SEND | FI_RECV),
                bind(ep.cast(), self.peer_eq.cast(), 0),
                ops.control.unwrap()(ep.cast(), FI_ENABLE, null_mut()),
            ]
        };
        assert_eq!(results, [0; 4]);
        av
    }

    /// Reports the ends of messages, and then has the peer make progress.
    pub fn pump(&self) {
        self.is_full.store(false, Ordering::Relaxed);
        for cq in [self.main.tx, self.main.rx] {
            loop {
                let (mut entry, mut src) = (fi_cq_tagged_entry::default(), FI_ADDR_NOTAVAIL);
                // SAFETY: there is room for one; the peer's endpoint is open.
                let reported = unsafe {
                    let read = call!(cq, ops.readfrom((&raw mut entry).cast(), 1, &raw mut src));
                    match read {
                        1 => (*self.reports).complete.unwrap()(self.peer_ep, &raw mut entry, src),
                        EAGAIN => break,
                        error => {
                            assert_eq!(error, -(FI_EAVAIL as isize));
                            let mut entry = fi_cq_err_entry::default();
                            assert_eq!(call!(cq, ops.readerr(&raw mut entry, 0)), 1);
                            let is_receive = entry.flags & FI_RECV != 0;
                            if is_receive && self.hides_failed_receives.load(Ordering::Relaxed) {
                                continue;
                            }
                            (*self.reports).comperr.unwrap()(self.peer_ep, &raw mut entry)
                        }
                    }
                };
                assert_eq!(reported, 0);
            }
        }
        assert_eq!(drive(self.peer_cq), 0);
    }

    /// Whether a transfer is refused.
    fn refuses(&self, context: *mut c_void) -> bool {
        let refuse = |left: usize| left.checked_sub(1);
        let refused = (self.refusals).fetch_update(Ordering::Relaxed, Ordering::Relaxed, refuse);
        if refused.is_ok() {
            self.is_full.store(true, Ordering::Relaxed);
        }
        let is_full = self.is_full.load(Ordering::Relaxed);
        if is_full {
            self.refused.store(context.addr(), Ordering::Relaxed);
            if !self.peer_cq.is_null() {
                assert_eq!(drive(self.peer_cq), 0);
            }
        }
        is_full
    }
}

unsafe extern "C" fn nothing(_: *mut fid) -> c_int {
    0
}

unsafe extern "C" fn send(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: the endpoint is an owner's; the message is whole.
    unsafe {
        let (owner, mut msg) = (of(ep.cast()), *msg);
        assert!(flags & FI_PEER_TRANSFER != 0 && msg.tag & MARK == 0);
        if owner.refuses(msg.context) {
            return EAGAIN;
        }
        if flags & FI_DELIVERY_COMPLETE != 0 {
            owner.deliveries.fetch_add(1, Ordering::Relaxed);
            if owner.has_no_delivery.load(Ordering::Relaxed) {
                return -(FI_EINVAL as isize);
            }
        } else {
            owner.sends.fetch_add(1, Ordering::Relaxed);
        }
        msg.tag |= MARK;
        let (main, flags) = (owner.main.ep, flags & !FI_PEER_TRANSFER);
        call!(main, tagged.sendmsg(&raw const msg, flags))
    }
}

unsafe extern "C" fn receive(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: as above.
    unsafe {
        let (owner, mut msg) = (of(ep.cast()), *msg);
        assert!(flags & FI_PEER_TRANSFER != 0 && (msg.tag | msg.ignore) & MARK == 0);
        if owner.refuses(msg.context) {
            return EAGAIN;
        }
        msg.tag |= MARK;
        let (main, flags) = (owner.main.ep, flags & !FI_PEER_TRANSFER);
        call!(main, tagged.recvmsg(&raw const msg, flags))
    }
}

unsafe extern "C" fn cancel(ep: *mut fid, context: *mut c_void) -> isize {
    // SAFETY: as above.
    unsafe {
        let main = of(ep).main.ep;
        (*(*main).ops).cancel.unwrap()(main.cast(), context)
    }
}

unsafe extern "C" fn query(_av: *mut fid_peer_av, attr: *mut fi_av_attr) -> c_int {
    let found = fi_av_attr {
        type_: fi_av_type::FI_AV_TABLE,
        count: 16,
        ..fi_av_attr::default()
    };
    // SAFETY: there is room for the attributes.
    unsafe { attr.write(found) };
    0
}

unsafe extern "C" fn own_address(av: *mut fid_peer_av, ep: *mut fid_ep) -> fi_addr_t {
    // SAFETY: both are an owner's.
    unsafe {
        let owner = of(av.cast());
        assert!(std::ptr::eq(ep, &raw const owner.transfers));
        owner.own.load(Ordering::Relaxed)
    }
}

/// `fi_cq_read` of one entry.
unsafe extern "C" fn read_entry(cq: *mut fid_cq, buf: *mut c_void, _count: usize) -> isize {
    // SAFETY: the queue is an owner's.
    let owner = unsafe { of(cq.cast()) };
    if owner.failed.lock().unwrap().is_empty() {
        owner.pump();
    }
    let mut written = owner.queue.written.lock().unwrap();
    if !owner.failed.lock().unwrap().is_empty() {
        return -(FI_EAVAIL as isize);
    }
    if written.is_empty() {
        return EAGAIN;
    }
    let first = written.remove(0);
    if first.error.0 != 0 {
        owner.failed.lock().unwrap().push_back(fi_cq_err_entry {
            op_context: first.context as *mut c_void,
            flags: first.flags,
            err: first.error.0,
            ..fi_cq_err_entry::default()
        });
        return -(FI_EAVAIL as isize);
    }
    let entry = fi_cq_tagged_entry {
        op_context: first.context as *mut c_void,
        flags: first.flags,
        ..fi_cq_tagged_entry::default()
    };
    // SAFETY: there is room for one.
    unsafe { buf.cast::<fi_cq_tagged_entry>().write(entry) };
    1
}

unsafe extern "C" fn read_error(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    // SAFETY: as above.
    let failed = unsafe { of(cq.cast()) }.failed.lock().unwrap().pop_front();
    // SAFETY: there is room for one.
    unsafe { buf.write(failed.expect("an error")) };
    1
}

/// `fi_eq_read` of one event.
unsafe extern "C" fn read_event(
    eq: *mut fid_eq,
    number: *mut u32,
    buf: *mut c_void,
    _len: usize,
    _flags: u64,
) -> isize {
    // SAFETY: the queue is an owner's.
    let owner = unsafe { of(eq.cast()) };
    if owner.failed_joins.lock().unwrap().is_empty() {
        owner.pump();
    }
    let mut written = owner.events.written.lock().unwrap();
    if written.is_empty() {
        return EAGAIN;
    }
    let first = written.remove(0);
    if first.error != 0 {
        let failed = fi_eq_err_entry {
            fid: first.fid as *mut fid,
            context: first.context as *mut c_void,
            err: first.error,
            ..fi_eq_err_entry::default()
        };
        owner.failed_joins.lock().unwrap().push_back(failed);
        return -(FI_EAVAIL as isize);
    }
    let entry = fi_eq_entry {
        fid: first.fid as *mut fid,
        context: first.context as *mut c_void,
        data: first.data,
    };
    // SAFETY: there is room for both.
    unsafe {
        number.write(first.number);
        buf.cast::<fi_eq_entry>().write(entry);
    }
    size_of::<fi_eq_entry>() as isize
}

unsafe extern "C" fn read_failed_event(
    eq: *mut fid_eq,
    buf: *mut fi_eq_err_entry,
    _flags: u64,
) -> isize {
    // SAFETY: as above.
    let failed = unsafe { of(eq.cast()) }
        .failed_joins
        .lock()
        .unwrap()
        .pop_front();
    // SAFETY: there is room for one.
    unsafe { buf.write(failed.expect("an error")) };
    size_of::<fi_eq_err_entry>() as isize
}

/// Owners of one process, each with an endpoint, whose applications have the ranks.
pub struct OwnedRanks {
    pub ranks: Ranks,
    #[allow(clippy::vec_box, reason = "the peer has pointers to them")]
    pub owners: Vec<Box<OwnerRank>>,
    main: Opened,
    peer: PeerDomain,
}

impl OwnedRanks {
    pub fn open(offer: &Info<'_>, info: &Info<'_>, number: usize) -> Self {
        let main = Opened::new(info);
        let peer = PeerDomain::open(offer, main.domain);
        let sides: Vec<_> = (0..number)
            .map(|_| Side::open(&main, info, shape()))
            .collect();
        let names: Vec<_> = sides.iter().map(|side| name_of(side.ep)).collect();
        let bytes = names.concat();
        let (mut owners, mut ranks) = (Vec::new(), Vec::new());
        for (at, side) in sides.into_iter().enumerate() {
            let (mut addrs, av) = (vec![0; number], side.av);
            // SAFETY: as fi_av(3) has it.
            let inserted = unsafe {
                let (at, addrs) = (bytes.as_ptr().cast(), addrs.as_mut_ptr());
                call!(av, ops.insert(at, number, addrs, 0, null_mut()))
            };
            assert_eq!(inserted, number as c_int);
            let mut owner = OwnerRank::new(side);
            owner.own.store(addrs[at], Ordering::Relaxed);
            let av = owner.lend(&peer, offer, info);
            let (mut cntr, domain) = (null_mut(), main.domain);
            let mut of_cntr = fi_cntr_attr::default();
            // SAFETY: as fi_cntr(3) has it.
            let opened = unsafe {
                let null = null_mut();
                call!(domain, ops.cntr_open(&raw mut of_cntr, &raw mut cntr, null))
            };
            assert_eq!(opened, 0);
            ranks.push(Rank {
                ep: owner.peer_ep,
                av,
                cq: &raw mut owner.cq,
                rx_cq: None,
                eq: &raw mut owner.eq,
                cntr,
                addrs,
            });
            owners.push(owner);
        }
        let (mut eq, fabric) = (null_mut(), peer.fabric);
        let mut of_eq = fi_eq_attr::default();
        // SAFETY: as fi_eq(3) has it.
        let opened = unsafe { call!(fabric, ops.eq_open(&raw mut of_eq, &raw mut eq, null_mut())) };
        assert_eq!(opened, 0);
        Self {
            ranks: Ranks {
                opened: Opened {
                    fabric,
                    domain: peer.domain,
                    eq,
                },
                ranks,
            },
            owners,
            main,
            peer,
        }
    }

    /// Closes all objects: those of the applications, of the peer, and the owners' own.
    pub fn close(self, joined: &[(usize, *mut fid_mc, *mut fid_av_set)]) {
        let Self {
            ranks,
            owners,
            main,
            peer,
        } = self;
        let Ranks { opened, ranks } = ranks;
        for (at, rank) in ranks.into_iter().enumerate() {
            let of: Vec<_> = joined.iter().filter(|(member, ..)| *member == at).collect();
            let groups: Vec<_> = of.iter().map(|(_, group, _)| *group).collect();
            let sets: Vec<_> = of.iter().map(|(.., set)| *set).collect();
            rank.close(&groups, &sets);
        }
        for owner in owners {
            assert_eq!(close(owner.peer_cq.cast()), 0);
            assert_eq!(close(owner.peer_eq.cast()), 0);
            let OwnerRank { main, .. } = *owner;
            main.close();
        }
        for fid in [
            opened.eq.cast(),
            peer.domain.cast::<fid>(),
            peer.fabric.cast(),
        ] {
            assert_eq!(close(fid), 0);
        }
        main.close();
    }
}
