//! An opened device with the objects that most tests need.

use std::env;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_verbs::device::{Device, DeviceContext, Gid, GidRequest, PortAttributes};
use ferrofabric_verbs::raw::ah::PortPath;
use ferrofabric_verbs::raw::cq::{Cq, CqConfig};
use ferrofabric_verbs::raw::mr::Access;
use ferrofabric_verbs::raw::pd::Pd;
use ferrofabric_verbs::raw::qp::{QpCaps, QpConfig, RcConnect, RcInit, RcQp, RcTimers, SendOps};
use ferrofabric_verbs::raw::srq::Srq;
use ferrofabric_verbs_sys::{ibv_wc, ibv_wc_status};

use crate::DeviceBuffer;

/// How long anything may take. The machine may be emulated.
const PATIENCE: Duration = Duration::from_secs(60);

/// A device, a port of it that carries traffic, and the GID to use.
pub struct Rig {
    /// The device.
    pub context: Arc<DeviceContext>,
    /// A protection domain.
    pub pd: Arc<Pd>,
    /// The port.
    pub port: PortAttributes,
    /// Slot of the chosen GID.
    pub gid_index: u8,
    /// The chosen GID.
    pub gid: Gid,
}

impl Rig {
    /// Opens the device; `None`, with a line that says so, where there is none.
    ///
    /// # Panics
    ///
    /// When there is none and FERRO_REQUIRE_DEVICE=1, or there is one that does not work.
    pub fn open() -> Option<Self> {
        let name = match env::var("FERRO_DEVICE") {
            Ok(name) => name,
            Err(_) => match first_usable() {
                Ok(name) => name,
                Err(reason) => {
                    assert_ne!(
                        env::var("FERRO_REQUIRE_DEVICE").as_deref(),
                        Ok("1"),
                        "a device is required here: {reason}"
                    );
                    println!("SKIP: {reason}");
                    return None;
                }
            },
        };
        Some(Self::on(&name))
    }

    /// Opens this device.
    pub fn on(name: &str) -> Self {
        let context = DeviceContext::open(name).unwrap();
        let port = (1..=context.limits().ports)
            .map(|number| context.port(number).unwrap())
            .find(|port| port.state.is_usable())
            .expect("a port that carries traffic");
        let chosen = context
            .choose_gid(port.number, GidRequest::Best)
            .unwrap()
            .chosen;
        Self {
            pd: Pd::allocate(&context).unwrap(),
            gid_index: u8::try_from(chosen.index).unwrap(),
            gid: chosen.gid,
            context,
            port,
        }
    }

    /// A completion queue without channel.
    pub fn cq(&self, depth: u32, extended: bool) -> Arc<Cq> {
        let config = CqConfig {
            depth,
            extended,
            ..CqConfig::default()
        };
        Cq::create(&self.context, &config).unwrap()
    }

    /// Registered memory that peers may do everything to.
    pub fn buffer(&self, len: usize) -> DeviceBuffer {
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        DeviceBuffer::new(&self.pd, len, access)
    }

    /// Queues of moderate size on one completion queue.
    pub fn config(
        &self,
        cq: &Arc<Cq>,
        srq: Option<&Arc<Srq>>,
        extended: Option<SendOps>,
    ) -> QpConfig {
        QpConfig {
            send_cq: Arc::clone(cq),
            recv_cq: Arc::clone(cq),
            srq: srq.cloned(),
            caps: QpCaps {
                send_depth: 32,
                recv_depth: if srq.is_some() { 0 } else { 32 },
                send_entries: 4,
                recv_entries: 4,
                inline_bytes: 128,
            },
            signal_all: false,
            extended,
        }
    }

    /// The way to our own port.
    pub fn path(&self) -> PortPath {
        self.path_to(self.gid)
    }

    /// The way to a port on the same network.
    pub fn path_to(&self, gid: Gid) -> PortPath {
        PortPath::to_gid(self.port.number, self.gid_index, gid)
    }

    /// Makes a connection's end ready; the peer's number decides its packet sequence number.
    pub fn connect(&self, qp: &RcQp, gid: Gid, remote_qp: u32) {
        qp.to_init(&RcInit {
            port: self.port.number,
            pkey_index: 0,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        })
        .unwrap();
        qp.to_rtr(&RcConnect {
            path: self.path_to(gid),
            mtu: self.port.active_mtu,
            remote_qp,
            remote_psn: psn_of(remote_qp),
            reads_as_target: 4,
            receiver_not_ready_code: 12,
        })
        .unwrap();
        qp.to_rts(&RcTimers {
            psn: psn_of(qp.number()),
            timeout_exponent: 17,
            retries: 7,
            receiver_not_ready_retries: 7,
            reads_as_initiator: 4,
        })
        .unwrap();
    }

    /// Two connected queue pairs.
    pub fn connected_pair(&self, left: &QpConfig, right: &QpConfig) -> (RcQp, RcQp) {
        let left = RcQp::create(&self.pd, left).unwrap();
        let right = RcQp::create(&self.pd, right).unwrap();
        self.connect(&left, self.gid, right.number());
        self.connect(&right, self.gid, left.number());
        (left, right)
    }
}

/// A packet sequence number that both sides can work out.
pub fn psn_of(qp_num: u32) -> u32 {
    qp_num.wrapping_mul(0x1357) & 0xff_ffff
}

/// Takes so many completions, however they ended.
///
/// # Panics
///
/// When they do not come.
pub fn completions(cq: &Cq, count: usize) -> Vec<ibv_wc> {
    let mut taken = Vec::new();
    let mut room = [MaybeUninit::uninit(); 16];
    let began = Instant::now();
    while taken.len() < count {
        let wanted = (count - taken.len()).min(room.len());
        let fresh = cq.poll(&mut room[..wanted]).unwrap();
        taken.extend_from_slice(fresh);
        if fresh.is_empty() {
            assert!(
                began.elapsed() < PATIENCE,
                "{} of {count} completions came",
                taken.len()
            );
            std::thread::yield_now();
        }
    }
    taken
}

/// Takes one completion, which must be a success.
pub fn one_completion(cq: &Cq) -> ibv_wc {
    let wc = completions(cq, 1)[0];
    assert_eq!(
        wc.status,
        ibv_wc_status::IBV_WC_SUCCESS,
        "{}",
        cq.context().status_text(wc.status)
    );
    wc
}

fn first_usable() -> Result<String, String> {
    let devices = match Device::list() {
        Ok(devices) => devices,
        // The library is missing: there is no way to a device.
        Err(error) if error.errno() == ferrofabric_contracts::error::Errno::ENOENT => {
            return Err(error.to_string());
        }
        Err(error) => panic!("{error}"),
    };
    if devices.is_empty() {
        return Err("this machine has no RDMA device (Soft-RoCE: ./scripts/rxe, or ./scripts/vm -- COMMAND)".into());
    }
    let reasons: Vec<_> = devices
        .iter()
        .map(|device| match &device.opened {
            Err(error) => error.to_string(),
            Ok(opened) => format!(
                "{}: {} ports, none carries traffic",
                device.name,
                opened.ports.len()
            ),
        })
        .collect();
    devices
        .into_iter()
        .find(|device| {
            device.opened.as_ref().is_ok_and(|opened| {
                opened
                    .ports
                    .iter()
                    .any(|port| port.attributes.state.is_usable())
            })
        })
        .map(|device| device.name)
        .ok_or_else(|| reasons.join("; "))
}
