//! Tests of messages offered for reading, in memory that can not be read, or that never comes.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::HostilePeer;
use crate::missing_pages::MissingPages;
use crate::owner::Ep;
use crate::wire::{CHUNK, GO, READ, START, TAGGED, pack};
use crate::{Cma, ShmConfig};

const LEN: usize = 100_000;

fn open() -> Ep {
    Ep::open(ShmConfig {
        cma: Cma::On,
        ..ShmConfig::default()
    })
}

impl HostilePeer {
    /// Offers a message with this id and tag for reading.
    fn offers_read(&mut self, id: u32, addr: u64) {
        let start = [u64::from(id), pack(id, 0), LEN as u64, 0, 0, addr, 0];
        self.publish(START, TAGGED | READ, 0, start);
    }

    /// Sends a message through the ring, after the endpoint refused to read it.
    fn sends_pieces(&mut self, id: u32) {
        for _ in 0..4 {
            self.publish(CHUNK, 0, LEN as u32 / 4, [pack(id, 0), 0, 0, 0, 0, 0, 0]);
        }
    }
}

/// The application's call returns, other peers are served, and the message comes once its sender
/// copies it.
#[test]
fn memory_that_never_comes_delays_no_peer() {
    let Some(never) = MissingPages::map(LEN) else {
        return;
    };
    let addr = never.addr();
    let (done, is_done) = channel();
    thread::spawn(move || {
        let mut ep = open();
        let (mut enemy, _) = HostilePeer::connect(&mut ep);
        let (mut into, mut from_me) = (vec![1u8; LEN], [0u8; 8]);
        ep.trecv(0, 0, &mut into, 1);
        enemy.offers_read(0, addr);
        ep.progress();
        ep.progress();
        let own = ep.name();
        let me = ep.insert(&own);
        ep.trecv(9, 0, &mut from_me, 2);
        ep.tsend(me, 9, &[7; 8], 3).unwrap();
        let ends = [2, 3].map(|_| ep.poll().unwrap().unwrap().context);
        let _ = done.send((enemy.got(GO), ends, from_me));
    });
    let (asked, mut ends, from_me) = is_done
        .recv_timeout(Duration::from_secs(20))
        .expect("progress() does not return");
    ends.sort_unstable();
    assert_eq!(
        (asked, ends, from_me),
        (vec![[0, LEN as u64]], [2, 3], [7; 8])
    );
}

/// A message that can not be read does not keep the next one from being read.
#[test]
fn a_read_that_fails_is_not_the_last_one() {
    let out = vec![7u8; LEN];
    let mut ep = open();
    let (mut enemy, _) = HostilePeer::connect(&mut ep);
    let mut into = vec![vec![1u8; LEN]; 2];
    for (tag, into) in into.iter_mut().enumerate() {
        ep.trecv(tag as u64, 0, into, tag as u64);
    }
    enemy.offers_read(0, 1);
    enemy.offers_read(1, out.as_ptr() as u64);
    for _ in 0..10 {
        ep.progress();
    }
    assert_eq!(enemy.got(GO), [[0, LEN as u64], [1, 0]]);
    assert_eq!((ep.shm.stats().received_cma, &into[1]), (1, &out));
    enemy.sends_pieces(0);
    ep.progress();
    let mut contexts = [0, 1].map(|_| ep.poll().unwrap().unwrap().context);
    contexts.sort_unstable();
    assert_eq!(contexts, [0, 1]);
}
