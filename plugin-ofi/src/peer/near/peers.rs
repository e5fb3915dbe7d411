//! The peers of one endpoint, by their numbers.

use std::collections::HashMap;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::types::FiAddr;

use crate::abi::fi_addr_t;

/// A peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForeignPeer {
    /// Its address, which names it at the provider.
    pub(super) name: NativeAddr,
    /// Its address at the provider.
    pub(super) at_provider: fi_addr_t,
    /// Its place in the owner's vector, the first if it has several; [`FiAddr::NOTAVAIL`] while it
    /// is not there.
    pub(super) addr: FiAddr,
    /// It has closed its endpoint, or has ended.
    pub(super) is_gone: bool,
}

/// All of them. None is ever taken out, so the provider never confuses two.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: Vec<ForeignPeer>,
    by_name: HashMap<u64, u32>,
    by_addr: HashMap<FiAddr, u32>,
    /// Addresses of peers that the provider has refused: the far transport is to take them over.
    refused: Vec<FiAddr>,
}

impl Peers {
    #[inline]
    pub(super) fn get(&self, number: u32) -> ForeignPeer {
        self.peers[number as usize]
    }

    pub(super) fn of_name(&self, id: u64) -> Option<u32> {
        self.by_name.get(&id).copied()
    }

    pub(super) fn of_addr(&self, addr: FiAddr) -> Option<u32> {
        self.by_addr.get(&addr).copied()
    }

    /// The number that the next peer gets.
    pub(super) fn next_number(&self) -> u32 {
        self.peers.len() as u32
    }

    /// Adds a peer that the provider has taken.
    pub(super) fn add(&mut self, name: &NativeAddr, at_provider: fi_addr_t) -> u32 {
        let number = self.next_number();
        self.peers.push(ForeignPeer {
            name: *name,
            at_provider,
            addr: FiAddr::NOTAVAIL,
            is_gone: false,
        });
        self.by_name.extend(name.shm.map(|id| (id, number)));
        number
    }

    /// The peer is in the owner's vector in one more place. Returns the place that is its source.
    pub(super) fn add_addr(&mut self, number: u32, addr: FiAddr) -> FiAddr {
        self.by_addr.insert(addr, number);
        let source = &mut self.peers[number as usize].addr;
        if !source.is_some() {
            *source = addr;
        }
        *source
    }

    /// A place in the owner's vector is empty. Returns the peer that had it, if it was its source.
    pub(super) fn remove_addr(&mut self, addr: FiAddr) -> Option<u32> {
        let number = self.by_addr.remove(&addr)?;
        let source = &mut self.peers[number as usize].addr;
        if *source != addr {
            return None;
        }
        *source = FiAddr::NOTAVAIL;
        Some(number)
    }

    /// The peers that were there so far, and are missing now.
    pub(super) fn newly_missing(&self, is_missing: impl Fn(u64) -> bool) -> Vec<u32> {
        (0..)
            .zip(&self.peers)
            .filter(|(_, peer)| !peer.is_gone && peer.name.shm.is_some_and(&is_missing))
            .map(|(number, _)| number)
            .collect()
    }

    /// The peer is gone. Returns its address.
    pub(super) fn lose(&mut self, number: u32) -> FiAddr {
        let peer = &mut self.peers[number as usize];
        peer.is_gone = true;
        peer.addr
    }

    /// The provider has refused the peer with this address.
    pub(super) fn refuse(&mut self, addr: FiAddr) {
        self.refused.push(addr);
    }

    /// The numbers of the peers that are gone.
    pub(super) fn gone(&self) -> impl Iterator<Item = u32> {
        let gone = (0..).zip(&self.peers).filter(|(_, peer)| peer.is_gone);
        gone.map(|(number, _)| number)
    }

    /// The address of a refused peer.
    #[inline]
    pub(super) fn take_refused(&mut self) -> Option<FiAddr> {
        self.refused.pop()
    }
}
