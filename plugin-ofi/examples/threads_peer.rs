//! A peer of `scripts/bench shm`: the workload of `ferro bench rate --threads N` over stock
//! libfabric's `shm` provider, through its C interface. Each thread has a domain and an endpoint of
//! its own.
//!
//!     threads_peer listen PORT                             one side, which receives
//!     threads_peer HOST:PORT THREADS SIZE MESSAGES         the other one, which sends
//!
//! The side that sends prints a JSON object: `threads`, `size`, `messages` (of each thread),
//! `messages_per_s` (of all). Fails where there is no libfabric with an `shm` provider.

#![allow(missing_docs, clippy::unwrap_used, reason = "a program that measures")]

#[path = "../../ferro/src/workload/threads.rs"]
#[allow(dead_code, unreachable_pub, reason = "ours uses all of it")]
mod workload;

#[allow(dead_code, reason = "the other programs use all of it")]
mod stock;

use std::io::Write;
use std::net::TcpStream;
use std::process::ExitCode;
use std::ptr::null_mut;

use ferro_fi::abi::{FI_DIRECTED_RECV, FI_TAGGED};
use stock::endpoint::StockEndpoint;
use stock::sides::{Lines, accept, connect, failed, next, run};
use stock::{from_hex, number, to_hex};
use workload::{Crew, Party};

/// The limits that `ferro` has for the other side.
const MOST_THREADS: usize = 128;
const MOST_BYTES: usize = 1 << 20;

const TAG: u64 = 1;

/// The measurement that both sides make.
#[derive(Clone, Copy)]
struct ThreadsTask {
    threads: usize,
    size: usize,
    messages: u64,
}

impl ThreadsTask {
    fn parse(text: &[&str]) -> Result<Self, String> {
        let [threads, size, messages] = text else {
            return Err("wanted: THREADS SIZE MESSAGES".to_owned());
        };
        let task = Self {
            threads: number(threads)?,
            size: number(size)?,
            messages: number(messages)?,
        };
        match (1..=MOST_THREADS).contains(&task.threads) && task.size <= MOST_BYTES {
            true => Ok(task),
            false => Err("too many threads, or too long messages".to_owned()),
        }
    }

    fn crew(&self) -> Result<Crew<ThreadStation>, String> {
        let size = self.size;
        Crew::start(self.threads, move || ThreadStation::open(size))
    }

    /// Messages of each thread before those that count.
    fn warm_up(&self) -> u64 {
        self.messages / 10 + 1
    }
}

fn main() -> ExitCode {
    run("threads_peer", "THREADS SIZE MESSAGES", serve, ask)
}

fn serve(port: &str) -> Result<(), String> {
    // A machine without such a provider reports it before a client connects.
    ThreadStation::open(1)?;
    let (mut answers, mut lines) = accept(port)?;
    let asked = next(&mut lines)?;
    let task = ThreadsTask::parse(&asked.split(' ').collect::<Vec<_>>())?;
    let crew = task.crew()?;
    meet(&crew, &mut lines, &task)?;
    write_names(&mut answers, &crew)?;
    crew.receive_all(task.warm_up(), || ())?;
    crew.receive_all(task.messages, || ())
}

fn ask(address: &str, words: &[&str]) -> Result<(), String> {
    let task = ThreadsTask::parse(words)?;
    let crew = task.crew()?;
    let (mut stream, mut lines) = connect(address)?;
    let ThreadsTask {
        threads,
        size,
        messages,
    } = task;
    writeln!(stream, "{threads} {size} {messages}").map_err(failed("write to the other side"))?;
    write_names(&mut stream, &crew)?;
    meet(&crew, &mut lines, &task)?;
    crew.send_all(task.warm_up(), || ())?;
    let took = crew.send_all(messages, || ())?.as_secs_f64();
    let rate = messages as f64 * threads as f64 / took.max(1e-9);
    let row = serde_json::json!({
        "threads": threads,
        "size": size,
        "messages": messages,
        "messages_per_s": rate,
    });
    println!("{row}");
    Ok(())
}

fn write_names(stream: &mut TcpStream, crew: &Crew<ThreadStation>) -> Result<(), String> {
    for name in crew.each(|| (), |_, station| station.endpoint.bound.name())? {
        writeln!(stream, "{}", to_hex(&name)).map_err(failed("write to the other side"))?;
    }
    Ok(())
}

/// Gives each station its peer.
fn meet(crew: &Crew<ThreadStation>, lines: &mut Lines, task: &ThreadsTask) -> Result<(), String> {
    let names = (0..task.threads).map(|_| from_hex(&next(lines)?));
    let names: Vec<Vec<u8>> = names.collect::<Result<_, _>>()?;
    crew.each(
        || (),
        move |number, station| station.endpoint.meet(&names[number]),
    )?;
    Ok(())
}

/// The endpoint of a thread, and its memory.
struct ThreadStation {
    endpoint: StockEndpoint,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl ThreadStation {
    fn open(size: usize) -> Result<Self, String> {
        Ok(Self {
            endpoint: StockEndpoint::open(c"shm", FI_TAGGED | FI_DIRECTED_RECV)?,
            out: vec![1; size],
            into: vec![1; size],
        })
    }
}

impl Party for ThreadStation {
    type Error = String;

    #[inline]
    fn send(&mut self) -> Result<(), String> {
        let (ep, peer) = (self.endpoint.bound.ep, self.endpoint.peer);
        let (from, len) = (self.out.as_ptr().cast(), self.out.len());
        // SAFETY: as fi_tagged(3) has it; the buffer stays until the operation is over, for which
        // this waits.
        self.endpoint.complete("fi_tsend", || unsafe {
            let send = (*(*ep).tagged).send.unwrap();
            send(ep, from, len, null_mut(), peer, TAG, null_mut())
        })
    }

    #[inline]
    fn receive(&mut self) -> Result<(), String> {
        let (ep, peer) = (self.endpoint.bound.ep, self.endpoint.peer);
        let len = self.into.len();
        let into = self.into.as_mut_ptr().cast();
        // SAFETY: as above.
        self.endpoint.complete("fi_trecv", || unsafe {
            let recv = (*(*ep).tagged).recv.unwrap();
            recv(ep, into, len, null_mut(), peer, TAG, 0, null_mut())
        })
    }

    fn thread_ended() -> String {
        "a thread ended that should not have".to_owned()
    }
}
