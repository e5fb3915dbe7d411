//! A wait for a message that never comes ends after 2 seconds, and the receive is cancelled.
//!
//! `cargo run --example timeout`

use std::time::Duration;

use ferrofabric::{Buffer, Error, RdmEndpoint};

pub(crate) fn main() -> Result<(), Error> {
    let mut endpoint = RdmEndpoint::open()?;
    let receive = endpoint.recv(Buffer::new(64)?)?;
    match endpoint.wait_for(receive, Some(Duration::from_secs(2))) {
        Ok(_) => unreachable!("no peer has this endpoint's address"),
        Err(error) if error.is_timeout() => println!("no message in 2 seconds"),
        Err(error) => return Err(error.into()),
    }

    // The receive still has the buffer, until it is cancelled.
    endpoint.cancel(receive)?;
    match endpoint.wait_for(receive, None) {
        Ok(_) => unreachable!("it was cancelled"),
        Err(error) if error.is_canceled() => {
            let bytes = error.into_buffer().map_or(0, |buffer| buffer.len());
            println!("the buffer of {bytes} bytes is back");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
