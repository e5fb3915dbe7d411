//! Somebody who keeps a core busy, as a receiver does that polls. An emulated device, or one in
//! software, gets what is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ferro::cores;
use ferro::failure::{Failure, Result};

/// Keeps a core busy until it is dropped.
pub(crate) struct Spinner {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Spinner {
    /// Keeps that core busy from now on.
    ///
    /// # Errors
    ///
    /// When there is no such core, or no thread to be had.
    pub(crate) fn on(core: usize) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (asked, (tell, told)) = (stop.clone(), std::sync::mpsc::sync_channel(1));
        let spin = move || {
            let pinned = cores::pin(&[core]);
            let spins = pinned.is_ok();
            let _ = tell.send(pinned);
            while spins && !asked.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let thread = std::thread::Builder::new()
            .name("spinner".to_owned())
            .spawn(spin)
            .map_err(|e| Failure::io("start a thread", e))?;
        told.recv()
            .map_err(|_| Failure::new("the spinner is gone"))??;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spins_where_there_is_a_core_and_ends() {
        let core = cores::allowed().unwrap()[0];
        drop(Spinner::on(core).unwrap());
        assert!(Spinner::on(1023).is_err() || cores::allowed().unwrap().contains(&1023));
    }
}
