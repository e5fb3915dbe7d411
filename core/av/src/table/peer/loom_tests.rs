//! Transports rely on addresses while others change them.

use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

use super::*;
use crate::table::AvTable;
use crate::table::loom_tests::{insert, name, table};
use ferrofabric_contracts::types::AvType;
use ferrofabric_system::sync::{Mutex, MutexGuard, explore};

/// The routes of a transport, behind its domain's lock.
#[derive(Default)]
struct Transport {
    routes: Vec<(FiAddr, NativeAddr)>,
    has_unknown_source: bool,
}

/// Removes an address in another thread.
fn remove_beside(
    table: &Arc<AvTable>,
    transport: &Arc<Mutex<Transport>>,
    addr: FiAddr,
) -> JoinHandle<()> {
    let (table, transport) = (Arc::clone(table), Arc::clone(transport));
    thread::spawn(move || {
        let notify = |transport: &mut MutexGuard<'_, Transport>, again: FiAddr| {
            let routes = &mut transport.routes;
            let at = routes.iter().position(|(known, _)| *known == addr);
            let gone = at.map(|at| routes.remove(at));
            if again.is_some() {
                routes.extend(gone.map(|(_, name)| (again, name)));
            }
        };
        let removed = table.remove_and_notify(addr, || Ok(transport.lock()), notify);
        removed.unwrap();
    })
}

/// A transport sends to an address while that is removed, and then to one that may have got its
/// entry: no route leads to the removed endpoint, and the route to the new one stays. Fails without
/// either fence, and where the entry is free before the transport is notified.
#[test]
fn no_route_leads_to_a_removed_endpoint() {
    for av_type in [AvType::Map, AvType::Table] {
        explore(2, move || {
            let table = table(av_type);
            let transport = Arc::new(Mutex::new(Transport::default()));
            let first = insert(&table, 1);
            let removal = remove_beside(&table, &transport, first);
            let send = |addr| {
                let mut transport = transport.lock();
                let to = table.use_addr(addr);
                transport.routes.extend(to.map(|name| (addr, name)));
            };
            send(first);
            let second = insert(&table, 2);
            send(second);
            removal.join().unwrap();
            assert_eq!(transport.lock().routes, [(second, name(2))]);
        });
    }
}

/// An endpoint that a transport knows is removed by one thread and inserted by another: the
/// transport knows it where it is in the end. Fails where who removes does not look whether it is
/// in again.
#[test]
fn an_endpoint_that_is_inserted_again_is_known() {
    explore(2, || {
        let table = table(AvType::Map);
        let transport = Arc::new(Mutex::new(Transport::default()));
        let first = insert(&table, 1);
        let name = table.use_addr(first).unwrap();
        transport.lock().routes.push((first, name));
        let removal = remove_beside(&table, &transport, first);
        let placed = table.insert(&name).unwrap();
        if placed.new && table.is_awaited() {
            let routes = &mut transport.lock().routes;
            routes.retain(|(addr, _)| *addr != placed.addr);
            routes.push((placed.addr, name));
        }
        removal.join().unwrap();
        let known = transport.lock().routes.clone();
        let there: Vec<_> = table.iter().collect();
        assert_eq!(known, there);
    });
}

/// A sender comes while it is inserted: it is known by its address in the end, whoever comes first.
/// Fails without either fence.
#[test]
fn an_inserted_endpoint_is_known() {
    explore(2, || {
        let table = table(AvType::Map);
        let transport = Arc::new(Mutex::new(Transport::default()));
        let (their_table, theirs) = (Arc::clone(&table), Arc::clone(&transport));
        let writer = thread::spawn(move || {
            insert(&their_table, 1);
            if their_table.is_awaited() {
                theirs.lock().has_unknown_source = false;
            }
        });
        {
            let mut transport = transport.lock();
            transport.has_unknown_source = !table.use_name(&name(1)).is_some();
        }
        writer.join().unwrap();
        assert!(!transport.lock().has_unknown_source);
    });
}

/// A sender is found by its name while it is removed: the transport knows no address of it
/// afterwards.
#[test]
fn an_endpoint_that_is_found_is_notified_of_removal() {
    explore(2, || {
        let table = table(AvType::Table);
        let transport = Arc::new(Mutex::new(Transport::default()));
        let first = insert(&table, 1);
        let removal = remove_beside(&table, &transport, first);
        {
            let mut transport = transport.lock();
            let addr = table.use_name(&name(1));
            if addr.is_some() {
                transport.routes.push((addr, name(1)));
            }
        }
        removal.join().unwrap();
        assert_eq!(transport.lock().routes, []);
    });
}
