//! Node, service, flags and hints together.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::info::{Info, Resolver};
use ferrofabric_runtime::discovery::{DiscoveryQuery, QueryFlags, explain};
use ferrofabric_runtime::fabric::{Discovery, Domain, Provider};

use super::{addresses, hints, seed};
use crate::input::Input;
use crate::{FuzzTarget, saw};

/// Flags, version, node, service, and fields of hints.
pub(super) const QUERIES: FuzzTarget = FuzzTarget {
    name: "queries",
    take,
    seeds,
    words: &[
        "ferro://",
        "fi_sockaddr://",
        "10.1.0.1",
        "127.0.0.1",
        "::1",
        "fe80::1%2",
        "localhost",
        "7471",
        "65536",
        "ssh",
        "[",
        "]",
        ":",
        "%",
        "0",
    ],
};

struct Machine;

impl Provider for Machine {
    fn name(&self) -> &'static str {
        "ferro"
    }

    fn discover(&self, _settings: &Settings) -> Discovery {
        Discovery {
            candidates: hints::candidates(),
            ..Discovery::default()
        }
    }

    fn open(&self, _info: &Info, _settings: &Settings) -> Result<Arc<dyn Domain>> {
        Err(Error::new(Errno::ENOSYS, "open", "a domain"))
    }

    unsafe fn open_serialized(&self, info: &Info, settings: &Settings) -> Result<Arc<dyn Domain>> {
        self.open(info, settings)
    }
}

/// A resolver that resolves every name, and panics if the query allows numeric hosts alone.
struct NameBook {
    numeric: bool,
}

impl Resolver for NameBook {
    fn host(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        assert!(
            !self.numeric,
            "FI_NUMERICHOST forbids the look-up of {name:?}"
        );
        match name.len() % 4 {
            0 => Err(io::Error::other("nobody knows it")),
            1 => Ok(Vec::new()),
            len => Ok(["10.1.0.2:0", "[fe80::2]:0", "10.1.0.2:0"][..len]
                .iter()
                .filter_map(|text| text.parse().ok())
                .collect()),
        }
    }

    fn service(&self, name: &str) -> Option<u16> {
        (name.len() % 2 == 0).then_some(7471)
    }
}

/// The flags that the bits of a number choose: of those that exist, as many as it has bits for.
fn some_of(number: u8) -> QueryFlags {
    let all = QueryFlags::all().iter().enumerate();
    all.filter(|(place, _)| (number >> place) & 1 != 0)
        .map(|(_, flag)| flag)
        .collect()
}

/// There is a bit for each.
const _: () = assert!(QueryFlags::all().bits().count_ones() <= 4);

fn take(bytes: &[u8]) -> u64 {
    let mut input = Input::new(bytes);
    let which = input.byte();
    let flags = match which & 0x80 {
        0 => some_of(which & 0xf),
        _ => QueryFlags::from_bits_retain(input.number()),
    };
    let version = input.of(&[0, (1 << 16) | 4, 2 << 16, 3 << 16]);
    let (node, service) = (input.text(), input.text());
    let (has_node, has_service) = (which & 0x10 != 0, which & 0x20 != 0);
    let hints = (which & 0x40 != 0).then(|| hints::hints(&mut input));
    let query = DiscoveryQuery {
        version,
        node: has_node.then_some(&*node),
        service: has_service.then_some(&*service),
        flags,
        hints: hints.as_ref(),
    };
    let settings = Settings::read(|_| None).expect("the defaults");
    let numeric = flags.contains(QueryFlags::NUMERICHOST);
    match explain(&[&Machine], &query, &NameBook { numeric }, &settings) {
        Ok(found) => {
            for info in &found.infos {
                if flags.contains(QueryFlags::PROV_ATTR_ONLY) {
                    continue;
                }
                assert!(info.src_addr.is_some());
                let named = has_node || has_service;
                if named && !flags.contains(QueryFlags::SOURCE) {
                    assert!(info.dest_addr.is_some());
                }
            }
            let fields: Vec<_> = found.ruled_out.iter().map(|(_, why)| why.field).collect();
            saw((found.infos.len(), fields))
        }
        Err(error) => saw((error.errno(), which >> 4)),
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let asked = |which: u8, node: &str, service: &str| {
        let mut bytes = vec![which, 0, node.len() as u8];
        bytes.extend(node.bytes());
        bytes.push(service.len() as u8);
        bytes.extend(service.bytes());
        bytes
    };
    let mut all = vec![
        seed("number", asked(0x32, "10.1.0.2", "7471")),
        seed("source", asked(0x3a, "10.1.0.1", "7471")),
        seed("name", asked(0x30, "peer", "mpi")),
        seed("service", asked(0x28, "", "5")),
        seed("attributes", asked(0x01, "", "")),
        seed(
            "hints",
            [&asked(0x70, "peer", "mpi")[..], &[0, 1, 26, 2, 2, 2]].concat(),
        ),
    ];
    for (name, addr) in addresses::addresses() {
        all.push(seed(name, asked(0x10, &addr.to_string(), "")));
    }
    all
}
