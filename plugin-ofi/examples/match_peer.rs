//! The other side of `scripts/bench match`: the workload of `ferro bench match` over stock
//! libfabric's `shm` provider, through its C interface. Two endpoints of this thread.
//!
//!     match_peer SIDE KIND ORDER DEPTH,… ROUNDS
//!
//! Prints a JSON array with an object for each depth: `depth`, `ns_per_op`, `min_ns`; depths are
//! left out that the provider can not have. Fails where there is no libfabric with an `shm`
//! provider.

#![allow(missing_docs, clippy::unwrap_used, reason = "a program that measures")]

#[allow(dead_code, unreachable_pub, reason = "ours uses all of it")]
#[path = "../../ferro/src/workload/matching.rs"]
mod workload;

#[allow(dead_code, reason = "the other programs use all of it")]
mod stock;

use std::ffi::c_void;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use ferro_fi::abi::{
    FI_DIRECTED_RECV, FI_TAGGED, fi_addr_t, fi_cq_tagged_entry, fi_info, fid_domain,
};
use stock::endpoint::BoundEndpoint;
use stock::{Libfabric, ended, number};
use workload::{Kind, MatchOrder, Pair, Queue, Receive, Side, sample};

/// Of one depth at a stretch, or one burst.
const STRETCH: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(10);

/// The provider of libfabric 1 has as many receives as this says, and crashes with twice that.
const RX_SIZE_1: usize = 1 << 14;
const RX_SIZE_2: usize = 1 << 18;

/// Messages have no bytes, but some providers refuse a buffer without an address.
static NOWHERE: u64 = 0;

fn main() -> ExitCode {
    ended("match_peer", run())
}

fn run() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [side, kind, order, depths, rounds] = &arguments[..] else {
        return Err("wanted: SIDE KIND ORDER DEPTH,… ROUNDS".to_owned());
    };
    let what: (Side, Kind, MatchOrder) = (side.parse()?, kind.parse()?, order.parse()?);
    let mut depths: Vec<usize> = depths.split(',').map(number).collect::<Result<_, _>>()?;
    let fabric = Fabric::open()?;
    depths.retain(|depth| depth + workload::BURST < fabric.most);
    let mut queues = Vec::new();
    for &depth in &depths {
        queues.push(Queue::fill(fabric.pair()?, what, depth)?);
    }
    let mut bursts = vec![Vec::new(); depths.len()];
    for _ in 0..number::<usize>(rounds)? {
        for (queue, bursts) in queues.iter_mut().zip(&mut bursts) {
            bursts.extend(sample(queue, STRETCH)?);
        }
    }
    let row = |(depth, bursts): (&usize, &mut Vec<f64>)| {
        bursts.sort_by(f64::total_cmp);
        let middle = bursts.get(bursts.len() / 2).copied().unwrap_or_default();
        let min = bursts.first().copied().unwrap_or_default();
        serde_json::json!({ "depth": depth, "ns_per_op": middle, "min_ns": min })
    };
    let rows: serde_json::Value = depths.iter().zip(&mut bursts).map(row).collect();
    println!("{rows}");
    Ok(())
}

/// A domain of the provider.
struct Fabric {
    info: *mut fi_info,
    domain: *mut fid_domain,
    /// Receives that its endpoints have room for.
    most: usize,
    _libfabric: Libfabric,
}

impl Fabric {
    fn open() -> Result<Self, String> {
        let libfabric = Libfabric::load()?;
        let most = if libfabric.is_first() {
            RX_SIZE_1
        } else {
            RX_SIZE_2
        };
        // SAFETY: there is one thread, and the provider reads it when it is first asked for.
        unsafe { std::env::set_var("FI_SHM_RX_SIZE", most.to_string()) };
        let want = |hints: &mut fi_info| hints.caps = FI_TAGGED | FI_DIRECTED_RECV;
        let found = libfabric.find(c"shm", want)?;
        let info = found.ok_or("libfabric has no shm provider here")?;
        Ok(Self {
            info,
            domain: libfabric.domain(info)?,
            most,
            _libfabric: libfabric,
        })
    }

    /// Two endpoints that know each other.
    fn pair(&self) -> Result<PeerEndpoints, String> {
        let (sender, receiver) = (self.party()?, self.party()?);
        let to = sender.insert(&receiver.name()?)?;
        let from = receiver.insert(&sender.name()?)?;
        let mut pair = PeerEndpoints {
            sender,
            receiver,
            to,
            from,
        };
        pair.post(Receive {
            any_source: false,
            tag: 0,
            ignore: 0,
        })?;
        pair.send(0)?;
        pair.reap(1)?;
        Ok(pair)
    }

    fn party(&self) -> Result<BoundEndpoint, String> {
        BoundEndpoint::open(self.domain, self.info, 1024)
    }
}

struct PeerEndpoints {
    sender: BoundEndpoint,
    receiver: BoundEndpoint,
    to: fi_addr_t,
    from: fi_addr_t,
}

impl PeerEndpoints {
    /// Makes a call until there is room for what it wants; both sides are driven meanwhile.
    #[inline]
    fn insist(&self, what: &str, call: impl Fn() -> isize) -> Result<(), String> {
        let mut since = None;
        loop {
            match call() {
                0 => return Ok(()),
                code if code == -(libc::EAGAIN as isize) => {
                    // A first message waits until the receiver has answered; reading nothing drives
                    // it.
                    self.receiver.read(&mut [])?;
                    self.sender.read(&mut [fi_cq_tagged_entry::default()])?;
                    if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        return Err(format!("{what}: no room within {PATIENCE:?}"));
                    }
                }
                code => return Err(format!("{what}: {code}")),
            }
        }
    }
}

impl Pair for PeerEndpoints {
    type Error = String;

    #[inline]
    fn post(&mut self, receive: Receive) -> Result<(), String> {
        let Receive { tag, ignore, .. } = receive;
        let from = match receive.any_source {
            true => fi_addr_t::MAX,
            false => self.from,
        };
        self.insist("fi_trecv", || {
            let (ep, context) = (self.receiver.ep, 9 as *mut c_void);
            let room = (&raw const NOWHERE).cast_mut().cast();
            // SAFETY: as fi_tagged(3) has it; the buffer has no bytes.
            unsafe {
                let recv = (*(*ep).tagged).recv.unwrap();
                recv(ep, room, 0, null_mut(), from, tag, ignore, context)
            }
        })
    }

    #[inline]
    fn send(&mut self, tag: u64) -> Result<(), String> {
        self.insist("fi_tinject", || {
            let ep = self.sender.ep;
            // SAFETY: as fi_tagged(3) has it; the buffer has no bytes.
            unsafe {
                ((*(*ep).tagged).inject.unwrap())(ep, (&raw const NOWHERE).cast(), 0, self.to, tag)
            }
        })
    }

    #[inline]
    fn reap(&mut self, receives: usize) -> Result<(), String> {
        let mut entries = [fi_cq_tagged_entry::default(); 16];
        let (mut there, mut since) = (0, None);
        while there < receives {
            let room = entries.len().min(receives - there);
            there += match self.receiver.read(&mut entries[..room])? {
                0 => {
                    self.sender.read(&mut [fi_cq_tagged_entry::default()])?;
                    if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        return Err("a message did not come".to_owned());
                    }
                    0
                }
                n => n,
            };
        }
        Ok(())
    }
}
