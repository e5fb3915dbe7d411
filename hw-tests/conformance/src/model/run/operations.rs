//! The calls of each step.

use super::*;

/// Flags that not every transport offers.
const PROMISES: Flags = Flags::DELIVERY_COMPLETE.union(Flags::FENCE);

impl MessageRun<'_> {
    pub(super) fn send(&mut self, step: &MessageStep) -> Result<(), Wrong> {
        let MessageStep::Send {
            from,
            to,
            tagged,
            tag,
            size,
            inject,
            data,
            quiet,
            pieces,
            deliver,
            fence,
        } = *step
        else {
            return Ok(());
        };
        let (from, to) = (self.node(from), self.node(to));
        let limit = self.fabric.info().tx.inject_size;
        let len = if inject { size.min(limit) } else { size };
        let number = self.number();
        let data =
            (data || len < MessageMemory::NAMED_BYTES).then_some(number as u64 ^ 0xda7a_0000_0000);
        let Some((dest, is_stale)) = self.destination(from, to) else {
            return Ok(());
        };
        let op = SendOp {
            kind: kind(tagged),
            dest,
            tag: if tagged { tag } else { 0 },
            data: data.unwrap_or(0),
            desc: MrDesc::NONE,
            context: self.context(),
            flags: [
                (Flags::INJECT, inject),
                (Flags::COMPLETION, !quiet),
                (Flags::REMOTE_CQ_DATA, data.is_some()),
                (Flags::DELIVERY_COMPLETE, deliver),
                (Flags::FENCE, fence),
            ]
            .into_iter()
            .filter(|(flag, wanted)| {
                *wanted && (!PROMISES.contains(*flag) || self.fabric.offers(*flag))
            })
            .fold(Flags::empty(), |all, (flag, _)| all | flag),
        };
        let memory = MessageMemory::of_message(number, len);
        let iov = memory.list(pieces.min(self.fabric.info().tx.iov_limit));
        for _ in 0..TRIES {
            // SAFETY: the memory is kept until the run is over.
            match unsafe { self.end(from)?.endpoint.send(&op, &iov) } {
                Ok(()) if !is_stale => {
                    self.is_taken(&op, (from, to), memory, len);
                    return Ok(());
                }
                Err(OpError::Failed(Errno::EADDRNOTAVAIL)) if is_stale => return Ok(()),
                // A fenced one waits for those before it, even if the address is removed.
                Err(OpError::Again) if !is_stale || op.flags.contains(Flags::FENCE) => {
                    self.pump(from)?;
                }
                said => {
                    let address = if is_stale { "a removed" } else { "an" };
                    return Err(format!("a send to {address} address says {said:?}: {op:?}"));
                }
            }
        }
        // No room: the program goes on without it.
        Ok(())
    }

    /// The number of the next message, which no other process gives to one of its own.
    fn number(&self) -> usize {
        let (process, processes) = self.share;
        self.messages * processes + process
    }

    /// Writes down a message that an endpoint has taken to send.
    pub(super) fn is_taken(
        &mut self,
        op: &SendOp,
        (from, to): (NodeNumber, NodeNumber),
        memory: MessageMemory,
        len: usize,
    ) {
        if op.flags.contains(Flags::INJECT) {
            memory.spoil();
        }
        let number = self.number();
        let receiver = &mut self.nodes[to].history;
        let message = receiver.messages.len();
        receiver.messages.push(SentMessage {
            number,
            from,
            kind: op.kind,
            tag: op.tag,
            len,
            data: op.flags.contains(Flags::REMOTE_CQ_DATA).then_some(op.data),
            may_be_lost: false,
        });
        receiver.events.push(ReceiverEvent::Sent(message));
        self.messages += 1;
        self.nodes[from].sends.insert(op.context, self.sends.len());
        self.sends.push(RunSend {
            from,
            to,
            message,
            memory,
            kind: op.kind,
            delivers: op.flags.contains(Flags::DELIVERY_COMPLETE),
            injected: op.flags.contains(Flags::INJECT),
            quiet: !op.flags.contains(Flags::COMPLETION),
            done: false,
            removed: false,
        });
    }

    pub(super) fn selector(
        &self,
        at: NodeNumber,
        wants: Wants,
    ) -> Option<(MsgKind, FiAddr, u64, u64)> {
        let src = match wants.from {
            None => FiAddr::UNSPEC,
            Some(rank) => *self.nodes[at].peers.get(&self.node(rank))?,
        };
        Some(match wants.tagged {
            true => (MsgKind::Tagged, src, wants.tag, wants.ignore),
            false => (MsgKind::Msg, src, 0, 0),
        })
    }

    pub(super) fn receive(
        &mut self,
        at: u8,
        wants: Wants,
        room: usize,
        pieces: usize,
        flags: Flags,
    ) -> Result<(), Wrong> {
        let at = self.node(at);
        let Some((kind, src, tag, ignore)) = self.selector(at, wants) else {
            return Ok(());
        };
        let op = RecvOp {
            kind,
            src,
            tag,
            ignore,
            desc: MrDesc::NONE,
            context: self.context(),
            flags: flags | Flags::COMPLETION,
        };
        let receive = self.note_receive(at, &op, room);
        self.nodes[at]
            .history
            .events
            .push(ReceiverEvent::Posted(receive));
        self.post(at, &op, room, pieces)
    }

    pub(super) fn note_receive(&mut self, at: NodeNumber, op: &RecvOp, room: usize) -> usize {
        let live = &mut self.nodes[at];
        let receive = live.history.receives.len();
        live.history.receives.push(ReceiveHistory {
            kind: op.kind,
            src: op.src,
            tag: op.tag,
            ignore: op.ignore,
            room,
            multi: op.flags.contains(Flags::MULTI_RECV),
            outcomes: Vec::new(),
        });
        live.receives.insert(op.context, receive);
        receive
    }

    pub(super) fn post(
        &mut self,
        at: NodeNumber,
        op: &RecvOp,
        room: usize,
        pieces: usize,
    ) -> Result<(), Wrong> {
        let memory = MessageMemory::for_receive(room);
        let iov = memory.list(pieces.min(self.fabric.info().rx.iov_limit));
        let list = iov.len() > 1;
        self.nodes[at].posted.push(RunReceive {
            context: op.context,
            memory,
            list,
            over: false,
            cancellable: !op.flags.contains(Flags::CLAIM),
        });
        // SAFETY: the memory is kept until the run is over.
        unsafe { self.end(at)?.endpoint.recv(op, &iov) }
            .map_err(|why| format!("a receive is refused: {why}: {op:?}"))
    }

    /// Returns whether a message was there.
    pub(super) fn probe(
        &mut self,
        at: NodeNumber,
        wants: Wants,
        and: ProbeAction,
    ) -> Result<bool, Wrong> {
        let Some((kind, src, tag, ignore)) = self.selector(at, wants) else {
            return Ok(false);
        };
        let op = RecvOp {
            kind,
            src,
            tag,
            ignore,
            desc: MrDesc::NONE,
            context: self.context(),
            flags: match and {
                ProbeAction::Leave => Flags::PEEK,
                ProbeAction::Claim => Flags::PEEK | Flags::CLAIM,
                ProbeAction::Discard => Flags::PEEK | Flags::DISCARD,
            },
        };
        let (found, later) = self.ask(at, &op)?;
        let is_there = found.is_some();
        let fate = match and {
            ProbeAction::Leave => ProbeFate::Stays,
            ProbeAction::Claim => ProbeFate::Claimed(op.context),
            ProbeAction::Discard => ProbeFate::Dropped,
        };
        let live = &mut self.nodes[at];
        live.history.events.push(ReceiverEvent::Probed {
            kind,
            src,
            tag,
            ignore,
            fate,
            found,
        });
        live.history.events.extend(later);
        if is_there && and == ProbeAction::Claim {
            live.claims.push(Claim {
                context: op.context,
                kind,
            });
        }
        Ok(is_there)
    }

    /// Probes for a message; the answer is there at once. Returns also the other completions that
    /// were read meanwhile.
    pub(super) fn ask(
        &mut self,
        at: NodeNumber,
        op: &RecvOp,
    ) -> Result<(Option<MessageFacts>, Vec<ReceiverEvent>), Wrong> {
        // SAFETY: no buffer.
        unsafe { self.end(at)?.endpoint.recv(op, &[]) }
            .map_err(|why| format!("a probe is refused: {why}: {op:?}"))?;
        self.nodes[at].probing = Some(op.context);
        let before = self.nodes[at].history.events.len();
        self.pump(at)?;
        let live = &mut self.nodes[at];
        live.probing = None;
        let later = live.history.events.split_off(before);
        let answer = live.probed.take();
        match answer.ok_or_else(|| format!("a probe does not complete: {op:?}"))? {
            Ok(c) if c.buf != 0 || c.flags - Flags::REMOTE_CQ_DATA != op.kind.recv_flags() => {
                Err(format!("a probe says {c:?}"))
            }
            Ok(c) => Ok((Some(told(&c, c.len, None)), later)),
            Err(error) if error.errno == Errno::ENOMSG => Ok((None, later)),
            Err(error) => Err(format!("a probe fails: {error:?}")),
        }
    }

    pub(super) fn claimed(
        &mut self,
        at: NodeNumber,
        which: usize,
        room: Option<usize>,
    ) -> Result<(), Wrong> {
        if which >= self.nodes[at].claims.len() {
            return Ok(());
        }
        let Claim { context, kind } = self.nodes[at].claims.remove(which);
        let op = RecvOp {
            kind,
            src: FiAddr::UNSPEC,
            tag: 0,
            ignore: u64::MAX,
            desc: MrDesc::NONE,
            context,
            flags: Flags::CLAIM,
        };
        match room {
            Some(room) => {
                let op = RecvOp {
                    flags: Flags::CLAIM | Flags::COMPLETION,
                    ..op
                };
                let receive = self.note_receive(at, &op, room);
                self.nodes[at].history.events.push(ReceiverEvent::Claimed {
                    claim: context,
                    receive: Some(receive),
                    found: None,
                });
                self.post(at, &op, room, 1)
            }
            None => {
                let op = RecvOp {
                    flags: Flags::CLAIM | Flags::DISCARD,
                    ..op
                };
                let (found, later) = self.ask(at, &op)?;
                let events = &mut self.nodes[at].history.events;
                events.push(ReceiverEvent::Claimed {
                    claim: context,
                    receive: None,
                    found,
                });
                events.extend(later);
                Ok(())
            }
        }
    }

    /// Takes back a receive, by its place among all that were posted.
    pub(super) fn cancel(&mut self, at: NodeNumber, place: usize) -> Result<(), Wrong> {
        let context = self.nodes[at].posted[place].context;
        let found = match self.end(at)?.endpoint.cancel(context) {
            Ok(()) => (!may_late_cancels_succeed()).then_some(true),
            Err(OpError::Failed(Errno::ENOENT)) => Some(false),
            Err(error) => return Err(format!("cancel says {error}")),
        };
        let receive = self.nodes[at].receives[&context];
        self.nodes[at]
            .history
            .events
            .push(ReceiverEvent::Cancel { receive, found });
        // It will complete, one way or the other.
        self.nodes[at].posted[place].cancellable = false;
        Ok(())
    }
}
