//! Two endpoints, the peers that they have in one another, and lanes between them that come, break,
//! are promoted from, recycled and closed when idle, against a plain list of messages. Each end has
//! a [`PeerLanes`](crate::lanes::PeerLanes), and carries its actions out on sessions and lanes that
//! are lists ([`end`]); a model of the handshake ([`link`]) makes and drops the lanes.
//!
//! Every message is delivered once, and in order. Once nothing breaks any more all arrive, and when
//! all peers are removed no lane is left. There are never more RC queue pairs than the limit.
//! Where an end gives its session up, messages may be lost, but none is delivered twice. A session
//! may then begin beside one on an older lane, whose messages may come after its own.

mod end;
mod link;
mod world;

use world::LanesWorld;

/// Runs so many events, then a time in which nothing breaks. Returns how many messages there were,
/// and how many of them were lost.
fn run(seed: u64, events: u32, amnesia: bool) -> (u64, u64) {
    let mut world = LanesWorld::new(seed, amnesia);
    (0..events).for_each(|_| world.step());
    world.settle();
    world.remove_all();
    (world.sent(), world.lost())
}

/// So many runs of 2,000 events, half of them with ends that give up sessions. `FERRO_LANES` names
/// the first seed.
fn runs(count: u64) {
    let clock = || {
        std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap()
            .as_nanos() as u64
    };
    let named = std::env::var("FERRO_LANES").ok();
    let first = named.map_or_else(clock, |seed| seed.parse().unwrap());
    println!("the first of {count} seeds is {first} (FERRO_LANES={first})");
    let started = std::time::Instant::now();
    let mut kinds = [0; 6];
    for amnesia in [false, true] {
        let (mut sent, mut lost) = (0, 0);
        for seed in (0..count / 2).map(|n| first.wrapping_add(n)) {
            let ran = std::panic::catch_unwind(|| {
                let (all, gone) = run(seed, 2_000, amnesia);
                (all, gone, world::take_counts())
            });
            let Ok((all, gone, counts)) = ran else {
                panic!("amnesia {amnesia}: FERRO_LANES={seed} repeats it");
            };
            (sent, lost) = (sent + all, lost + gone);
            kinds.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
        }
        println!("amnesia {amnesia}: {sent} messages, {lost} lost");
        assert!(sent > 0 && (lost == 0 || amnesia));
    }
    let [broken, promoted, recycled, closed, resumed, older] = kinds;
    println!("{broken} lanes broke, {promoted} promotions, {recycled} recycled, {closed} idle");
    println!("{resumed} sessions resumed, {older} on older lanes beside newer ones");
    assert!(kinds.iter().all(|&n| n > 0), "{kinds:?}");
    println!("{} events in {:?}", count * 2_000, started.elapsed());
}

#[test]
fn nothing_is_lost_or_comes_twice_for_any_fate_of_lanes() {
    runs(5_000);
}
