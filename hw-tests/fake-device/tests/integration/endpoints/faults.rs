//! Completions with errors.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};
use ferrofabric_verbs_sys::ibv_wc_status as Status;

use crate::endpoints::party::{PeerPair, assert_clean, check, first, message, room};

/// Statuses of a requester's completion.
pub(crate) const STATUSES: [Status; 13] = [
    Status::IBV_WC_LOC_LEN_ERR,
    Status::IBV_WC_LOC_QP_OP_ERR,
    Status::IBV_WC_LOC_PROT_ERR,
    Status::IBV_WC_WR_FLUSH_ERR,
    Status::IBV_WC_BAD_RESP_ERR,
    Status::IBV_WC_LOC_ACCESS_ERR,
    Status::IBV_WC_REM_INV_REQ_ERR,
    Status::IBV_WC_REM_ACCESS_ERR,
    Status::IBV_WC_REM_OP_ERR,
    Status::IBV_WC_RETRY_EXC_ERR,
    Status::IBV_WC_RNR_RETRY_EXC_ERR,
    Status::IBV_WC_FATAL_ERR,
    Status::IBV_WC_GENERAL_ERR,
];

/// A message whose request fails goes over the next connection, unless what is wrong is on this
/// side: then it is an error for its operation, with the device's status.
#[test]
fn each_status_of_a_message() {
    for status in STATUSES {
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[]);
        pair.b
            .trecv(room(8), pair.to_a, 9, 0, 1)
            .map_err(first)
            .unwrap();
        device.script(Fault::new(FaultPoint::Send, FaultEffect::Fail(status)));
        pair.a
            .tsend(message(8, 1), 8, pair.to_b, 9, 2)
            .map_err(first)
            .unwrap();
        let local = matches!(
            status,
            Status::IBV_WC_LOC_LEN_ERR
                | Status::IBV_WC_LOC_QP_OP_ERR
                | Status::IBV_WC_LOC_PROT_ERR
                | Status::IBV_WC_LOC_ACCESS_ERR
        );
        for done in pair.run(2) {
            match (done.token, done.outcome) {
                (1, Ok(_)) if !local => check(&done.buffer, 1, "repeated"),
                (2, Ok(_)) if !local => {}
                (2, Err(error)) if local => {
                    assert_eq!(error.prov_errno, status.0 as i32);
                    assert_eq!(error.errno, Errno::ECONNRESET, "{status:?}: {}", error.why);
                    assert!(error.completion.flags.contains(Flags::SEND));
                }
                // Its sender gave the connection up.
                (1, Err(error)) if local => assert_eq!(error.errno, Errno::ECONNRESET),
                (token, outcome) => panic!("{status:?}: operation {token}: {outcome:?}"),
            }
        }
        pair.settle(&device);
        pair.exchange(8, 77);
        pair.exchange(80_000, 78);
        pair.close(&device);
    }
}

/// Every operation ends after a fault of one request, and the endpoints go on afterwards.
fn goes_on(fault: Fault) {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[("FERRO_RENDEZVOUS", "read")]);
    device.script(fault);
    let traffic = match fault.effect {
        FaultEffect::Corrupt(_) => pair.corrupt_traffic(100, 15),
        _ => pair.traffic(100, 15, || ()),
    };
    assert_eq!(
        device.faults_left(),
        0,
        "{fault:?} did not strike: {traffic:?}"
    );
    pair.settle(&device);
    device.reset();
    pair.exchange(8, 1);
    pair.exchange(80_000, 2);
    match fault.effect {
        // The device never names the receive again.
        FaultEffect::WrId(_) => {
            drop(pair);
            assert_clean(&device);
        }
        _ => pair.close(&device),
    }
}

#[test]
fn messages_that_fail_in_the_middle() {
    for after in [0, 1, 4, 9] {
        for status in [
            Status::IBV_WC_RETRY_EXC_ERR,
            Status::IBV_WC_REM_OP_ERR,
            Status::IBV_WC_GENERAL_ERR,
        ] {
            goes_on(Fault::new(FaultPoint::Send, FaultEffect::Fail(status)).after(after));
        }
    }
}

/// The acknowledgement is lost, not the message.
#[test]
fn messages_that_arrive_and_fail() {
    for after in [0, 1, 4, 9] {
        let effect = FaultEffect::FailAfterwards(Status::IBV_WC_RETRY_EXC_ERR);
        goes_on(Fault::new(FaultPoint::Send, effect).after(after));
    }
}

#[test]
fn each_status_of_a_read() {
    for status in STATUSES {
        for after in [0, 5] {
            goes_on(Fault::new(FaultPoint::Read, FaultEffect::Fail(status)).after(after));
        }
    }
}

#[test]
fn each_status_of_a_receive() {
    for status in [
        Status::IBV_WC_LOC_LEN_ERR,
        Status::IBV_WC_LOC_QP_OP_ERR,
        Status::IBV_WC_LOC_PROT_ERR,
        Status::IBV_WC_WR_FLUSH_ERR,
        Status::IBV_WC_REM_INV_REQ_ERR,
        Status::IBV_WC_GENERAL_ERR,
    ] {
        for after in [0, 6] {
            goes_on(Fault::new(FaultPoint::Receive, FaultEffect::Fail(status)).after(after));
        }
    }
}

#[test]
fn lengths_that_make_no_sense() {
    for bytes in [0, 1, 7, 23, 4097, 1 << 20, u32::MAX] {
        for after in [0, 5] {
            goes_on(Fault::new(FaultPoint::Receive, FaultEffect::ByteLen(bytes)).after(after));
        }
    }
}

#[test]
fn queue_pairs_that_there_are_not() {
    for number in [0, 1, 0xff_ffff, u32::MAX] {
        goes_on(Fault::new(FaultPoint::Receive, FaultEffect::QpNum(number)));
    }
}

/// A work request ID that nobody gave: of a session that there is not.
#[test]
fn completions_of_unknown_requests() {
    for wr_id in [0, 7, 5 << 32] {
        goes_on(Fault::new(FaultPoint::Receive, FaultEffect::WrId(wr_id)));
    }
}

/// The same, of a receive that there is not.
#[test]
fn completions_of_unknown_receives() {
    for wr_id in [u64::MAX, (u64::from(u32::MAX) << 32) | (1 << 20)] {
        goes_on(Fault::new(FaultPoint::Receive, FaultEffect::WrId(wr_id)));
    }
}

/// Headers with wrong bytes, of messages, requests and notices alike.
#[test]
fn packets_that_make_no_sense() {
    for at in 0..24 {
        for after in [0, 3] {
            goes_on(Fault::new(FaultPoint::Receive, FaultEffect::Corrupt(at)).after(after));
        }
    }
}
