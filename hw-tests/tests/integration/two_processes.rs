//! Two processes, each with its own opening of the device, over connections and datagrams.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ferrofabric_hw_tests::{DeviceBuffer, Rig, completions};
use ferrofabric_verbs::device::Gid;
use ferrofabric_verbs::raw::ah::Ah;
use ferrofabric_verbs::raw::cq::Cq;
use ferrofabric_verbs::raw::post::{RecvRequest, RemoteMemory, SendFlags, SendRequest};
use ferrofabric_verbs::raw::qp::{RcQp, UdInit, UdQp};
use ferrofabric_verbs_sys::{ibv_wc_opcode, ibv_wc_status};
use serial_test::file_serial;

/// Where the child finds its parent.
const SOCKET: &str = "FERRO_TEST_SOCKET";
const QKEY: u32 = 0x77;
const ROUNDS: u32 = 100;
const LEN: usize = 20_000;
const DATAGRAM: usize = 900;

/// One process's end: a connection and a datagram queue pair on one completion queue.
struct ProcessEnd {
    rig: Rig,
    cq: Arc<Cq>,
    rc: RcQp,
    ud: UdQp,
    sent: DeviceBuffer,
    received: DeviceBuffer,
    peer: BufReader<UnixStream>,
}

/// The addresses and keys that one end sends to the other.
struct EndName {
    rc: u32,
    ud: u32,
    gid: Gid,
    window: RemoteMemory,
}

impl ProcessEnd {
    fn new(rig: Rig, socket: UnixStream) -> Self {
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let cq = rig.cq(64, false);
        let config = rig.config(&cq, None, None);
        Self {
            rc: RcQp::create(&rig.pd, &config).unwrap(),
            ud: UdQp::create(&rig.pd, &config).unwrap(),
            sent: rig.buffer(LEN),
            received: rig.buffer(LEN),
            peer: BufReader::new(socket),
            cq,
            rig,
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.peer.get_mut(), "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.peer.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn exchange_names(&mut self) -> EndName {
        let region = self.received.region();
        let ours = format!(
            "{} {} {} {} {}",
            self.rc.number(),
            self.ud.number(),
            self.rig.gid,
            region.addr() as u64,
            region.rkey()
        );
        self.tell(&ours);
        let theirs = self.hear();
        let parts: Vec<_> = theirs.split(' ').collect();
        EndName {
            rc: parts[0].parse().unwrap(),
            ud: parts[1].parse().unwrap(),
            gid: Gid(parts[2].parse::<Ipv6Addr>().unwrap().octets()),
            window: RemoteMemory {
                addr: parts[3].parse().unwrap(),
                rkey: parts[4].parse().unwrap(),
            },
        }
    }

    fn post_connection_receive(&self, wr_id: u64) {
        let entry = self.received.region().sge(0, LEN as u32).expect("within");
        // SAFETY: registered, and left alone until the completion.
        unsafe { RecvRequest::new(wr_id, [entry]).post(&self.rc) }.unwrap();
    }

    fn post_datagram_receive(&self, wr_id: u64) {
        let entry = self
            .received
            .region()
            .sge(0, (UdQp::HEADER_BYTES + DATAGRAM) as u32)
            .expect("within");
        // SAFETY: as above.
        unsafe { RecvRequest::new(wr_id, [entry]).post(&self.ud) }.unwrap();
    }

    /// Waits for so many completions and checks that all succeeded, sorted by identifier.
    fn wait(&self, count: usize) -> Vec<u64> {
        let done = completions(&self.cq, count);
        for wc in &done {
            assert_eq!(
                wc.status,
                ibv_wc_status::IBV_WC_SUCCESS,
                "request {}",
                wc.wr_id
            );
        }
        let mut ids: Vec<_> = done.iter().map(|wc| wc.wr_id).collect();
        ids.sort_unstable();
        ids
    }

    fn send(&self, len: usize, to: Option<(&Ah, u32)>) {
        let entry = self.sent.region().sge(0, len as u32).expect("within");
        let request = SendRequest::send(2, [entry]).flags(SendFlags::SIGNALED);
        // SAFETY: registered, and left alone until the completion; the handle outlives it.
        unsafe {
            match to {
                None => { request }.post(&self.rc),
                Some((handle, number)) => request.to(handle, number, QKEY).post(&self.ud),
            }
        }
        .unwrap();
    }

    /// Pings if it is the `first`, else answers with every bit turned.
    fn run(&mut self, first: bool) {
        let peer = self.exchange_names();
        self.rig.connect(&self.rc, peer.gid, peer.rc);
        let init = UdInit {
            port: self.rig.port.number,
            pkey_index: 0,
            qkey: QKEY,
            psn: 0,
        };
        self.ud.activate(&init).unwrap();
        let handle = Ah::create(&self.rig.pd, &self.rig.path_to(peer.gid)).unwrap();
        self.post_connection_receive(1);
        self.tell("ready");
        assert_eq!(self.hear(), "ready");

        for round in 0..ROUNDS {
            let message = DeviceBuffer::pattern(round, LEN);
            self.turn(first, &message, 0, None);
            self.post_connection_receive(1);
        }
        // The datagrams share the memory, so the last connection receive stays unused: no more
        // connection traffic.
        for round in 0..ROUNDS {
            self.post_datagram_receive(3);
            self.tell("posted");
            assert_eq!(self.hear(), "posted");
            let message = DeviceBuffer::pattern(round + 1000, DATAGRAM);
            self.turn(
                first,
                &message,
                UdQp::HEADER_BYTES,
                Some((&handle, peer.ud)),
            );
        }

        // One-sided: the first writes into the other's memory and reads it back.
        self.tell("done");
        assert_eq!(self.hear(), "done");
        if first {
            let message = DeviceBuffer::pattern(77, LEN);
            self.sent.write(0, &message);
            let entry = |buffer: &DeviceBuffer| buffer.region().sge(0, LEN as u32).expect("within");
            let mut requests = [
                SendRequest::write(10, [entry(&self.sent)], peer.window),
                SendRequest::read(11, [entry(&self.received)], peer.window)
                    .flags(SendFlags::SIGNALED),
            ];
            // SAFETY: registered on both sides, and left alone until the completion.
            unsafe { SendRequest::post_all(&mut requests, &self.rc) }.unwrap();
            let wc = completions(&self.cq, 1)[0];
            assert_eq!(
                (wc.status, wc.opcode),
                (
                    ibv_wc_status::IBV_WC_SUCCESS,
                    ibv_wc_opcode::IBV_WC_RDMA_READ
                )
            );
            assert_eq!(self.received.read(0, LEN), message);
            self.tell("written");
        } else {
            assert_eq!(self.hear(), "written");
            assert_eq!(self.received.read(0, LEN), DeviceBuffer::pattern(77, LEN));
        }
        self.tell("end");
        assert_eq!(self.hear(), "end");
    }

    fn turn(&self, first: bool, message: &[u8], offset: usize, to: Option<(&Ah, u32)>) {
        let turned: Vec<_> = message.iter().map(|byte| !byte).collect();
        let receive = if to.is_some() { 3 } else { 1 };
        if first {
            self.sent.write(0, message);
            self.send(message.len(), to);
            let mut expected = [2, receive];
            expected.sort_unstable();
            assert_eq!(self.wait(2), expected);
            assert_eq!(self.received.read(offset, message.len()), turned);
        } else {
            assert_eq!(self.wait(1), [receive]);
            assert_eq!(self.received.read(offset, message.len()), message);
            self.sent.write(0, &turned);
            self.send(turned.len(), to);
            assert_eq!(self.wait(1), [2]);
        }
    }
}

#[test]
#[file_serial(verbs)]
fn connections_and_datagrams_between_processes() {
    let Some(rig) = Rig::open() else { return };
    let path = env::temp_dir().join(format!("ferro-two-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "two_processes::the_child_answers",
            "--ignored",
            "--nocapture",
        ])
        .env(SOCKET, &path)
        .env("FERRO_DEVICE", rig.context.name())
        .spawn()
        .unwrap();
    let mut wanted = libc::pollfd {
        fd: listener.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, which is open.
    let came = unsafe { libc::poll(&raw mut wanted, 1, 60_000) };
    if came != 1 {
        child.kill().unwrap();
        panic!("the child did not come: {:?}", child.wait());
    }
    let (socket, _) = listener.accept().unwrap();
    std::fs::remove_file(&path).unwrap();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ProcessEnd::new(rig, socket).run(true)
    }));
    let status = child.wait().unwrap();
    assert!(status.success(), "the child failed");
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

#[test]
#[ignore = "run by connections_and_datagrams_between_processes"]
fn the_child_answers() {
    let Some(path) = env::var_os(SOCKET).map(PathBuf::from) else {
        println!("a part of another test, which runs it");
        return;
    };
    let socket = UnixStream::connect(path).unwrap();
    let rig = Rig::open().expect("the parent has a device");
    ProcessEnd::new(rig, socket).run(false);
}
