//! An owner's shared receive context: receives that the tests post, entries that stand for
//! messages, and a plain list for both. It is written to fi_peer(3), in the layout of the libfabric
//! that is there.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;

use ferro_fi::abi::{
    FI_ADDR_UNSPEC, FI_COMPLETION, FI_MSG, FI_RECV, FI_TAGGED, FI_VERSION, fi_addr_t,
    fi_ops_srx_owner, fi_ops_srx_peer, fi_peer_match_attr, fi_peer_rx_entry, fi_peer_srx_context,
    fid_peer_srx,
};

/// A shared receive context.
#[repr(C)]
pub struct ReceiveOwner {
    pub peer: fid_peer_srx,
    ops: fi_ops_srx_owner,
    /// Bytes in front of the fields of an entry.
    links: usize,
    state: Mutex<OwnerState>,
    /// Called at the beginning of each callback of the provider.
    pub within: Mutex<Option<Watch>>,
}

/// A function that is called in the provider's calls.
pub type Watch = Box<dyn FnMut(Callback) + Send>;

/// A call of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callback {
    Get,
    Queue(EntryAt),
    Free,
}

#[derive(Default)]
struct OwnerState {
    posted: VecDeque<Box<OwnerEntry>>,
    /// Handed out with a receive.
    started: VecDeque<Box<OwnerEntry>>,
    /// Handed out without one, not queued yet.
    offered: VecDeque<Box<OwnerEntry>>,
    queued: VecDeque<Box<OwnerEntry>>,
    freed: usize,
    /// So many calls fail before one does not.
    refused_gets: usize,
    refused_queues: usize,
}

/// An entry, with room for the links of old libfabrics in front.
#[repr(C)]
struct OwnerEntry {
    links: [*mut c_void; 2],
    fields: UnsafeCell<fi_peer_rx_entry>,
    tagged: bool,
    /// Matched source, tag and the bits of it that do not count.
    src: fi_addr_t,
    ignore: u64,
    iov: Vec<libc::iovec>,
}

// SAFETY: the tests keep the memory that the entries lead to, and lock the lists of them.
unsafe impl Send for OwnerEntry {}

/// The place of an entry, as providers have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryAt(pub *mut fi_peer_rx_entry);

// SAFETY: a number to the tests.
unsafe impl Send for EntryAt {}

impl OwnerEntry {
    fn new(tagged: bool) -> Box<Self> {
        let flags = FI_RECV | if tagged { FI_TAGGED } else { FI_MSG };
        let mut entry = Box::new(Self {
            links: [NonNull::dangling().as_ptr(); 2],
            fields: UnsafeCell::default(),
            tagged,
            src: FI_ADDR_UNSPEC,
            ignore: 0,
            iov: Vec::new(),
        });
        entry.fields.get_mut().flags = flags;
        entry
    }

    /// Gives it the buffers and the context of a receive that reports a completion.
    fn fill(&mut self, mut iov: Vec<libc::iovec>, context: *mut c_void) {
        let fields = self.fields.get_mut();
        (fields.iov, fields.count) = (iov.as_mut_ptr(), iov.len());
        fields.context = context;
        fields.flags |= FI_COMPLETION;
        self.iov = iov;
    }

    /// As providers have it: where the links begin, or the fields.
    fn at(&self, links: usize) -> *mut fi_peer_rx_entry {
        self.fields.get().wrapping_byte_sub(links)
    }

    fn takes(&self, tagged: bool, attr: &fi_peer_match_attr) -> bool {
        // SAFETY: nobody writes to a posted entry.
        let tag = unsafe { (*self.fields.get()).tag };
        self.tagged == tagged
            && (tag | self.ignore) == (attr.tag | self.ignore)
            && (self.src == FI_ADDR_UNSPEC || self.src == attr.addr)
    }
}

/// A receive of the application's.
pub struct OwnersReceive<'a> {
    pub tagged: bool,
    pub src: fi_addr_t,
    pub tag: u64,
    pub ignore: u64,
    pub context: usize,
    /// It is for no completion.
    pub is_silent: bool,
    pub iov: &'a [libc::iovec],
}

/// A list of one buffer.
pub fn iov_of(memory: &mut [u8]) -> [libc::iovec; 1] {
    [libc::iovec {
        iov_base: memory.as_mut_ptr().cast(),
        iov_len: memory.len(),
    }]
}

impl ReceiveOwner {
    /// For a libfabric of that version.
    pub fn new(version: u32) -> Box<Self> {
        let mut owner = Box::new(Self {
            peer: fid_peer_srx::default(),
            ops: fi_ops_srx_owner {
                size: size_of::<fi_ops_srx_owner>(),
                get_msg: Some(get_msg),
                get_tag: Some(get_tag),
                queue_msg: Some(queue),
                queue_tag: Some(queue),
                foreach_unspec_addr: Some(update_sources),
                free_entry: Some(free),
            },
            links: if version < FI_VERSION(2, 3) { 16 } else { 0 },
            state: Mutex::default(),
            within: Mutex::default(),
        });
        owner.peer.owner_ops = &raw mut owner.ops;
        owner
    }

    pub fn context(&self) -> fi_peer_srx_context {
        fi_peer_srx_context {
            size: size_of::<fi_peer_srx_context>(),
            srx: (&raw const self.peer).cast_mut(),
        }
    }

    pub fn provider(&self) -> &fi_ops_srx_peer {
        // SAFETY: the provider has set it when its context was opened.
        unsafe { &*self.peer.peer_ops }
    }

    /// So many calls of the provider fail.
    pub fn refuse(&self, gets: usize, queues: usize) {
        let mut state = self.state.lock().unwrap();
        (state.refused_gets, state.refused_queues) = (gets, queues);
    }

    /// Posts a receive, or starts the oldest queued message that it takes.
    pub fn receive(&self, receive: &OwnersReceive<'_>) {
        let mut state = self.state.lock().unwrap();
        let taken = state.queued.iter().position(|entry| {
            // SAFETY: the owner has the entry.
            let fields = unsafe { &*entry.fields.get() };
            entry.tagged == receive.tagged
                && (fields.tag | receive.ignore) == (receive.tag | receive.ignore)
                && (receive.src == FI_ADDR_UNSPEC || receive.src == fields.addr)
        });
        let mut entry = match taken {
            Some(at) => state.queued.remove(at).unwrap(),
            None => OwnerEntry::new(receive.tagged),
        };
        entry.src = receive.src;
        entry.ignore = receive.ignore;
        entry.fill(receive.iov.to_vec(), receive.context as *mut c_void);
        if receive.is_silent {
            entry.fields.get_mut().flags &= !FI_COMPLETION;
        }
        if taken.is_none() {
            entry.fields.get_mut().tag = receive.tag;
            state.posted.push_back(entry);
            return;
        }
        let at = entry.at(self.links);
        state.started.push_back(entry);
        drop(state);
        self.start(receive.tagged, at);
    }

    fn start(&self, tagged: bool, at: *mut fi_peer_rx_entry) {
        let start = match tagged {
            true => self.provider().start_tag,
            false => self.provider().start_msg,
        };
        // SAFETY: as fi_peer(3) has it.
        assert_eq!(unsafe { start.unwrap()(at) }, 0);
    }

    /// Starts a queued entry of a tagged message, as a receive of nothing.
    pub fn start_queued(&self, at: EntryAt) -> c_int {
        let mut state = self.state.lock().unwrap();
        let links = self.links;
        let of = |entry: &OwnerEntry| entry.at(links) == at.0;
        if let Some(position) = state.queued.iter().position(|entry| of(entry)) {
            let entry = state.queued.remove(position).unwrap();
            state.started.push_back(entry);
        }
        drop(state);
        // SAFETY: as fi_peer(3) has it, the first time.
        unsafe { self.provider().start_tag.unwrap()(at.0) }
    }

    /// Drops the message of the oldest queued entry, a tagged one, and the entry with it.
    pub fn discard_queued(&self) {
        let entry = self.state.lock().unwrap().queued.pop_front().unwrap();
        // SAFETY: as fi_peer(3) has it.
        let discarded = unsafe { self.provider().discard_tag.unwrap()(entry.at(self.links)) };
        assert_eq!(discarded, 0);
        // SAFETY: the owner has the entry. Its memory may be anything now.
        unsafe { entry.fields.get().write_bytes(0xDD, 1) };
    }

    /// Takes the oldest queued entry out, for the test to misuse, and forgets it.
    pub fn take_queued(&self) -> Option<EntryAt> {
        let entry = self.state.lock().unwrap().queued.pop_front()?;
        Some(EntryAt(Box::leak(entry).at(self.links)))
    }

    /// An entry of nobody, with a provider's number for it. It is there for ever.
    pub fn foreign_entry(number: usize) -> *mut fi_peer_rx_entry {
        let mut entry = OwnerEntry::new(true);
        let fields = entry.fields.get_mut();
        fields.peer_context = number as *mut c_void;
        // In either layout.
        let at = Box::leak(entry).at(0);
        // SAFETY: the next field is room of the entry, too.
        unsafe { (*at.byte_add(16)).peer_context = number as *mut c_void };
        at
    }

    /// The provider's number for an entry.
    pub fn number_of(&self, at: EntryAt) -> usize {
        // SAFETY: the entry is there.
        unsafe { (*at.0.wrapping_byte_add(self.links)).peer_context.addr() }
    }

    /// The number of queued entries, and the source of the oldest.
    pub fn queued(&self) -> (usize, Option<fi_addr_t>) {
        let state = self.state.lock().unwrap();
        // SAFETY: the owner has the entry.
        let source = |entry: &OwnerEntry| unsafe { (*entry.fields.get()).addr };
        let oldest = state.queued.front();
        (state.queued.len(), oldest.map(|entry| source(entry)))
    }

    /// Entries that the provider has, and those that it has given back.
    pub fn outstanding(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap();
        (state.started.len() + state.offered.len(), state.freed)
    }

    fn call(&self, callback: Callback) {
        let within = self.within.lock().unwrap().take();
        if let Some(mut within) = within {
            within(callback);
            self.within.lock().unwrap().get_or_insert(within);
        }
    }

    fn get(&self, tagged: bool, attr: &fi_peer_match_attr) -> (c_int, *mut fi_peer_rx_entry) {
        self.call(Callback::Get);
        let mut state = self.state.lock().unwrap();
        if let Some(left) = state.refused_gets.checked_sub(1) {
            state.refused_gets = left;
            return (-libc::ENOMEM, null_mut());
        }
        let found = (state.posted.iter()).position(|entry| entry.takes(tagged, attr));
        let mut entry = match found {
            Some(at) => state.posted.remove(at).unwrap(),
            None => OwnerEntry::new(tagged),
        };
        let srx = (&raw const self.peer).cast_mut();
        let fields = entry.fields.get_mut();
        (fields.srx, fields.addr, fields.msg_size) = (srx, attr.addr, attr.msg_size);
        if found.is_none() {
            fields.tag = attr.tag;
        }
        let at = entry.at(self.links);
        match found {
            Some(_) => state.started.push_back(entry),
            None => state.offered.push_back(entry),
        }
        let answer = if found.is_some() { 0 } else { -libc::ENOENT };
        (answer, at)
    }

    fn queue(&self, at: *mut fi_peer_rx_entry) -> c_int {
        let mut state = self.state.lock().unwrap();
        if let Some(left) = state.refused_queues.checked_sub(1) {
            state.refused_queues = left;
            return -libc::ENOMEM;
        }
        let links = self.links;
        let of = |entry: &OwnerEntry| entry.at(links) == at;
        let position = state.offered.iter().position(|entry| of(entry));
        let offered = position.and_then(|position| state.offered.remove(position));
        let mut entry = offered.expect("an entry that was handed out");
        let fields = entry.fields.get_mut();
        let attr = fi_peer_match_attr {
            addr: fields.addr,
            msg_size: fields.msg_size,
            tag: fields.tag,
        };
        // Another thread may have posted a receive since the provider got the entry.
        let tagged = entry.tagged;
        let posted = (state.posted.iter()).position(|posted| posted.takes(tagged, &attr));
        let Some(posted) = posted.and_then(|at| state.posted.remove(at)) else {
            state.queued.push_back(entry);
            drop(state);
            self.call(Callback::Queue(EntryAt(at)));
            return 0;
        };
        let OwnerEntry { iov, fields, .. } = *posted;
        entry.fill(iov, fields.into_inner().context);
        state.started.push_back(entry);
        drop(state);
        self.start(tagged, at);
        0
    }

    fn free(&self, at: *mut fi_peer_rx_entry) {
        self.call(Callback::Free);
        let mut state = self.state.lock().unwrap();
        state.freed += 1;
        let links = self.links;
        let of = |entry: &OwnerEntry| entry.at(links) == at;
        if let Some(position) = state.started.iter().position(|entry| of(entry)) {
            state.started.remove(position);
            return;
        }
        let position = state.offered.iter().position(|entry| of(entry));
        state
            .offered
            .remove(position.expect("an entry of the provider's"));
    }
}

/// The owner of a context.
unsafe fn owner_of<'a>(srx: *mut fid_peer_srx) -> &'a ReceiveOwner {
    // SAFETY: the context is the first field of a `ReceiveOwner`.
    unsafe { &*srx.cast::<ReceiveOwner>() }
}

unsafe extern "C" fn get_msg(
    srx: *mut fid_peer_srx,
    attr: *mut fi_peer_match_attr,
    out: *mut *mut fi_peer_rx_entry,
) -> c_int {
    // SAFETY: as the provider calls us.
    unsafe { get(srx, attr, out, false) }
}

unsafe extern "C" fn get_tag(
    srx: *mut fid_peer_srx,
    attr: *mut fi_peer_match_attr,
    out: *mut *mut fi_peer_rx_entry,
) -> c_int {
    // SAFETY: as the provider calls us.
    unsafe { get(srx, attr, out, true) }
}

unsafe fn get(
    srx: *mut fid_peer_srx,
    attr: *mut fi_peer_match_attr,
    out: *mut *mut fi_peer_rx_entry,
    tagged: bool,
) -> c_int {
    // SAFETY: as the provider calls us.
    unsafe {
        assert!(tagged || (*attr).tag == 0, "no tag without tags");
        let (answer, entry) = owner_of(srx).get(tagged, &*attr);
        *out = entry;
        answer
    }
}

/// The context of an entry of either layout.
unsafe fn context_of(at: *mut fi_peer_rx_entry) -> *mut fid_peer_srx {
    // SAFETY: entries of the old layout begin with two pointers that lead nowhere.
    unsafe {
        let first = (*at).srx;
        let dangling: *mut c_void = NonNull::dangling().as_ptr();
        match first.addr() == dangling.addr() {
            true => (*at.byte_add(16)).srx,
            false => first,
        }
    }
}

unsafe extern "C" fn queue(at: *mut fi_peer_rx_entry) -> c_int {
    // SAFETY: as the provider calls us.
    unsafe { owner_of(context_of(at)).queue(at) }
}

unsafe extern "C" fn free(at: *mut fi_peer_rx_entry) {
    // SAFETY: as the provider calls us.
    unsafe { owner_of(context_of(at)).free(at) }
}

unsafe extern "C" fn update_sources(
    srx: *mut fid_peer_srx,
    source_of: Option<unsafe extern "C" fn(*mut fi_peer_rx_entry) -> fi_addr_t>,
) {
    // SAFETY: as the provider calls us.
    let owner = unsafe { owner_of(srx) };
    let state = owner.state.lock().unwrap();
    for entry in &state.queued {
        let fields = entry.fields.get();
        // SAFETY: the owner has the entry.
        unsafe {
            if (*fields).addr == FI_ADDR_UNSPEC {
                (*fields).addr = source_of.unwrap()(entry.at(owner.links));
            }
        }
    }
}
