//! Providers of stock libfabric, as peers of this one.

use crate::child;
use std::ptr::NonNull;

use ferro_fi::abi::fi_provider;
use ferro_fi::host::Host;
use ferro_fi::peer::host_provider::offer;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{EpType, Info, Threading};

/// The plugin's code, with the libfabric of this process.
fn attach() -> &'static Host {
    let provider = Box::leak(Box::new(fi_provider {
        name: c"ferro".as_ptr(),
        ..fi_provider::default()
    }));
    // SAFETY: it lives for ever and has its name.
    unsafe { Host::attach(NonNull::from(provider)) }.unwrap()
}

/// The capabilities of an endpoint that sends and receives messages, and reads and writes.
fn owner() -> Info {
    Info {
        caps: Flags::MSG | Flags::TAGGED | Flags::RMA | Flags::SOURCE | Flags::DIRECTED_RECV,
        ..Info::default()
    }
}

/// `FI_PROVIDER` names ours alone, so `shm` is hidden from programs.
#[test]
fn the_shared_memory_of_libfabric_is_found_though_it_is_hidden() {
    child::alone(
        "the_shared_memory_of_libfabric_is_found_though_it_is_hidden",
        |_| {
            attach();
            let found = offer("shm", &owner()).unwrap();
            let info = found.info();
            assert_eq!(info.fabric.name, "shm");
            assert_eq!(info.ep.ep_type, EpType::Rdm);
            assert_eq!(info.domain.threading, Threading::Domain);
            let domain_caps = Flags::LOCAL_COMM | Flags::PEER | Flags::AV_USER_ID;
            assert!(info.domain.caps.contains(domain_caps), "{info:?}");
            assert!(info.caps.contains(owner().caps - Flags::RMA), "{info:?}");
            assert!(!info.caps.intersects(Flags::RMA), "{info:?}");
            assert!(
                info.tx.inject_size > 0 && info.tx.iov_limit >= 4,
                "{info:?}"
            );

            let fabric = found.fabric().unwrap();
            drop(found);
            let again = offer("shm", &owner()).unwrap();
            assert_eq!(again.fabric().unwrap(), fabric);
        },
    );
}

#[test]
fn a_provider_that_is_not_there_is_named() {
    child::alone("a_provider_that_is_not_there_is_named", |_| {
        attach();
        let error = offer("no_such_provider", &owner()).unwrap_err();
        assert_eq!(error.errno(), Errno::ENODATA);
        assert!(error.to_string().contains("no_such_provider"), "{error}");
        assert!(offer("sh\0m", &owner()).is_err());
    });
}
