//! Atomic operations (fi_atomic(3)): every call ends in [`begin`].

mod queries;

use std::ffi::c_void;
use std::ptr::null_mut;

use ferrofabric_contracts::atomics::{
    AtomicBuffers, AtomicForm, AtomicOp, AtomicOperator, Datatype,
};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MrDesc};

use super::addresses::{CallAddrs, OwnAddrs, OwnersAddrs};
use super::object::{EndpointObject, TransferFlags};
use super::rma::flush_refused;
use crate::abi::{
    Roomy, fi_addr_t, fi_datatype, fi_ioc, fi_msg_atomic, fi_op, fi_ops_atomic, fi_rma_ioc, fid_ep,
};
use crate::fi_addr::given;
use crate::fid::object_of;
use crate::guard::data;
use crate::memory::{LISTED, common};

pub(crate) use queries::query;
use queries::{compwritevalid, readwritevalid, writevalid};

/// Atomic operations on peers' memory.
pub(super) static ATOMIC: Roomy<fi_ops_atomic> = Roomy::new(table::<OwnAddrs>());

/// The same with the addresses of the owner of an imported address vector.
pub(super) static OWNERS_ATOMIC: Roomy<fi_ops_atomic> = Roomy::new(table::<OwnersAddrs>());

const fn table<A: CallAddrs>() -> fi_ops_atomic {
    fi_ops_atomic {
        size: size_of::<fi_ops_atomic>(),
        write: Some(write::<A>),
        writev: Some(writev::<A>),
        writemsg: Some(writemsg::<A>),
        inject: Some(inject::<A>),
        readwrite: Some(readwrite::<A>),
        readwritev: Some(readwritev::<A>),
        readwritemsg: Some(readwritemsg::<A>),
        compwrite: Some(compwrite::<A>),
        compwritev: Some(compwritev::<A>),
        compwritemsg: Some(compwritemsg::<A>),
        writevalid: Some(writevalid),
        readwritevalid: Some(readwritevalid),
        compwritevalid: Some(compwritevalid),
    }
}

/// The fields that the calls have in common.
struct Call {
    form: AtomicForm,
    dest: fi_addr_t,
    place: u64,
    key: u64,
    datatype: fi_datatype,
    operator: fi_op,
    context: *mut c_void,
}

/// A list of elements as C has it: entries, and their descriptors.
#[derive(Clone, Copy)]
struct List {
    entries: *const fi_ioc,
    count: usize,
    desc: *mut *mut c_void,
}

impl List {
    const NONE: Self = Self {
        entries: std::ptr::null(),
        count: 0,
        desc: null_mut(),
    };

    fn of(entries: *const fi_ioc, count: usize, desc: *mut *mut c_void) -> Self {
        Self {
            entries,
            count,
            desc,
        }
    }

    /// Of one entry.
    fn one(entry: &fi_ioc) -> Self {
        Self::of(entry, 1, null_mut())
    }
}

/// One entry of a list.
fn entry(buf: *const c_void, count: usize) -> fi_ioc {
    fi_ioc {
        addr: buf.cast_mut(),
        count,
    }
}

/// The lists of an operation.
struct Lists {
    operands: List,
    compares: List,
    results: List,
    /// Of the results, where they are one entry.
    desc: *mut c_void,
}

unsafe extern "C" fn write<A: CallAddrs>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    place: u64,
    key: u64,
    datatype: fi_datatype,
    operator: fi_op,
    context: *mut c_void,
) -> isize {
    let form = AtomicForm::Base;
    let call = Call {
        form,
        dest,
        place,
        key,
        datatype,
        operator,
        context,
    };
    let operands = entry(buf, count);
    let lists = Lists {
        operands: List::one(&operands),
        compares: List::NONE,
        results: List::NONE,
        desc: null_mut(),
    };
    // SAFETY: as C calls us.
    unsafe { begin::<A>(ep, Some((call, lists)), TransferFlags::flags) }
}

unsafe extern "C" fn writev<A: CallAddrs>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    place: u64,
    key: u64,
    datatype: fi_datatype,
    operator: fi_op,
    context: *mut c_void,
) -> isize {
    let form = AtomicForm::Base;
    let call = Call {
        form,
        dest,
        place,
        key,
        datatype,
        operator,
        context,
    };
    let lists = Lists {
        operands: List::of(iov, count, desc),
        compares: List::NONE,
        results: List::NONE,
        desc: null_mut(),
    };
    // SAFETY: as C calls us; the lists have that many entries.
    unsafe { begin::<A>(ep, Some((call, lists)), TransferFlags::flags) }
}

unsafe extern "C" fn writemsg<A: CallAddrs>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    flags: u64,
) -> isize {
    // SAFETY: as C calls us; the lists have as many entries as the message says.
    unsafe {
        let described = described(AtomicForm::Base, msg, List::NONE, List::NONE);
        begin::<A>(ep, described, |tx| tx.with(flags))
    }
}

unsafe extern "C" fn inject<A: CallAddrs>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    dest: fi_addr_t,
    place: u64,
    key: u64,
    datatype: fi_datatype,
    operator: fi_op,
) -> isize {
    let call = Call {
        form: AtomicForm::Base,
        dest,
        place,
        key,
        datatype,
        operator,
        context: null_mut(),
    };
    let operands = entry(buf, count);
    let lists = Lists {
        operands: List::one(&operands),
        compares: List::NONE,
        results: List::NONE,
        desc: null_mut(),
    };
    // SAFETY: as C calls us.
    unsafe { begin::<A>(ep, Some((call, lists)), |_| Flags::INJECT) }
}

unsafe extern "C" fn readwrite<A: CallAddrs>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    dest: fi_addr_t,
    place: u64,
    key: u64,
    datatype: fi_datatype,
    operator: fi_op,
    context: *mut c_void,
) -> isize {
    let form = AtomicForm::Fetch;
    let call = Call {
        form,
        dest,
        place,
        key,
        datatype,
        operator,
        context,
    };
    let (operands, results) = (entry(buf, count), entry(result, count));
    let lists = Lists {
        operands: List::one(&operands),
        compares: List::NONE,
        results: List::one(&results),
        desc: result_desc,
    };
    // SAFETY: as C calls us.
    unsafe { begin::<A>(ep, Some((call, lists)), TransferFlags::flags) }
}

unsafe extern "C" fn readwritev<A: CallAddrs>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    desc: *mut *mut c_void,
    count: usize,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    dest: fi_addr_t,
    place: u64,
    key: u64,
    datatype: fi_datatype,
    operator: fi_op,
    context: *mut c_void,
) -> isize {
    let form = AtomicForm::Fetch;
    let call = Call {
        form,
        dest,
        place,
        key,
        datatype,
        operator,
        context,
    };
    let lists = Lists {
        operands: List::of(iov, count, desc),
        compares: List::NONE,
        results: List::of(resultv, result_count, result_desc),
        desc: null_mut(),
    };
    // SAFETY: as C calls us; the lists have that many entries.
    unsafe { begin::<A>(ep, Some((call, lists)), TransferFlags::flags) }
}

unsafe extern "C" fn readwritemsg<A: CallAddrs>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let results = List::of(resultv, result_count, result_desc);
    // SAFETY: as C calls us; the lists have as many entries as their numbers say.
    unsafe {
        let described = described(AtomicForm::Fetch, msg, List::NONE, results);
        begin::<A>(ep, described, |tx| tx.with(flags))
    }
}

unsafe extern "C" fn compwrite<A: CallAddrs>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    dest: fi_addr_t,
    place: u64,
    key: u64,
    datatype: fi_datatype,
    operator: fi_op,
    context: *mut c_void,
) -> isize {
    let form = AtomicForm::Compare;
    let call = Call {
        form,
        dest,
        place,
        key,
        datatype,
        operator,
        context,
    };
    let [operands, compares, results] = [buf, compare, result].map(|buf| entry(buf, count));
    let lists = Lists {
        operands: List::one(&operands),
        compares: List::one(&compares),
        results: List::one(&results),
        desc: result_desc,
    };
    // SAFETY: as C calls us.
    unsafe { begin::<A>(ep, Some((call, lists)), TransferFlags::flags) }
}

unsafe extern "C" fn compwritev<A: CallAddrs>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    desc: *mut *mut c_void,
    count: usize,
    comparev: *const fi_ioc,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    dest: fi_addr_t,
    place: u64,
    key: u64,
    datatype: fi_datatype,
    operator: fi_op,
    context: *mut c_void,
) -> isize {
    let form = AtomicForm::Compare;
    let call = Call {
        form,
        dest,
        place,
        key,
        datatype,
        operator,
        context,
    };
    let lists = Lists {
        operands: List::of(iov, count, desc),
        compares: List::of(comparev, compare_count, compare_desc),
        results: List::of(resultv, result_count, result_desc),
        desc: null_mut(),
    };
    // SAFETY: as C calls us; the lists have that many entries.
    unsafe { begin::<A>(ep, Some((call, lists)), TransferFlags::flags) }
}

unsafe extern "C" fn compwritemsg<A: CallAddrs>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let compares = List::of(comparev, compare_count, compare_desc);
    let results = List::of(resultv, result_count, result_desc);
    // SAFETY: as C calls us; the lists have as many entries as their numbers say.
    unsafe {
        let described = described(AtomicForm::Compare, msg, compares, results);
        begin::<A>(ep, described, |tx| tx.with(flags))
    }
}

/// The operation of a `fi_msg_atomic`; `None` where it is none: the peer's memory is not one range,
/// or has another number of elements than the buffers.
///
/// # Safety
///
/// `msg` is NULL or there, and the lists have as many entries as they say, or are NULL.
unsafe fn described(
    form: AtomicForm,
    msg: *const fi_msg_atomic,
    compares: List,
    results: List,
) -> Option<(Call, Lists)> {
    // SAFETY: the caller's contract.
    let msg = unsafe { msg.as_ref() }?;
    if msg.rma_iov_count != 1 {
        return None;
    }
    // SAFETY: the caller's contract.
    let &fi_rma_ioc { addr, count, key } = unsafe { msg.rma_iov.as_ref() }?;
    let operands = List::of(msg.msg_iov, msg.iov_count, msg.desc);
    let counted = match msg.op {
        fi_op::FI_ATOMIC_READ if form != AtomicForm::Base => results,
        _ => operands,
    };
    // SAFETY: the caller's contract.
    let elements = unsafe { entries(counted) }?.iter();
    let elements = elements.fold(0usize, |sum, one| sum.saturating_add(one.count));
    if elements != count {
        return None;
    }
    let call = Call {
        form,
        dest: msg.addr,
        place: addr,
        key,
        datatype: msg.datatype,
        operator: msg.op,
        context: msg.context,
    };
    let lists = Lists {
        operands,
        compares,
        results,
        desc: null_mut(),
    };
    Some((call, lists))
}

/// The entries of a list, or the beginning of one that is too long for any endpoint; `None` for a
/// list that is not there.
///
/// # Safety
///
/// The list has as many entries as it says, or is NULL.
unsafe fn entries<'a>(list: List) -> Option<&'a [fi_ioc]> {
    if list.count == 0 {
        return Some(&[]);
    }
    if list.entries.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    Some(unsafe { std::slice::from_raw_parts(list.entries, list.count.min(LISTED)) })
}

/// The buffers of a list of elements with this size; `None` where one is not there.
///
/// # Safety
///
/// As [`entries`].
unsafe fn buffers_of(list: List, size: usize, room: &mut [IoBuf; LISTED]) -> Option<&[IoBuf]> {
    // SAFETY: the caller's contract.
    let entries = unsafe { entries(list) }?;
    for (buf, entry) in room.iter_mut().zip(entries) {
        if entry.addr.is_null() && entry.count != 0 {
            return None;
        }
        *buf = IoBuf {
            addr: entry.addr as usize,
            len: entry.count.saturating_mul(size),
        };
    }
    Some(&room[..entries.len()])
}

/// Operator and data type; `None`: there is no such operation.
fn kinds(
    form: AtomicForm,
    datatype: fi_datatype,
    operator: fi_op,
) -> Option<(Datatype, AtomicOperator)> {
    let datatype = Datatype::from_number(u8::try_from(datatype.0).ok()?)?;
    let operator = AtomicOperator::from_number(u8::try_from(operator.0).ok()?)?;
    form.has(operator, datatype).then_some((datatype, operator))
}

/// Begins an operation, with the flags that the endpoint's operations have then. `None` stands for
/// one that its caller describes wrongly.
///
/// # Safety
///
/// As C calls us: an endpoint that is not closed, buffers as fi_atomic(3) requires.
unsafe fn begin<A: CallAddrs>(
    ep: *const fid_ep,
    operation: Option<(Call, Lists)>,
    flags: impl FnOnce(&TransferFlags) -> Flags,
) -> isize {
    data(|| {
        // SAFETY: as the caller says.
        let this = unsafe { object_of::<EndpointObject>(ep) };
        let endpoint = this.enabled()?;
        let refuse = |errno| Err(flush_refused(endpoint, OpError::Failed(errno)));
        let Some((call, mut lists)) = operation else {
            return refuse(Errno::EINVAL);
        };
        let Some((datatype, operator)) = kinds(call.form, call.datatype, call.operator) else {
            return refuse(Errno::EOPNOTSUPP);
        };
        if operator == AtomicOperator::Read {
            // They do not count, and may be anything (fi_atomic(3)).
            lists.operands = List::NONE;
        }
        let size = datatype.size();
        let mut rooms = [[IoBuf::EMPTY; LISTED]; 3];
        let [operands, compares, results] = &mut rooms;
        // SAFETY: as the caller says.
        let buffers = unsafe {
            (
                buffers_of(lists.operands, size, operands),
                buffers_of(lists.compares, size, compares),
                buffers_of(lists.results, size, results),
            )
        };
        let (Some(operands), Some(compares), Some(results)) = buffers else {
            return refuse(Errno::EINVAL);
        };
        let desc = match lists.results.desc.is_null() {
            true => lists.desc,
            // SAFETY: as the caller says.
            false => unsafe { common(lists.results.desc, lists.results.count) },
        };
        let op = AtomicOp {
            form: call.form,
            operator,
            datatype,
            dest: A::find(this, given(call.dest)),
            key: call.key,
            place: call.place,
            desc: MrDesc::from_number(desc as u64),
            context: call.context as u64,
            flags: flags(&this.tx),
        };
        let buffers = AtomicBuffers {
            operands,
            compares,
            results,
        };
        // SAFETY: the application keeps the buffers as fi_atomic(3) requires.
        unsafe { endpoint.atomic(&op, &buffers) }.map(|()| 0)
    })
}
