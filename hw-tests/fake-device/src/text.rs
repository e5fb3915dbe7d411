//! Statuses in words.

use std::ffi::CStr;

use ferrofabric_verbs_sys::ibv_wc_status as Status;

/// A completion's status.
pub(crate) fn of_status(status: Status) -> &'static CStr {
    match status {
        Status::IBV_WC_SUCCESS => c"success",
        Status::IBV_WC_LOC_LEN_ERR => c"local length error",
        Status::IBV_WC_LOC_QP_OP_ERR => c"local queue pair operation error",
        Status::IBV_WC_LOC_PROT_ERR => c"local protection error",
        Status::IBV_WC_WR_FLUSH_ERR => c"flushed",
        Status::IBV_WC_REM_INV_REQ_ERR => c"remote invalid request",
        Status::IBV_WC_REM_ACCESS_ERR => c"remote access error",
        Status::IBV_WC_REM_OP_ERR => c"remote operation error",
        Status::IBV_WC_RETRY_EXC_ERR => c"retries exhausted",
        Status::IBV_WC_RNR_RETRY_EXC_ERR => c"receiver not ready, retries exhausted",
        Status::IBV_WC_GENERAL_ERR => c"general error",
        _ => c"another error",
    }
}
