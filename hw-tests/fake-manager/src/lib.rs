//! A connection manager in front of a subnet manager that a test scripts. No InfiniBand network is
//! at hand, so nothing else here answers the question for the path to a port.
//!
//! It is a librdmacm: a program that loads it first (by [`control::FakeManager::take`]) gets it
//! whenever it loads `librdmacm.so.1`, for the loader goes by that name. Ports are the only
//! addresses that it takes, and path records all that it finds: a call that connects or listens
//! fails.
//!
//! | module | contents |
//! |---|---|
//! | [`control`] | the test's end: takes the manager, scripts answers, lists requests |
//! | `library` | the exports of librdmacm |
//! | `state` | the script, and the objects that there are |

pub mod control;
mod library;
mod state;
