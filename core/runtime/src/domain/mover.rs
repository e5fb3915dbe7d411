//! Takes messages for an application that computes: a peer closes an endpoint or a region and waits
//! until this process takes what was sent, and nobody drives the endpoint that it is for.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use ferrofabric_system::locks::Mutex;
use ferrofabric_system::threads;

use super::neighbours::move_messages_of_idle_domains;

/// Looks of one turn: a peer that always has more keeps no thread busy.
const LOOKS: usize = 1000;

/// Moves messages in a separate thread: a service thread takes no lock of a domain.
#[derive(Default)]
pub struct MessageMover {
    thread: Option<JoinHandle<()>>,
    turn: Arc<Mutex<MoverTurn>>,
}

/// The thread and those that request its work.
#[derive(Default)]
struct MoverTurn {
    is_running: bool,
    /// A request has come since it began: what that one is for may be there only now.
    is_requested: bool,
    has_moved: bool,
}

impl MessageMover {
    /// Moves the messages of all domains that no thread uses now: at once, or again when the thread
    /// is through that is at it. Whether that thread, or the one before, moved some: then there may
    /// be more soon.
    #[cold]
    pub fn start(&mut self) -> bool {
        let moved_before = {
            let turn = &mut *self.turn.lock();
            // One that has failed says nothing.
            let is_there = (self.thread.as_ref()).is_some_and(|thread| !thread.is_finished());
            if turn.is_running && is_there {
                turn.is_requested = true;
                return true;
            }
            turn.is_running = true;
            std::mem::take(&mut turn.has_moved)
        };
        self.finish();
        let turn = self.turn.clone();
        // Providers of others may run on its stack.
        let named = Builder::new().name("ferro-mover".into());
        match threads::spawn(named, move || run(&turn)) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                // The peer asks again.
                tracing::debug!(%error, "no thread for the messages of a closing peer");
                self.turn.lock().is_running = false;
            }
        }
        moved_before
    }

    fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It has said why it failed.
            let _ = thread.join();
        }
    }
}

impl Drop for MessageMover {
    fn drop(&mut self) {
        self.turn.lock().is_requested = false;
        self.finish();
    }
}

fn run(turn: &Mutex<MoverTurn>) {
    loop {
        let moved = (0..LOOKS).take_while(|_| move_messages_of_idle_domains());
        let has_moved = moved.count() != 0;
        let turn = &mut *turn.lock();
        turn.has_moved |= has_moved;
        if !std::mem::take(&mut turn.is_requested) {
            turn.is_running = false;
            return;
        }
    }
}
