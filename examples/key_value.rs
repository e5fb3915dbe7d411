//! Clients look keys up in the memory of a server: each look-up is a one-sided read of a slot of a
//! hash table, in which the server takes no part. The server changes values meanwhile, so a client
//! checks the sum of each slot that it has read.
//!
//! `cargo run --release --example key_value`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferrofabric::info::Progress;
use ferrofabric::{
    Buffer, Error, FiAddr, MessageSource, PeerRegion, PeersRead, RdmEndpoint, RemoteRegion,
};

const CLIENTS: usize = 2;
const KEYS: u64 = 1000;
const LOOK_UPS: u64 = 2000;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

/// A slot: the key (0 in an empty one), version and value, and a sum of these, 8 bytes each.
const SLOT: usize = 32;
/// Slots of the table, a power of two.
const SLOTS: usize = 2048;

pub(crate) fn main() -> Result<(), Error> {
    // A thread of the domain serves the reads.
    let server = RdmEndpoint::builder().progress(Progress::Auto).open()?;
    let address = server.address().to_string();
    let done = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (address, done) = (address.clone(), done.clone());
            std::thread::spawn(move || {
                let result = look_up_all(&address, number as u64);
                done.fetch_add(1, Ordering::Relaxed);
                result
            })
        })
        .collect();
    serve(server, &done)?;
    clients
        .into_iter()
        .try_for_each(|client| client.join().expect("a client does not panic"))
}

fn serve(mut server: RdmEndpoint, done: &AtomicUsize) -> Result<(), Error> {
    let mut table = server.share::<PeersRead>(filled_table()?)?;
    for _ in 0..CLIENTS {
        let hello = server.recv(Buffer::new(64)?)?;
        let hello = server.wait_for(hello, TIMEOUT)?;
        // The handle goes to a peer in the address vector.
        let client = match hello.source() {
            MessageSource::Known(client) => *client,
            MessageSource::Unknown(Some(address)) => server.insert(address)?,
            MessageSource::Unknown(None) => unreachable!("the endpoint has all addresses"),
        };
        server.inject(client, &table.remote().to_bytes())?;
    }
    server.flush(Duration::from_secs(10))?;
    let mut version = 1;
    while done.load(Ordering::Relaxed) < CLIENTS {
        version += 1;
        update(&mut table, 1 + version % KEYS, version)?;
        std::thread::yield_now();
    }
    table.close();
    server.close(Duration::from_secs(10))
}

fn filled_table() -> Result<Buffer, Error> {
    let mut table = Buffer::new(SLOTS * SLOT)?;
    for key in 1..=KEYS {
        let mut at = first_slot(key);
        while Slot::read(&table[at * SLOT..][..SLOT]).key != 0 {
            at = next_slot(at);
        }
        table[at * SLOT..][..SLOT].copy_from_slice(&Slot::new(key, 1).to_bytes());
    }
    Ok(table)
}

/// Changes a value, which clients may be reading.
fn update(table: &mut PeerRegion<PeersRead>, key: u64, version: u64) -> Result<(), Error> {
    let mut at = first_slot(key);
    while Slot::read(&table.bytes()[at * SLOT..][..SLOT]).key != key {
        at = next_slot(at);
    }
    table.copy_in(at * SLOT, &Slot::new(key, version).to_bytes())
}

fn look_up_all(server: &str, number: u64) -> Result<(), Error> {
    let mut client = RdmEndpoint::open()?;
    let server = client.insert(server)?;
    client.inject(server, b"hello")?;
    let handle = client.recv(Buffer::new(64)?)?;
    let handle = client.wait_for(handle, TIMEOUT)?;
    let table = RemoteRegion::from_bytes(handle.bytes())?;

    let (mut buffer, mut reads) = (Buffer::new(SLOT)?, 0);
    let begun = Instant::now();
    for turn in 0..LOOK_UPS {
        let key = 1 + (turn * 7919 + number) % KEYS;
        let slot;
        (slot, buffer) = look_up(&mut client, server, table, key, buffer, &mut reads)?;
        assert_eq!(slot.map(|slot| slot.value), Some(value_of(key, slot)));
    }
    let rate = LOOK_UPS as f64 / begun.elapsed().as_secs_f64();
    let (none, _) = look_up(&mut client, server, table, KEYS + 1, buffer, &mut reads)?;
    assert_eq!(none, None);
    println!("client {number}: {rate:.0} look-ups/s, {reads} reads");
    Ok(())
}

/// Reads slot by slot until the key or an empty slot is found, and a slot that the server was
/// changing once more.
fn look_up(
    client: &mut RdmEndpoint,
    server: FiAddr,
    table: RemoteRegion<PeersRead>,
    key: u64,
    mut buffer: Buffer,
    reads: &mut u64,
) -> Result<(Option<Slot>, Buffer), Error> {
    let mut at = first_slot(key);
    loop {
        let slot = table.slice(at * SLOT..(at + 1) * SLOT)?;
        let read = client.read(server, slot, buffer)?;
        buffer = client.wait_for(read, TIMEOUT)?;
        *reads += 1;
        let slot = Slot::read(&buffer);
        match slot {
            _ if !slot.is_whole() => {}
            Slot { key: 0, .. } => return Ok((None, buffer)),
            Slot { key: found, .. } if found == key => return Ok((Some(slot), buffer)),
            _ => at = next_slot(at),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Slot {
    key: u64,
    version: u64,
    value: u64,
    sum: u64,
}

impl Slot {
    fn new(key: u64, version: u64) -> Self {
        let value = key * 1_000_003 + version;
        let mut slot = Self {
            key,
            version,
            value,
            sum: 0,
        };
        slot.sum = slot.expected_sum();
        slot
    }

    fn expected_sum(&self) -> u64 {
        let words = [self.key, self.version, self.value];
        words.iter().fold(0, |sum, word| hash(sum ^ word))
    }

    /// Whether its words are of one version. An empty slot is all zeros.
    fn is_whole(&self) -> bool {
        self.sum == self.expected_sum() || [self.key, self.sum] == [0, 0]
    }

    fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| {
            let word = bytes[at..at + 8].try_into();
            u64::from_le_bytes(word.expect("a word has 8 bytes"))
        };
        Self {
            key: word(0),
            version: word(8),
            value: word(16),
            sum: word(24),
        }
    }

    fn to_bytes(self) -> Vec<u8> {
        let words = [self.key, self.version, self.value, self.sum];
        words.map(u64::to_le_bytes).concat()
    }
}

/// The value that belongs to a key and to the version that was read.
fn value_of(key: u64, slot: Option<Slot>) -> u64 {
    slot.map_or(0, |slot| Slot::new(key, slot.version).value)
}

fn first_slot(key: u64) -> usize {
    hash(key) as usize % SLOTS
}

fn next_slot(at: usize) -> usize {
    (at + 1) % SLOTS
}

fn hash(key: u64) -> u64 {
    let mixed = (key ^ (key >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}
