//! A peer of `scripts/bench shm`: the workloads of `ferro bench put`, `get` and `atomic` over stock
//! libfabric's `shm` provider, through its C interface. `RMA_PEER_PROVIDER` names another provider,
//! such as `tcp`.
//!
//!     rma_peer listen PORT                              one side, whose memory is the target
//!     rma_peer HOST:PORT put_lat SIZE OPERATIONS        the other one, which initiates
//!     rma_peer HOST:PORT get SIZE OPERATIONS
//!     rma_peer HOST:PORT fetch_add SIZE OPERATIONS
//!     rma_peer HOST:PORT put_bw SIZE OPERATIONS
//!
//! `put_lat`: writes there and back, each side waits for the last byte in its memory; half the
//! round trip. `get`: reads, one at a time. `fetch_add`: atomic additions of 1 to elements of 64
//! bits, one at a time; each fetched element is checked. `put_bw`: writes, with a window of them
//! under way. The side that initiates prints a JSON object: `test`, `size`, `operations`, and
//! `median_us` of batches, or `megabytes_per_s` (10⁶ bytes). Fails where there is no libfabric with
//! that provider.

#![allow(missing_docs, clippy::unwrap_used, reason = "a program that measures")]

#[allow(dead_code, reason = "the other programs use all of it")]
mod stock;

use std::ffi::{CString, c_void};
use std::io::Write;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::Instant;

use ferro_fi::abi::{
    FI_ATOMIC, FI_MR_LOCAL, FI_MR_VIRT_ADDR, FI_READ, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA,
    FI_WRITE, fi_datatype, fi_op, fid_mr,
};
use stock::endpoint::{StockEndpoint, Waited, close};
use stock::sides::{accept, connect, failed, next, run};
use stock::{done, from_hex, number, to_hex};

/// Messages of at most so many bytes are measured.
const MOST_BYTES: usize = 1 << 30;

/// Of `ferro bench put`.
const WINDOW_BYTES: usize = 4 << 20;

/// Bytes of an element of an atomic operation.
const ELEMENT: usize = size_of::<u64>();

/// Operations between two looks at the clock, where one is short.
const BATCH: u64 = 20;

#[derive(Clone, Copy, PartialEq)]
enum Test {
    PutLat,
    Get,
    FetchAdd,
    PutBw,
}

/// The measurement that both sides make.
#[derive(Clone, Copy)]
struct RmaTask {
    test: Test,
    size: usize,
    operations: u64,
}

impl RmaTask {
    fn parse(text: &[&str]) -> Result<Self, String> {
        let [test, size, operations] = text else {
            return Err("wanted: put_lat, get, fetch_add or put_bw, SIZE OPERATIONS".to_owned());
        };
        let task = Self {
            test: match *test {
                "put_lat" => Test::PutLat,
                "get" => Test::Get,
                "fetch_add" => Test::FetchAdd,
                "put_bw" => Test::PutBw,
                other => return Err(format!("\"{other}\" is no test")),
            },
            size: number(size)?,
            operations: number(operations)?,
        };
        if task.test == Test::FetchAdd && task.size % ELEMENT != 0 {
            return Err(format!("elements have {ELEMENT} bytes"));
        }
        match (1..=MOST_BYTES).contains(&task.size) && task.operations != 0 {
            true => Ok(task),
            false => Err("a size from 1 B to 1 GiB, and at least one operation".to_owned()),
        }
    }

    /// Capabilities of the endpoints.
    fn caps(&self) -> u64 {
        match self.test {
            Test::FetchAdd => FI_RMA | FI_ATOMIC,
            _ => FI_RMA,
        }
    }

    /// Operations before those that count.
    fn warm_up(&self) -> u64 {
        self.operations / 10 + 1
    }
}

fn main() -> ExitCode {
    run("rma_peer", "TEST SIZE OPERATIONS", serve, ask)
}

fn serve(port: &str) -> Result<(), String> {
    // A machine without such a provider reports it before a client connects.
    drop(RmaSide::open(1, FI_RMA)?);
    let (mut stream, mut lines) = accept(port)?;
    let asked = next(&mut lines)?;
    let task = RmaTask::parse(&asked.split(' ').collect::<Vec<_>>())?;
    let mut side = RmaSide::open(task.size, task.caps())?;
    side.meet(&next(&mut lines)?)?;
    writeln!(stream, "{}", side.introduction()?).map_err(failed("write to the other side"))?;
    if task.test == Test::PutLat {
        for number in 0..task.warm_up() + task.operations {
            side.await_byte(number)?;
            side.write_byte(number)?;
        }
        return Ok(());
    }
    // Its calls carry the operations out, until the other side closes the stream.
    stream
        .set_nonblocking(true)
        .map_err(failed("read from the other side"))?;
    loop {
        for _ in 0..1024 {
            side.endpoint.poll(&mut Waited::default())?;
        }
        match lines.next() {
            None => return Ok(()),
            Some(Err(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Some(_) => return Err("the other side talks out of turn".to_owned()),
        }
    }
}

fn ask(address: &str, words: &[&str]) -> Result<(), String> {
    let task = RmaTask::parse(words)?;
    let mut side = RmaSide::open(task.size, task.caps())?;
    let (mut stream, mut lines) = connect(address)?;
    let introduction = side.introduction()?;
    writeln!(stream, "{}\n{introduction}", words.join(" "))
        .map_err(failed("write to the other side"))?;
    side.meet(&next(&mut lines)?)?;
    let mut row = serde_json::json!({
        "test": words[0],
        "size": task.size,
        "operations": task.operations,
    });
    match task.test {
        Test::PutLat => {
            let us = side.median_us(task, 2.0, |side, number| {
                side.write_byte(number)?;
                side.await_byte(number)
            })?;
            row["median_us"] = us.into();
        }
        Test::Get => {
            let us = side.median_us(task, 1.0, |side, _| side.read())?;
            row["median_us"] = us.into();
        }
        Test::FetchAdd => {
            side.own_elements().fill(1);
            let us = side.median_us(task, 1.0, RmaSide::fetch_add)?;
            row["median_us"] = us.into();
        }
        Test::PutBw => {
            side.write_all(task.warm_up())?;
            let start = Instant::now();
            side.write_all(task.operations)?;
            let took = start.elapsed().as_secs_f64().max(1e-9);
            let bytes = task.size as f64 * task.operations as f64;
            row["megabytes_per_s"] = (bytes / took / 1e6).into();
        }
    }
    println!("{row}");
    Ok(())
}

/// An endpoint, memory for the other side, and memory to write from and to read into.
struct RmaSide {
    /// The other side's memory, and this side's own where the provider needs that.
    regions: Vec<*mut fid_mr>,
    endpoint: StockEndpoint,
    size: usize,
    /// Raw, because the other side writes to it.
    target: *mut [u64],
    /// Two halves: bytes to write from or to read into, and elements that atomic operations fetch.
    own: Vec<u64>,
    /// Of `own`, for the provider.
    desc: *mut c_void,
    /// The key of `target`.
    own_key: u64,
    /// The other side's memory.
    place: u64,
    key: u64,
}

impl RmaSide {
    fn open(size: usize, caps: u64) -> Result<Self, String> {
        let provider = std::env::var("RMA_PEER_PROVIDER").unwrap_or_else(|_| "shm".to_owned());
        let provider = CString::new(provider).map_err(|e| format!("RMA_PEER_PROVIDER: {e}"))?;
        let endpoint = StockEndpoint::open(&provider, caps)?;
        let elements = size.div_ceil(ELEMENT);
        // Written once: pages that were never written to are all the kernel's one page of zeros,
        // which every read finds in the cache.
        let mut target = vec![1; elements];
        target.fill(0);
        let mut side = Self {
            regions: Vec::new(),
            endpoint,
            size,
            target: Box::into_raw(target.into_boxed_slice()),
            own: vec![1; 2 * elements],
            desc: null_mut(),
            own_key: 0,
            place: 0,
            key: 0,
        };
        let rights = FI_REMOTE_READ | FI_REMOTE_WRITE;
        let region = side.register(side.target.cast(), size, rights, 1)?;
        // SAFETY: the region is open.
        side.own_key = unsafe { (*region).key };
        if side.endpoint.has_mr_mode(FI_MR_LOCAL) {
            let (at, len) = (side.own.as_mut_ptr().cast(), size_of_val(&side.own[..]));
            let region = side.register(at, len, 0, 2)?;
            // SAFETY: the region is open.
            side.desc = unsafe { (*region).mem_desc };
        }
        Ok(side)
    }

    /// Registers memory of this side, which is freed after the region.
    fn register(
        &mut self,
        at: *mut u8,
        len: usize,
        rights: u64,
        key: u64,
    ) -> Result<*mut fid_mr, String> {
        let (domain, rights) = (self.endpoint.domain, rights | FI_READ | FI_WRITE);
        let mut region = null_mut();
        // SAFETY: as fi_mr(3) has it.
        let code = unsafe {
            let reg = (*(*domain).mr).reg.unwrap();
            let (at, region) = (at.cast_const().cast(), &raw mut region);
            reg(
                domain.cast(),
                at,
                len,
                rights,
                0,
                key,
                0,
                region,
                null_mut(),
            )
        };
        done("fi_mr_reg", code)?;
        self.regions.push(region);
        Ok(region)
    }

    /// Address, place and key, for the other side.
    fn introduction(&self) -> Result<String, String> {
        let place = match self.endpoint.has_mr_mode(FI_MR_VIRT_ADDR) {
            false => 0,
            true => self.target.cast::<u8>() as u64,
        };
        let key = self.own_key;
        Ok(format!(
            "{} {place} {key}",
            to_hex(&self.endpoint.bound.name()?)
        ))
    }

    fn meet(&mut self, introduction: &str) -> Result<(), String> {
        let words: Vec<&str> = introduction.split(' ').collect();
        let [name, place, key] = words[..] else {
            return Err("the other side has no address".to_owned());
        };
        (self.place, self.key) = (number(place)?, number(key)?);
        self.endpoint.meet(&from_hex(name)?)
    }

    /// The median of batches of operations, each of so many ways, in µs.
    fn median_us(
        &mut self,
        task: RmaTask,
        ways: f64,
        mut operation: impl FnMut(&mut Self, u64) -> Result<(), String>,
    ) -> Result<f64, String> {
        let mut number = 0;
        while number < task.warm_up() {
            operation(self, number)?;
            number += 1;
        }
        let mut us = Vec::new();
        let end = number + task.operations;
        while number < end {
            let batch = BATCH.min(end - number);
            let start = Instant::now();
            for _ in 0..batch {
                operation(self, number)?;
                number += 1;
            }
            us.push(start.elapsed().as_secs_f64() * 1e6 / (batch as f64 * ways));
        }
        us.sort_by(f64::total_cmp);
        Ok(us[us.len() / 2])
    }

    /// The last byte of a write: never 0, and not that of the write before it.
    fn mark(number: u64) -> u8 {
        (number % 255) as u8 + 1
    }

    #[inline]
    fn post_write(&self) -> Result<u64, String> {
        let (ep, peer) = (self.endpoint.bound.ep, self.endpoint.peer);
        let (from, len) = (self.own.as_ptr().cast(), self.size);
        // SAFETY: as fi_rma(3) has it; the memory stays until the endpoint is closed.
        self.endpoint.post("fi_write", || unsafe {
            let write = (*(*ep).rma).write.unwrap();
            write(
                ep,
                from,
                len,
                self.desc,
                peer,
                self.place,
                self.key,
                null_mut(),
            )
        })
    }

    #[inline]
    fn write_byte(&mut self, number: u64) -> Result<(), String> {
        let last = self
            .own
            .as_mut_ptr()
            .cast::<u8>()
            .wrapping_add(self.size - 1);
        // SAFETY: the byte is this side's, and no write is under way.
        unsafe { last.write(Self::mark(number)) };
        match self.post_write()? {
            0 => self.endpoint.wait(),
            _ => Err("fi_write: completed before it was posted".to_owned()),
        }
    }

    #[inline]
    fn await_byte(&self, number: u64) -> Result<(), String> {
        let last = self.target.cast::<u8>().wrapping_add(self.size - 1);
        let mut waited = Waited::default();
        // SAFETY: the byte is in the memory of this side.
        while unsafe { last.read_volatile() } != Self::mark(number) {
            self.endpoint.poll(&mut waited)?;
        }
        Ok(())
    }

    #[inline]
    fn read(&mut self) -> Result<(), String> {
        let (ep, peer) = (self.endpoint.bound.ep, self.endpoint.peer);
        let (into, len) = (self.own.as_mut_ptr().cast(), self.size);
        // SAFETY: as fi_rma(3) has it; the memory stays until the operation is over.
        self.endpoint.complete("fi_read", || unsafe {
            let read = (*(*ep).rma).read.unwrap();
            read(
                ep,
                into,
                len,
                self.desc,
                peer,
                self.place,
                self.key,
                null_mut(),
            )
        })
    }

    /// The first half of its own memory.
    fn own_elements(&mut self) -> &mut [u64] {
        let half = self.own.len() / 2;
        &mut self.own[..half]
    }

    /// Adds the first half of its own memory, all 1, to the elements of the other side.
    #[inline]
    fn fetch_add(&mut self, number: u64) -> Result<(), String> {
        let (ep, peer) = (self.endpoint.bound.ep, self.endpoint.peer);
        let count = self.own.len() / 2;
        let operands = self.own.as_mut_ptr();
        let fetched = operands.wrapping_add(count);
        // SAFETY: as fi_atomic(3) has it; the memory stays until the operation is over.
        self.endpoint.complete("fi_fetch_atomic", || unsafe {
            let readwrite = (*(*ep).atomic).readwrite.unwrap();
            readwrite(
                ep,
                operands.cast_const().cast(),
                count,
                self.desc,
                fetched.cast(),
                self.desc,
                peer,
                self.place,
                self.key,
                fi_datatype::FI_UINT64,
                fi_op::FI_SUM,
                null_mut(),
            )
        })?;
        match self.own[count..].iter().find(|&&element| element != number) {
            None => Ok(()),
            Some(wrong) => Err(format!("fetched {wrong}, and should have fetched {number}")),
        }
    }

    fn write_all(&mut self, operations: u64) -> Result<(), String> {
        let window = (WINDOW_BYTES / self.size).clamp(4, 64) as u64;
        let mut under_way = 0;
        for _ in 0..operations {
            while under_way >= window {
                self.endpoint.wait()?;
                under_way -= 1;
            }
            under_way += 1;
            under_way -= self.post_write()?;
        }
        for _ in 0..under_way {
            self.endpoint.wait()?;
        }
        Ok(())
    }
}

impl Drop for RmaSide {
    fn drop(&mut self) {
        for region in &self.regions {
            close(region.cast());
        }
        // SAFETY: a former box, which no region has any more.
        drop(unsafe { Box::from_raw(self.target) });
    }
}
