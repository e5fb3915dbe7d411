//! Completions with errors.

use ferrofabric_core::error::Errno;
use ferrofabric_core::flags::Flags;
use ferrofabric_fake_device::control::{Effect, FakeDevice, Fault, Point};
use ferrofabric_verbs_sys::ibv_wc_status as Status;

use crate::party::{Pair, assert_clean, first, message};

/// What a requester's completion may say.
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

/// A message that fails is an error for its operation, with the device's status; the next one gets a new connection.
#[test]
fn each_status_of_a_message() {
    for status in STATUSES {
        let device = FakeDevice::take();
        let mut pair = Pair::connected(&[]);
        device.script(Fault::new(Point::Send, Effect::Fail(status)));
        pair.a
            .tsend(message(8, 1), 8, pair.to_b, 9, 2)
            .map_err(first)
            .unwrap();
        let done = pair.run(1).remove(0);
        let error = done.outcome.expect_err("the message was not sent");
        assert_eq!((done.token, error.prov_errno), (2, status.0 as i32));
        let errno = match status {
            Status::IBV_WC_RETRY_EXC_ERR => Errno::EHOSTUNREACH,
            Status::IBV_WC_REM_ACCESS_ERR => Errno::EREMOTEIO,
            _ => Errno::ECONNRESET,
        };
        assert_eq!(error.errno, errno, "{status:?}: {}", error.why);
        assert!(error.completion.flags.contains(Flags::SEND));
        pair.settle();
        pair.exchange(8, 77);
        pair.exchange(80_000, 78);
        drop(pair);
        assert_clean(&device);
    }
}
