//! Every interleaving of a reader and a writer of one table that is small enough for all of them to
//! be tried. (Pieces, indices and addresses are shorter there than elsewhere: `cfg(loom)`.)

use loom::sync::Arc;
use loom::thread;

use super::*;
use ferrofabric_contracts::addr::{GidKind, VerbsAddr};
use ferrofabric_system::sync::explore;

/// All of it lies in the words that are kept, in each of them something else than in any other's.
pub(crate) fn name(number: u32) -> NativeAddr {
    NativeAddr {
        incarnation: 0,
        node: 0,
        shm: None,
        verbs: Some(VerbsAddr {
            gid: [0; 16],
            gid_kind: GidKind::Ib,
            qpn: number,
            qkey: number,
            lid: 0,
            pkey: 0,
            sl: 0,
            port: 0,
            mtu_bytes: 0,
        }),
    }
}

pub(crate) fn table(av_type: AvType) -> Arc<AvTable> {
    let attr = AvAttr {
        av_type: Some(av_type),
        ..AvAttr::default()
    };
    Arc::new(AvTable::new(&attr).unwrap())
}

pub(crate) fn insert(table: &AvTable, number: u32) -> FiAddr {
    table.insert(&name(number)).unwrap().addr
}

/// Has a thread change the table while this one reads it.
fn beside(table: &Arc<AvTable>, change: impl FnOnce(&AvTable) + 'static, read: impl FnOnce()) {
    let theirs = Arc::clone(table);
    let writer = thread::spawn(move || change(&theirs));
    read();
    writer.join().unwrap();
}

/// An address is there whole or not at all, while its entry becomes another's. Fails without the
/// second look at the generation, and without the fence before it.
#[test]
fn addresses_are_read_whole() {
    for av_type in [AvType::Map, AvType::Table] {
        explore(2, move || {
            let table = table(av_type);
            let first = insert(&table, 1);
            let change = move |table: &AvTable| {
                table.remove(first).unwrap();
                insert(table, 2);
            };
            let now = (av_type == AvType::Table).then(|| name(2));
            beside(&table, change, || {
                let seen = table.name(first);
                assert!([None, Some(name(1)), now].contains(&seen), "{seen:?}");
            });
            assert_eq!(table.name(first), now);
        });
    }
}

/// An entry is found while the table grows: a larger index comes in place of one that is given
/// back, and another piece of entries. Fails where a reader does not learn that the index has
/// passed, or too late.
#[test]
fn what_is_there_is_found_while_the_table_grows() {
    explore(1, || {
        let table = table(AvType::Map);
        let first = insert(&table, 1);
        let change = |table: &AvTable| {
            for number in 2..4 {
                insert(table, number);
            }
        };
        beside(&table, change, || {
            assert_eq!(table.addr(&name(1)), first);
            assert_eq!(table.name(first), Some(name(1)));
            table.find_all(&[name(1)], |_, found| assert_eq!(found, first));
        });
        assert!((1..4).all(|number| table.addr(&name(number)).is_some()));
    });
}

/// An endpoint that is searched for while an entry becomes another's is found where it is, or not
/// at all, by a look-up of its own or by one of many; never at the address of the entry's former
/// endpoint.
#[test]
fn a_found_entry_is_of_the_endpoint_searched_for() {
    for many in [false, true] {
        explore(2, move || {
            let table = table(AvType::Map);
            let find = move |table: &AvTable, number: u32| match many {
                false => table.addr(&name(number)),
                true => {
                    let mut found = FiAddr::NOTAVAIL;
                    table.find_all(&[name(number)], |_, addr| found = addr);
                    found
                }
            };
            let first = insert(&table, 1);
            let change = move |table: &AvTable| {
                table.remove(first).unwrap();
                insert(table, 2);
            };
            let mut seen = FiAddr::NOTAVAIL;
            beside(&table, change, || seen = find(&table, 2));
            let now = find(&table, 2);
            assert!(now.is_some() && now != first);
            assert!([FiAddr::NOTAVAIL, now].contains(&seen), "{seen:?}");
            assert_eq!(find(&table, 1), FiAddr::NOTAVAIL);
        });
    }
}
