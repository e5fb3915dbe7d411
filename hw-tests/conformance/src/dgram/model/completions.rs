//! Checks completions: finds the operation of each, and decides whether the completion is allowed.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, MsgKind};

use super::run::{DatagramRun, SentDatagram};
use crate::ends::{CompletionResult, context_of};
use crate::model::history::NodeNumber;
use crate::model::runner::Wrong;

/// The content of a receive's completion.
struct DatagramCompletion {
    /// Bytes of the whole datagram.
    len: usize,
    data: Option<u64>,
    src: FiAddr,
}

impl DatagramRun<'_> {
    pub(super) fn send_is_done(
        &mut self,
        at: NodeNumber,
        done: CompletionResult,
    ) -> Result<(), Wrong> {
        let number = self.nodes[at].sends.get(&context_of(&done)).copied();
        let number = number.ok_or_else(|| format!("a send that is none completes: {done:?}"))?;
        let message = &mut self.messages[number];
        if message.done {
            return Err(format!("a send completes twice: {done:?}"));
        }
        message.done = true;
        match done {
            Ok(_) if message.quiet => Err("a send completes that has no FI_COMPLETION".into()),
            Ok(c) if c.flags != MsgKind::Msg.send_flags() => Err(format!("a send says {c:?}")),
            Ok(_) => {
                if !message.injected {
                    message.buffer.memory.spoil();
                }
                self.nodes[at].sent.0 += 1;
                Ok(())
            }
            Err(error) => {
                message.due = false;
                self.nodes[at].sent.1 += 1;
                match message.removed {
                    true => Ok(()),
                    false => Err(format!("a send fails: {error:?}")),
                }
            }
        }
    }

    pub(super) fn receive_is_done(
        &mut self,
        at: NodeNumber,
        done: CompletionResult,
    ) -> Result<(), Wrong> {
        self.clock += 1;
        let context = context_of(&done);
        let live = &mut self.nodes[at];
        let place = live.receives.iter().position(|r| r.context == context);
        let place = place.ok_or_else(|| format!("a receive that is none completes: {done:?}"))?;
        let receive = &mut live.receives[place];
        if receive.over {
            return Err(format!("a receive completes twice: {done:?}"));
        }
        receive.over = true;
        let flags = match &done {
            Ok(c) => c.flags,
            Err(error) => error.completion.flags,
        };
        if flags - Flags::REMOTE_CQ_DATA != MsgKind::Msg.recv_flags() {
            return Err(format!("a receive completes with other flags: {done:?}"));
        }
        let c = match &done {
            Ok(c) => *c,
            Err(error) => error.completion,
        };
        let room = receive.room;
        let lost = match &done {
            Ok(_) => 0,
            Err(error) if error.errno == Errno::ETRUNC && error.olen > 0 => error.olen,
            Err(error) if error.errno == Errno::ECANCELED && receive.cancelled => {
                live.received.1 += 1;
                return receive.buffer.memory.untouched_behind(self.prefix + room);
            }
            Err(error) => return Err(format!("a receive fails: {error:?}")),
        };
        match lost {
            0 => live.received.0 += 1,
            _ => live.received.1 += 1,
        }
        let memory = &receive.buffer.memory;
        let buf = if receive.list { 0 } else { memory.addr() };
        let payload = c.len.checked_sub(self.prefix);
        let payload = payload.filter(|&len| len <= room && (lost == 0 || len == room));
        let Some(payload) = payload.filter(|_| c.buf == buf) else {
            return Err(format!("into {room} bytes at {buf:#x}: {done:?}"));
        };
        memory.untouched_behind(c.len)?;
        let named = memory.message(self.prefix, payload)?;
        let got = DatagramCompletion {
            len: payload + lost,
            data: c.flags.contains(Flags::REMOTE_CQ_DATA).then_some(c.data),
            src: c.src,
        };
        self.has_arrived(at, &got, named)
            .map_err(|why| format!("{why}: {done:?}"))
    }

    /// `named`: the number that the content says, if there is enough of it.
    fn has_arrived(
        &mut self,
        at: NodeNumber,
        got: &DatagramCompletion,
        named: Option<usize>,
    ) -> Result<(), Wrong> {
        let repeats = self.fabric.silence.is_some();
        let may_be = |message: &SentDatagram| {
            message.to == at
                && (message.len, message.data) == (got.len, got.data)
                && (repeats || !message.arrived)
        };
        let messages = self.messages.iter().enumerate();
        let candidates: Vec<usize> = messages
            .filter(|&(number, message)| named.is_none_or(|name| name == number) && may_be(message))
            .map(|(number, _)| number)
            .collect();
        let sources: Vec<Vec<FiAddr>> = candidates
            .iter()
            .map(|&number| self.sources(at, &self.messages[number]))
            .collect();
        if candidates.is_empty() {
            return Err(format!(
                "no such datagram was sent to node {at} ({named:?})"
            ));
        }
        if !sources.iter().any(|sources| sources.contains(&got.src)) {
            return Err(format!("the sender is one of {sources:?}"));
        }
        for &number in &candidates {
            let message = &mut self.messages[number];
            match candidates.len() {
                1 => message.arrived = true,
                // One of these, and nobody knows which.
                _ => message.due = false,
            }
        }
        Ok(())
    }

    /// Addresses that a completion may name as the source of this datagram if it is received now:
    /// all that the receiver had for the sender at any time since the send.
    fn sources(&self, at: NodeNumber, message: &SentDatagram) -> Vec<FiAddr> {
        let mut since = vec![FiAddr::NOTAVAIL];
        for &(when, _, addr) in self.nodes[at]
            .known
            .iter()
            .filter(|(_, peer, _)| *peer == message.from)
        {
            if when <= message.sent_at {
                since.clear();
            }
            since.push(addr);
        }
        since
    }
}
