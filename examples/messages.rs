//! Two endpoints of one process send each other messages, over the best domain of this machine.
//!
//! `cargo run --example messages`; `FERRO_VERBS=off` in the environment takes shared memory.

use std::sync::Arc;

use ferrofabric::config::Settings;
use ferrofabric::discovery::getinfo;
use ferrofabric::error::{Errno, Error};
use ferrofabric::fabric::{Domain, Provider};
use ferrofabric::info::{EpAttr, EpType, Info};
use ferrofabric::owning::{Buffer, OwningEndpoint};
use ferrofabric::{AvAttr, ShmProvider, VerbsProvider};

const TAG: u64 = 7;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let settings = Settings::from_env()?;
    let (verbs, shm) = (VerbsProvider::new(), ShmProvider::new());
    let hints = Info {
        ep: EpAttr {
            ep_type: EpType::Rdm,
            ..EpAttr::default()
        },
        ..Info::default()
    };
    let domain = open_best(&[&verbs, &shm], &hints, &settings)?;
    println!("over {}", domain.info().domain.name);

    let mut sender = OwningEndpoint::open(&*domain, &AvAttr::default())?;
    let mut receiver = OwningEndpoint::open(&*domain, &AvAttr::default())?;
    let to_receiver = sender.av().insert(&receiver.name().to_bytes())?;
    let from_sender = receiver.av().insert(&sender.name().to_bytes())?;

    let text = b"a message";
    let mut message = Buffer::new(text.len())?;
    message[..].copy_from_slice(text);
    // The buffer comes back with an error.
    let failed = |(error, _buffer)| error;
    let room = Buffer::new(64)?;
    receiver
        .trecv(room, from_sender, TAG, 0, 0)
        .map_err(failed)?;
    sender
        .tsend(message, text.len(), to_receiver, TAG, 0)
        .map_err(failed)?;

    // Reading a completion queue also drives the endpoint: both sides have to be read.
    let received = loop {
        if let Some(sent) = sender.poll()? {
            sent.outcome?;
        }
        if let Some(received) = receiver.poll()? {
            break received;
        }
    };
    let len = received.outcome?.len;
    println!(
        "received: {}",
        String::from_utf8_lossy(&received.buffer[..len])
    );
    Ok(())
}

/// Opens the best domain of the first provider that has one.
fn open_best(
    providers: &[&dyn Provider],
    hints: &Info,
    settings: &Settings,
) -> Result<Arc<dyn Domain>, Error> {
    let mut failure = None;
    for provider in providers {
        match getinfo(&[*provider], Some(hints), settings) {
            Ok(found) => return provider.open(&found.infos[0], settings),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| Error::new(Errno::ENODATA, "find", "a provider")))
}
