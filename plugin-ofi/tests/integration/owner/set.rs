//! An owner's set of addresses.

use std::ffi::c_int;
use std::sync::Mutex;

use ferro_fi::abi::{
    FI_CLASS_PEER_AV_SET, FI_ETOOSMALL, fi_addr_t, fi_ops_av_set_owner, fi_peer_av_set_context,
    fid_peer_av_set,
};

/// An owner's set.
#[repr(C)]
pub struct OwnerSet {
    pub peer: fid_peer_av_set,
    pub ops: fi_ops_av_set_owner,
    pub members: Mutex<Vec<fi_addr_t>>,
    /// The room of each call.
    pub rooms: Mutex<Vec<usize>>,
    /// Answers in place of the members: a result, and the number that is returned with it.
    pub lies: Mutex<Vec<(c_int, usize)>>,
    /// Each call adds a member that is there twice.
    pub grows: Mutex<bool>,
}

impl OwnerSet {
    pub fn new(members: &[fi_addr_t]) -> Box<Self> {
        let mut set = Box::new(Self {
            peer: fid_peer_av_set::default(),
            ops: fi_ops_av_set_owner {
                size: size_of::<fi_ops_av_set_owner>(),
                members: Some(write_members),
            },
            members: Mutex::new(members.to_vec()),
            rooms: Mutex::default(),
            lies: Mutex::default(),
            grows: Mutex::default(),
        });
        set.peer.fid.fclass = FI_CLASS_PEER_AV_SET;
        set.peer.owner_ops = &raw mut set.ops;
        set
    }

    pub fn context(&self) -> fi_peer_av_set_context {
        fi_peer_av_set_context {
            size: size_of::<fi_peer_av_set_context>(),
            av_set: (&raw const self.peer).cast_mut().cast(),
        }
    }
}

unsafe extern "C" fn write_members(
    set: *mut fid_peer_av_set,
    addrs: *mut fi_addr_t,
    count: *mut usize,
) -> c_int {
    // SAFETY: the set is the first field of an `OwnerSet`; the number is there.
    let (this, count) = unsafe { (&*set.cast::<OwnerSet>(), &mut *count) };
    this.rooms.lock().unwrap().push(*count);
    if let Some((result, number)) = this.lies.lock().unwrap().pop() {
        *count = number;
        return result;
    }
    let mut members = this.members.lock().unwrap();
    if *this.grows.lock().unwrap() {
        let room = *count;
        members.resize(room + 1, 0);
    }
    let room = std::mem::replace(count, members.len());
    if room < members.len() {
        return -FI_ETOOSMALL;
    }
    for (i, member) in members.iter().enumerate() {
        // SAFETY: there is room for all members.
        unsafe { addrs.add(i).write(*member) };
    }
    0
}
