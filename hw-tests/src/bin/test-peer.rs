//! The other processes of tests: `test-peer ROLE NUMBER…`, started by `party::Peer`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::{Duration, Instant};

use fastrand::Rng;
use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::AddrFormat;
use ferrofabric_contracts::info::EpType;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::party::{self, fill, size, succeeded, tsend, wait};
use ferrofabric_hw_tests::{groups, sockets, sums};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let role = arguments.next().expect("a role");
    let numbers: Vec<u64> = arguments.map(|n| n.parse().expect("a number")).collect();
    match role.as_str() {
        "sender" => sender(&numbers),
        "echo" => echo(&numbers),
        "many" => many(&numbers),
        "listen" => listen(&numbers),
        "adder" => sums::adder(&numbers),
        "member" => groups::member(&numbers),
        _ => panic!("unknown role {role}"),
    }
}

/// Sends `count` messages of `low` to `high` bytes to the hub, number `me` and the message's own
/// number in the tag; ends when the hub says so.
fn sender(numbers: &[u64]) {
    let &[me, count, low, high, window] = numbers else {
        panic!("sender ME COUNT LOW HIGH WINDOW");
    };
    let mut endpoint = party::endpoint(&[]);
    let hub = party::report(&endpoint.name());
    let hub = endpoint.av().insert(&hub.to_bytes()).unwrap();
    let mut rng = Rng::with_seed(me);
    let mut free: Vec<Buffer> = (0..window)
        .map(|_| Buffer::new(high as usize).unwrap())
        .collect();
    for i in 0..count {
        let mut buffer = loop {
            match free.pop() {
                Some(buffer) => break buffer,
                None => {
                    let done = wait(&mut endpoint);
                    succeeded(done.outcome);
                    free.push(done.buffer);
                }
            }
        };
        let len = size(&mut rng, low as usize, high as usize);
        let tag = (me << 32) | i;
        fill(&mut buffer[..len], tag);
        tsend(&mut endpoint, buffer, len, hub, tag, 0, |done| {
            succeeded(done.outcome);
            free.push(done.buffer);
        });
    }
    while endpoint.in_flight() > 0 {
        succeeded(wait(&mut endpoint).outcome);
    }
    endpoint
        .trecv(Buffer::new(0).unwrap(), hub, u64::MAX, 0, 0)
        .unwrap();
    succeeded(wait(&mut endpoint).outcome);
}

/// Sends every message back, of up to `size` bytes, until one comes that is empty.
fn echo(numbers: &[u64]) {
    let &[size] = numbers else {
        panic!("echo SIZE");
    };
    let mut endpoint = party::endpoint(&[]);
    let hub = party::report(&endpoint.name());
    let hub = endpoint.av().insert(&hub.to_bytes()).unwrap();
    let mut buffer = Buffer::new(size as usize).unwrap();
    loop {
        endpoint
            .trecv(buffer, FiAddr::UNSPEC, 0, u64::MAX, 0)
            .unwrap();
        let done = wait(&mut endpoint);
        let completion = succeeded(done.outcome);
        if completion.len == 0 {
            return;
        }
        endpoint
            .tsend(done.buffer, completion.len, hub, completion.tag, 0)
            .unwrap();
        let done = wait(&mut endpoint);
        succeeded(done.outcome);
        buffer = done.buffer;
    }
}

/// Is found at a port until the process is killed.
fn listen(numbers: &[u64]) {
    let &[port] = numbers else {
        panic!("listen PORT");
    };
    let domain = sockets::domain(EpType::Rdm, AddrFormat::SOCKADDR_IN, &[]);
    let endpoint = sockets::at_port(&*domain, u16::try_from(port).unwrap()).unwrap();
    party::report(&endpoint.name());
}

/// Opens `COUNT` endpoints. Each sends its address to the hub (tag 1), waits for an answer (tag 2),
/// and confirms the answer (tag 3). They stay until the process is killed.
fn many(numbers: &[u64]) {
    let &[count] = numbers else {
        panic!("many COUNT");
    };
    let count = usize::try_from(count).unwrap();
    raise_descriptor_limit();
    let domain = party::domain(&[]);
    let mut endpoints: Vec<OwningEndpoint> = (0..count)
        .map(|_| OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap())
        .collect();
    let hub = party::report(&endpoints[0].name());
    let mut waiting: Vec<(&mut OwningEndpoint, FiAddr)> = (endpoints.iter_mut())
        .map(|endpoint| {
            let to_hub = endpoint.av().insert(&hub.to_bytes()).unwrap();
            let answer = Buffer::new(8).unwrap();
            (endpoint.trecv(answer, to_hub, 2, 0, 2))
                .map_err(|(e, _)| e)
                .unwrap();
            let name = endpoint.name().to_bytes();
            endpoint.tinject(&name, to_hub, 1).unwrap();
            (endpoint, to_hub)
        })
        .collect();
    let began = Instant::now();
    while !waiting.is_empty() {
        waiting.retain_mut(|(endpoint, to_hub)| match endpoint.poll().unwrap() {
            Some(done) => {
                succeeded(done.outcome);
                endpoint.tinject(&[0], *to_hub, 3).unwrap();
                false
            }
            None => true,
        });
        assert!(began.elapsed() < party::PATIENCE, "the hub does not answer");
    }
    loop {
        for endpoint in &mut endpoints {
            let _ = endpoint.poll().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: there is room for the limit.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}
