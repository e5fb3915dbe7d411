//! Two datagram endpoints that know each other.

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::flags::Mode;
use ferrofabric_contracts::info::EpType;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs::VerbsProvider;

use crate::endpoints::party::{PeerPair, check, first, message, room, settings};

/// A pair, each endpoint on a domain of its own.
pub(crate) fn pair(pairs: &[(&str, &str)]) -> PeerPair {
    let settings = settings(pairs);
    let found = VerbsProvider::new().discover(&settings);
    let mut all = found.candidates.iter();
    let info = all.find(|info| info.ep.ep_type == EpType::Dgram && info.mode == Mode::empty());
    let open = || {
        let domain = VerbsProvider::new().open(info.unwrap(), &settings).unwrap();
        OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap()
    };
    let (a, b) = (open(), open());
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
    PeerPair { a, b, to_b, to_a }
}

impl PeerPair {
    /// A datagram each way, received and compared.
    pub(crate) fn exchange_untagged(&mut self, seed: u64) {
        for end in [&mut self.a, &mut self.b] {
            end.recv(room(8), FiAddr::UNSPEC, 1).map_err(first).unwrap();
        }
        let sent = self.a.send(message(8, seed), 8, self.to_b, None, 2);
        sent.map_err(first).unwrap();
        let sent = self.b.send(message(8, seed), 8, self.to_a, None, 2);
        sent.map_err(first).unwrap();
        for done in self.run(4) {
            assert!(done.outcome.is_ok(), "{done:?}");
            if done.token == 1 {
                check(&done.buffer[..8], seed, "a datagram");
            }
        }
    }
}
