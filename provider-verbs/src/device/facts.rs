//! Facts about a device in sysfs: its identity and its place in the machine.

use std::fs;
use std::path::{Path, PathBuf};

/// Facts about a device that verbs calls do not give. A fact that is missing or not readable is
/// `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Globally unique identifier of the device.
    pub node_guid: Option<u64>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// Network interfaces on the device.
    pub interfaces: Vec<String>,
    /// The memory node nearest to the device.
    pub numa_node: Option<u32>,
    /// Its place on the PCI bus; `None` for a software device.
    pub pci: Option<PciFacts>,
    /// Kernel driver of the PCI device.
    pub driver: Option<String>,
}

/// A PCI device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFacts {
    /// Domain, bus, device and function, such as `0000:3b:00.0`.
    pub address: String,
    /// Vendor, such as 0x15b3.
    pub vendor: u16,
    /// The vendor's device number.
    pub device: u16,
}

impl DeviceFacts {
    /// Reads them, by the kernel's name of the device.
    pub fn read(name: &str) -> Self {
        Self::read_at(&folder(name))
    }

    fn read_at(folder: &Path) -> Self {
        let device = folder.join("device");
        Self {
            node_guid: text(folder.join("node_guid"))
                .and_then(|guid| u64::from_str_radix(&guid.replace(':', ""), 16).ok()),
            firmware: text(folder.join("fw_ver")),
            interfaces: interfaces(folder),
            numa_node: text(device.join("numa_node")).and_then(|node| node.parse().ok()),
            pci: pci(&device),
            driver: link_name(&device.join("driver")),
        }
    }
}

/// A device's folder in sysfs.
pub(super) fn folder(name: &str) -> PathBuf {
    Path::new("/sys/class/infiniband").join(name)
}

/// A file's text without the line's end; `None` when empty or not readable.
pub(super) fn text(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A card's own, and a software device's parent. The GID table names them too, slot by slot:
/// thousands of files.
fn interfaces(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = entries(&folder.join("device/net"))
        .iter()
        .filter_map(|entry| Some(entry.file_name()?.to_str()?.to_owned()))
        .chain(text(folder.join("parent")))
        .collect();
    names.sort();
    names.dedup();
    names
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .map(|read| read.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}

fn pci(device: &Path) -> Option<PciFacts> {
    let id =
        |file: &str| u16::from_str_radix(text(device.join(file))?.strip_prefix("0x")?, 16).ok();
    Some(PciFacts {
        vendor: id("vendor")?,
        device: id("device")?,
        address: link_name(device)?,
    })
}

/// The last part of where a link points.
fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct SysfsFolder(PathBuf);

    impl SysfsFolder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("ferro-facts-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).expect("a temporary folder");
            Self(path)
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().expect("inside")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
    }

    impl Drop for SysfsFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_card_on_the_bus() {
        let root = SysfsFolder::new("card");
        root.write("bus/0000:3b:00.0/vendor", "0x15b3\n");
        root.write("bus/0000:3b:00.0/device", "0x1017\n");
        root.write("bus/0000:3b:00.0/numa_node", "1\n");
        root.write("drivers/mlx5_core/x", "");
        symlink(
            "../../drivers/mlx5_core",
            root.0.join("bus/0000:3b:00.0/driver"),
        )
        .expect("a link");
        root.write("mlx5_0/node_guid", "0c42:a103:0065:a1b2\n");
        root.write("mlx5_0/fw_ver", "16.35.4030\n");
        root.write("bus/0000:3b:00.0/net/ens1f0/mtu", "1500\n");
        symlink("../bus/0000:3b:00.0", root.0.join("mlx5_0/device")).expect("a link");
        assert_eq!(
            DeviceFacts::read_at(&root.0.join("mlx5_0")),
            DeviceFacts {
                node_guid: Some(0x0c42_a103_0065_a1b2),
                firmware: Some("16.35.4030".into()),
                interfaces: vec!["ens1f0".into()],
                numa_node: Some(1),
                pci: Some(PciFacts {
                    address: "0000:3b:00.0".into(),
                    vendor: 0x15b3,
                    device: 0x1017
                }),
                driver: Some("mlx5_core".into()),
            }
        );
    }

    #[test]
    fn a_software_device_has_a_parent_and_no_bus() {
        let root = SysfsFolder::new("soft");
        root.write("rxe0/node_guid", "98df:d5ff:fec8:14af\n");
        root.write("rxe0/fw_ver", "\n");
        root.write("rxe0/parent", "eth0\n");
        let facts = DeviceFacts::read_at(&root.0.join("rxe0"));
        assert_eq!(facts.interfaces, ["eth0"]);
        assert_eq!(
            (facts.firmware, facts.pci, facts.numa_node),
            (None, None, None)
        );
    }

    #[test]
    fn nonsense_and_a_missing_folder_give_nothing() {
        let root = SysfsFolder::new("bad");
        root.write("x/node_guid", "not:a:guid\n");
        root.write("x/device/numa_node", "-1\n");
        root.write("x/device/vendor", "15b3\n");
        assert_eq!(
            DeviceFacts::read_at(&root.0.join("x")),
            DeviceFacts::default()
        );
        assert_eq!(
            DeviceFacts::read_at(&root.0.join("absent")),
            DeviceFacts::default()
        );
    }
}
