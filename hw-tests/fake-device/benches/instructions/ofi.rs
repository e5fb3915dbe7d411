//! The same operations as an application of libfabric's makes them: through stock libfabric and the
//! plugin.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use ferro_fi::abi::{fi_addr_t, fi_cq_tagged_entry, fi_threading};
use ferrofabric_fake_device::control::ROCE;
use ferrofabric_shm::ShmProvider;

use crate::client::{Info, Libfabric, Opened, Party};
use crate::subjects::{BYTES, TAG, count_this};

/// Two endpoints of the plugin, each on a domain of its own.
pub(crate) struct OfiPair {
    from: OfiEnd,
    to: OfiEnd,
}

struct OfiEnd {
    party: Party,
    peer: fi_addr_t,
    room: Box<[u8; BYTES]>,
}

impl OfiPair {
    /// Opens them over a transport. The library stays loaded.
    pub(crate) fn open(libfabric: &Libfabric, transport: &str) -> Self {
        let domain = match transport {
            "ofi" => ShmProvider::DOMAIN.to_owned(),
            _ => format!("{ROCE}:1"),
        };
        let info = libfabric.discover(&domain, fi_threading::FI_THREAD_DOMAIN);
        let (from, to) = (party(&info), party(&info));
        let end = |party: Party, peer: &[u8]| OfiEnd {
            peer: party.insert(peer),
            party,
            room: Box::new([7; BYTES]),
        };
        let (from_name, to_name) = (from.name(), to.name());
        let this = Self {
            from: end(from, &to_name),
            to: end(to, &from_name),
        };
        // The first message connects.
        this.to.post();
        this.from.send();
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            assert!(Instant::now() < deadline, "no connection over {transport}");
            sent |= this.from.read();
            received |= this.to.read();
        }
        this
    }

    /// Sends one message, and counts the operation `what` of it if `counted`.
    pub(crate) fn once(&mut self, what: &str, counted: bool) {
        let (from, to) = (&self.from, &self.to);
        let run = |work: &mut dyn FnMut()| match counted {
            true => count_this(work),
            false => work(),
        };
        match what {
            "inject" => {
                to.post();
                run(&mut || {
                    from.inject();
                    from.read();
                });
                assert!(to.read());
            }
            "receive" => {
                run(&mut || to.post());
                from.inject();
                from.read();
                let mut received = false;
                run(&mut || received = to.read());
                assert!(received);
            }
            _ => unreachable!("{what}"),
        }
    }
}

fn party(info: &Info<'_>) -> Party {
    Opened::new(info).uncounted_party(info)
}

impl OfiEnd {
    fn inject(&self) {
        assert_eq!(self.party.inject(&self.room[..], self.peer, TAG), 0);
    }

    fn send(&self) {
        let bytes = &self.room[..];
        // SAFETY: the room stays until the end of the program.
        let sent = unsafe { self.party.send(bytes, null_mut(), self.peer, TAG) };
        assert_eq!(sent, 0);
    }

    fn post(&self) {
        let room = self.room.as_ptr().cast_mut();
        assert_eq!(self.party.receive(room, BYTES, null_mut(), TAG), 0);
    }

    fn read(&self) -> bool {
        let mut entry = fi_cq_tagged_entry::default();
        self.party.poll(&mut entry) == 1
    }
}
