//! A Soft-RoCE device over a veth pair whose far end is another network namespace: nodes with
//! unknown hardware addresses, which do not answer until [`ColdLink::answer`] is called. No node
//! there speaks RoCE.

use std::net::Ipv4Addr;
use std::process::Command;

/// Nodes that nobody has spoken to.
pub const NODES: u64 = 200;

/// Runs a command of the shell.
///
/// # Panics
///
/// When it fails.
pub fn run(command: &str) {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}");
}

/// The link, its device, and the namespace at its far end.
pub struct ColdLink;

impl ColdLink {
    /// Makes them; nodes 10.9.1.1 and so on live at the far end, which answers nobody.
    pub fn up() -> Self {
        // Removes the interfaces of a test that was killed.
        drop(ColdLink);
        let link = ColdLink;
        run("ip netns add ferro-far
             ip link add ferro-near type veth peer name ferro-far
             ip link set ferro-far netns ferro-far
             ip -n ferro-far link set ferro-far arp off up
             ip addr add 10.9.0.1/16 dev ferro-near
             ip link set ferro-near up
             rdma link add ferro_cold type rxe netdev ferro-near");
        let addresses: Vec<String> = (1..=NODES)
            .map(|node| format!("addr add {}/16 dev ferro-far\n", address(node)))
            .collect();
        let addresses = addresses.concat();
        run(&format!(
            "ip -n ferro-far -batch - <<'LIST'\n{addresses}LIST"
        ));
        link
    }

    /// From now on the far end answers with its hardware addresses.
    pub fn answer(&self) {
        run("ip -n ferro-far link set ferro-far arp on");
    }
}

impl Drop for ColdLink {
    fn drop(&mut self) {
        let _ = Command::new("sh")
            .args([
                "-c",
                "rdma link del ferro_cold; ip link del ferro-near; ip netns del ferro-far",
            ])
            .output();
    }
}

/// The address of a node, from 1 on.
pub fn address(node: u64) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 1, u8::try_from(node).unwrap())
}
