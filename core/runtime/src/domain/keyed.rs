//! Endpoints with the authorization keys of their address vectors (fi_av(3), `FI_AV_AUTH_KEY`). A
//! keyed endpoint has one transport for each key, behind one receive queue; each transport has its
//! own queue pairs, name and peers.
//!
//! A message that comes through one of these transports came with its key, and a send goes through
//! the transport that has the key of the peer's entry. So the device separates the keys, and each
//! transport handles one key only.

use std::ptr::NonNull;
use std::sync::Arc;

use super::{Backend, OpenedTransport, Opening};
use crate::fabric::{Mr, MrAttr};
use ferrofabric_av::Resolve;
use ferrofabric_av::keys::number_of;
use ferrofabric_contracts::addr::{AuthKey, KeySlots, KeyedAddr, MAX_EP_AUTH_KEYS, NativeAddr};
use ferrofabric_contracts::atomics::AtomicTarget;
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Info;
use ferrofabric_contracts::peer::{
    Arrived, MappedCall, Matched, Owner, PeerAv, PeerCntr, PeerCq, PeerSrx, Piece, SendDone,
    Shortcut, ShortcutEnd, Start, Token, Transport,
};
use ferrofabric_contracts::requester::{MAX_PARTS, take_part, with_part};
use ferrofabric_contracts::types::{
    FiAddr, GrantedMemory, IoBuf, MsgKind, RemoteKind, RmaOp, SendOp, key_source,
};

/// Bits of [`Token::transport`] that belong to the transport of the key.
const TRANSPORT_BITS: u32 = 8;

/// A backend whose transports can be parts of a keyed endpoint.
pub trait KeyedParts: Backend {
    /// Opens a transport with a key, as part of an endpoint. The addresses of all parts are
    /// computed from the same random number ([`NativeAddr::of_new`]).
    ///
    /// # Errors
    ///
    /// As [`Backend::open_transport`].
    fn open_part(
        &self,
        opening: &Opening<'_>,
        key: AuthKey,
        drawn: u64,
    ) -> Result<(Self::Transport, NativeAddr)>;

    /// An unguessable number.
    ///
    /// # Errors
    ///
    /// If the kernel has no randomness.
    fn random(&self) -> Result<u64>;
}

/// A backend whose endpoints have the keys of their address vectors.
pub struct KeyedBackend<B>(pub B);

impl<B: KeyedParts> Backend for KeyedBackend<B> {
    type Transport = Keyed<B::Transport>;

    fn info(&self) -> &Info {
        self.0.info()
    }

    fn open_transport(&self, opening: &Opening<'_>) -> Result<OpenedTransport<Self::Transport>> {
        let refuse = |why: String| Err(Error::new(Errno::EINVAL, "enable", "endpoint").mend(why));
        if opening.keys.is_empty() {
            return refuse(
                "insert an authorization key into its address vector first: fi_av_insert_auth_key"
                    .to_owned(),
            );
        }
        let keys: Vec<_> = opening.keys.iter().map(|held| held.key).collect();
        let Some(slots) = KeySlots::of(&keys) else {
            return refuse(format!(
                "its address vector has {} authorization keys, an endpoint can have {MAX_EP_AUTH_KEYS} (max_ep_auth_key)",
                keys.len()
            ));
        };
        let drawn = self.0.random()?;
        let mut names = vec![None; keys.len()];
        let mut parts = Vec::with_capacity(keys.len());
        for (number, (held, slot)) in opening.keys.iter().zip(slots.slots()).enumerate() {
            let (transport, name) = self.0.open_part(opening, held.key, drawn)?;
            names[*slot] = Some(name);
            parts.push(KeyedPart {
                transport,
                key: held.key,
                of: PartOf {
                    handle: held.handle,
                    number,
                },
                held_back: false,
            });
        }
        let names: Vec<_> = names.into_iter().flatten().collect();
        let keyed = KeyedAddr::of(&slots, &names).ok_or_else(|| {
            Error::new(Errno::EOTHER, "name", "endpoint")
                .mend("its queue pairs are on several ports")
        })?;
        Ok(OpenedTransport {
            transport: Keyed { parts },
            name: keyed.with_key(keys[0]),
            keyed: Some(keyed),
        })
    }

    fn completion_levels(&self) -> Flags {
        self.0.completion_levels()
    }

    fn resolver(&self) -> Option<Arc<dyn Resolve>> {
        self.0.resolver()
    }

    unsafe fn register(&self, attr: &MrAttr<'_>) -> Result<Arc<dyn Mr>> {
        // SAFETY: the caller of this function has the same contract.
        unsafe { self.0.register(attr) }
    }

    fn show_region(&self, number: usize, key: u64, attr: &MrAttr<'_>) {
        self.0.show_region(number, key, attr);
    }

    fn hide_region(&self, number: usize) {
        self.0.hide_region(number);
    }

    fn is_region_in_use(&self, number: usize) -> bool {
        self.0.is_region_in_use(number)
    }
}

/// The transports of an endpoint, one for each key.
pub struct Keyed<T> {
    parts: Vec<KeyedPart<T>>,
}

/// The part through which a peer is reached, and the route of that part's transport.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyedRoute<R> {
    part: Option<u32>,
    of_part: R,
}

struct KeyedPart<T> {
    transport: T,
    key: AuthKey,
    of: PartOf,
    /// The last send had `MORE`: requests may be held back.
    held_back: bool,
}

/// The numbers of a part.
#[derive(Clone, Copy)]
struct PartOf {
    /// The handle of the key in the address vector.
    handle: FiAddr,
    /// The place among the parts of the endpoint.
    number: usize,
}

const _: () = assert!(MAX_EP_AUTH_KEYS <= MAX_PARTS);

impl<T: Transport> Keyed<T> {
    fn part_of(&self, name: &NativeAddr) -> Option<usize> {
        let key = name.auth_key()?;
        self.parts.iter().position(|part| part.key.admits(key))
    }

    #[cold]
    fn part_for<O: Owner>(&self, addr: FiAddr, owner: &O) -> Result<usize, OpError> {
        let name = owner.av().lookup(addr);
        let name = name.ok_or(OpError::Failed(Errno::EADDRNOTAVAIL))?;
        // Keys that were inserted later do not belong to this endpoint.
        self.part_of(&name).ok_or(OpError::Failed(Errno::ENOKEY))
    }

    fn flush_others<O: Owner>(&mut self, but: usize, owner: &mut O) {
        for (number, part) in self.parts.iter_mut().enumerate() {
            if part.held_back && number != but {
                part.held_back = false;
                part.transport.flush(&mut PartOwner::new(part.of, owner));
            }
        }
    }

    fn by_token(&mut self, token: Token) -> Option<&mut KeyedPart<T>> {
        let number = token.transport >> TRANSPORT_BITS;
        self.parts
            .iter_mut()
            .find(|part| number_of(part.of.handle) == number)
    }
}

impl<T: Transport> Transport for Keyed<T> {
    type Route = KeyedRoute<T::Route>;
    const INFORMED_OF_ALL: bool = T::INFORMED_OF_ALL;

    unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        route: &mut Self::Route,
        owner: &mut O,
    ) -> Result<(), OpError> {
        let at = match route.part {
            Some(part) => part as usize,
            None => {
                let part = self.part_for(op.dest, owner)?;
                route.part = Some(part as u32);
                part
            }
        };
        self.flush_others(at, owner);
        let part = &mut self.parts[at];
        // A call that fails does not send requests that were held back before.
        part.held_back |= op.flags.contains(Flags::MORE);
        let mut owner = PartOwner::new(part.of, owner);
        // SAFETY: the caller's contract.
        unsafe {
            part.transport
                .send(op, iov, &mut route.of_part, &mut owner)?
        };
        part.held_back = op.flags.contains(Flags::MORE);
        Ok(())
    }

    unsafe fn reply<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        let (number, dest) = take_part(op.dest);
        let part = self.parts.get_mut(number);
        let part = part.ok_or(OpError::Failed(Errno::ECONNRESET))?;
        let mut owner = PartOwner::new(part.of, owner);
        // SAFETY: the caller's contract.
        unsafe {
            part.transport
                .reply(&SendOp { dest, ..*op }, iov, &mut owner)
        }
    }

    unsafe fn shortcut<O: Owner>(
        &mut self,
        op: &RmaOp,
        iov: &[IoBuf],
        memory: Option<&GrantedMemory>,
        route: &mut Self::Route,
        owner: &mut O,
    ) -> Shortcut {
        let Some(part) = route.part else {
            return Shortcut::Impossible;
        };
        let part = &mut self.parts[part as usize];
        let mut owner = PartOwner::new(part.of, owner);
        // Each part numbers its lanes by itself, and an address has one part until it is removed.
        // SAFETY: the caller's contract.
        unsafe {
            part.transport
                .shortcut(op, iov, memory, &mut route.of_part, &mut owner)
        }
    }

    fn with_mapped(
        &mut self,
        target: &AtomicTarget,
        route: &mut Self::Route,
        act: impl FnOnce(NonNull<u8>),
    ) -> MappedCall {
        let Some(part) = route.part else {
            return MappedCall::Impossible;
        };
        let part = &mut self.parts[part as usize];
        part.transport.with_mapped(target, &mut route.of_part, act)
    }

    fn cut_off<O: Owner>(&mut self, peer: FiAddr, owner: &mut O) -> bool {
        let mut is_cut_off = true;
        for part in &mut self.parts {
            let mut owner = PartOwner::new(part.of, owner);
            is_cut_off &= part.transport.cut_off(peer, &mut owner);
        }
        is_cut_off
    }

    fn request_drive(&mut self, peer: FiAddr) {
        for part in &mut self.parts {
            part.transport.request_drive(peer);
        }
    }

    fn end_parts<O: Owner>(&mut self, parts: &[u64], owner: &mut O) {
        for part in &mut self.parts {
            let mut owner = PartOwner::new(part.of, owner);
            part.transport.end_parts(parts, &mut owner);
        }
    }

    fn flush<O: Owner>(&mut self, owner: &mut O) {
        self.flush_others(usize::MAX, owner);
    }

    fn drain<O: Owner>(&mut self, owner: &mut O) {
        for part in &mut self.parts {
            part.held_back = false;
            part.transport.drain(&mut PartOwner::new(part.of, owner));
        }
    }

    fn is_drained(&self) -> bool {
        self.parts.iter().all(|part| part.transport.is_drained())
    }

    fn report_undelivered(&self, report: &mut dyn FnMut(FiAddr, usize)) {
        for part in &self.parts {
            part.transport.report_undelivered(report);
        }
    }

    fn has_undelivered(&self) -> bool {
        (self.parts.iter()).any(|part| part.transport.has_undelivered())
    }

    unsafe fn start<O: Owner>(&mut self, start: Start, owner: &mut O) {
        let Some(part) = self.by_token(start.token) else {
            return;
        };
        let mut owner = PartOwner::new(part.of, owner);
        let start = Start {
            token: own_token(start.token),
            ..start
        };
        // SAFETY: the caller's contract.
        unsafe { part.transport.start(start, &mut owner) };
    }

    fn discard<O: Owner>(&mut self, kind: MsgKind, token: Token, owner: &mut O) {
        if let Some(part) = self.by_token(token) {
            let mut owner = PartOwner::new(part.of, owner);
            part.transport.discard(kind, own_token(token), &mut owner);
        }
    }

    fn progress<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        for part in &mut self.parts {
            part.held_back = false;
            done += part.transport.progress(&mut PartOwner::new(part.of, owner));
        }
        done
    }

    fn peer_inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, owner: &mut O) {
        if let Some(part) = self.part_of(name) {
            let part = &mut self.parts[part];
            let mut owner = PartOwner::new(part.of, owner);
            part.transport.peer_inserted(addr, name, &mut owner);
        }
    }

    fn has_unknown_sources(&self) -> bool {
        self.parts
            .iter()
            .any(|part| part.transport.has_unknown_sources())
    }

    fn peer_removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        // Only one of the parts has this peer; the others ignore the call.
        for part in &mut self.parts {
            let mut owner = PartOwner::new(part.of, owner);
            part.transport.peer_removed(addr, &mut owner);
        }
    }

    fn peer_replaced<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        for part in &mut self.parts {
            let mut owner = PartOwner::new(part.of, owner);
            part.transport.peer_replaced(addr, &mut owner);
        }
    }

    fn arm(&mut self) -> Result<bool> {
        let mut quiet = true;
        for part in &mut self.parts {
            quiet &= part.transport.arm()?;
        }
        Ok(quiet)
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        for part in &self.parts {
            part.transport.stats(&mut |name, value| match sums
                .iter_mut()
                .find(|(known, _)| *known == name)
            {
                Some((_, sum)) => *sum += value,
                None => sums.push((name, value)),
            });
        }
        for (name, sum) in sums {
            report(name, sum);
        }
    }
}

/// The key of a token's message, as the source of receives that name a key.
pub(super) fn key_of(token: &Token) -> FiAddr {
    key_source(token.transport >> TRANSPORT_BITS)
}

fn own_token(token: Token) -> Token {
    Token {
        transport: token.transport & ((1 << TRANSPORT_BITS) - 1),
        ..token
    }
}

/// The owner as one part sees it.
struct PartOwner<'a, O> {
    of: PartOf,
    owner: &'a mut O,
}

impl<'a, O: Owner> PartOwner<'a, O> {
    fn new(of: PartOf, owner: &'a mut O) -> Self {
        Self { of, owner }
    }

    /// The key's number, which its tokens contain.
    fn number(&self) -> u32 {
        number_of(self.of.handle)
    }
}

/// The token of a part's own transport, if the token belongs to this part.
fn of_part(number: u32, token: Token) -> Option<Token> {
    (token.transport >> TRANSPORT_BITS == number).then(|| own_token(token))
}

impl<O: Owner> Owner for PartOwner<'_, O> {
    fn srx(&mut self) -> &mut impl PeerSrx {
        self
    }

    fn tx_cq(&mut self) -> &mut impl PeerCq {
        self.owner.tx_cq()
    }

    fn rx_cq(&mut self) -> &mut impl PeerCq {
        self.owner.rx_cq()
    }

    fn tx_cntr(&mut self) -> &mut impl PeerCntr {
        self.owner.tx_cntr()
    }

    fn rx_cntr(&mut self) -> &mut impl PeerCntr {
        self.owner.rx_cntr()
    }

    fn av(&self) -> &impl PeerAv {
        self.owner.av()
    }

    fn unknown_source(&self) -> FiAddr {
        self.owner.av().reported_key(self.of.handle)
    }

    fn remote_part_sent(
        &mut self,
        kind: RemoteKind,
        done: &SendDone,
        failed: Option<(Errno, i32, &'static str)>,
    ) {
        self.owner.remote_part_sent(kind, done, failed);
    }

    fn remote_part_came(
        &mut self,
        kind: RemoteKind,
        m: &Matched,
        a: &Arrived,
        failed: Option<(Errno, &'static str)>,
    ) {
        self.owner.remote_part_came(kind, m, a, failed);
    }

    fn shortcut_over(&mut self, number: u64, end: ShortcutEnd) {
        self.owner.shortcut_over(number, end);
    }

    fn peer_gone(&mut self, addr: FiAddr) {
        self.owner.peer_gone(addr);
    }
}

impl<O: Owner> PeerSrx for PartOwner<'_, O> {
    fn arrive(&mut self, kind: MsgKind, arrived: &Arrived) -> Option<Matched> {
        let key = key_source(self.number());
        let mut arrived = *arrived;
        if kind.is_request() {
            arrived.src = with_part(arrived.src, self.of.number);
        }
        self.owner.srx().arrive_with_key(kind, &arrived, key)
    }

    fn arrive_with_key(
        &mut self,
        kind: MsgKind,
        arrived: &Arrived,
        key: FiAddr,
    ) -> Option<Matched> {
        self.owner.srx().arrive_with_key(kind, arrived, key)
    }

    fn segments(&mut self, piece: Piece) -> &[IoBuf] {
        self.owner.srx().segments(piece)
    }

    fn in_one_piece(&mut self, matched: &Matched) -> Option<Matched> {
        self.owner.srx().in_one_piece(matched)
    }

    fn complete_piece(&mut self, kind: MsgKind, piece: Piece) -> Flags {
        self.owner.srx().complete_piece(kind, piece)
    }

    fn queue(&mut self, kind: MsgKind, arrived: Arrived, token: Token) {
        let token = Token {
            transport: (self.number() << TRANSPORT_BITS) | token.transport,
            ..token
        };
        self.owner.srx().queue(kind, arrived, token);
    }

    fn resolve(&mut self, src: FiAddr, mut of: impl FnMut(Token) -> bool) {
        let number = self.number();
        let of = |token| of_part(number, token).is_some_and(&mut of);
        self.owner.srx().resolve(src, of);
    }

    fn forget_source(&mut self, src: FiAddr) {
        self.owner.srx().forget_source(src);
    }

    fn take_refusals(&mut self) -> Vec<SendOp> {
        self.owner.srx().take_refusals()
    }

    fn next_request(&mut self) -> Option<u64> {
        self.owner.srx().next_request()
    }

    fn fail_source(
        &mut self,
        src: FiAddr,
        errno: Errno,
        why: &'static str,
        mut lost: impl FnMut(Token) -> bool,
    ) {
        let number = self.number();
        let lost = |token| of_part(number, token).is_some_and(&mut lost);
        self.owner.srx().fail_source(src, errno, why, lost);
    }
}
