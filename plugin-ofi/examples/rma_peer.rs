//! A peer of `scripts/bench shm`: the workloads of `ferro bench put` and `get` over stock
//! libfabric's `shm` provider, through its C interface.
//!
//!     rma_peer listen PORT                              one side, whose memory is the target
//!     rma_peer HOST:PORT put_lat SIZE OPERATIONS        the other one, which initiates
//!     rma_peer HOST:PORT get SIZE OPERATIONS
//!     rma_peer HOST:PORT put_bw SIZE OPERATIONS
//!
//! `put_lat`: writes there and back, each side waits for the last byte in its memory; half the
//! round trip. `get`: reads, one at a time. `put_bw`: writes, with a window of them under way. The
//! side that initiates prints a JSON object: `test`, `size`, `operations`, and `median_us` of
//! batches, or `megabytes_per_s` (10⁶ bytes). Fails where there is no libfabric with an `shm`
//! provider.

#![allow(missing_docs, clippy::unwrap_used, reason = "a program that measures")]

#[allow(dead_code, reason = "the other programs use all of it")]
mod stock;

use std::io::Write;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::Instant;

use ferro_fi::abi::{
    FI_MR_VIRT_ADDR, FI_READ, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_WRITE, fid_mr,
};
use stock::endpoint::{StockEndpoint, Waited, close};
use stock::sides::{accept, connect, failed, next, run};
use stock::{done, from_hex, number, to_hex};

/// Messages of at most so many bytes are measured.
const MOST_BYTES: usize = 1 << 30;

/// Of `ferro bench put`.
const WINDOW_BYTES: usize = 4 << 20;

/// Operations between two looks at the clock, where one is short.
const BATCH: u64 = 20;

#[derive(Clone, Copy, PartialEq)]
enum Test {
    PutLat,
    Get,
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
            return Err("wanted: put_lat, get or put_bw, SIZE OPERATIONS".to_owned());
        };
        let task = Self {
            test: match *test {
                "put_lat" => Test::PutLat,
                "get" => Test::Get,
                "put_bw" => Test::PutBw,
                other => return Err(format!("\"{other}\" is no test")),
            },
            size: number(size)?,
            operations: number(operations)?,
        };
        match (1..=MOST_BYTES).contains(&task.size) && task.operations != 0 {
            true => Ok(task),
            false => Err("a size from 1 B to 1 GiB, and at least one operation".to_owned()),
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
    drop(RmaSide::open(1)?);
    let (mut stream, mut lines) = accept(port)?;
    let asked = next(&mut lines)?;
    let task = RmaTask::parse(&asked.split(' ').collect::<Vec<_>>())?;
    let mut side = RmaSide::open(task.size)?;
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
    let mut side = RmaSide::open(task.size)?;
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
    region: *mut fid_mr,
    endpoint: StockEndpoint,
    /// Raw, because the other side writes to it.
    target: *mut [u8],
    own: Vec<u8>,
    /// The other side's memory.
    place: u64,
    key: u64,
}

impl RmaSide {
    fn open(size: usize) -> Result<Self, String> {
        let endpoint = StockEndpoint::open(FI_RMA)?;
        let target = Box::into_raw(vec![0u8; size].into_boxed_slice());
        let mut side = Self {
            region: null_mut(),
            endpoint,
            target,
            own: vec![0; size],
            place: 0,
            key: 0,
        };
        let rights = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE;
        let domain = side.endpoint.domain;
        // SAFETY: as fi_mr(3) has it; the memory is freed after the region.
        let code = unsafe {
            let reg = (*(*domain).mr).reg.unwrap();
            let (at, region) = (target.cast_const().cast(), &raw mut side.region);
            reg(domain.cast(), at, size, rights, 0, 1, 0, region, null_mut())
        };
        done("fi_mr_reg", code)?;
        Ok(side)
    }

    /// Address, place and key, for the other side.
    fn introduction(&self) -> Result<String, String> {
        // SAFETY: the offer's attributes live as long as it.
        let mode = unsafe { (*self.endpoint.info().domain_attr).mr_mode };
        let place = match mode as u64 & FI_MR_VIRT_ADDR as u64 {
            0 => 0,
            _ => self.target.cast::<u8>() as u64,
        };
        // SAFETY: the region is open.
        let key = unsafe { (*self.region).key };
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
        let (from, len) = (self.own.as_ptr().cast(), self.own.len());
        // SAFETY: as fi_rma(3) has it; the memory stays until the endpoint is closed.
        self.endpoint.post("fi_write", || unsafe {
            let write = (*(*ep).rma).write.unwrap();
            write(
                ep,
                from,
                len,
                null_mut(),
                peer,
                self.place,
                self.key,
                null_mut(),
            )
        })
    }

    #[inline]
    fn write_byte(&mut self, number: u64) -> Result<(), String> {
        let last = self.own.len() - 1;
        self.own[last] = Self::mark(number);
        match self.post_write()? {
            0 => self.endpoint.wait(),
            _ => Err("fi_write: completed before it was posted".to_owned()),
        }
    }

    #[inline]
    fn await_byte(&self, number: u64) -> Result<(), String> {
        let last = self.target.cast::<u8>().wrapping_add(self.own.len() - 1);
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
        let (into, len) = (self.own.as_mut_ptr().cast(), self.own.len());
        // SAFETY: as fi_rma(3) has it; the memory stays until the operation is over.
        self.endpoint.complete("fi_read", || unsafe {
            let read = (*(*ep).rma).read.unwrap();
            read(
                ep,
                into,
                len,
                null_mut(),
                peer,
                self.place,
                self.key,
                null_mut(),
            )
        })
    }

    fn write_all(&mut self, operations: u64) -> Result<(), String> {
        let window = (WINDOW_BYTES / self.own.len()).clamp(4, 64) as u64;
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
        close(self.region.cast());
        // SAFETY: a former box, which no region has any more.
        drop(unsafe { Box::from_raw(self.target) });
    }
}
