use super::*;
use ferrofabric_contracts::addr::{GidKind, NativeAddr, VerbsAddr};

/// An endpoint of one of the nodes.
fn name(n: u64, nodes: u64) -> NativeAddr {
    let (node, endpoint) = (n % nodes, n / nodes);
    let mut gid = [0; 16];
    gid[8..].copy_from_slice(&(node + 1).to_be_bytes());
    let random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7;
    let verbs = VerbsAddr {
        gid,
        gid_kind: GidKind::RoceV2,
        qpn: endpoint as u32 + 17,
        qkey: NativeAddr::drawn_qkey(random),
        lid: 0,
        pkey: 0xffff,
        sl: 0,
        port: 1,
        mtu_bytes: 4096,
    };
    NativeAddr::of_new(node, Some(verbs), true, random)
}

fn place(table: &Symmetric, name: &NativeAddr) -> u32 {
    match table.place(&name.to_words(), None).unwrap() {
        Placement::New(entry) => entry,
        Placement::Found(entry) => panic!("{name} is in entry {entry}"),
    }
}

/// Bytes that a table has: entries that were never used take no memory.
fn used_bytes(table: &Symmetric) -> f64 {
    let unused = table.capacity() - table.len();
    table.bytes() as f64 - unused as f64 * 64.0 / 6.0
}

/// Covers: AV-9
#[test]
fn a_million_endpoints_of_a_thousand_nodes_take_16_bytes_each() {
    const N: u64 = 1 << 20;
    for generations in [false, true] {
        let table = Symmetric::new(N as usize, generations).unwrap();
        for n in 0..N {
            assert_eq!(place(&table, &name(n, 1000)), n as u32);
        }
        let per_entry = table.bytes() as f64 / N as f64;
        assert!(per_entry <= 15.5, "{per_entry}");
        assert_eq!((table.capacity(), table.nodes.len()), (N as usize, 1000));
        for n in (0..N).step_by(997) {
            let wanted = name(n, 1000).to_words();
            assert_eq!(table.read(n as u32), Some((wanted, 1)));
            let found = table.find(&wanted).unwrap().map(|(entry, _)| entry);
            assert_eq!(found, Some(n as u32));
        }
    }
}

/// Covers: AV-9
#[test]
fn entries_take_16_bytes_at_any_large_number_of_them() {
    let table = Symmetric::new(0, true).unwrap();
    for n in 0..200_000 {
        place(&table, &name(n, 50));
        if n >= 100_000 && n % 500 == 0 {
            let per_entry = used_bytes(&table) / (n + 1) as f64;
            assert!(per_entry <= 16.0, "{per_entry} at {n}");
        }
    }
}

/// Covers: AV-9
#[test]
fn a_node_goes_with_its_last_endpoint() {
    let table = Symmetric::new(0, false).unwrap();
    let odd = NativeAddr {
        shm: Some(7),
        ..name(1, 3)
    };
    for round in 0..3 {
        let entries: Vec<_> = (0..300).map(|n| place(&table, &name(n, 3))).collect();
        let alone = place(&table, &odd);
        assert_eq!(table.nodes.len(), 4, "round {round}");
        for entry in &entries[..299] {
            table.make_removable(*entry).unwrap();
            table.clear(*entry, |_| true);
        }
        assert_eq!(table.read(alone), Some((odd.to_words(), 1)));
        assert_eq!(table.nodes.len(), 2);
        table.make_removable(alone).unwrap();
        table.clear(alone, |_| true);
        table.make_removable(entries[299]).unwrap();
        table.clear(entries[299], |_| true);
        assert_eq!((table.len(), table.nodes.len()), (0, 0));
    }
}

/// Covers: AV-9
#[test]
fn generations_take_memory_with_the_first_removal() {
    let (map, indexed) = (
        Symmetric::new(10, true).unwrap(),
        Symmetric::new(10, false).unwrap(),
    );
    for table in [&map, &indexed] {
        let entry = place(table, &name(1, 1));
        let before = table.bytes();
        assert_eq!(table.generation(entry), 1);
        table.make_removable(entry).unwrap();
        table.clear(entry, |_| true);
        assert_eq!(place(table, &name(2, 1)), entry);
        assert_eq!(table.bytes() > before, std::ptr::eq(table, &map));
    }
    assert_eq!((map.generation(0), indexed.generation(0)), (3, 1));
    map.make_removable(0).unwrap();
    map.clear(0, |generation| {
        assert_eq!(generation, 4);
        false
    });
    assert_ne!(place(&map, &name(3, 1)), 0, "a generation that is used up");
}
