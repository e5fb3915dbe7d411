//! Each endpoint sends to each, in both directions at once, with receives posted before and after:
//! contents, order and sources are checked.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fastrand::Rng;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, SendOp};

use crate::owner::Ep;

/// A random seed for each run, or that of FERRO_SEED. Prints it.
pub fn drawn_seed() -> u64 {
    let seed = std::env::var("FERRO_SEED")
        .map_or_else(|_| Rng::new().u64(..), |seed| seed.parse().unwrap());
    eprintln!("FERRO_SEED={seed}");
    seed
}

/// The content of a message, which is unique to it.
pub fn content(from: usize, to: usize, index: usize, len: usize) -> Vec<u8> {
    let mut rng = Rng::with_seed(((from as u64) << 40) | ((to as u64) << 32) | index as u64);
    let mut bytes = vec![0; len];
    let word = rng.u64(..);
    for (i, chunk) in bytes.chunks_mut(8).enumerate() {
        let w = word.wrapping_add((i as u64).wrapping_mul(0x0101_0307_0b0d_1113));
        chunk.copy_from_slice(&w.to_le_bytes()[..chunk.len()]);
    }
    bytes
}

struct ExchangeMessage {
    len: usize,
    kind: MsgKind,
    tag: u64,
    data: Option<u64>,
    inject: bool,
}

/// The messages of a pair, which both sides compute.
fn messages(seed: u64, from: usize, to: usize, sizes: &[usize]) -> Vec<ExchangeMessage> {
    let mut rng = Rng::with_seed(seed ^ (((from * 1000 + to) as u64) << 8));
    let mut sizes = sizes.to_vec();
    rng.shuffle(&mut sizes);
    sizes
        .into_iter()
        .map(|len| {
            let tagged = rng.u32(..4) != 0;
            ExchangeMessage {
                len,
                kind: if tagged {
                    MsgKind::Tagged
                } else {
                    MsgKind::Msg
                },
                tag: if tagged { rng.u64(..3) } else { 0 },
                data: (rng.u32(..3) == 0).then(|| rng.u64(..)),
                inject: len <= 4096 && rng.u32(..4) == 0,
            }
        })
        .collect()
}

struct PlannedSend {
    op: SendOp,
    bytes: Vec<u8>,
}

struct PlannedRecv {
    from: usize,
    message: ExchangeMessage,
    want: Vec<u8>,
    buf: Vec<u8>,
}

const RECV: u64 = 1 << 32;

fn send_of(
    message: ExchangeMessage,
    me: usize,
    to: usize,
    addr: FiAddr,
    index: usize,
) -> PlannedSend {
    let mut flags = Flags::COMPLETION;
    flags.set(Flags::REMOTE_CQ_DATA, message.data.is_some());
    flags.set(Flags::INJECT, message.inject);
    PlannedSend {
        op: SendOp {
            kind: message.kind,
            dest: addr,
            tag: message.tag,
            data: message.data.unwrap_or(0),
            desc: MrDesc::NONE,
            context: 1,
            flags,
        },
        bytes: content(me, to, index, message.len),
    }
}

/// Sends in one piece or in three; overwrites an injected buffer at once. False: refused.
fn send(ep: &mut Ep, PlannedSend { op, bytes }: &PlannedSend, rng: &mut Rng) -> bool {
    let inject = op.flags.contains(Flags::INJECT);
    let mut copy = if inject { bytes.clone() } else { Vec::new() };
    let from = if inject { &copy } else { bytes };
    let cut = rng.usize(..=from.len());
    let iov = match rng.u32(..2) {
        0 => vec![IoBuf::new(from.as_ptr(), from.len())],
        _ => vec![
            IoBuf::new(from.as_ptr(), cut),
            IoBuf::EMPTY,
            IoBuf::new(from[cut..].as_ptr(), from.len() - cut),
        ],
    };
    // SAFETY: `bytes` lives until all sends have completed, `copy` until return.
    let sent = unsafe { ep.send_op(op, &iov) };
    copy.fill(0xee);
    match sent {
        Ok(()) => true,
        Err(e) => {
            assert_eq!(e, OpError::Again);
            false
        }
    }
}

/// Runs the exchange as number `me`; `peers[i]` is the address of number `i` (also of this
/// endpoint, if it sends to itself).
pub fn exchange(ep: &mut Ep, me: usize, peers: &[Option<FiAddr>], sizes: &[usize], seed: u64) {
    let mut rng = Rng::with_seed(seed ^ 0x5555 ^ me as u64);
    let (mut sends, mut recvs) = (Vec::new(), Vec::new());
    for (other, addr) in peers.iter().enumerate() {
        let Some(addr) = *addr else { continue };
        sends.push(
            messages(seed, me, other, sizes)
                .into_iter()
                .enumerate()
                .map(|(i, m)| send_of(m, me, other, addr, i))
                .collect::<Vec<_>>(),
        );
        recvs.push(
            messages(seed, other, me, sizes)
                .into_iter()
                .enumerate()
                .map(|(i, m)| PlannedRecv {
                    from: other,
                    want: content(other, me, i, m.len),
                    buf: vec![0xaa; m.len + 5],
                    message: m,
                })
                .collect::<VecDeque<_>>(),
        );
    }
    let total: usize = sends.iter().map(Vec::len).sum();
    let mut next_send = vec![0; sends.len()];
    let mut posted: Vec<PlannedRecv> = Vec::with_capacity(total);
    let (mut sent, mut sends_done, mut recvs_done) = (0, 0, 0);
    let end = Instant::now() + Duration::from_secs(60);
    while sends_done < total || recvs_done < total {
        // A few operations of a random kind, then a poll for completions.
        for _ in 0..rng.u32(..6) {
            let with = rng.usize(..sends.len());
            if rng.u32(..2) == 0 {
                if let Some(next) = sends[with].get(next_send[with]) {
                    if send(ep, next, &mut rng) {
                        next_send[with] += 1;
                        sent += 1;
                    }
                }
            } else if let Some(mut r) = recvs[with].pop_front() {
                let context = RECV | posted.len() as u64;
                let addr = peers[r.from].unwrap();
                ep.recv_from(r.message.kind, addr, r.message.tag, 0, &mut r.buf, context);
                posted.push(r);
            }
        }
        while let Some(found) = ep.poll() {
            let c = found.expect("no errors among the living");
            if c.context & RECV == 0 {
                sends_done += 1;
                continue;
            }
            recvs_done += 1;
            let r = &posted[(c.context & !RECV) as usize];
            let (len, from) = (r.want.len(), r.from);
            assert_eq!(c.len, len, "from {from} to {me}");
            assert!(
                r.buf[..len] == r.want[..],
                "content of {len} bytes from {from} to {me}"
            );
            assert!(
                r.buf[len..].iter().all(|b| *b == 0xaa),
                "wrote beyond a message"
            );
            assert_eq!(c.src, peers[from].unwrap());
            assert_eq!(c.tag, r.message.tag);
            assert_eq!(
                c.flags.contains(Flags::REMOTE_CQ_DATA),
                r.message.data.is_some()
            );
            assert_eq!(c.data, r.message.data.unwrap_or(0));
        }
        assert!(
            Instant::now() < end,
            "number {me}: {sent} sent, {sends_done} and {recvs_done} done of {total}, {:?}",
            ep.shm.stats()
        );
        std::thread::yield_now();
    }
}

pub const SIZES: [usize; 40] = [
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    15,
    16,
    17,
    31,
    39,
    40,
    41,
    47,
    48,
    49,
    56,
    63,
    64,
    65,
    100,
    127,
    128,
    1000,
    1024,
    4095,
    4096,
    4097,
    8191,
    8192,
    10_000,
    16_383,
    16_384,
    16_385,
    28_415,
    28_417,
    65_536,
    100_001,
    1 << 20,
];
