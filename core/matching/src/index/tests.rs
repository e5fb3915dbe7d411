//! Lists and probe runs of the index.

use super::*;

/// Ids with equal `id % 7` share a key; hashes collide on purpose.
fn colliding(id: u32) -> u32 {
    id % 7 % 3
}

fn lists(index: &Index, links: &[ListLink]) -> Vec<Vec<u32>> {
    (0..7)
        .map(|key| {
            let mut ids = Vec::new();
            if let Some((_, head)) = index.find(colliding(key), |id| id % 7 == key) {
                let (mut at, mut back) = (head, links[head as usize].prev);
                assert_eq!(links[back as usize].next, NIL);
                while at != NIL {
                    assert_eq!(links[at as usize].prev, back);
                    ids.push(at);
                    back = at;
                    at = links[at as usize].next;
                }
            }
            ids
        })
        .collect()
}

/// Keys whose hashes are equal keep lists of their own, in order, across growth and removal
/// anywhere.
#[test]
fn equal_hashes_do_not_mix() {
    let hash = |_: &[ListLink], id: u32| colliding(id);
    let mut links = vec![ListLink::LOOSE; 210];
    let mut index = Index::default();
    let mut model: Vec<Vec<u32>> = vec![Vec::new(); 7];
    for id in 0..210 {
        let same = |_: &[ListLink], other: u32| other % 7 == id % 7;
        index.insert(&mut links, colliding(id), id, same, |_| false, hash);
        model[(id % 7) as usize].push(id);
    }
    assert_eq!(lists(&index, &links), model);
    // 101 is coprime to 210: every id once, in a scattered order.
    for step in 0..210 {
        let id = step * 101 % 210;
        index.remove(&mut links, colliding(id), id);
        model[(id % 7) as usize].retain(|&other| other != id);
        assert_eq!(lists(&index, &links), model);
    }
    assert_eq!(index.keys, 0);
    assert!(index.lines.iter().all(|line| line.tags == [0; 2]));
}

/// An entry can go anywhere by age, and the ends of the list are right afterwards.
#[test]
fn entries_go_in_by_age() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [0, 3, 1, 2], [2, 0, 3, 1]] {
        let mut links = vec![ListLink::LOOSE; 4];
        let mut index = Index::default();
        for id in order {
            let (same, hash) = (|_: &[ListLink], _| true, |_: &[ListLink], _| 5);
            index.insert(&mut links, 5, id, same, |other| other > id, hash);
        }
        for id in 0..4 {
            let (at, head) = index.find(5, |_| true).unwrap();
            assert_eq!(head, id, "{order:?}");
            index.pop(&mut links, at, head);
        }
        assert!(index.is_empty());
    }
}

/// Keys that found their line full are found behind it, around the end of the table too, until the
/// last of them goes.
#[test]
fn full_lines_are_passed() {
    let last = FIRST_LINES as u32 - 1;
    // The first twelve fill the last line, the others go around the end; some of those have the
    // same tag.
    let hash = |id: u32| (last << GROUP_SHIFT) | (id % 5);
    let ids = 3 * SLOTS as u32;
    let mut links = vec![ListLink::LOOSE; ids as usize];
    let mut index = Index::default();
    for id in 0..ids {
        let same = |_: &[ListLink], other| other == id;
        index.insert(&mut links, hash(id), id, same, |_| false, |_, id| hash(id));
    }
    assert_eq!(index.lines(), FIRST_LINES);
    assert_eq!(
        index.lines[last as usize].tags[1] / PASSED,
        2 * u64::from(SLOTS as u32)
    );
    assert_eq!(index.lines[0].tags[1] / PASSED, SLOTS as u64);
    assert!(!index.lines[1].is_passed());
    let mut there: Vec<u32> = (0..ids).collect();
    while !there.is_empty() {
        let gone = there.swap_remove(there.len() * 5 / 7);
        index.remove(&mut links, hash(gone), gone);
        assert!(index.find(hash(gone), |id| id == gone).is_none());
        for &id in &there {
            assert!(index.find(hash(id), |other| other == id).is_some(), "{id}");
        }
    }
    assert!(index.lines.iter().all(|line| line.tags == [0; 2]));
}

/// Sequential, strided and high-bit-only keys spread, whatever the secrets: few find their line
/// full.
#[test]
fn regular_keys_spread() {
    for round in 0..300 {
        let stride = [1, 2, 4, 64, 1 << 16, 1 << 32, 1 << 48][round % 7];
        let mut links = vec![ListLink::LOOSE; 1024];
        let mut index = Index::default();
        let seed = Seed::random();
        let hash = |id: u32| seed.hash(0, u64::from(id) * stride);
        for id in 0..1024u32 {
            let same = |_: &[ListLink], other| other == id;
            index.insert(&mut links, hash(id), id, same, |_| false, |_, id| hash(id));
        }
        let passed: u64 = index.lines.iter().map(|line| line.tags[1] / PASSED).sum();
        assert!(passed < 600, "stride {stride}: {passed} of 1024");
    }
}

/// Keys of one group, whichever of their words counts, have one line and tags of their own.
#[test]
fn a_group_shares_a_line() {
    for _ in 0..50 {
        let seed = Seed::random();
        for key in [
            |n: u64| (8, n),
            |n| (n, 800),
            |n| (n, n),
            |n| (16 + n, n ^ 7),
        ] {
            let hashes: Vec<u32> = (0..8).map(key).map(|(a, b)| seed.hash(a, b)).collect();
            assert!(
                hashes
                    .iter()
                    .all(|hash| hash >> GROUP_SHIFT == hashes[0] >> GROUP_SHIFT)
            );
            let mut low: Vec<u32> = hashes.iter().map(|hash| hash & GROUP_MASK).collect();
            low.sort_unstable();
            assert_eq!(low, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }
}
