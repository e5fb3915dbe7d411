//! The additional cost of a call through libfabric, compared with the same call of the Rust API.
//! Tagged messages of 8 bytes go through shared memory between two endpoints of one thread, so that
//! the distance of two cores has no influence. Each round has a burst of both; the medians of the
//! rounds count.
//!
//!     cargo bench -p ferrofabric-ofi --bench overhead

#[path = "../tests/integration/client/mod.rs"]
mod client;
#[path = "../tests/integration/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Instant;

use client::{Libfabric, Opened, Party};
use ferro_fi::abi::{fi_addr_t, fi_cq_tagged_entry, fi_threading};
use ferrofabric_av::AvAttr;
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{Cq, CqAttr, Domain, Endpoint, EndpointConfig, Provider};
use ferrofabric_shm::ShmProvider;
use support::plugin::Plugin;

const ROUNDS: usize = 201;
const MESSAGES: u32 = 5000;
/// A receive is posted, a message is injected, the queue is read.
const CALLS: f64 = 3.0;
const BYTES: usize = 8;

fn main() {
    let plugin = Plugin::new();
    for (name, value) in plugin.variables() {
        // SAFETY: there is no other thread yet.
        unsafe { std::env::set_var(name, value) };
    }
    let Some(libfabric) = Libfabric::load() else {
        println!("SKIP: there is no libfabric 2 here (libfabric1, or ci/mpi)");
        return;
    };
    let info = libfabric.discover(ShmProvider::DOMAIN, fi_threading::FI_THREAD_DOMAIN);
    let opened = Opened::new(&info);
    let c = PluginPair::of(opened.party(&info), opened.party(&info));
    let rust = Rust::open();
    let (mut of_c, mut of_rust, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let times = match round % 2 {
            0 => (burst(|| c.message()), burst(|| rust.message())),
            _ => {
                let rust = burst(|| rust.message());
                (burst(|| c.message()), rust)
            }
        };
        of_c.push(times.0);
        of_rust.push(times.1);
        more.push((times.0 - times.1) / CALLS);
    }
    let (c_ns, rust_ns, more) = (median(of_c), median(of_rust), median(more));
    println!(
        "a message (3 calls): {c_ns:.1} ns through libfabric, {rust_ns:.1} ns through the Rust API; a call costs {more:.1} ns more"
    );
    c.close();
    opened.close();
}

/// The time of a message in ns.
fn burst(message: impl Fn()) -> f64 {
    let start = Instant::now();
    for _ in 0..MESSAGES {
        message();
    }
    start.elapsed().as_nanos() as f64 / f64::from(MESSAGES)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Two endpoints of the plugin.
struct PluginPair {
    from: Party,
    to: Party,
    addr: fi_addr_t,
    room: Box<[u8; BYTES]>,
}

impl PluginPair {
    fn of(from: Party, to: Party) -> Self {
        let addr = from.insert(&to.name());
        to.insert(&from.name());
        Self {
            from,
            to,
            addr,
            room: Box::new([0; BYTES]),
        }
    }

    #[inline]
    fn message(&self) {
        let room = self.room.as_ptr().cast_mut();
        while self.to.receive(room, BYTES, std::ptr::null_mut(), 1) != 0 {}
        let mut entry = fi_cq_tagged_entry::default();
        while self.from.inject(&[7; BYTES], self.addr, 1) != 0 {
            self.from.poll(&mut entry);
        }
        while self.to.poll(&mut entry) != 1 {}
        assert_eq!(entry.len, BYTES);
    }

    fn close(self) {
        self.from.close();
        self.to.close();
    }
}

/// Two endpoints of the Rust API, opened as the plugin opens them.
struct Rust {
    from: Arc<dyn Endpoint>,
    to: Arc<dyn Endpoint>,
    cq: Arc<dyn Cq>,
    own_cq: Arc<dyn Cq>,
    addr: FiAddr,
    room: Box<[u8; BYTES]>,
    _domain: Arc<dyn Domain>,
}

impl Rust {
    fn open() -> Self {
        let settings = Settings::from_env().expect("the settings are sound");
        let found = ShmProvider::new().discover(&settings);
        let info = found.candidates.first().expect("shared memory is on");
        // SAFETY: one thread makes all calls.
        let domain = unsafe { ShmProvider::new().open_serialized(info, &settings) };
        let domain = domain.expect("the domain opens");
        let open = || {
            let av = domain.open_av(&AvAttr::default()).expect("it opens");
            let cq = domain.open_cq(&CqAttr::default()).expect("it opens");
            let endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq));
            (endpoint.expect("it opens"), av, cq)
        };
        let ((from, from_av, own_cq), (to, to_av, cq)) = (open(), open());
        let addr = from_av.insert(&to.name().to_bytes()).expect("an address");
        to_av.insert(&from.name().to_bytes()).expect("an address");
        Self {
            from,
            to,
            cq,
            own_cq,
            addr,
            room: Box::new([0; BYTES]),
            _domain: domain,
        }
    }

    #[inline]
    fn message(&self) {
        let receive = RecvOp {
            kind: MsgKind::Tagged,
            src: FiAddr::UNSPEC,
            tag: 1,
            ignore: 0,
            desc: MrDesc::NONE,
            context: 9,
            flags: Flags::COMPLETION,
        };
        let room = [IoBuf::new(self.room.as_ptr(), BYTES)];
        // SAFETY: the room stays, and the message comes before the next receive.
        while unsafe { self.to.recv(&receive, &room) }.is_err() {}
        let send = SendOp {
            kind: MsgKind::Tagged,
            dest: self.addr,
            tag: 1,
            data: 0,
            desc: MrDesc::NONE,
            context: 0,
            flags: Flags::INJECT,
        };
        let bytes = [7u8; BYTES];
        let mut done = [Completion::BLANK];
        let iov = [IoBuf::new(bytes.as_ptr(), BYTES)];
        // SAFETY: an inject is over at return.
        while unsafe { self.from.send(&send, &iov) }.is_err() {
            let _ = self.own_cq.read(&mut done);
        }
        while self.cq.read(&mut done).is_err() {}
        assert_eq!(done[0].len, BYTES);
    }
}
