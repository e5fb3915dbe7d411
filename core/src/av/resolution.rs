//! From what addresses say to the endpoints that they name: who listens at a socket address is asked of the network, unless
//! the table knows.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::format::{Naming, Sought, Target, reached_with};
use super::service::{Resolve, cancelled};
use super::table::{AvTable, Insertion, Placed, Reserved};
use crate::addr::{KeyedAddr, NATIVE_LEN, NativeAddr};
use crate::error::{Errno, Error, Result};

/// An endpoint to be put in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) name: NativeAddr,
    /// What the address vector says of it, in domains whose addresses are those of sockets.
    socket: Option<SocketAddr>,
    /// And in domains with the authorization keys of address vectors.
    keyed: Option<KeyedAddr>,
}

impl From<NativeAddr> for Found {
    fn from(name: NativeAddr) -> Self {
        Self {
            name,
            socket: None,
            keyed: None,
        }
    }
}

impl Found {
    fn bytes(&self) -> [u8; NATIVE_LEN] {
        self.name.to_bytes()
    }
}

/// Finds those who are named, all of whom the network is asked for side by side. What has not begun when it is `stopped` is
/// cancelled.
pub(crate) fn resolve(
    sought: Vec<Result<Sought>>,
    table: &AvTable,
    naming: &Naming,
    resolver: Option<&dyn Resolve>,
    stopped: &dyn Fn() -> bool,
) -> Vec<Result<Found>> {
    let mut sockets: Vec<SocketAddr> = Vec::new();
    let mut numbers = HashMap::new();
    let all = sought.iter().flatten();
    for at in all.filter_map(|sought| sought.target.socket()) {
        numbers.entry(at).or_insert_with(|| {
            sockets.push(at);
            sockets.len() - 1
        });
    }
    let names = match sockets.is_empty() {
        true => Vec::new(),
        false => names_of(&sockets, table, resolver, stopped),
    };
    let found = |sought: Sought| {
        let (name, socket) = match sought.target {
            Target::Endpoint(name) => (name, None),
            Target::Socket(at) => {
                let name = numbers.get(&at).and_then(|number| names.get(*number));
                let name = name.cloned().unwrap_or_else(|| Err(cancelled(&at)))?;
                (name, naming.keeps_sockets().then_some(at))
            }
        };
        let name = match sought.key {
            Some(key) => reached_with(name, key)?,
            None => name,
        };
        let keyed = sought.keyed;
        Ok(Found {
            name,
            socket,
            keyed,
        })
    };
    sought.into_iter().map(|one| one.and_then(found)).collect()
}

/// The endpoints at these addresses, each of which is there once.
fn names_of(
    sockets: &[SocketAddr],
    table: &AvTable,
    resolver: Option<&dyn Resolve>,
    stopped: &dyn Fn() -> bool,
) -> Vec<Result<NativeAddr>> {
    let Some(resolver) = resolver else {
        let nobody = |at: &SocketAddr| {
            Err(
                Error::new(Errno::ENOSYS, "resolve", format!("socket address {at}"))
                    .mend("this domain knows its peers by their native addresses alone"),
            )
        };
        return sockets.iter().map(nobody).collect();
    };
    let known = match table.known(sockets) {
        Ok(known) => known,
        Err(error) => return sockets.iter().map(|_| Err(error.clone())).collect(),
    };
    let all = || sockets.iter().zip(&known);
    let unknown: Vec<_> = all()
        .filter(|(_, known)| known.is_none())
        .map(|(at, _)| *at)
        .collect();
    let mut asked = resolver.resolve_all(&unknown, stopped).into_iter();
    all()
        .map(|(at, known)| match known {
            Some(name) => Ok(*name),
            None => asked.next().unwrap_or_else(|| Err(cancelled(at))),
        })
        .collect()
}

impl Insertion<'_> {
    /// Puts in an endpoint that was found, as [`place`](Self::place) or [`place_reserved`](Self::place_reserved) does.
    ///
    /// # Errors
    ///
    /// What was given; `ENOMEM`, `ENOSPC`: the table can not grow.
    pub(crate) fn enter(
        &mut self,
        found: Result<Found>,
        reserved: Option<Reserved>,
    ) -> Result<Placed> {
        if let Ok(Found {
            name,
            socket: Some(at),
            ..
        }) = &found
        {
            if let Some(placed) = self.enter_told(at, name).transpose() {
                self.holes.extend(reserved.map(|Reserved(entry)| entry));
                return placed;
            }
        }
        let (socket, keyed, bytes) = match found {
            Ok(found) => (found.socket, found.keyed, Ok(found.bytes())),
            Err(error) => (None, None, Err(error)),
        };
        let placed = match (bytes, reserved) {
            (Ok(name), Some(reserved)) => self.place_reserved(name, reserved)?,
            (Err(error), Some(reserved)) => {
                self.skip(reserved);
                return Err(error);
            }
            (bytes, None) => self.place(bytes)?,
        };
        if let Some(at) = socket {
            self.remember(placed, &at)?;
        }
        if let (Some(keyed), Some(keys)) = (keyed, self.table.auth_keys()) {
            keys.remember(placed.addr, keyed);
        }
        Ok(placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::AddrFormat;
    use crate::av::{AvAttr, AvType};
    use crate::types::FiAddr;
    use parking_lot::Mutex;

    /// Knows who listens at even ports, and notes whom it was asked for.
    #[derive(Debug, Default)]
    struct Even(Mutex<Vec<u16>>);

    impl Resolve for Even {
        fn resolve(&self, at: SocketAddr) -> Result<NativeAddr> {
            self.0.lock().push(at.port());
            match at.port() % 2 {
                0 => Ok(NativeAddr {
                    incarnation: at.port().into(),
                    node: 1,
                    shm: Some(1),
                    verbs: None,
                }),
                _ => Err(Error::new(Errno::ECONNREFUSED, "resolve", at.to_string())),
            }
        }
    }

    fn naming(format: AddrFormat) -> Naming {
        Naming {
            format,
            ..Naming::default()
        }
    }

    fn at(port: u16) -> SocketAddr {
        ([10, 1, 0, 1], port).into()
    }

    fn insert(
        table: &AvTable,
        naming: &Naming,
        resolver: Option<&dyn Resolve>,
        ports: &[u16],
    ) -> Vec<Result<FiAddr, Errno>> {
        let sought = ports
            .iter()
            .map(|port| naming.target(&at(*port).into()).map(Sought::from));
        let found = resolve(sought.collect(), table, naming, resolver, &|| false);
        let mut insertion = table.insertion().unwrap();
        found
            .into_iter()
            .map(|found| insertion.enter(found, None))
            .map(|placed| placed.map(|p| p.addr).map_err(|e| e.errno()))
            .collect()
    }

    fn table() -> AvTable {
        AvTable::new(&AvAttr {
            av_type: Some(AvType::Table),
            ..AvAttr::default()
        })
        .unwrap()
    }

    /// Covers: AV-10, AV-11, AV-23
    #[test]
    fn each_socket_address_is_asked_for_once_and_fails_alone() {
        let (table, asked) = (table(), Even::default());
        let naming = naming(AddrFormat::SOCKADDR_IN);
        let refused = Err(Errno::ECONNREFUSED);
        let first = insert(&table, &naming, Some(&asked), &[2, 3, 4, 2, 0]);
        let expected = [Ok(FiAddr(0)), refused, Ok(FiAddr(2)), Ok(FiAddr(0))];
        assert_eq!(first[..4], expected);
        assert_eq!(first[4], Err(Errno::EINVAL), "nobody listens at port 0");
        assert_eq!(*asked.0.lock(), [2, 3, 4]);
        // Those that are in are not asked for again, and may be gone by now.
        let second = insert(&table, &naming, Some(&asked), &[4, 3, 6, 2]);
        assert_eq!(
            second,
            [Ok(FiAddr(2)), refused, Ok(FiAddr(3)), Ok(FiAddr(0))]
        );
        assert_eq!(*asked.0.lock(), [2, 3, 4, 3, 6]);
        assert_eq!(table.socket(FiAddr(2)), Some(at(4)));
        // One that was removed is asked for.
        table.remove(FiAddr(2)).unwrap();
        assert_eq!(insert(&table, &naming, Some(&asked), &[4]), [Ok(FiAddr(1))]);
        assert_eq!(asked.0.lock().len(), 6);
    }

    #[test]
    fn without_a_resolver_nobody_is_found() {
        let naming = naming(AddrFormat::SOCKADDR_IN);
        let found = insert(&table(), &naming, None, &[2]);
        assert_eq!(found, [Err(Errno::ENOSYS)]);
    }

    #[test]
    fn domains_with_other_addresses_keep_no_sockets() {
        let (table, asked) = (table(), Even::default());
        for _ in 0..2 {
            let found = insert(&table, &naming(AddrFormat::STR), Some(&asked), &[2]);
            assert_eq!(found, [Ok(FiAddr(0))]);
        }
        assert_eq!(table.socket(FiAddr(0)), None);
        assert_eq!(asked.0.lock().len(), 2);
    }

    #[test]
    fn what_has_not_begun_when_it_is_stopped_is_cancelled() {
        let (table, asked) = (table(), Even::default());
        let naming = naming(AddrFormat::SOCKADDR_IN);
        let sought = [2, 4, 6].map(|port| naming.target(&at(port).into()).map(Sought::from));
        let stopped = || asked.0.lock().len() == 2;
        let found = resolve(sought.into(), &table, &naming, Some(&asked), &stopped);
        assert!(found[0].is_ok() && found[1].is_ok());
        assert_eq!(found[2].as_ref().unwrap_err().errno(), Errno::ECANCELED);
    }
}
