//! DGRAM endpoints for tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::flags::{Flags, Mode};
use ferrofabric_contracts::info::{EpType, Info};
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, SendOp};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::{Buffer, OwnedCompletion, OwningEndpoint};
use ferrofabric_verbs::VerbsProvider;

use crate::offers::settings;
use crate::{Rig, party};

/// A wait that takes so long hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long what must not come is waited for.
pub const QUIET: Duration = Duration::from_millis(300);

/// Whether the application leaves room before its buffers (`FI_MSG_PREFIX`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixRoom {
    /// It does.
    Room,
    /// It does not.
    None,
}

impl PrefixRoom {
    /// Bytes of that room.
    pub fn bytes(self) -> usize {
        match self {
            Self::Room => 40,
            Self::None => 0,
        }
    }
}

/// All offers.
pub fn infos(overrides: &[(&str, &str)]) -> Vec<Info> {
    let found = VerbsProvider::new().discover(&settings(overrides));
    found.candidates
}

/// The first offer of datagrams.
pub fn info(overrides: &[(&str, &str)], prefix: PrefixRoom) -> Info {
    let found = VerbsProvider::new().discover(&settings(overrides));
    let mode = match prefix {
        PrefixRoom::Room => Mode::MSG_PREFIX,
        PrefixRoom::None => Mode::empty(),
    };
    let wanted = |info: &Info| info.ep.ep_type == EpType::Dgram && info.mode == mode;
    let notices = found.notices;
    found
        .candidates
        .into_iter()
        .find(wanted)
        .unwrap_or_else(|| panic!("no datagrams: {notices:?}"))
}

/// A domain of datagrams.
pub fn domain(overrides: &[(&str, &str)], prefix: PrefixRoom) -> Arc<dyn Domain> {
    let info = info(overrides, prefix);
    VerbsProvider::new()
        .open(&info, &settings(overrides))
        .unwrap()
}

/// The domain that an offer describes.
pub fn open(info: &Info) -> Arc<dyn Domain> {
    VerbsProvider::new().open(info, &settings(&[])).unwrap()
}

/// An endpoint on a domain.
pub fn endpoint(domain: &dyn Domain) -> OwningEndpoint {
    OwningEndpoint::open(domain, &AvAttr::default()).unwrap()
}

/// The next operation of an endpoint that is over.
///
/// # Panics
///
/// When none is in time.
pub fn next(endpoint: &mut OwningEndpoint, what: &str) -> OwnedCompletion {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(done) = endpoint.poll().unwrap() {
            return done;
        }
        assert!(Instant::now() < until, "{what} is not over in time");
        std::thread::yield_now();
    }
}

/// Nothing of these endpoints comes to an end.
///
/// # Panics
///
/// When something does.
pub fn quiet(endpoints: &mut [&mut OwningEndpoint]) {
    let until = Instant::now() + QUIET;
    while Instant::now() < until {
        for endpoint in &mut *endpoints {
            if let Some(done) = endpoint.poll().unwrap() {
                panic!("{done:?} though nothing was to come");
            }
        }
        std::thread::yield_now();
    }
}

/// The value of one of the endpoint's statistics.
pub fn count(endpoint: &OwningEndpoint, name: &str) -> u64 {
    let stats = endpoint.stats().unwrap();
    let found = stats.iter().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("{name}: {stats:?}")).1
}

/// An untagged send with a completion.
pub fn send_op(dest: FiAddr, context: u64) -> SendOp {
    SendOp {
        kind: MsgKind::Msg,
        dest,
        tag: 0,
        data: 0,
        desc: MrDesc::NONE,
        context,
        flags: Flags::COMPLETION,
    }
}

/// Two endpoints on one domain that know each other; none where there is no device.
pub fn pair(prefix: PrefixRoom) -> Option<OwningDatagramPair> {
    Rig::open()?;
    Some(OwningDatagramPair::open(prefix))
}

/// Two endpoints on one domain that know each other.
pub struct OwningDatagramPair {
    /// The domain.
    pub domain: Arc<dyn Domain>,
    /// One endpoint.
    pub a: OwningEndpoint,
    /// The other.
    pub b: OwningEndpoint,
    /// `a` as `b` knows it.
    pub to_a: FiAddr,
    /// `b` as `a` knows it.
    pub to_b: FiAddr,
    /// Bytes that buffers start with for the provider.
    pub prefix: usize,
    /// Longest datagram in bytes.
    pub mtu: usize,
}

impl OwningDatagramPair {
    fn open(prefix: PrefixRoom) -> Self {
        let domain = domain(&[], prefix);
        let (a, b) = (endpoint(&*domain), endpoint(&*domain));
        let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
        let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
        Self {
            mtu: domain.info().ep.max_msg_size,
            domain,
            a,
            b,
            to_a,
            to_b,
            prefix: prefix.bytes(),
        }
    }

    /// A buffer for a message of this length, and for the prefix before it.
    pub fn buffer(&self, len: usize, registered: bool) -> Buffer {
        let mut buffer = Buffer::new(self.prefix + len).unwrap();
        if registered {
            buffer.register(&*self.domain).unwrap();
        }
        buffer
    }

    /// A message that no other is like.
    pub fn message(&self, len: usize, seed: u64, registered: bool) -> Buffer {
        let mut buffer = self.buffer(len, registered);
        party::fill(&mut buffer[self.prefix..], seed);
        buffer
    }

    /// `a` sends so much, which arrives in a receive of `b` that is posted; returns that receive's
    /// token.
    pub fn deliver(&mut self, len: usize, seed: u64) -> u64 {
        let out = self.message(len, seed, false);
        let prefix = self.prefix;
        let sent = self.a.send(out, prefix + len, self.to_b, None, seed);
        sent.map_err(|(error, _)| error).unwrap();
        next(&mut self.a, "the send").outcome.unwrap();
        let done = next(&mut self.b, "the receive");
        let completion = done.outcome.unwrap();
        assert_eq!((completion.len, completion.src), (prefix + len, self.to_a));
        party::check(&done.buffer[prefix..prefix + len], seed, "what arrived");
        done.token
    }
}
