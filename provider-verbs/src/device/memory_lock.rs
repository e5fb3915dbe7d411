//! Why the kernel refused to pin memory: the limit of locked memory, if that is it.

use std::fs;

/// Bit of CAP_IPC_LOCK (`capabilities(7)`).
const CAP_IPC_LOCK: u32 = 14;

/// The advice for the user after a registration of `wanted` bytes gave ENOMEM or EAGAIN; `None`
/// when the limit on locked memory is not the cause.
pub(crate) fn memory_lock_advice(wanted: usize) -> Option<String> {
    let limit = soft_limit()?;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    advice(limit, &status, wanted as u64)
}

/// `limit` and `wanted` in bytes; `status` is the text of `/proc/self/status`.
fn advice(limit: u64, status: &str, wanted: u64) -> Option<String> {
    let may_exceed = field(status, "CapEff:")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .is_some_and(|capabilities| (capabilities >> CAP_IPC_LOCK) & 1 == 1);
    let pinned_kib =
        field(status, "VmPin:").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let pinned = pinned_kib.unwrap_or(0) * 1024;
    if may_exceed || pinned.saturating_add(wanted) <= limit {
        return None;
    }
    Some(format!(
        "the limit of locked memory (RLIMIT_MEMLOCK) is {limit} bytes, {pinned} are pinned and the request is for {wanted} more: \
         raise it with `ulimit -l unlimited`, `* - memlock unlimited` in /etc/security/limits.conf, \
         LimitMEMLOCK=infinity in the service's unit, or --ulimit memlock=-1 for the container"
    ))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    Some(
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))?
            .trim(),
    )
}

/// The limit in bytes, or `None` when there is none.
fn soft_limit() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes the structure it is given.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (rc == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::advice;

    const PLAIN: &str = "Name:\tx\nVmPin:\t      60 kB\nCapEff:\t0000000000000000\n";
    const ROOT: &str = "VmPin:\t 60 kB\nCapEff:\t000001ffffffffff\n";

    #[test]
    fn a_low_limit_is_named_with_the_mend() {
        let text = advice(65536, PLAIN, 8192).expect("60 KiB + 8 KiB is over 64 KiB");
        for part in ["65536", "61440", "8192", "ulimit -l"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn within_the_limit_or_with_the_capability_it_is_not_to_blame() {
        assert_eq!(advice(65536, PLAIN, 4096), None);
        assert_eq!(advice(65536, ROOT, 1 << 30), None);
    }

    #[test]
    fn a_status_that_cannot_be_read_counts_as_nothing_pinned() {
        assert!(advice(4096, "", 4097).is_some());
        assert_eq!(advice(4096, "", 4096), None);
    }
}
