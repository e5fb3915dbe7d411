//! A driver with a planner and a carrier of the test's.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrofabric_collectives::{
    Action, Carrier, Collective, Driver, GroupId, Membership, Message, MessageBytes, Outcome,
    Planner, Reports, carry_out,
};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::types::FiAddr;

/// The calls of a planner, and the actions that it has.
#[derive(Default)]
struct Script {
    actions: VecDeque<Action>,
    sent: Vec<(u64, Result<(), Errno>)>,
    received: Vec<(u64, Vec<u8>)>,
    ticks: usize,
}

struct ScriptedPlanner(Arc<Mutex<Script>>);

impl ScriptedPlanner {
    fn with<T>(&self, call: impl FnOnce(&mut Script) -> T) -> T {
        call(&mut self.0.lock().expect("no panic"))
    }
}

impl Planner for ScriptedPlanner {
    fn join(&mut self, _: u64, _: Membership) -> Result<GroupId, Errno> {
        Err(Errno::ENOSYS)
    }

    fn check(&self, _: GroupId) -> Result<(), Errno> {
        Ok(())
    }

    fn begin(&mut self, _: u64, _: GroupId, _: Collective, _: Vec<u8>) -> Result<(), Errno> {
        Ok(())
    }

    fn leave(&mut self, _: GroupId) {}

    fn next_action(&mut self) -> Option<Action> {
        self.with(|script| script.actions.pop_front())
    }

    fn bytes<'a>(&'a self, bytes: &'a MessageBytes) -> Option<&'a [u8]> {
        match bytes {
            MessageBytes::Own(bytes) => Some(bytes),
            MessageBytes::Empty => Some(&[]),
            MessageBytes::Piece(..) => None,
        }
    }

    fn sent(&mut self, message: u64, result: Result<(), Errno>) {
        self.with(|script| script.sent.push((message, result)));
    }

    fn received(&mut self, message: u64, _: FiAddr, result: Result<&[u8], Errno>) {
        let bytes = result.expect("a message").to_vec();
        self.with(|script| script.received.push((message, bytes)));
    }

    fn refused(&mut self, _: u64, _: Errno) {}

    fn tick(&mut self, _: Instant) {
        self.with(|script| script.ticks += 1);
    }

    fn next_tick(&self) -> Option<Instant> {
        None
    }
}

#[derive(Default)]
struct Ends(Vec<(char, Result<Outcome, Errno>)>);

impl Reports for Ends {
    type Pending = char;

    fn end(&mut self, pending: char, result: Result<Outcome, Errno>) {
        self.0.push((pending, result));
    }
}

/// An endpoint with room for so many messages.
struct Endpoint {
    driver: Driver<Box<[u8]>, Ends>,
    script: Arc<Mutex<Script>>,
    room: usize,
    posted: Vec<Message<Box<[u8]>>>,
    cancelled: Vec<u64>,
}

impl Carrier for Endpoint {
    type Memory = Box<[u8]>;
    type Reports = Ends;

    fn with_driver<T>(&mut self, call: impl FnOnce(&mut Driver<Box<[u8]>, Ends>) -> T) -> T {
        call(&mut self.driver)
    }

    fn post(&mut self, message: Message<Box<[u8]>>) -> Result<(), (OpError, Message<Box<[u8]>>)> {
        // The peer with the number 9 takes everything.
        if self.room == 0 && message.peer != FiAddr(9) {
            return Err((OpError::Again, message));
        }
        self.room = self.room.saturating_sub(1);
        self.posted.push(message);
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        self.cancelled.push(number);
    }
}

impl Endpoint {
    fn new(room: usize, probe_grace: Duration) -> Self {
        let script = Arc::new(Mutex::new(Script::default()));
        let planner = Box::new(ScriptedPlanner(script.clone()));
        Self {
            driver: Driver::new(planner, Ends::default(), probe_grace),
            script,
            room,
            posted: Vec::new(),
            cancelled: Vec::new(),
        }
    }

    fn act(&mut self, actions: impl IntoIterator<Item = Action>) {
        self.script
            .lock()
            .expect("no panic")
            .actions
            .extend(actions);
        carry_out(self);
    }

    fn numbers(&self) -> Vec<u64> {
        self.posted.iter().map(|message| message.number).collect()
    }

    fn sent(&self) -> Vec<(u64, Result<(), Errno>)> {
        self.script.lock().expect("no panic").sent.clone()
    }
}

fn send(message: u64, to: u64, is_probe: bool) -> Action {
    Action::Send {
        message,
        to: FiAddr(to),
        tag: 5,
        bytes: match is_probe {
            true => MessageBytes::Empty,
            false => MessageBytes::Own([message as u8; 4]),
        },
        is_probe,
    }
}

fn receive(message: u64, from: u64, len: usize) -> Action {
    Action::Receive {
        message,
        from: FiAddr(from),
        tag: 5,
        ignore: 0,
        len,
    }
}

#[test]
fn a_failed_probe_counts_in_a_look_that_begins_after_it() {
    let mut endpoint = Endpoint::new(9, Duration::ZERO);
    endpoint.act([send(1, 2, true), send(2, 2, true), send(3, 2, false)]);
    let before = Instant::now();
    // The level of a probe is not supported: that says nothing of the peer, and does not wait.
    endpoint.driver.sent(1, Err(Errno::EOPNOTSUPP));
    endpoint.driver.sent(2, Err(Errno::ESHUTDOWN));
    // One that is no probe does not, either.
    endpoint.driver.sent(3, Err(Errno::ECONNRESET));
    let at_once = [(1, Err(Errno::EOPNOTSUPP)), (3, Err(Errno::ECONNRESET))];
    assert_eq!(endpoint.sent(), at_once);
    assert!(endpoint.driver.next_tick().is_some());
    // This look had begun before.
    endpoint.driver.tick(before);
    assert_eq!(endpoint.sent(), at_once);
    endpoint
        .driver
        .tick(Instant::now() + Duration::from_nanos(1));
    assert_eq!(endpoint.sent()[2..], [(2, Err(Errno::ESHUTDOWN))]);
    assert!(endpoint.driver.next_tick().is_none());

    let mut patient = Endpoint::new(9, Duration::from_secs(3600));
    patient.act([send(1, 2, true)]);
    patient.driver.sent(1, Err(Errno::ESHUTDOWN));
    patient
        .driver
        .tick(Instant::now() + Duration::from_secs(60));
    assert_eq!(patient.sent(), []);
    patient
        .driver
        .tick(Instant::now() + Duration::from_secs(7200));
    assert_eq!(patient.sent().len(), 1);
}

#[test]
fn messages_without_room_keep_their_order_and_hold_back_no_others() {
    let mut endpoint = Endpoint::new(1, Duration::ZERO);
    endpoint.act([
        send(1, 2, false),
        send(2, 2, false),
        send(3, 2, false),
        receive(4, 2, 8),
        send(5, 9, false),
        send(6, 3, false),
    ]);
    assert_eq!(endpoint.numbers(), [1, 5]);
    assert!(endpoint.driver.has_waiting() && endpoint.driver.next_tick().is_some());
    assert_eq!(endpoint.driver.receives(), 1);
    // There is still no room, and a message that waits is cancelled by the driver alone.
    endpoint.driver.try_again();
    endpoint.act([Action::Cancel { message: 4 }, send(7, 2, false)]);
    assert_eq!(endpoint.numbers(), [1, 5]);
    assert_eq!(
        (endpoint.driver.receives(), endpoint.cancelled.len()),
        (0, 0)
    );
    endpoint.room = 9;
    endpoint.driver.try_again();
    endpoint.act([]);
    let to = |peer| {
        let sent = (endpoint.posted.iter()).filter(|message| message.peer == FiAddr(peer));
        sent.map(|message| message.number).collect::<Vec<_>>()
    };
    assert_eq!((to(2), to(3), to(9)), (vec![1, 2, 3, 7], vec![6], vec![5]));
    assert!(!endpoint.driver.has_waiting());
    for message in &endpoint.posted {
        assert_eq!(message.memory[..message.len], [message.number as u8; 4]);
    }
}

#[test]
fn ends_are_reported_once_and_cancelled_receives_are_the_carriers() {
    let mut endpoint = Endpoint::new(9, Duration::ZERO);
    endpoint.driver.begin(7, 'a', |_| Ok(())).expect("begun");
    endpoint.driver.begin(8, 'b', |_| Ok(())).expect("begun");
    let refused = endpoint
        .driver
        .begin(9, 'c', |_| Err::<(), _>(Errno::EINVAL));
    assert_eq!(refused, Err(Errno::EINVAL));
    assert!(endpoint.driver.is_under_way(7) && !endpoint.driver.is_under_way(9));
    endpoint.driver.forget(|&pending| pending == 'b');
    let end = |operation| Action::End {
        operation,
        result: Ok(Outcome::Bytes(vec![1])),
    };
    endpoint.act([receive(1, 2, 3), end(7), end(8), end(9), end(7)]);
    let reported = &endpoint.driver.reports.0;
    assert_eq!(reported[..], [('a', Ok(Outcome::Bytes(vec![1])))]);

    // The memory is longer than the message may be, and is used again.
    let received = endpoint.posted.pop().expect("a receive");
    assert!(received.len == 3 && received.memory.len() >= 3);
    endpoint
        .driver
        .received(1, FiAddr(2), Ok(&received.memory[..2]));
    let at = received.memory.as_ptr();
    endpoint.driver.keep_spare(received.memory);
    endpoint.act([receive(2, 2, 200), Action::Cancel { message: 2 }]);
    assert_eq!(endpoint.posted[0].memory.as_ptr(), at);
    assert_eq!(endpoint.cancelled, [2]);
    let script = endpoint.script.lock().expect("no panic");
    assert_eq!(script.received, [(1, vec![0, 0])]);
}
