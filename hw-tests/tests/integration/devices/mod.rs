//! Soft-RoCE devices that a test makes, and the kernel's description of one.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test program uses a part of it for itself, and a test may panic"
)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Soft-RoCE devices beside the machine's own, gone at the end of a test: of each the interface and
/// the name.
pub struct Devices(pub Vec<(String, String)>);

impl Devices {
    /// Each with an address of either family, `10.77.N.1` and `fd77:N::1`. `None` where devices can
    /// not be made.
    pub fn new(count: usize) -> Option<Self> {
        Self::on(count, |_| "type dummy".to_owned())
    }

    /// The same, the last of them on an interface that has a speed.
    pub fn with_a_fast_one(count: usize) -> Option<Self> {
        Self::on(count, |n| match n + 1 == count {
            // The kernel gives these 10 Gbit/s, and a dummy none.
            true => "type veth peer name ferrodp".to_owned(),
            false => "type dummy".to_owned(),
        })
    }

    fn on(count: usize, kind: impl Fn(usize) -> String) -> Option<Self> {
        let mut all = Self(Vec::new());
        for n in 0..count {
            let (interface, device) = (format!("ferrod{n}"), format!("ferro_more{n}"));
            all.0.push((interface.clone(), device.clone()));
            let kind = kind(n);
            let mut steps = vec![
                format!("ip link add {interface} {kind}"),
                format!("ip address add 10.77.{n}.1/24 dev {interface}"),
                format!("ip -6 address add fd77:{n}::1/64 dev {interface} nodad"),
                format!("ip link set {interface} up"),
                format!("rdma link add {device} type rxe netdev {interface}"),
            ];
            if let Some((_, peer)) = kind.split_once("peer name ") {
                steps.insert(1, format!("ip link set {peer} up"));
            }
            if let Some(why) = steps.iter().find_map(|step| run(step).err()) {
                // In the machine they can.
                assert!(std::env::var_os("FERRO_REQUIRE_DEVICE").is_none(), "{why}");
                println!("SKIP: {why}");
                return None;
            }
        }
        all.wait_for_addresses();
        Some(all)
    }

    /// A GID comes some time after the address that it stands for.
    fn wait_for_addresses(&self) {
        let until = Instant::now() + Duration::from_secs(30);
        let has_both = |n: usize| {
            let there = DevicePort(&self.0[n].1).gids();
            let wanted = [format!("10.77.{n}.1"), format!("fd77:{n}::1")];
            wanted.iter().all(|ip| there.contains(&gid_of(ip)))
        };
        while !(0..self.0.len()).all(has_both) {
            assert!(
                Instant::now() < until,
                "no GIDs for the addresses of {:?}",
                self.0
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        for (interface, device) in &self.0 {
            let _ = run(&format!("rdma link delete {device}"));
            let _ = run(&format!("ip link delete {interface}"));
        }
    }
}

/// Runs a command; its words on failure.
pub fn run(line: &str) -> Result<(), String> {
    let words: Vec<_> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.map_err(|error| format!("{line}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// The GID of an IP address.
pub fn gid_of(ip: &str) -> [u8; 16] {
    match ip.parse().unwrap() {
        std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(ip) => ip.octets(),
    }
}

/// The first port of a device, as the kernel shows it.
pub struct DevicePort<'a>(pub &'a str);

impl DevicePort<'_> {
    fn device_file(&self, name: &str) -> String {
        format!("/sys/class/infiniband/{}/{name}", self.0)
    }

    /// A file of the port.
    pub fn text(&self, name: &str) -> String {
        let file = self.device_file(&format!("ports/1/{name}"));
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
        text.trim().to_owned()
    }

    /// Its firmware; `None` for a software device, of which the kernel shows none.
    pub fn firmware(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.device_file("fw_ver")).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Its rate, which is text such as `2.5 Gb/sec (1X SDR)`.
    pub fn bits_per_second(&self) -> u64 {
        let rate = self.text("rate");
        let (gigabits, _) = rate.split_once(" Gb/sec").unwrap();
        (gigabits.parse::<f64>().unwrap() * 1e9) as u64
    }

    /// Whether it has a place on a bus.
    pub fn is_on_a_bus(&self) -> bool {
        Path::new(&self.device_file("device")).exists()
    }

    /// How packets of a GID are wrapped, such as `RoCE v2`.
    pub fn kind(&self, index: u32) -> String {
        self.text(&format!("gid_attrs/types/{index}"))
    }

    /// Its GIDs, from slot 0 on.
    pub fn gids(&self) -> Vec<[u8; 16]> {
        let slots = (0..).map_while(|index| {
            let file = self.device_file(&format!("ports/1/gids/{index}"));
            let text = std::fs::read_to_string(file).ok()?;
            let gid: std::net::Ipv6Addr = text.trim().parse().ok()?;
            (!gid.is_unspecified()).then(|| gid.octets())
        });
        slots.collect()
    }
}
