//! Near transports as a parameter of the verbs provider, over the fake device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::limits::{PATIENCE, refused, settings};
use ferrofabric_contracts::addr::{Address, AuthKey, NativeAddr};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{AV_AUTH_KEY, EpType, Info};
use ferrofabric_contracts::types::{MrDesc, MsgKind, SendOp};
use ferrofabric_fake_device::control::{FakeDevice, ROCE};
use ferrofabric_runtime::domain::Opening;
use ferrofabric_runtime::fabric::{CqAttr, Domain, Endpoint, EndpointConfig, Provider};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_verbs::VerbsProviderWith;
use ferrofabric_verbs::near::{NearDomain, OwnShm, with_near_transport};

/// Numbers of [`Crowded`] that are taken on the node, from the next one on.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Our shared memory on a node where numbers are taken.
struct Crowded(OwnShm);

impl NearDomain for Crowded {
    type Transport = <OwnShm as NearDomain>::Transport;
    const OWN_SHM_WITH_KEYS: bool = true;

    fn open(info: &Info, settings: &Settings) -> Result<Self> {
        OwnShm::open(info, settings).map(Self)
    }

    fn offers(all: Info, settings: &Settings, notices: &mut Vec<Error>) -> Vec<Info> {
        OwnShm::offers(all, settings, notices)
    }

    fn open_endpoint(
        &self,
        opening: &Opening<'_>,
        name: &NativeAddr,
    ) -> Result<Option<Self::Transport>> {
        let one_less = |taken: u32| taken.checked_sub(1);
        match TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(_) => Err(Error::new(Errno::EADDRINUSE, "open", format!("{name}"))),
            Err(_) => self.0.open_endpoint(opening, name),
        }
    }
}

/// Offers messages with a near transport, and all without one. No endpoint gets one.
struct Absent;

impl NearDomain for Absent {
    type Transport = <OwnShm as NearDomain>::Transport;
    const OWN_SHM_WITH_KEYS: bool = false;

    fn open(_info: &Info, _settings: &Settings) -> Result<Self> {
        Ok(Self)
    }

    fn offers(all: Info, _settings: &Settings, _notices: &mut Vec<Error>) -> Vec<Info> {
        let mut messages = with_near_transport(all.clone());
        messages.caps -= Flags::RMA;
        vec![messages, all]
    }

    fn open_endpoint(
        &self,
        _opening: &Opening<'_>,
        _name: &NativeAddr,
    ) -> Result<Option<Self::Transport>> {
        Ok(None)
    }

    fn completion_levels(&self) -> Flags {
        Flags::FENCE
    }
}

/// The offers of RDM endpoints.
fn offers<N: NearDomain>() -> Vec<Info> {
    let provider = VerbsProviderWith::<N>::new();
    let mut found = provider.discover(&settings(&[("FERRO_DEVICE", ROCE)]));
    let candidates = &mut found.candidates;
    candidates.retain(|info| info.ep.ep_type == EpType::Rdm);
    std::mem::take(candidates)
}

fn domain<N: NearDomain>(offer: &Info) -> Arc<dyn Domain> {
    let settings = settings(&[("FERRO_DEVICE", ROCE)]);
    let provider = VerbsProviderWith::<N>::new();
    provider.open(offer, &settings).unwrap()
}

fn with_keys(offers: &[Info]) -> &Info {
    let mut offers = offers.iter();
    offers
        .find(|info| info.domain.auth_key_size == AV_AUTH_KEY)
        .unwrap()
}

/// Whether the source address of an offer has a number for shared memory.
fn has_shm(offer: &Info) -> bool {
    match offer.src_addr {
        Some(Address::Native(name)) => name.shm.is_some(),
        _ => panic!("it has no native address"),
    }
}

#[test]
fn a_near_domain_makes_the_offers() {
    let _device = FakeDevice::take();
    let of_own = offers::<OwnShm>();
    assert_eq!(of_own.iter().map(has_shm).collect::<Vec<_>>(), [true; 2]);
    let all = offers::<Absent>();
    let near: Vec<_> = all.iter().map(has_shm).collect();
    assert_eq!(near, [true, false, false]);
    let has_rma = |info: &Info| info.caps.contains(Flags::RMA);
    let rma: Vec<_> = all.iter().map(has_rma).collect();
    assert_eq!(rma, [false, true, false]);
    assert!(std::ptr::eq(with_keys(&all), &all[2]));
}

#[test]
fn an_endpoint_draws_until_its_number_is_free() {
    let _device = FakeDevice::take();
    let domain = domain::<Crowded>(&offers::<Crowded>()[0]);
    for taken in 0..4 {
        TAKEN.store(taken, Ordering::Relaxed);
        let endpoint = OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
        assert!(endpoint.name().shm.is_some());
        assert_eq!(TAKEN.load(Ordering::Relaxed), 0);
    }
    TAKEN.store(4, Ordering::Relaxed);
    let error = refused(OwningEndpoint::open(&*domain, &AvAttr::default()));
    assert_eq!(error.errno(), Errno::EADDRINUSE);
}

/// Covers: PEER-13
#[test]
fn endpoints_without_a_near_transport_reach_each_other_by_the_device() {
    let _device = FakeDevice::take();
    let domain = domain::<Absent>(&offers::<Absent>()[0]);
    let open = || OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
    let (mut a, mut b) = (open(), open());
    assert_eq!((a.name().shm, b.name().shm), (None, None));
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
    b.trecv(Buffer::new(8).unwrap(), to_a, 1, 0, 1).unwrap();
    let message = Buffer::copy_of(b"by wire!").unwrap();
    a.tsend(message, 8, to_b, 1, 2).unwrap();
    let begun = Instant::now();
    let received = loop {
        assert!(begun.elapsed() < PATIENCE, "the message does not arrive");
        a.poll().unwrap();
        if let Some(done) = b.poll().unwrap() {
            break done;
        }
    };
    assert!(received.outcome.is_ok(), "{:?}", received.outcome);
    assert_eq!(&received.buffer[..8], b"by wire!");
    let by_shm = |(name, _): &(&str, u64)| name.starts_with("shm_");
    assert!(!a.stats().unwrap().iter().any(by_shm));
}

#[test]
fn a_near_domain_limits_the_completion_levels() {
    let _device = FakeDevice::take();
    let send = |domain: Arc<dyn Domain>, level| {
        let endpoint = OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
        let config =
            EndpointConfig::new(endpoint.av(), &domain.open_cq(&CqAttr::default()).unwrap());
        let sender: Arc<dyn Endpoint> = domain.open_endpoint(config).unwrap();
        let op = SendOp {
            kind: MsgKind::Msg,
            dest: endpoint.av().insert(&endpoint.name().to_bytes()).unwrap(),
            tag: 0,
            data: 0,
            desc: MrDesc::NONE,
            context: 1,
            flags: level,
        };
        // SAFETY: there is no buffer.
        unsafe { sender.send(&op, &[]) }
    };
    for level in [
        Flags::DELIVERY_COMPLETE,
        Flags::MATCH_COMPLETE,
        Flags::FENCE,
    ] {
        let own = domain::<OwnShm>(&offers::<OwnShm>()[0]);
        assert_eq!(send(own, level), Ok(()), "{level:?}");
        let sent = send(domain::<Absent>(&offers::<Absent>()[0]), level);
        match level {
            Flags::FENCE => assert_eq!(sent, Ok(())),
            _ => assert_eq!(sent, Err(OpError::Failed(Errno::EOPNOTSUPP)), "{level:?}"),
        }
    }
}

#[test]
fn endpoints_with_keys_have_our_shared_memory_or_none() {
    let _device = FakeDevice::take();
    fn number_of_shm<N: NearDomain>() -> Option<u64> {
        let domain = domain::<N>(with_keys(&offers::<N>()));
        let av = domain.open_av(&AvAttr::default()).unwrap();
        let key = AuthKey::new(0xffff, 7).unwrap();
        av.insert_auth_key(&key.to_bytes()).unwrap();
        let cq = domain.open_cq(&CqAttr::default()).unwrap();
        let endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq));
        endpoint.unwrap().name().shm
    }
    assert!(number_of_shm::<OwnShm>().is_some());
    assert!(number_of_shm::<Crowded>().is_some());
    assert_eq!(number_of_shm::<Absent>(), None);
}
