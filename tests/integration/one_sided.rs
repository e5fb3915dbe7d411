//! One-sided operations of Rust programs, over shared memory.

use std::time::Duration;

use ferrofabric::info::Progress;
use ferrofabric::{
    Buffer, CompletedOperation, Errno, FiAddr, MessageSource, PathChoice, PeersRead,
    PeersReadWrite, PeersWrite, RdmEndpoint, RdmEndpointBuilder, RemoteRegion,
};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// Of every way that messages take.
const SIZES: [usize; 6] = [1, 8, 100, 4000, 30_000, 1 << 20];

fn options() -> RdmEndpointBuilder {
    RdmEndpoint::builder().path(PathChoice::Shm)
}

/// A client, a server that a thread of its domain drives, and the server as the client has it.
fn pair() -> (RdmEndpoint, RdmEndpoint, FiAddr) {
    let client = options().open().unwrap();
    let server = options().progress(Progress::Auto).open().unwrap();
    let to_server = client.insert(server.address()).unwrap();
    (client, server, to_server)
}

fn room(bytes: usize) -> Buffer {
    Buffer::new(bytes).unwrap()
}

fn filled(bytes: usize) -> Buffer {
    let pattern: Vec<u8> = (0..bytes).map(|at| (at * 7 + bytes) as u8).collect();
    Buffer::copy_of(&pattern).unwrap()
}

/// A handle of which the fields are these; the bits are 1 for reads, 2 for writes.
fn forged(key: u64, place: u64, len: u64, rights: u64) -> [u8; 32] {
    let words = [key, place, len, rights].map(u64::to_le_bytes);
    words.concat().try_into().unwrap()
}

fn key_of(handle: &[u8; 32]) -> u64 {
    u64::from_le_bytes(handle[..8].try_into().unwrap())
}

/// The error of a read through a handle.
fn read_error(client: &mut RdmEndpoint, server: FiAddr, handle: &[u8; 32]) -> Errno {
    let remote = RemoteRegion::<PeersRead>::from_bytes(handle).unwrap();
    let read = client.read(server, remote, room(remote.len())).unwrap();
    let error = client.wait_for(read, PATIENCE).unwrap_err();
    assert_eq!((error.read_id(), error.peer()), (Some(read), Some(server)));
    let errno = error.errno();
    assert_eq!(error.into_buffer().unwrap().len(), remote.len());
    errno
}

/// The error of a write through a handle.
fn write_error(client: &mut RdmEndpoint, server: FiAddr, handle: &[u8; 32]) -> Errno {
    let remote = RemoteRegion::<PeersWrite>::from_bytes(handle).unwrap();
    let write = client.write(server, remote, room(remote.len())).unwrap();
    let error = client.wait_for(write, PATIENCE).unwrap_err();
    assert_eq!(error.write_id(), Some(write));
    error.errno()
}

#[test]
fn bytes_go_there_and_come_back() {
    there_and_back(room);
}

/// The same, in memory that the client maps.
#[test]
fn bytes_go_to_mapped_memory_and_come_back() {
    there_and_back(|bytes| Buffer::shared(bytes).unwrap());
}

fn there_and_back(memory: impl Fn(usize) -> Buffer) {
    let (mut client, server, to_server) = pair();
    for size in SIZES {
        let region = server.share::<PeersReadWrite>(memory(size + 16)).unwrap();
        let remote = region.remote().slice(8..8 + size).unwrap();
        let write = client.write(to_server, remote, filled(size)).unwrap();
        let buffer = client.wait_for(write, PATIENCE).unwrap();
        assert_eq!(buffer[..], filled(size)[..]);
        let mut copy = vec![0; size];
        region.copy_out(8, &mut copy).unwrap();
        assert_eq!(copy, filled(size)[..]);

        let read = client.read(to_server, remote, room(size + 5)).unwrap();
        let bytes = client.wait_for(read, PATIENCE).unwrap();
        assert_eq!(bytes[..size], filled(size)[..]);
        assert_eq!(bytes[size..], [0; 5]);
        let buffer = region.close();
        assert_eq!(buffer[8..8 + size], filled(size)[..]);
        assert!(
            buffer[..8]
                .iter()
                .chain(&buffer[8 + size..])
                .all(|&byte| byte == 0)
        );
    }
}

/// A server that makes no progress: a client's writes and reads in mapped memory need none.
#[test]
fn mapped_memory_needs_no_progress_of_its_owner() {
    let (mut client, mut server) = (options().open().unwrap(), options().open().unwrap());
    let to_server = client.insert(server.address()).unwrap();
    // The first message makes the link, and those after it find the way to the link.
    for _ in 0..3 {
        let sent = client.send(to_server, filled(8)).unwrap();
        client.flush(PATIENCE.unwrap()).unwrap();
        let came = server.recv(room(8)).unwrap();
        server.wait_for(came, PATIENCE).unwrap();
        client.wait_for(sent, PATIENCE).unwrap();
    }
    let buffer = Buffer::shared(4096).unwrap();
    let region = server.share::<PeersReadWrite>(buffer).unwrap();
    let some = region.remote().slice(8..108).unwrap();
    for _ in 0..10 {
        let write = client.write(to_server, some, filled(100)).unwrap();
        client.wait_for(write, PATIENCE).unwrap();
        let read = client.read(to_server, some, room(100)).unwrap();
        assert_eq!(
            client.wait_for(read, PATIENCE).unwrap()[..],
            filled(100)[..]
        );
    }
    let buffer = region.close();
    assert_eq!(buffer[8..108], filled(100)[..]);
    // It is a buffer as all others are.
    let again = server.share::<PeersRead>(buffer).unwrap();
    assert_eq!(again.bytes()[8..108], filled(100)[..]);
}

/// The owner's words and bytes are read by peers, and the reverse.
#[test]
fn the_owner_reaches_its_region_by_copies() {
    let (mut client, server, to_server) = pair();
    let mut region = server.share::<PeersReadWrite>(room(64)).unwrap();
    region.store(8, 0x0123_4567_89ab_cdef).unwrap();
    region.copy_in(17, b"odd place").unwrap();
    let read = client.read(to_server, region.remote(), room(64)).unwrap();
    let bytes = client.wait_for(read, PATIENCE).unwrap();
    assert_eq!(bytes[8..16], 0x0123_4567_89ab_cdef_u64.to_ne_bytes());
    assert_eq!(&bytes[17..26], b"odd place");

    let word = Buffer::copy_of(&77_u64.to_ne_bytes()).unwrap();
    let at_32 = region.remote().slice(32..40).unwrap();
    let write = client.write(to_server, at_32, word).unwrap();
    client.wait_for(write, PATIENCE).unwrap();
    assert_eq!(region.load(32).unwrap(), 77);

    for (at, len) in [(0, 65), (64, 1), (usize::MAX, 2)] {
        assert_eq!(
            region.copy_out(at, &mut vec![0; len]).unwrap_err().errno(),
            Errno::EINVAL
        );
        assert_eq!(
            region.copy_in(at, &vec![0; len]).unwrap_err().errno(),
            Errno::EINVAL
        );
    }
    for at in [1, 4, 57, 64, usize::MAX - 7] {
        assert_eq!(region.load(at).unwrap_err().errno(), Errno::EINVAL);
        assert_eq!(region.store(at, 1).unwrap_err().errno(), Errno::EINVAL);
    }
}

/// The owner copies while a peer writes. Each byte is one of those that the peer wrote.
#[test]
fn a_copy_beside_a_peers_writes() {
    const ROUNDS: u8 = 250;
    let (mut client, server, to_server) = pair();
    let region = server.share::<PeersWrite>(room(800)).unwrap();
    let remote = region.remote();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for round in 1..=ROUNDS {
                let bytes = Buffer::copy_of(&[round; 800]).unwrap();
                let write = client.write(to_server, remote, bytes).unwrap();
                client.wait_for(write, PATIENCE).unwrap();
            }
        });
        let (mut bytes, mut last) = ([0; 800], 0);
        while last != ROUNDS {
            let all = u64::from_ne_bytes([ROUNDS; 8]);
            assert!(!writer.is_finished() || region.load(0).unwrap() == all);
            region.copy_out(0, &mut bytes).unwrap();
            assert!(
                bytes.iter().all(|byte| (last..=ROUNDS).contains(byte)),
                "{bytes:?}"
            );
            last = *bytes.iter().min().unwrap();
        }
    });
}

/// Covers: AV-25
#[test]
fn a_write_with_data_completes_at_its_target() {
    let mut client = options().open().unwrap();
    let mut server = options().open().unwrap();
    let to_server = client.insert(server.address()).unwrap();
    let to_client = server.insert(client.address()).unwrap();
    let region = server.share::<PeersWrite>(room(64)).unwrap();
    let remote = region.remote();
    let thread = std::thread::spawn(move || {
        let write = client.write_with_data(to_server, remote, filled(9), 0xda7a);
        client.wait_for(write.unwrap(), PATIENCE).unwrap();
        client.flush(PATIENCE.unwrap()).unwrap();
        client
    });
    match server.wait(PATIENCE).unwrap() {
        Some(CompletedOperation::PeerWrote(write)) => {
            assert_eq!((write.len, write.data), (9, 0xda7a));
            assert_eq!(write.source, MessageSource::Known(to_client));
        }
        other => panic!("{other:?}"),
    }
    let mut bytes = [0; 9];
    region.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, filled(9)[..]);
    drop(thread.join().unwrap());
}

/// A peer's write is none of the operations that are waited for, and is kept.
#[test]
fn a_wait_for_an_operation_keeps_the_writes_of_peers() {
    let mut alone = options().open().unwrap();
    let itself = alone.insert(alone.address()).unwrap();
    let region = alone.share::<PeersReadWrite>(room(16)).unwrap();
    let write = alone
        .write_with_data(itself, region.remote(), filled(16), 5)
        .unwrap();
    alone.wait_for(write, PATIENCE).unwrap();
    let read = alone.read(itself, region.remote(), room(16)).unwrap();
    assert_eq!(alone.wait_for(read, PATIENCE).unwrap()[..], filled(16)[..]);
    match alone.wait(PATIENCE).unwrap() {
        Some(CompletedOperation::PeerWrote(write)) => assert_eq!(write.data, 5),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_region_that_is_closed_or_dropped_refuses_its_peers() {
    let (mut client, server, to_server) = pair();
    let region = server.share::<PeersReadWrite>(room(64)).unwrap();
    let handle = region.remote().to_bytes();
    drop(region.close());
    assert_eq!(read_error(&mut client, to_server, &handle), Errno::EACCES);
    assert_eq!(write_error(&mut client, to_server, &handle), Errno::EACCES);
    let region = server.share::<PeersReadWrite>(room(64)).unwrap();
    let handle = region.remote().to_bytes();
    drop(region);
    assert_eq!(read_error(&mut client, to_server, &handle), Errno::EACCES);
}

/// A region that is forgotten stays, and its memory with it.
#[test]
fn a_forgotten_region_keeps_its_memory() {
    let (mut client, server, to_server) = pair();
    let region = server.share::<PeersReadWrite>(room(64)).unwrap();
    let remote = region.remote();
    std::mem::forget(region);
    // Memory that was freed would be taken here, and written to by the peer.
    let others: Vec<Buffer> = (0..64).map(|_| room(64)).collect();
    let write = client.write(to_server, remote, filled(64)).unwrap();
    client.wait_for(write, PATIENCE).unwrap();
    let read = client.read(to_server, remote, room(64)).unwrap();
    assert_eq!(client.wait_for(read, PATIENCE).unwrap()[..], filled(64)[..]);
    assert!(
        others
            .iter()
            .all(|other| other.iter().all(|&byte| byte == 0))
    );
}

#[test]
fn a_region_outlives_the_endpoint_that_opened_it() {
    let (mut client, server, _) = pair();
    let region = server.share::<PeersRead>(filled(64)).unwrap();
    let domain = server.domain().clone();
    drop(server);
    let second = options().open_on(&domain).unwrap();
    let to_second = client.insert(second.address()).unwrap();
    second.insert(client.address()).unwrap();
    let read = client.read(to_second, region.remote(), room(64)).unwrap();
    assert_eq!(client.wait_for(read, PATIENCE).unwrap()[..], filled(64)[..]);
    drop((second, domain));
    assert_eq!(region.bytes(), &filled(64)[..]);
}

/// Handles are checked at the initiator for their range, and forged ones at the target for all.
#[test]
fn a_forged_handle_opens_nothing() {
    let (mut client, server, to_server) = pair();
    let readable = server.share::<PeersRead>(room(64)).unwrap();
    let writable = server.share::<PeersWrite>(room(64)).unwrap();
    let [read_key, write_key] =
        [readable.remote().to_bytes(), writable.remote().to_bytes()].map(|bytes| key_of(&bytes));
    for handle in [
        forged(write_key, 0, 8, 1),
        forged(read_key, 57, 8, 1),
        forged(read_key, u64::MAX - 8, 8, 1),
        forged(read_key ^ 0x5555, 0, 8, 1),
    ] {
        assert_eq!(read_error(&mut client, to_server, &handle), Errno::EACCES);
    }
    for handle in [
        forged(read_key, 0, 8, 2),
        forged(write_key, 60, 8, 3),
        forged(write_key, 1 << 63, 8, 2),
    ] {
        assert_eq!(write_error(&mut client, to_server, &handle), Errno::EACCES);
    }
    assert!(readable.bytes().iter().all(|&byte| byte == 0));
    assert!(writable.close().iter().all(|&byte| byte == 0));
}

#[test]
fn bytes_that_are_no_handle_are_refused() {
    type Handle = RemoteRegion<PeersReadWrite>;
    let sound = forged(1, 16, 64, 3);
    let handle = Handle::from_bytes(&sound).unwrap();
    assert_eq!((handle.to_bytes(), handle.len()), (sound, 64));
    assert!(RemoteRegion::<PeersRead>::from_bytes(&sound).is_ok());
    for bytes in [
        &sound[..31],
        &[&sound[..], &[0]].concat(),
        &[],
        &forged(1, u64::MAX, 1, 3),
        &forged(1, 0, 64, 1),
        &forged(1, 0, 64, 2),
        &forged(1, 0, 64, 0),
        &forged(1, 0, 64, 7),
    ] {
        assert_eq!(
            Handle::from_bytes(bytes).unwrap_err().errno(),
            Errno::EINVAL
        );
    }
}

#[test]
fn ranges_are_checked_at_the_initiator() {
    let (mut client, server, to_server) = pair();
    let region = server.share::<PeersReadWrite>(room(64)).unwrap();
    let remote = region.remote();
    assert!(remote.slice(64..).unwrap().is_empty());
    assert_eq!(remote.slice(..=63).unwrap(), remote);
    #[allow(clippy::reversed_empty_ranges, reason = "it is refused")]
    for range in [0..65, 65..65, 9..8, usize::MAX..0] {
        assert_eq!(remote.slice(range).unwrap_err().errno(), Errno::EINVAL);
    }
    assert!(remote.slice(..=usize::MAX).is_err());

    let error = client.write(to_server, remote, room(65)).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    let text = error.to_string();
    assert!(text.starts_with("write 65 bytes of fi_addr"), "{text}");
    assert!(text.contains("the region has fewer bytes"), "{text}");
    assert_eq!(error.into_buffer().unwrap().len(), 65);
    let error = client.read(to_server, remote, room(63)).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("read 64 bytes of fi_addr"), "{text}");
    assert!(text.contains("the buffer has fewer bytes"), "{text}");
    assert_eq!(error.into_buffer().unwrap().len(), 63);
    let empty = server.share::<PeersRead>(room(0)).unwrap_err();
    assert_eq!(empty.errno(), Errno::EINVAL);
}

/// More reads than a target takes at a time by messages: the endpoint may refuse some with
/// `EAGAIN`, with their buffers. (How many depends on when the kernel begins to copy.)
#[test]
fn reads_that_are_refused_are_posted_again() {
    const READS: usize = 3000;
    let (mut client, server, to_server) = pair();
    let region = server.share::<PeersRead>(filled(64)).unwrap();
    let (mut posted, mut done) = (0, 0);
    while done < READS {
        while posted < READS {
            match client.try_read(to_server, region.remote(), room(64)) {
                Ok(_) => posted += 1,
                Err(error) if error.is_again() => {
                    assert_eq!(error.into_buffer().unwrap().len(), 64);
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        match client.wait(PATIENCE).unwrap() {
            Some(CompletedOperation::Read(_, buffer)) => assert_eq!(buffer[..], filled(64)[..]),
            other => panic!("{other:?}"),
        }
        done += 1;
    }
}

/// Buffers that are registered for messages are no regions for peers, whatever key a peer guesses.
#[test]
fn a_registered_buffer_is_out_of_reach() {
    let (mut client, server, to_server) = pair();
    let mut buffer = filled(64);
    buffer.register(&**server.domain()).unwrap();
    // Keys are drawn in turn, so the next one leads to those before it.
    let next = server.share::<PeersRead>(room(64)).unwrap();
    let next = key_of(&next.remote().to_bytes());
    for key in (next.saturating_sub(16)..=next.saturating_add(16)).filter(|key| *key != next) {
        let handle = forged(key, 0, 8, 1);
        assert_eq!(
            read_error(&mut client, to_server, &handle),
            Errno::EACCES,
            "key {key:#x}"
        );
    }
}

/// The memory of a read that is under way when its endpoint is dropped is not written to.
#[test]
fn a_dropped_endpoint_gets_no_bytes_of_its_reads() {
    let (mut client, server, to_server) = pair();
    let region = server.share::<PeersRead>(filled(1 << 16)).unwrap();
    for _ in 0..20 {
        let mut reader = options().open().unwrap();
        let to_target = reader.insert(server.address()).unwrap();
        server.insert(reader.address()).unwrap();
        for _ in 0..8 {
            reader
                .read(to_target, region.remote(), room(1 << 16))
                .unwrap();
        }
        drop(reader);
        // Memory of the buffers that were freed.
        let others: Vec<Buffer> = (0..16).map(|_| room(1 << 16)).collect();
        let read = client
            .read(to_server, region.remote(), room(1 << 16))
            .unwrap();
        client.wait_for(read, PATIENCE).unwrap();
        assert!(
            others
                .iter()
                .all(|other| other.iter().all(|&byte| byte == 0))
        );
    }
}
