//! The completion queue of an endpoint: completions for the application, and those of messages of
//! its groups.

use std::time::Instant;

use ferrofabric_contracts::addr::Address;
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_runtime::owning::{EndedOperation, OwnedCompletion};

use super::{RdmEndpoint, until};
use crate::group_driver::GroupDriver;
use crate::operation::{
    CompletedOperation, FetchedElements, MessageSource, PeerWrite, ReceivedMessage,
};
use crate::operation_error::OperationError;
use crate::operation_id::{AtomicId, ReadId, RecvId, SendId, WriteId};

impl RdmEndpoint {
    pub(super) fn poll_queue(&mut self) -> Result<Option<CompletedOperation>> {
        loop {
            let ended = self.take_ended_collective();
            if ended.is_some() {
                return Ok(ended);
            }
            let Some(ended) = self.inner.poll_any().map_err(not_polled)? else {
                if let Some(collectives) = &mut self.collectives {
                    collectives.tick(&mut self.inner);
                }
                return Ok(self.take_ended_collective());
            };
            let completed = self.sort(ended);
            if completed.is_some() {
                return Ok(completed);
            }
        }
    }

    pub(super) fn wait_queue(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<CompletedOperation>> {
        loop {
            let mut until_then = deadline;
            if self.collectives.is_some() {
                let completed = self.poll_queue()?;
                if completed.is_some() {
                    return Ok(completed);
                }
                let collectives = self.collectives.as_ref();
                let tick = collectives.and_then(|collectives| collectives.next_tick());
                until_then = [deadline, tick].into_iter().flatten().min();
            }
            match (self.inner.wait_any(until_then.map(until))).map_err(not_polled)? {
                Some(ended) => {
                    let completed = self.sort(ended);
                    if completed.is_some() {
                        return Ok(completed);
                    }
                }
                // Or else a tick of the collectives has come.
                None if deadline.is_some_and(|at| Instant::now() >= at) => return Ok(None),
                None => {}
            }
        }
    }

    pub(super) fn take_ended_collective(&mut self) -> Option<CompletedOperation> {
        self.collectives.as_mut()?.take_ended()
    }

    /// The completion for the application; `None` for that of a message of collectives.
    fn sort(&mut self, ended: EndedOperation) -> Option<CompletedOperation> {
        match (&mut self.collectives, ended) {
            (Some(collectives), EndedOperation::Operation(done)) if GroupDriver::is_own(&done) => {
                collectives.take(&mut self.inner, done);
                None
            }
            (_, ended) => Some(completed(ended)),
        }
    }
}

fn not_polled(error: OpError) -> Error {
    let error = Error::new(error.errno(), "poll", "endpoint");
    match error.errno() {
        Errno::EBUSY => error.mend("it belongs to another thread: open it with Threading::Safe"),
        _ => error,
    }
}

fn completed(ended: EndedOperation) -> CompletedOperation {
    let mut done = match ended {
        EndedOperation::Operation(done) => done,
        EndedOperation::Inject(failed) => {
            return CompletedOperation::Failed(OperationError::failed_inject(&failed));
        }
        EndedOperation::PeerWrite(completion) => {
            return CompletedOperation::PeerWrote(PeerWrite {
                len: completion.len,
                data: completion.data,
                source: source_of(&completion),
            });
        }
    };
    match std::mem::replace(&mut done.outcome, Ok(Completion::BLANK)) {
        Ok(completion) if completion.flags.contains(Flags::SEND) => {
            CompletedOperation::Sent(SendId(done.token), done.buffer)
        }
        Ok(completion) if completion.flags.contains(Flags::ATOMIC) => CompletedOperation::Atomic(
            AtomicId(done.token),
            FetchedElements::of_atomic(done.buffer),
        ),
        Ok(completion) if completion.flags.contains(Flags::READ) => {
            CompletedOperation::Read(ReadId(done.token), done.buffer)
        }
        Ok(completion) if completion.flags.contains(Flags::WRITE) => {
            CompletedOperation::Wrote(WriteId(done.token), done.buffer)
        }
        Ok(completion) => received(done, &completion, source_of(&completion)),
        Err(failed) => match of_unknown_source(&failed) {
            Some(source) => received(done, &failed.completion, source),
            None => CompletedOperation::Failed(OperationError::failed(done, &failed)),
        },
    }
}

/// The source of a completion; an unknown source has no name in it.
fn source_of(completion: &Completion) -> MessageSource {
    match completion.src.is_some() {
        true => MessageSource::Known(completion.src),
        false => MessageSource::Unknown(None),
    }
}

/// The source of a received message that the completion queue reports as an error
/// (`FI_SOURCE_ERR`).
fn of_unknown_source(failed: &CqError) -> Option<MessageSource> {
    let is_one =
        failed.errno == Errno::EADDRNOTAVAIL && failed.completion.flags.contains(Flags::RECV);
    is_one.then(|| {
        let name = failed.sender.as_deref().copied();
        MessageSource::Unknown(name.map(Address::from))
    })
}

fn received(
    done: OwnedCompletion,
    completion: &Completion,
    source: MessageSource,
) -> CompletedOperation {
    let has = |flag| completion.flags.contains(flag);
    let token = done.token;
    let message = ReceivedMessage {
        buffer: done.received(completion.len),
        tag: has(Flags::TAGGED).then_some(completion.tag),
        data: has(Flags::REMOTE_CQ_DATA).then_some(completion.data),
        source,
    };
    CompletedOperation::Received(RecvId(token), message)
}
