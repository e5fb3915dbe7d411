//! Atomic operations on memory of a peer that this process has mapped (`docs/adr/0067`): the
//! initiator carries them out, by the same instructions as the target would.

use std::ptr::NonNull;

use ferrofabric_contracts::atomics::{AtomicArrays, AtomicBuffers, AtomicHead, AtomicOp};
use ferrofabric_contracts::buffers::{gather, scatter};
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{MappedCall, Transport};
use ferrofabric_contracts::types::{FiAddr, IoBuf};

use crate::domain::owner::EndpointOwner;
use crate::domain::send_calls::flush;
use crate::domain::{Backend, DomainState, Inner};
use crate::rma::atomics::execute;
use crate::rma::operations::ReadUnderWay;

/// Bytes of the elements that are copied at one time.
const CHUNK_BYTES: usize = 64;

/// Carries an operation on elements of one word out in mapped memory. Returns whether it did.
///
/// Atomic operations of an endpoint on one peer keep their order (`docs/adr/0064`), so this one
/// goes as a message behind those that are under way as messages.
///
/// # Safety
///
/// As [`Endpoint::atomic`](crate::fabric::Endpoint::atomic).
///
/// # Errors
///
/// `Again`: it has to wait for some of those.
pub(in crate::domain) unsafe fn took_mapping<B: Backend>(
    domain: &Inner<B>,
    state: &mut DomainState<B::Transport>,
    index: usize,
    op: &AtomicOp,
    (buffers, len): (&AtomicBuffers<'_>, usize),
) -> Result<bool, OpError> {
    let (transport, mut owner) =
        state.endpoints[index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
    let target = op.target(len);
    if owner.srx.remote.mapped_atomics.by_messages == 0 {
        owner.srx.remote.mapped_atomics.begin_anew();
    } else if owner.follows_messages(op.dest, |_| true) {
        let remote = &mut owner.srx.remote;
        let Some(begun) = remote.mapped_atomics.follows(remote.reads_begun()) else {
            return Ok(false);
        };
        let waits = owner.follows_messages(op.dest, |read| read.is_of_the_first(begun))
            && transport.with_mapped(&target, |_| ()) != MappedCall::Impossible;
        if !waits {
            owner.srx.remote.mapped_atomics.begin_anew();
            return Ok(false);
        }
        flush(state, index);
        domain.wake(state);
        return Err(OpError::Again);
    }
    // SAFETY: the caller's contract, and that of `with_mapped`.
    let act = |at| unsafe { carry_out(op, buffers, at, len) };
    if transport.with_mapped(&target, act) != MappedCall::Made {
        return Ok(false);
    }
    owner.srx.remote.mapped_atomics.carried_out += 1;
    owner.rma_done(op.form.kind(), op.context, op.flags | Flags::ATOMIC, len);
    if !op.flags.contains(Flags::MORE) {
        transport.flush(&mut owner);
    }
    owner.start_deferred(transport);
    domain.wake(state);
    Ok(true)
}

impl EndpointOwner<'_> {
    /// Whether some of these atomic operations on a peer's memory are under way as messages.
    fn follows_messages(&self, peer: FiAddr, these: impl Fn(&ReadUnderWay) -> bool) -> bool {
        let reads = self.srx.remote.reads();
        let mut atomics = reads.filter(|read| read.is_atomic() && these(read));
        let Some(first) = atomics.next() else {
            return false;
        };
        let peers = [Some(peer), self.first_of(peer)];
        let is_on_it = |read: &ReadUnderWay| {
            let mut targets = read.targets().into_iter().flatten();
            targets.any(|target| peers.contains(&Some(target)))
        };
        is_on_it(first) || atomics.any(is_on_it)
    }
}

/// Changes the elements at `target`, which are `len` bytes.
///
/// # Safety
///
/// `target` as of [`execute`], and the buffers are valid and as long as the elements: those for
/// results for writes, the others for reads.
#[inline]
unsafe fn carry_out(op: &AtomicOp, buffers: &AtomicBuffers<'_>, target: NonNull<u8>, len: usize) {
    for at in (0..len).step_by(CHUNK_BYTES) {
        let bytes = CHUNK_BYTES.min(len - at);
        let head = AtomicHead {
            number: 0,
            form: op.form,
            operator: op.operator,
            datatype: op.datatype,
            count: (bytes / op.datatype.size()) as u32,
        };
        let [mut operands, mut compares, mut results] = [[0; CHUNK_BYTES]; 3];
        // SAFETY: the caller's contract; the arrays have as many bytes.
        unsafe {
            let arrays = AtomicArrays {
                operands: copy_in(buffers.operands, at, &mut operands[..bytes]),
                compares: copy_in(buffers.compares, at, &mut compares[..bytes]),
            };
            let results = match buffers.results {
                [] => &mut [],
                _ => &mut results[..bytes],
            };
            execute(&head, target.add(at).as_ptr(), &arrays, results);
            copy_out(results, buffers.results, at);
        }
    }
}

/// Copies elements out of the buffers of an operation that has such.
///
/// # Safety
///
/// The buffers are valid for reads.
#[inline]
unsafe fn copy_in<'a>(from: &[IoBuf], offset: usize, into: &'a mut [u8]) -> &'a [u8] {
    if from.is_empty() {
        return &[];
    }
    // SAFETY: the caller's contract, and `into` has as many bytes.
    unsafe { gather(from, offset, into.len(), into.as_mut_ptr()) };
    into
}

/// Copies elements into the buffers for results.
///
/// # Safety
///
/// The buffers are valid for writes.
#[inline]
unsafe fn copy_out(results: &[u8], into: &[IoBuf], offset: usize) {
    match into {
        [] => {}
        [one] => {
            let part = one.part(offset, results.len());
            // SAFETY: the caller's contract; the part is no longer than the results.
            unsafe { (part.as_mut_ptr()).copy_from_nonoverlapping(results.as_ptr(), part.len) };
        }
        // SAFETY: the caller's contract.
        many => unsafe { scatter(results.as_ptr(), results.len(), many, offset) },
    }
}
