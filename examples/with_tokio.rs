//! Two endpoints exchange messages in tasks of tokio, which sleeps on their descriptors.
//!
//! `cargo run --example with_tokio`

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::Duration;

use ferrofabric::{
    AsyncRdmEndpoint, Buffer, DescriptorReadiness, Error, FiAddr, Inbound, Outbound, RdmEndpoint,
};
use tokio::io::unix::AsyncFd;

/// An endpoint's descriptor, registered with tokio.
pub(crate) struct TokioReadiness(AsyncFd<OwnedFd>);

impl DescriptorReadiness for TokioReadiness {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ready = self.0.poll_read_ready(cx);
        ready.map_ok(|mut guard| guard.clear_ready())
    }
}

#[allow(
    deprecated,
    reason = "sound for a descriptor that it owns; its successor is unsafe"
)]
fn watch(descriptor: OwnedFd) -> io::Result<TokioReadiness> {
    AsyncFd::new(descriptor).map(TokioReadiness)
}

fn open() -> Result<AsyncRdmEndpoint<TokioReadiness>, Error> {
    AsyncRdmEndpoint::new(RdmEndpoint::open()?, watch)
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Error> {
    let (left, right) = (open()?, open()?);
    let to_right = left.with(|left| left.insert(right.with(|right| right.address())))?;
    let to_left = right.with(|right| right.insert(left.with(|left| left.address())))?;
    tokio::try_join!(talk(&left, to_right), talk(&right, to_left))?;

    // No peer sends a message to this receive: the wait ends, the receive stays.
    let silent = left.recv(Buffer::new(64)?)?;
    let waited = tokio::time::timeout(Duration::from_millis(50), left.outcome(silent)).await;
    println!("a message in 50 ms: {}", waited.is_ok());
    Ok(())
}

/// Two messages each way, with both receives awaited at the same time.
async fn talk(endpoint: &AsyncRdmEndpoint<TokioReadiness>, peer: FiAddr) -> Result<(), Error> {
    let room = |tag| Ok::<_, Error>(Inbound::from(Buffer::new(64)?).tag(tag));
    let (first, second) = (endpoint.recv(room(1)?)?, endpoint.recv(room(2)?)?);
    for tag in [2, 1] {
        let message = Buffer::copy_of(format!("message {tag}").as_bytes())?;
        let sent = endpoint
            .send(peer, Outbound::from(message).tag(tag))
            .await?;
        endpoint.outcome(sent).await?;
    }
    let (first, second) = tokio::try_join!(endpoint.outcome(first), endpoint.outcome(second))?;
    for message in [first, second] {
        println!("{}", String::from_utf8_lossy(message.bytes()));
    }
    Ok(())
}
