//! A verbs device that is made of memory alone, for events that no device at hand produces on
//! demand: completions with every status, completions that make no sense, calls that fail,
//! asynchronous events. And for costs that repeat to the digit.
//!
//! It is a libibverbs: a program that loads it first (by [`control::FakeDevice::take`]) gets it
//! whenever it loads `libibverbs.so.1`, for the loader goes by that name. It has one RoCE and one
//! InfiniBand device. Their queue pairs reach those of the same process, in order and at once
//! (datagrams unless a test has them lost, repeated and reordered): a request is carried out by the
//! call that posts it, or by the one that gives its receiver a buffer. Faults of an application
//! (a queue that overflows, memory that is not registered, an object that is destroyed under
//! another) are recorded as misuse, for the test to find.
//!
//! It replaces no test on a real device.
//!
//! | module | contents |
//! |---|---|
//! | [`control`] | the test's end: takes the device, scripts faults, lists the objects |
//! | [`fault`] | faults, as both ends name them |
//! | `library`, `data_path` | the exports of libibverbs, and the calls of inline functions |
//! | `script` | the functions that the test's end calls |
//! | `fork` | has a fork wait for operations that are under way |
//! | `gate` | stops a thread in front of the completion queues |
//! | `model` | all objects, behind one lock |
//! | [`profile`] | the kinds of NICs that the device can be |
//! | `memory` | regions |
//! | `completion` | completion queues and events |
//! | `queue_pair` | queue pairs and receive queues |
//! | `network` | loses, repeats and reorders datagrams |
//! | `route` | the origin that a datagram names |
//! | `wire` | carries requests out |

mod completion;
pub mod control;
mod data_path;
pub mod fault;
mod fork;
mod gate;
mod library;
mod memory;
mod model;
mod network;
pub mod profile;
mod queue_pair;
mod route;
mod script;
mod text;
mod wire;
