//! Paths that the connection manager finds (setting `path_records`), with the system's attributes.

use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};

use ferrofabric_conformance::ends::{QueuedPair, any_tagged};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::dgram::{self, PrefixRoom, next};
use ferrofabric_hw_tests::{Rig, offers};
use ferrofabric_runtime::owning::Buffer;
use serial_test::file_serial;

/// The place of the traffic class in a header of IP version 4, of the 40 bytes before a datagram.
const TYPE_OF_SERVICE: usize = 21;

/// Where the system has its settings of kernel objects.
const CONFIGFS: &CStr = c"/sys/kernel/config";

/// The traffic class that the system has for a device's paths, until this goes.
struct SystemClass(PathBuf);

impl SystemClass {
    fn set(device: &str, class: u8) -> Self {
        let all = Path::new(CONFIGFS.to_str().unwrap()).join("rdma_cm");
        if !all.exists() {
            let kind = c"configfs".as_ptr();
            // SAFETY: the strings are live.
            let rc = unsafe { libc::mount(kind, CONFIGFS.as_ptr(), kind, 0, std::ptr::null()) };
            assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        }
        let this = Self(all.join(device));
        fs::create_dir_all(&this.0).unwrap();
        fs::write(this.0.join("ports/1/default_roce_tos"), class.to_string()).unwrap();
        this
    }
}

impl Drop for SystemClass {
    fn drop(&mut self) {
        let unset = fs::write(self.0.join("ports/1/default_roce_tos"), "0");
        unset.and_then(|()| fs::remove_dir(&self.0)).unwrap();
    }
}

/// A path that the connection manager finds has the system's traffic class, unless a setting
/// chooses another one. Other paths have the default one.
#[test]
#[file_serial(verbs)]
fn a_datagram_shows_the_class_of_the_system() {
    const OF_SYSTEM: u8 = 0x60;
    let Some(rig) = Rig::open() else { return };
    let ipv4 = rig.gid.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    assert!(ipv4, "{}", rig.gid);
    let _class = SystemClass::set(rig.context.name(), OF_SYSTEM);
    for (records, chosen, expected) in [
        ("on", "auto", OF_SYSTEM),
        ("on", "8", 8),
        ("auto", "auto", 106),
    ] {
        let settings = [
            ("FERRO_PATH_RECORDS", records),
            ("FERRO_TRAFFIC_CLASS", chosen),
        ];
        let domain = dgram::domain(&settings, PrefixRoom::Room);
        let (mut from, mut to) = (dgram::endpoint(&*domain), dgram::endpoint(&*domain));
        let dest = from.av().insert(&to.name().to_bytes()).unwrap();
        let len = PrefixRoom::Room.bytes() + 8;
        let buffer = || Buffer::new(len).unwrap();
        to.recv(buffer(), FiAddr::UNSPEC, 1).unwrap();
        from.send(buffer(), len, dest, None, 2).unwrap();
        next(&mut from, "the send").outcome.unwrap();
        let done = next(&mut to, "the datagram");
        assert_eq!(done.buffer[TYPE_OF_SERVICE], expected, "{settings:?}");
    }
}

/// Messages go along such paths, on lanes of both kinds.
#[test]
#[file_serial(verbs)]
fn messages_go_along_paths_that_the_connection_manager_finds() {
    let Some(_rig) = Rig::open() else { return };
    for lane in ["rc", "ud"] {
        let settings = offers::settings(&[
            ("FERRO_SHM", "off"),
            ("FERRO_LANE", lane),
            ("FERRO_PATH_RECORDS", "on"),
        ]);
        let open = || offers::domain(&settings);
        let pair = QueuedPair::open(&*open(), &*open());
        for (tag, len) in [(0, 8), (1, 3000), (2, 1 << 20)] {
            let recv = any_tagged(pair.b.context());
            let into = pair.b.memory(len, 0);
            pair.b.recv(&recv, &[into]).unwrap();
            pair.a.send(&pair.b, pair.tagged(tag), len, 7);
            let done = pair.wait(&pair.b.rx, recv.context).unwrap();
            assert_eq!((done.tag, done.len), (tag, len), "{lane}");
        }
    }
}
