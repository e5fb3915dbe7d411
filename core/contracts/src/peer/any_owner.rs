//! The owner's objects without its type: for a transport whose calls come back through C functions.
//!
//! An [`Owner`] is a type parameter of each transport, so its methods are part of the transport's
//! code. A provider behind C functions knows no such type. Its transport makes `&mut dyn AnyOwner`
//! of the owner that a call lends it, for the time of that call. Nothing else calls through this
//! trait.

use super::{Arrived, Matched, Owner, PeerAv, PeerSrx, SendDone, Token};
use crate::addr::NativeAddr;
use crate::error::Errno;
use crate::types::{FiAddr, MsgKind};

/// Any [`Owner`], by the methods that carry messages.
pub trait AnyOwner {
    /// As [`PeerSrx::arrive`].
    fn arrive(&mut self, kind: MsgKind, arrived: &Arrived) -> Option<Matched>;

    /// As [`PeerSrx::in_one_piece`].
    fn in_one_piece(&mut self, matched: &Matched) -> Option<Matched>;

    /// As [`PeerSrx::queue`].
    fn queue(&mut self, kind: MsgKind, arrived: Arrived, token: Token);

    /// As [`PeerSrx::resolve`].
    fn resolve(&mut self, src: FiAddr, of: &mut dyn FnMut(Token) -> bool);

    /// As [`PeerSrx::fail_source`].
    fn fail_source(
        &mut self,
        src: FiAddr,
        errno: Errno,
        why: &'static str,
        lost: &mut dyn FnMut(Token) -> bool,
    );

    /// As [`Owner::complete_send`].
    fn complete_send(&mut self, done: &SendDone);

    /// As [`Owner::fail_send`].
    fn fail_send(&mut self, done: &SendDone, errno: Errno, prov_errno: i32, why: &'static str);

    /// As [`Owner::complete_recv`], where nobody can name an unknown sender.
    fn complete_recv(&mut self, kind: MsgKind, m: &Matched, a: &Arrived);

    /// As [`Owner::fail_recv`].
    fn fail_recv(
        &mut self,
        kind: MsgKind,
        m: &Matched,
        a: &Arrived,
        errno: Errno,
        olen: u64,
        why: &'static str,
    );

    /// As [`PeerAv::lookup`].
    fn lookup(&self, addr: FiAddr) -> Option<NativeAddr>;

    /// As [`PeerAv::find`].
    fn find(&self, name: &NativeAddr) -> FiAddr;
}

impl<O: Owner> AnyOwner for O {
    fn arrive(&mut self, kind: MsgKind, arrived: &Arrived) -> Option<Matched> {
        self.srx().arrive(kind, arrived)
    }

    fn in_one_piece(&mut self, matched: &Matched) -> Option<Matched> {
        self.srx().in_one_piece(matched)
    }

    fn queue(&mut self, kind: MsgKind, arrived: Arrived, token: Token) {
        self.srx().queue(kind, arrived, token);
    }

    fn resolve(&mut self, src: FiAddr, of: &mut dyn FnMut(Token) -> bool) {
        self.srx().resolve(src, of);
    }

    fn fail_source(
        &mut self,
        src: FiAddr,
        errno: Errno,
        why: &'static str,
        lost: &mut dyn FnMut(Token) -> bool,
    ) {
        self.srx().fail_source(src, errno, why, lost);
        self.peer_gone(src);
    }

    fn complete_send(&mut self, done: &SendDone) {
        Owner::complete_send(self, done);
    }

    fn fail_send(&mut self, done: &SendDone, errno: Errno, prov_errno: i32, why: &'static str) {
        Owner::fail_send(self, done, errno, prov_errno, why);
    }

    fn complete_recv(&mut self, kind: MsgKind, m: &Matched, a: &Arrived) {
        Owner::complete_recv(self, kind, m, a, || None);
    }

    fn fail_recv(
        &mut self,
        kind: MsgKind,
        m: &Matched,
        a: &Arrived,
        errno: Errno,
        olen: u64,
        why: &'static str,
    ) {
        Owner::fail_recv(self, kind, m, a, errno, olen, why);
    }

    fn lookup(&self, addr: FiAddr) -> Option<NativeAddr> {
        self.av().lookup(addr)
    }

    fn find(&self, name: &NativeAddr) -> FiAddr {
        self.av().find(name)
    }
}
