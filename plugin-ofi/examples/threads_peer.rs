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

use std::io::{BufRead, BufReader, Write};
use std::mem::ManuallyDrop;
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use ferro_fi::abi::{
    FI_DIRECTED_RECV, FI_ENABLE, FI_RECV, FI_SEND, FI_TAGGED, fi_addr_t, fi_av_attr, fi_av_type,
    fi_cq_attr, fi_cq_format, fi_cq_tagged_entry, fi_info, fid, fid_av, fid_cq, fid_domain, fid_ep,
};
use stock::{Libfabric, call, done};
use workload::{Crew, Party};

/// How long a thread waits for a message: many threads may share a core.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls that find nothing before the clock is looked at.
const IDLE_POLLS: u32 = 1024;

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
        let number = |text: &str| {
            text.parse::<usize>()
                .map_err(|_| format!("\"{text}\" is no number"))
        };
        let task = Self {
            threads: number(threads)?,
            size: number(size)?,
            messages: number(messages)? as u64,
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
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ran = match arguments.as_slice() {
        ["listen", port] => serve(port),
        [address, task @ ..] => ThreadsTask::parse(task).and_then(|task| ask(address, task)),
        [] => Err("wanted: listen PORT, or HOST:PORT THREADS SIZE MESSAGES".to_owned()),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("threads_peer: {why}");
            ExitCode::FAILURE
        }
    }
}

fn serve(port: &str) -> Result<(), String> {
    // A machine without such a provider reports it before a client connects.
    ThreadStation::open(1)?;
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).map_err(said("listen"))?;
    let (mut answers, _) = listener.accept().map_err(said("accept"))?;
    let mut lines = BufReader::new(answers.try_clone().map_err(said("accept"))?).lines();
    let asked = next(&mut lines)?;
    let task = ThreadsTask::parse(&asked.split(' ').collect::<Vec<_>>())?;
    let crew = task.crew()?;
    meet(&crew, &mut lines, &task)?;
    tell_names(&mut answers, &crew)?;
    crew.receive_all(task.warm_up(), || ())?;
    crew.receive_all(task.messages, || ())
}

fn ask(address: &str, task: ThreadsTask) -> Result<(), String> {
    let crew = task.crew()?;
    let mut stream = TcpStream::connect(address).map_err(said("connect"))?;
    let ThreadsTask {
        threads,
        size,
        messages,
    } = task;
    writeln!(stream, "{threads} {size} {messages}").map_err(said("talk to the other side"))?;
    tell_names(&mut stream, &crew)?;
    meet(&crew, &mut BufReader::new(stream).lines(), &task)?;
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

type Lines = std::io::Lines<BufReader<TcpStream>>;

fn next(lines: &mut Lines) -> Result<String, String> {
    match lines.next() {
        Some(line) => line.map_err(said("hear the other side")),
        None => Err("the other side is gone".to_owned()),
    }
}

fn tell_names(stream: &mut TcpStream, crew: &Crew<ThreadStation>) -> Result<(), String> {
    for name in crew.each(|| (), |_, station| station.name())? {
        let digits: Vec<String> = name.iter().map(|b| format!("{b:02x}")).collect();
        writeln!(stream, "{}", digits.concat()).map_err(said("talk to the other side"))?;
    }
    Ok(())
}

/// Gives each station its peer.
fn meet(crew: &Crew<ThreadStation>, lines: &mut Lines, task: &ThreadsTask) -> Result<(), String> {
    let names = (0..task.threads).map(|_| from_hex(&next(lines)?));
    let names: Vec<Vec<u8>> = names.collect::<Result<_, _>>()?;
    crew.each(|| (), move |number, station| station.meet(&names[number]))?;
    Ok(())
}

fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| "an address that is not hexadecimal".to_owned())
}

fn said(what: &'static str) -> impl Fn(std::io::Error) -> String {
    move |e| format!("{what}: {e}")
}

/// The endpoint of a thread. Closed with it: the provider would leave files behind.
struct ThreadStation {
    info: *mut fi_info,
    domain: *mut fid_domain,
    ep: *mut fid_ep,
    av: *mut fid_av,
    cq: *mut fid_cq,
    peer: fi_addr_t,
    out: Vec<u8>,
    into: Vec<u8>,
    /// The fabric, which is not closed, needs it until the process ends.
    _libfabric: ManuallyDrop<Libfabric>,
}

impl ThreadStation {
    fn open(size: usize) -> Result<Self, String> {
        let libfabric = Libfabric::load()?;
        let want = |hints: &mut fi_info| hints.caps = FI_TAGGED | FI_DIRECTED_RECV;
        let found = libfabric.find(c"shm", want)?;
        let info = found.ok_or("libfabric has no shm provider here")?;
        let domain = libfabric.domain(info)?;
        let mut station = Self {
            info,
            domain,
            ep: null_mut(),
            av: null_mut(),
            cq: null_mut(),
            peer: 0,
            out: vec![1; size],
            into: vec![1; size],
            _libfabric: ManuallyDrop::new(libfabric),
        };
        let mut av_attr = fi_av_attr {
            type_: fi_av_type::FI_AV_TABLE,
            ..fi_av_attr::default()
        };
        let mut cq_attr = fi_cq_attr {
            format: fi_cq_format::FI_CQ_FORMAT_TAGGED,
            size: 128,
            ..fi_cq_attr::default()
        };
        // SAFETY: as the manual pages have it.
        unsafe {
            let av = &raw mut station.av;
            let opened = call!(domain, ops.av_open(&raw mut av_attr, av, null_mut()));
            done("fi_av_open", opened)?;
            let cq = &raw mut station.cq;
            let opened = call!(domain, ops.cq_open(&raw mut cq_attr, cq, null_mut()));
            done("fi_cq_open", opened)?;
            let ep = &raw mut station.ep;
            let opened = call!(domain, ops.endpoint(station.info, ep, null_mut()));
            done("fi_endpoint", opened)?;
            let fid: *mut fid = station.ep.cast();
            let ops = *(*fid).ops;
            let bind = ops.bind.unwrap();
            done("fi_ep_bind", bind(fid, station.av.cast(), 0))?;
            done(
                "fi_ep_bind",
                bind(fid, station.cq.cast(), FI_SEND | FI_RECV),
            )?;
            let control = ops.control.unwrap();
            done("fi_enable", control(fid, FI_ENABLE, null_mut()))?;
        }
        Ok(station)
    }

    fn name(&self) -> Result<Vec<u8>, String> {
        let mut name = vec![0u8; 256];
        let mut len = name.len();
        // SAFETY: as fi_getname(3) has it.
        let got = unsafe {
            let getname = (*(*self.ep).cm).getname.unwrap();
            getname(self.ep.cast(), name.as_mut_ptr().cast(), &raw mut len)
        };
        done("fi_getname", got)?;
        name.truncate(len);
        Ok(name)
    }

    fn meet(&mut self, name: &[u8]) -> Result<(), String> {
        let (name, addr) = (name.as_ptr().cast(), &raw mut self.peer);
        // SAFETY: as fi_av(3) has it.
        match unsafe { call!(self.av, ops.insert(name, 1, addr, 0, null_mut())) } {
            1 => Ok(()),
            code => Err(format!("fi_av_insert: {code}")),
        }
    }

    /// Reads a completion if there is one; else once in many calls sees whether it takes too long.
    #[inline]
    fn poll(&self, idle: &mut u32, since: &mut Option<Instant>) -> Result<bool, String> {
        let mut entry = fi_cq_tagged_entry::default();
        // SAFETY: there is room for one.
        match unsafe { call!(self.cq, ops.read((&raw mut entry).cast(), 1)) } {
            1 => return Ok(true),
            0 => {}
            n if n == -(libc::EAGAIN as isize) => {}
            n => return Err(format!("fi_cq_read: {n}")),
        }
        *idle += 1;
        if *idle == IDLE_POLLS {
            *idle = 0;
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(format!("nothing came within {PATIENCE:?}"));
            }
        }
        Ok(false)
    }

    /// Makes a call until there is room for what it wants, and waits for its completion.
    #[inline]
    fn complete(&self, what: &str, post: impl Fn() -> isize) -> Result<(), String> {
        let (mut idle, mut since) = (0, None);
        loop {
            match post() {
                0 => break,
                code if code == -(libc::EAGAIN as isize) => {
                    // Nothing else of this thread's is under way.
                    if self.poll(&mut idle, &mut since)? {
                        return Err(format!("{what}: completed before it was posted"));
                    }
                }
                code => return Err(format!("{what}: {code}")),
            }
        }
        while !self.poll(&mut idle, &mut since)? {}
        Ok(())
    }
}

impl Drop for ThreadStation {
    fn drop(&mut self) {
        let objects: [*mut fid; 4] = [
            self.ep.cast(),
            self.cq.cast(),
            self.av.cast(),
            self.domain.cast(),
        ];
        for fid in objects.into_iter().filter(|fid| !fid.is_null()) {
            // SAFETY: each begins with its fid, is open, and goes before what it was opened on;
            // nobody uses it any more.
            unsafe {
                if let Some(close) = (*(*fid).ops).close {
                    close(fid);
                }
            }
        }
    }
}

impl Party for ThreadStation {
    type Error = String;

    #[inline]
    fn send(&mut self) -> Result<(), String> {
        let (ep, from, len) = (self.ep, self.out.as_ptr().cast(), self.out.len());
        // SAFETY: as fi_tagged(3) has it; the buffer stays until the operation is over, for which
        // this waits.
        self.complete("fi_tsend", || unsafe {
            let send = (*(*ep).tagged).send.unwrap();
            send(ep, from, len, null_mut(), self.peer, TAG, null_mut())
        })
    }

    #[inline]
    fn receive(&mut self) -> Result<(), String> {
        let (ep, len) = (self.ep, self.into.len());
        let into = self.into.as_mut_ptr().cast();
        // SAFETY: as above.
        self.complete("fi_trecv", || unsafe {
            let recv = (*(*ep).tagged).recv.unwrap();
            recv(ep, into, len, null_mut(), self.peer, TAG, 0, null_mut())
        })
    }

    fn thread_ended() -> String {
        "a thread ended that should not have".to_owned()
    }
}
