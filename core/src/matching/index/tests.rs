//! Lists and probe runs of the index.

use super::*;

/// Ids with equal `id % 7` share a key; hashes collide on purpose.
fn colliding(id: u32) -> u32 {
    id % 7 % 3
}

fn lists(index: &Index, links: &[Link]) -> Vec<Vec<u32>> {
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

/// Keys whose hashes are equal keep lists of their own, in order, across growth and removal anywhere.
#[test]
fn equal_hashes_do_not_mix() {
    let mut links = vec![Link::LOOSE; 210];
    let mut index = Index::default();
    let mut model: Vec<Vec<u32>> = vec![Vec::new(); 7];
    for id in 0..210 {
        let same = |_: &[Link], other: u32| other % 7 == id % 7;
        index.insert(&mut links, colliding(id), id, same, |_| false);
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
    assert!(index.slots.iter().all(|slot| slot.head == NIL));
}

/// An entry can go anywhere by age, and the ends of the list are right afterwards.
#[test]
fn entries_go_in_by_age() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [0, 3, 1, 2], [2, 0, 3, 1]] {
        let mut links = vec![Link::LOOSE; 4];
        let mut index = Index::default();
        for id in order {
            index.insert(&mut links, 5, id, |_, _| true, |other| other > id);
        }
        for id in 0..4 {
            let (at, head) = index.find(5, |_| true).unwrap();
            assert_eq!(head, id, "{order:?}");
            index.pop(&mut links, at, head);
        }
        assert!(index.is_empty());
    }
}

/// A probe run that wraps around the end of the table survives a removal in its middle.
#[test]
fn runs_wrap_around() {
    let mut links = vec![Link::LOOSE; 8];
    let mut index = Index::default();
    let hash = |id: u32| [14, 15, 15, 14, 0, 1, 15, 0][id as usize];
    for id in 0..8 {
        index.insert(&mut links, hash(id), id, |_, other| other == id, |_| false);
    }
    for gone in [1, 3, 0, 6, 2, 7] {
        index.remove(&mut links, hash(gone), gone);
        assert!(index.find(hash(gone), |id| id == gone).is_none());
        links[gone as usize] = Link { next: 99, prev: 99 };
        for id in (0..8).filter(|&id| links[id as usize].next != 99) {
            assert!(index.find(hash(id), |other| other == id).is_some(), "{id}");
        }
    }
}

/// Sequential, strided and high-bit-only keys spread, whatever the secrets: no probe run grows out of proportion.
#[test]
fn regular_keys_spread() {
    for round in 0..300 {
        let stride = [1, 2, 4, 64, 1 << 16, 1 << 32, 1 << 48][round % 7];
        let mut links = vec![Link::LOOSE; 1024];
        let mut index = Index::default();
        let seed = Seed::random();
        for id in 0..1024u32 {
            let hash = seed.hash(0, u64::from(id) * stride);
            index.insert(&mut links, hash, id, |_, other| other == id, |_| false);
        }
        let mut run = 0;
        let mut longest = 0;
        for slot in &index.slots {
            run = if slot.head == NIL { 0 } else { run + 1 };
            longest = longest.max(run);
        }
        assert!(longest < 256, "stride {stride}: a run of {longest}");
    }
}
