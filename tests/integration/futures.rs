//! Futures over endpoints: on tokio, and on an executor of a few lines.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use ferrofabric::info::Progress;
use ferrofabric::{
    AsyncRdmEndpoint, AtomicRegion, Buffer, CompareOperator, CompletedOperation,
    DescriptorReadiness, FiAddr, Inbound, Operator, PathChoice, PeersReadWrite, RdmEndpoint,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::unix::AsyncFd;

pub(crate) struct Tokio(AsyncFd<OwnedFd>);

impl DescriptorReadiness for Tokio {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ready = self.0.poll_read_ready(cx);
        ready.map_ok(|mut guard| guard.clear_ready())
    }
}

#[allow(
    deprecated,
    reason = "sound for a descriptor that it owns; its successor is unsafe"
)]
pub(crate) fn watch(descriptor: OwnedFd) -> io::Result<Tokio> {
    AsyncFd::new(descriptor).map(Tokio)
}

/// A thread sleeps on the descriptor for each task that waits.
struct Threads(Arc<OwnedFd>);

impl DescriptorReadiness for Threads {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_readable = |fd: &OwnedFd, timeout: PollTimeout| {
            let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, timeout).unwrap() > 0
        };
        if is_readable(&self.0, PollTimeout::ZERO) {
            return Poll::Ready(Ok(()));
        }
        let (fd, waker) = (self.0.clone(), cx.waker().clone());
        std::thread::spawn(move || {
            is_readable(&fd, PollTimeout::NONE);
            waker.wake();
        });
        Poll::Pending
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn open() -> RdmEndpoint {
    let options = RdmEndpoint::builder().path(PathChoice::Shm);
    options.open().unwrap()
}

/// A sender, and a receiver on threads.
fn pair() -> (RdmEndpoint, AsyncRdmEndpoint<Threads>, FiAddr) {
    let (sender, receiver) = (open(), open());
    let to_receiver = sender.insert(receiver.address()).unwrap();
    let receiver = AsyncRdmEndpoint::new(receiver, |fd| Ok(Threads(Arc::new(fd)))).unwrap();
    (sender, receiver, to_receiver)
}

/// Injects a message, which does not wait for later calls of the sender.
fn tinject(sender: &mut RdmEndpoint, to: FiAddr, tag: u64, bytes: &[u8]) {
    sender.tinject(to, tag, bytes).unwrap();
    sender.flush(Duration::from_secs(60)).unwrap();
}

fn room(tag: u64) -> Inbound {
    Inbound::from(Buffer::new(64).unwrap()).tag(tag)
}

#[test]
fn any_executor_will_do() {
    let (mut sender, receiver, to_receiver) = pair();
    let received = receiver.recv(room(1)).unwrap();
    let thread = std::thread::spawn(move || {
        tinject(&mut sender, to_receiver, 1, b"hello");
        sender
    });
    let message = block_on(receiver.outcome(received)).unwrap();
    assert_eq!(message.bytes(), b"hello");
    drop(thread.join().unwrap());
}

/// The message that comes after its future was dropped is there for the next future.
#[test]
fn a_dropped_future_loses_no_message() {
    let (mut sender, receiver, to_receiver) = pair();
    let received = receiver.recv(room(1)).unwrap();
    let mut future = receiver.outcome(received);
    assert!(poll_once(&mut future).is_pending());
    drop(future);
    tinject(&mut sender, to_receiver, 1, b"one");
    let message = block_on(receiver.outcome(received)).unwrap();
    assert_eq!(message.bytes(), b"one");

    // One whose completion was taken already, for another.
    let (first, second) = (
        receiver.recv(room(1)).unwrap(),
        receiver.recv(room(2)).unwrap(),
    );
    let mut future = receiver.outcome(first);
    assert!(poll_once(&mut future).is_pending());
    for tag in [1, 2] {
        tinject(&mut sender, to_receiver, tag, &[tag as u8]);
    }
    assert_eq!(block_on(receiver.outcome(second)).unwrap().bytes(), [2]);
    drop(future);
    match block_on(receiver.next()).unwrap() {
        CompletedOperation::Received(id, message) => {
            assert_eq!((id, message.bytes()), (first, &[1][..]));
        }
        other => panic!("{other:?}"),
    }
}

/// The operation keeps its buffer: it is neither freed nor given to anybody while a message may be
/// written to it.
#[test]
fn a_dropped_future_frees_no_buffer_in_use() {
    let (mut sender, receiver, to_receiver) = pair();
    let buffer = Buffer::new(64).unwrap();
    let place = buffer.as_ptr();
    let received = receiver.recv(Inbound::from(buffer).tag(1)).unwrap();
    let mut future = receiver.outcome(received);
    assert!(poll_once(&mut future).is_pending());
    drop(future);
    // Memory that was freed would be taken here, and written to by the message.
    let others: Vec<Buffer> = (0..64).map(|_| Buffer::new(64).unwrap()).collect();
    assert!(others.iter().all(|other| other.as_ptr() != place));
    tinject(&mut sender, to_receiver, 1, &[0x5a; 64]);
    let message = block_on(receiver.outcome(received)).unwrap();
    assert_eq!(message.bytes(), [0x5a; 64]);
    assert_eq!(message.bytes().as_ptr(), place);
    assert!(
        others
            .iter()
            .all(|other| other.iter().all(|&byte| byte == 0))
    );

    // A shorter one gives its buffer its length.
    let received = receiver.recv(Inbound::from(message.into_buffer()).tag(1));
    tinject(&mut sender, to_receiver, 1, b"hi");
    let message = block_on(receiver.outcome(received.unwrap())).unwrap();
    let buffer = message.into_buffer();
    assert_eq!((&buffer[..], buffer.capacity()), (&b"hi"[..], 64));

    // Cancelled, it comes back.
    let cancelled = receiver.recv(buffer).unwrap();
    drop(receiver.outcome(cancelled));
    receiver
        .with(|receiver| receiver.cancel(cancelled))
        .unwrap();
    let error = block_on(receiver.outcome(cancelled)).unwrap_err();
    assert!(error.is_canceled());
    assert_eq!(error.into_buffer().unwrap().as_ptr(), place);
}

/// A client on threads, and a server that a thread of its domain drives.
fn pair_for_memory() -> (AsyncRdmEndpoint<Threads>, RdmEndpoint, FiAddr) {
    let server = RdmEndpoint::builder().path(PathChoice::Shm);
    let server = server.progress(Progress::Auto).open().unwrap();
    let client = open();
    let to_server = client.insert(server.address()).unwrap();
    server.insert(client.address()).unwrap();
    let client = AsyncRdmEndpoint::new(client, |fd| Ok(Threads(Arc::new(fd)))).unwrap();
    (client, server, to_server)
}

/// Each form is awaited. The elements of one whose future is dropped or forgotten are there for the
/// next future.
#[test]
fn atomic_operations_are_awaited() {
    let (client, server, to_server) = pair_for_memory();
    let region: AtomicRegion<i64> = server.share_atomic(&[1; 512]).unwrap();
    let remote = region.remote();
    let sum = block_on(client.atomic(to_server, remote, Operator::SUM, &[1; 512]));
    block_on(client.outcome(sum.unwrap())).unwrap();
    let swap = client.compare_atomic(to_server, remote, CompareOperator::EQUAL, 2, 9);
    assert_eq!(
        block_on(client.outcome(block_on(swap).unwrap())).unwrap(),
        2
    );
    for (before, forgets) in [(9, false), (10, true)] {
        let fetch = client.fetch_atomic(to_server, remote, Operator::SUM, &[1; 512]);
        let fetch = block_on(fetch).unwrap();
        let mut future = client.outcome(fetch);
        let first = poll_once(&mut future);
        match forgets {
            true => std::mem::forget(future),
            false => drop(future),
        }
        let fetched = match first {
            Poll::Ready(done) => done.unwrap(),
            Poll::Pending => block_on(client.outcome(fetch)).unwrap(),
        };
        assert_eq!((fetched.len(), fetched[0]), (512, before));
    }
    let read = client.atomic_read(to_server, remote.element(0).unwrap());
    let read = block_on(read).unwrap();
    assert_eq!(block_on(client.outcome(read)).unwrap(), [11]);
    let left = region.close();
    assert_eq!((left[0], &left[1..]), (11, &[4; 511][..]));
}

/// A read keeps its buffer too, when the future that waits for it is dropped or forgotten.
#[test]
fn a_dropped_future_frees_no_buffer_of_a_read() {
    let (client, server, to_server) = pair_for_memory();
    let region = server
        .share::<PeersReadWrite>(Buffer::copy_of(&[0x5a; 64]).unwrap())
        .unwrap();
    let write = client.write(
        to_server,
        region.remote(),
        Buffer::copy_of(&[0x77; 8]).unwrap(),
    );
    block_on(client.outcome(block_on(write).unwrap())).unwrap();
    for forgets in [false, true] {
        let read = client.read(to_server, region.remote(), Buffer::new(64).unwrap());
        let read = block_on(read).unwrap();
        let mut future = client.outcome(read);
        let first = poll_once(&mut future);
        match forgets {
            true => std::mem::forget(future),
            false => drop(future),
        }
        let others: Vec<Buffer> = (0..64).map(|_| Buffer::new(64).unwrap()).collect();
        let bytes = match first {
            Poll::Ready(done) => done.unwrap(),
            Poll::Pending => block_on(client.outcome(read)).unwrap(),
        };
        assert_eq!(
            (&bytes[..8], &bytes[8..]),
            (&[0x77; 8][..], &[0x5a; 56][..])
        );
        assert!(
            others
                .iter()
                .all(|other| other.iter().all(|&byte| byte == 0))
        );
    }
}

/// A future that takes the completion of another wakes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_one_endpoint_wake_each_other() {
    const TASKS: u64 = 16;
    let (mut sender, receiver) = (open(), open());
    let to_receiver = sender.insert(receiver.address()).unwrap();
    let receiver = AsyncRdmEndpoint::new(receiver, watch).unwrap();
    let receiver = Arc::new(receiver);
    for round in 0..50 {
        let tasks: Vec<_> = (0..TASKS)
            .map(|tag| {
                let (receiver, id) = (receiver.clone(), receiver.recv(room(tag)).unwrap());
                tokio::spawn(async move { receiver.outcome(id).await.unwrap() })
            })
            .collect();
        for tag in (0..TASKS).rev() {
            tinject(&mut sender, to_receiver, tag, &[tag as u8]);
        }
        for (tag, task) in tasks.into_iter().enumerate() {
            let message = tokio::time::timeout(Duration::from_secs(60), task).await;
            let message = message.unwrap_or_else(|_| panic!("round {round}: task {tag} sleeps"));
            assert_eq!(message.unwrap().bytes(), [tag as u8]);
        }
    }
}

#[test]
fn groups_are_awaited() {
    let open = || {
        let options = RdmEndpoint::builder().path(PathChoice::Shm);
        options.collectives(true).open().unwrap()
    };
    let endpoints = [open(), open()];
    let addresses = [0, 1].map(|member: usize| endpoints[member].address());
    let members = endpoints.map(|endpoint| {
        std::thread::spawn(move || {
            let members = addresses.map(|address| endpoint.insert(address).unwrap());
            let watch = |fd| Ok(Threads(Arc::new(fd)));
            let endpoint = AsyncRdmEndpoint::new(endpoint, watch).unwrap();
            block_on(async {
                let join = endpoint.with(|endpoint| endpoint.join(&members)).unwrap();
                let group = endpoint.outcome(join).await.unwrap();
                // More messages than the ring between two endpoints has room for.
                let sums: Vec<_> = (0..500_u64)
                    .map(|number| {
                        let own = vec![number; 100];
                        endpoint.with(|endpoint| endpoint.allreduce(&group, Operator::SUM, &own))
                    })
                    .collect();
                for (number, sum) in sums.into_iter().enumerate() {
                    let sum = endpoint.outcome(sum.unwrap()).await.unwrap();
                    assert_eq!(sum, vec![2 * number as u64; 100]);
                }
                let end = endpoint.with(|endpoint| endpoint.barrier(&group)).unwrap();
                endpoint.outcome(end).await.unwrap();
            });
            let endpoint = endpoint.into_inner();
            endpoint.close(Duration::from_secs(60)).unwrap();
        })
    });
    for member in members {
        member.join().unwrap();
    }
}
