//! Faults drawn at random, many at a time, from a seed that a failure names.

use ferrofabric_fake_device::control::{Effect, FakeDevice, Fault, Point};

use crate::faults::STATUSES;
use crate::party::{Pair, assert_clean};

/// Numbers that look random and are the same for the same seed (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn fault(&mut self) -> Fault {
        let status = STATUSES[self.below(STATUSES.len() as u64) as usize];
        let (point, effect) = match self.below(7) {
            0 | 1 => (Point::Send, Effect::Fail(status)),
            2 => (Point::Send, Effect::FailAfterwards(status)),
            3 => (Point::Read, Effect::Fail(status)),
            4 => (Point::Receive, Effect::Fail(status)),
            5 => (Point::Receive, Effect::ByteLen(self.below(64) as u32)),
            _ => (Point::Datagram, Effect::Lose),
        };
        Fault::new(point, effect).after(self.below(12) as u32)
    }
}

fn storm(seed: u64) {
    println!("seed {seed}");
    let mut draw = Draw(seed);
    let device = FakeDevice::take();
    let mut pair = Pair::open(&[]);
    for round in 0..3 {
        for _ in 0..=draw.below(4) {
            device.script(draw.fault());
        }
        pair.traffic(1000 * (round + 1), 12, || ());
    }
    device.reset();
    pair.settle();
    pair.exchange(8, 1);
    pair.exchange(80_000, 2);
    drop(pair);
    assert_clean(&device);
}

#[test]
fn storms() {
    for seed in 0..25 {
        storm(seed);
    }
}

#[test]
#[ignore = "soak: more of the same; FERRO_STORM names one seed"]
fn many_storms() {
    let one = std::env::var("FERRO_STORM").ok();
    let seeds = match one.map(|seed| seed.parse::<u64>().unwrap()) {
        Some(seed) => seed..seed + 1,
        None => 1000..4000,
    };
    for seed in seeds {
        storm(seed);
    }
}
