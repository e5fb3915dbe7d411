//! The findings of a probe on each kind of NIC that there is a profile of.

use std::time::Duration;

use ferrofabric_conformance::limits::settings;
use ferrofabric_fake_device::control::{FakeDevice, INFINIBAND, ROCE};
use ferrofabric_fake_device::profile::{DeviceProfile, InlineRefusal};
use ferrofabric_verbs::probe::{BeyondInline, DeviceProbe, LateSend};

/// Runs on both devices of each profile. The probe leaves nothing behind and misuses nothing.
fn on_each(check: impl Fn(&DeviceProfile, &DeviceProbe, &str)) {
    let device = FakeDevice::take();
    for name in DeviceProfile::names() {
        for port in [ROCE, INFINIBAND] {
            device.reset();
            device.become_nic(name);
            let probe = DeviceProbe::open(port, &settings(&[])).unwrap();
            check(DeviceProfile::named(name).unwrap(), &probe, name);
            drop(probe);
            assert_eq!(device.misuse(), "", "{name}");
            assert_eq!(device.live(), Default::default(), "{name}: objects left");
        }
    }
}

#[test]
fn objects_are_found_by_making_them() {
    on_each(|profile, probe, name| {
        assert_eq!(probe.connections().is_ok(), profile.connections, "{name}");
        assert_eq!(probe.datagrams().is_ok(), profile.datagrams, "{name}");
        let shared = probe.shared_receives().is_ok();
        assert_eq!(shared, profile.shared_receives, "{name}");
        assert_eq!(
            probe.abilities().reliable_datagrams.is_ok(),
            profile.carries_reliable_datagrams(),
            "{name}"
        );
        let made = probe.queue_pairs(4).unwrap();
        assert_eq!(made.made, profile.queue_pairs.min(4), "{name}");
        assert_eq!(made.refusal.is_some(), profile.queue_pairs < 4, "{name}");
        let shortest = made.shortest.unwrap();
        assert!(
            shortest >= Duration::from_micros(profile.control_call_us),
            "{name}: {shortest:?}"
        );
    });
}

#[test]
fn the_inline_limit_is_found_to_the_byte() {
    on_each(|profile, probe, name| {
        let found = probe.inline().unwrap();
        assert_eq!(found.most, profile.inline.most, "{name}");
        let beyond = match profile.inline.beyond {
            InlineRefusal::Einval => {
                BeyondInline::Refused(Some(ferrofabric_contracts::error::Errno::EINVAL))
            }
            InlineRefusal::NoErrno => BeyondInline::Refused(None),
            InlineRefusal::GrantsLess => BeyondInline::GrantsLess,
        };
        assert_eq!(found.beyond, beyond, "{name}");
        for (requested, granted) in found.grants {
            assert_eq!(profile.grant_inline(requested, 1), Ok(granted), "{name}");
        }
        let endpoints = probe.endpoint_inline();
        let usable = match profile.connections {
            true => endpoints.connections.unwrap(),
            false => endpoints.datagrams.unwrap(),
        };
        let exact = profile.inline.most.min(endpoints.requested);
        assert!(usable <= exact && usable + 4 > exact, "{name}: {usable}");
    });
}

#[test]
fn a_connection_shows_what_it_can_do() {
    on_each(|profile, probe, name| {
        let port = probe.active_port().unwrap();
        let found = probe.loopback(port, profile.inline.most.min(64));
        assert_eq!(found.is_ok(), profile.connections, "{name}: {found:?}");
        let Ok(found) = found else { return };
        found.write_nothing.unwrap();
        assert_eq!(found.atomics.is_some(), profile.atomics, "{name}");
        found.atomics.unwrap_or(Ok(())).unwrap();
        let inline = (profile.inline.most > 0).then_some(!profile.inline.flag_is_ignored);
        assert_eq!(found.takes_inline.unwrap(), inline, "{name}");

        let flushed = probe.flush(port).unwrap();
        let of = |is_send| {
            let order = flushed.order.iter().filter(|one| one.is_send == is_send);
            order.map(|one| one.number).collect::<Vec<_>>()
        };
        assert_eq!((of(true), of(false)), (vec![0, 1], vec![0, 1]), "{name}");
        assert_eq!(
            matches!(flushed.late_send, LateSend::Refused(_)),
            profile.refuses_posts_in_error,
            "{name}: {flushed:?}"
        );
    });
}

#[test]
fn shared_queues_show_what_they_can_do() {
    on_each(|profile, probe, name| {
        let port = probe.active_port().unwrap();
        let both = profile.connections && profile.shared_receives;
        let announced = probe.announces_last_receive(port);
        assert_eq!(announced.is_ok(), both, "{name}: {announced:?}");
        if let Ok(announced) = announced {
            assert_eq!(announced, profile.announces_last_receive, "{name}");
        }
    });
}

#[test]
fn a_datagram_to_itself_arrives_where_there_are_datagrams() {
    on_each(|profile, probe, name| {
        let datagram = probe.datagram(probe.active_port().unwrap());
        assert_eq!(datagram.is_ok(), profile.datagrams, "{name}: {datagram:?}");
    });
}

#[test]
fn a_port_shows_its_partitions_and_its_gid() {
    on_each(|profile, probe, name| {
        assert_eq!(probe.port_numbers().collect::<Vec<_>>(), [1]);
        assert_eq!(
            probe.partition_keys(1).unwrap(),
            profile.partition_keys,
            "{name}"
        );
        let chosen = probe.chosen_gid(1).unwrap().chosen;
        let table = probe.gids(1).unwrap();
        let entry = table.iter().find(|entry| entry.index == chosen.index);
        let entry = entry.unwrap();
        assert_eq!(
            (entry.gid, entry.is_elsewhere),
            (chosen.gid, false),
            "{name}"
        );
    });
    let device = FakeDevice::take();
    device.become_nic("generous");
    let elsewhere = DeviceProbe::open(ROCE, &settings(&[("FERRO_GID_INDEX", "3")])).unwrap();
    let refused = elsewhere.chosen_gid(1).unwrap_err().to_string();
    assert!(
        refused.contains("index 3 of fake_roce0 port 1"),
        "{refused}"
    );
}
