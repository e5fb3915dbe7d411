//! The description of a device.

use std::sync::Arc;

use ferrofabric_contracts::error::Errno;
use ferrofabric_hw_tests::Rig;
use ferrofabric_verbs::device::{Device, DeviceContext, GidReason, GidRequest, LinkLayer, Quirks};
use ferrofabric_verbs::raw::cq::CqConfig;
use ferrofabric_verbs::raw::mr::{Access, Mr};
use ferrofabric_verbs::raw::qp::{QpCaps, RcQp, SendOps, UdInit, UdQp};
use serial_test::file_serial;

#[test]
#[file_serial(verbs)]
fn an_unknown_device_is_refused_with_those_there_are() {
    let Some(rig) = Rig::open() else { return };
    for name in ["mlx9_0", "", "../../etc/passwd", "nul\0l"] {
        let error = DeviceContext::open(name).expect_err("there is no such device");
        assert_eq!(error.errno(), Errno::ENODEV);
        assert!(error.to_string().contains(rig.context.name()), "{error}");
    }
}

#[test]
#[file_serial(verbs)]
fn the_list_has_the_device_with_its_ports_and_the_gid_choice() {
    let Some(rig) = Rig::open() else { return };
    let list = Device::list().unwrap();
    let device = list
        .iter()
        .find(|device| device.name == rig.context.name())
        .unwrap();
    let opened = device.opened.as_ref().unwrap();
    assert_eq!(opened.ports.len(), usize::from(opened.limits.ports));
    let port = opened
        .ports
        .iter()
        .find(|port| port.attributes.number == rig.port.number)
        .unwrap();
    let selection = port.selection.as_ref().unwrap();
    assert_eq!(selection.chosen.reason, GidReason::Best);
    assert_eq!(selection.passed_over.len() + 1, port.gids.len());
    assert_eq!(port.gids, rig.context.gid_table(rig.port.number).unwrap());
    assert!(device.facts.node_guid.is_some_and(|guid| guid != 0));
    if rig.port.link_layer == LinkLayer::Ethernet {
        assert!(!device.facts.interfaces.is_empty());
        assert!(port.gids.iter().all(|entry| entry.interface.is_some()));
    }
}

#[test]
#[file_serial(verbs)]
fn the_table_read_slot_by_slot_is_the_same() {
    let Some(rig) = Rig::open() else { return };
    let at_once: Vec<_> = rig
        .context
        .gid_table(rig.port.number)
        .unwrap()
        .iter()
        .map(|entry| (entry.index, entry.gid, entry.kind))
        .collect();
    let by_slot: Vec<_> = rig
        .context
        .gid_table_by_slot(rig.port.number)
        .unwrap()
        .iter()
        .map(|entry| (entry.index, entry.gid, entry.kind))
        .collect();
    assert!(!at_once.is_empty());
    assert_eq!(at_once, by_slot);
}

#[test]
#[file_serial(verbs)]
fn a_gid_that_is_not_there_is_refused_with_those_there_are() {
    let Some(rig) = Rig::open() else { return };
    let error = rig
        .context
        .choose_gid(rig.port.number, GidRequest::Index(211))
        .expect_err("no such slot");
    assert!(
        error.to_string().contains("211") && error.to_string().contains(&rig.gid.to_string()),
        "{error}"
    );
    let error = rig.context.port(77).expect_err("no such port");
    assert!(error.to_string().contains("port 77"), "{error}");
}

#[test]
#[file_serial(verbs)]
fn limits_and_partition_key_make_sense() {
    let Some(rig) = Rig::open() else { return };
    let limits = rig.context.limits();
    assert!(
        limits.queue_pairs > 1
            && limits.completion_depth >= 64
            && limits.entries >= 1
            && limits.region_bytes >= 1 << 20
    );
    assert!(rig.port.message_bytes >= 1 << 20 && rig.port.active_mtu <= rig.port.max_mtu);
    // The default partition, full or limited member.
    assert_eq!(
        rig.context.pkey(rig.port.number, 0).unwrap() & 0x7fff,
        0x7fff
    );
    assert!(rig.context.pkey(rig.port.number, u16::MAX).is_err());
}

#[test]
#[file_serial(verbs)]
fn soft_roce_is_known_by_its_quirks_and_others_are_free_of_them() {
    let Some(rig) = Rig::open() else { return };
    let soft = std::fs::read_to_string(format!(
        "/sys/class/infiniband/{}/node_desc",
        rig.context.name()
    ))
    .is_ok_and(|text| text.trim() == "rxe");
    assert_eq!(
        rig.context
            .quirks()
            .contains(Quirks::WINDOW_BOUNDS_NOT_ENFORCED),
        soft
    );
}

#[test]
#[file_serial(verbs)]
fn a_request_beyond_the_limits_is_refused_with_the_limits() {
    let Some(rig) = Rig::open() else { return };
    let limits = rig.context.limits();
    let config = CqConfig {
        depth: limits.completion_depth + 1,
        ..CqConfig::default()
    };
    let error =
        ferrofabric_verbs::raw::cq::Cq::create(&rig.context, &config).expect_err("too deep");
    assert!(
        error
            .to_string()
            .contains(&limits.completion_depth.to_string()),
        "{error}"
    );

    let cq = rig.cq(16, false);
    let mut config = rig.config(&cq, None, None);
    config.caps = QpCaps {
        send_entries: limits.entries + 1,
        ..config.caps
    };
    let error = RcQp::create(&rig.pd, &config).expect_err("too many entries");
    assert!(
        error
            .to_string()
            .contains(&format!("of {} entries", limits.entries)),
        "{error}"
    );
}

#[test]
#[file_serial(verbs)]
fn objects_of_two_openings_do_not_mix() {
    let Some(rig) = Rig::open() else { return };
    let other = Rig::on(rig.context.name());
    let config = other.config(&other.cq(16, false), None, None);
    let error = RcQp::create(&rig.pd, &config).expect_err("another opening");
    assert!(error.to_string().contains("one context"), "{error}");
}

#[test]
#[file_serial(verbs)]
fn memory_that_cannot_be_registered_is_refused_with_a_reason() {
    let Some(rig) = Rig::open() else { return };
    // SAFETY: not mapped, so that registering must fail.
    let error = unsafe { Mr::register(&rig.pd, 4096 as *mut u8, 4096, Access::LOCAL_WRITE) }
        .expect_err("not mapped");
    assert_eq!(error.errno(), Errno::EFAULT);
    let mut memory = vec![0u8; 8192];
    // SAFETY: refused before the memory is used.
    let error = unsafe { Mr::register(&rig.pd, memory.as_mut_ptr(), 8192, Access::REMOTE_WRITE) }
        .expect_err("to write remotely without writing locally");
    assert!(error.to_string().contains("LOCAL_WRITE"), "{error}");
}

#[test]
#[file_serial(verbs)]
fn parents_outlive_their_children() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(16, false);
    let qp = UdQp::create(&rig.pd, &rig.config(&cq, None, None)).unwrap();
    let (pd, context) = (Arc::downgrade(&rig.pd), Arc::downgrade(&rig.context));
    let port = rig.port.number;
    drop((cq, rig));
    // Held by the queue pair alone.
    qp.activate(&UdInit {
        port,
        pkey_index: 0,
        qkey: 1,
        psn: 0,
    })
    .unwrap();
    assert!(pd.upgrade().is_some() && context.upgrade().is_some());
    drop(qp);
    assert!(pd.upgrade().is_none() && context.upgrade().is_none());
}

#[test]
#[file_serial(verbs)]
fn a_step_out_of_order_is_refused() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(16, false);
    let qp = UdQp::create(&rig.pd, &rig.config(&cq, None, None)).unwrap();
    let error = qp.to_rts(0).expect_err("not initialised");
    assert!(error.to_string().contains("make ready to send"), "{error}");
    let error = qp
        .to_init(&UdInit {
            port: 99,
            pkey_index: 0,
            qkey: 0,
            psn: 0,
        })
        .expect_err("no such port");
    assert!(error.to_string().contains("initialise"), "{error}");
}

#[test]
#[file_serial(verbs)]
fn a_legacy_queue_pair_has_no_batch() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(16, false);
    let legacy = RcQp::create(&rig.pd, &rig.config(&cq, None, None)).unwrap();
    assert!(legacy.start_batch().is_none());
    assert!(cq.start_poll().is_err());
    let extended = RcQp::create(&rig.pd, &rig.config(&cq, None, Some(SendOps::SEND))).unwrap();
    assert!(extended.start_batch().is_some());
}
