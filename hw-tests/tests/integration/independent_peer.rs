//! Our layer against another implementation: one end of a connection is ours, the other that of
//! rdma-core's `ibv_rc_pingpong`.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_hw_tests::{DeviceBuffer, Rig, one_completion, psn_of};
use ferrofabric_verbs::device::Gid;
use ferrofabric_verbs::raw::mr::Access;
use ferrofabric_verbs::raw::post::{RecvRequest, SendFlags, SendRequest};
use ferrofabric_verbs::raw::qp::{RcConnect, RcInit, RcQp, RcTimers};
use serial_test::file_serial;

const LEN: usize = 10_000;
const ROUNDS: u32 = 50;

/// How long the program may take to connect. The machine may be emulated.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the program's buffer holds first.
const FIRST_BYTE: u8 = 0x7b;

/// An end of a connection, as the program tells it: its LID, queue pair, packet sequence number and
/// GID in hexadecimal digits, and a zero byte.
const END: usize = "0000:000000:000000:00000000000000000000000000000000".len() + 1;

/// The program's end of the connection.
struct TheirEnd {
    qp: u32,
    psn: u32,
    gid: Gid,
}

/// The program sends first. Each message arrives in the buffer that it sends from, so it sends back
/// what it has received.
#[test]
#[file_serial(verbs)]
fn rc_ping_pong_with_another_implementation() {
    let Some(rig) = Rig::open() else { return };
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let Some(mut program) = start(&rig, listener.local_addr().unwrap().port()) else {
        return;
    };
    let (arrivals, departures) = (rig.cq(64, false), rig.cq(64, false));
    let mut config = rig.config(&arrivals, None, None);
    config.send_cq = Arc::clone(&departures);
    let ours = RcQp::create(&rig.pd, &config).unwrap();
    let (sent, received) = (rig.buffer(LEN), rig.buffer(LEN));
    let receive = || {
        received.fill(0);
        let entry = received.region().sge(0, LEN as u32).unwrap();
        // SAFETY: the memory is left alone until the completion.
        unsafe { RecvRequest::new(1, [entry]).post(&ours) }.unwrap();
    };

    let mut theirs = accept(&listener, &mut program);
    connect(&rig, &ours, &their_end(&mut theirs));
    receive();
    let our_end = format!(
        "{:04x}:{:06x}:{:06x}:{:032x}\0",
        rig.port.lid,
        ours.number(),
        psn_of(ours.number()),
        u128::from_be_bytes(rig.gid.0),
    );
    assert_eq!(our_end.len(), END);
    theirs.write_all(our_end.as_bytes()).unwrap();

    let mut expected = vec![FIRST_BYTE; LEN];
    for round in 0..ROUNDS {
        one_completion(&arrivals);
        assert!(received.read(0, LEN) == expected, "round {round}");
        expected = DeviceBuffer::pattern(round, LEN);
        sent.write(0, &expected);
        if round + 1 < ROUNDS {
            receive();
        }
        let entry = sent.region().sge(0, LEN as u32).unwrap();
        let mut send = SendRequest::send(2, [entry]).flags(SendFlags::SIGNALED);
        // SAFETY: the memory is left alone until the completion.
        unsafe { send.post(&ours) }.unwrap();
        one_completion(&departures);
    }
    let status = program.wait().unwrap();
    assert!(status.success(), "the program ended with {status}");
}

/// Starts the program, which connects to this TCP port; `None`, with a line that says so, where it
/// is missing.
fn start(rig: &Rig, tcp_port: u16) -> Option<Child> {
    let numbers = [
        ("-i", usize::from(rig.port.number)),
        ("-g", usize::from(rig.gid_index)),
        ("-m", rig.port.active_mtu.bytes()),
        ("-p", usize::from(tcp_port)),
        ("-s", LEN),
        ("-n", ROUNDS as usize),
    ];
    let mut command = Command::new("ibv_rc_pingpong");
    command.args(["-d", rig.context.name()]);
    for (option, number) in numbers {
        command.arg(option).arg(number.to_string());
    }
    match command.arg("127.0.0.1").spawn() {
        Ok(program) => Some(program),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("SKIP: there is no ibv_rc_pingpong here (ibverbs-utils)");
            None
        }
        Err(error) => panic!("ibv_rc_pingpong: {error}"),
    }
}

/// The program's TCP connection.
fn accept(listener: &TcpListener, program: &mut Child) -> TcpStream {
    let until = Instant::now() + PATIENCE;
    listener.set_nonblocking(true).unwrap();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        let ended = program.try_wait().unwrap();
        assert!(ended.is_none(), "the program ended: {ended:?}");
        assert!(Instant::now() < until, "the program does not connect");
        std::thread::yield_now();
    }
}

fn their_end(stream: &mut TcpStream) -> TheirEnd {
    let mut text = [0; END];
    stream.read_exact(&mut text).unwrap();
    let text = std::str::from_utf8(&text[..END - 1]).unwrap();
    let parts: Vec<&str> = text.split(':').collect();
    let &[_, qp, psn, gid] = &parts[..] else {
        panic!("{text}");
    };
    let number = |digits: &str| u32::from_str_radix(digits, 16).unwrap();
    let gid = u128::from_str_radix(gid, 16).unwrap();
    TheirEnd {
        qp: number(qp),
        psn: number(psn),
        gid: Gid(gid.to_be_bytes()),
    }
}

fn connect(rig: &Rig, ours: &RcQp, theirs: &TheirEnd) {
    ours.to_init(&RcInit {
        port: rig.port.number,
        pkey_index: 0,
        access: Access::REMOTE_WRITE,
    })
    .unwrap();
    ours.to_rtr(&RcConnect {
        path: rig.path_to(theirs.gid),
        mtu: rig.port.active_mtu,
        remote_qp: theirs.qp,
        remote_psn: theirs.psn,
        reads_as_target: 1,
        receiver_not_ready_code: 12,
    })
    .unwrap();
    ours.to_rts(&RcTimers {
        psn: psn_of(ours.number()),
        timeout_exponent: 17,
        retries: 7,
        receiver_not_ready_retries: 7,
        reads_as_initiator: 1,
    })
    .unwrap();
}
