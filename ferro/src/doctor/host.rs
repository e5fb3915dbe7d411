//! The machine: versions, rights of this process, memory.

use std::fs;
use std::path::Path;

use ferrofabric_verbs::probe;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use nix::sys::utsname::uname;

use super::finding::{Finding, Severity};

/// Room that the files of named address vectors need for some ten thousand addresses.
const NEEDED_BYTES: u64 = 1 << 20;

/// All about the machine that concerns no single device.
pub(super) fn findings() -> Vec<Finding> {
    let mut all = vec![
        Finding::ok("ferro", env!("CARGO_PKG_VERSION")),
        kernel(),
        locked_memory(),
        unmap_reports(),
        shared_files(Path::new("/dev/shm")),
    ];
    all.extend(huge_pages());
    all
}

/// The findings on the RDMA library, and the devices that it lists.
pub(super) fn library() -> (Vec<Finding>, Vec<String>) {
    let listed = probe::library().and_then(|file| Ok((file, probe::devices()?)));
    let (file, devices) = match listed {
        Ok(listed) => listed,
        Err(error) => {
            let none = Finding::failed(
                severity_of_missing(),
                "libibverbs",
                &error,
                "install libibverbs1 and ibverbs-providers",
            );
            return (vec![none], Vec::new());
        }
    };
    let mut all = vec![Finding::ok("libibverbs", file.display().to_string())];
    let unlisted: Vec<String> = probe::kernel_devices()
        .into_iter()
        .filter(|name| !devices.contains(name))
        .collect();
    if !unlisted.is_empty() {
        all.push(Finding::new(
            Severity::Error,
            "libibverbs",
            format!(
                "it does not list {}, which the kernel has",
                unlisted.join(", ")
            ),
            "load the kernel module ib_uverbs, install the drivers of the library \
             (ibverbs-providers or rdma-core), and make /dev/infiniband/uverbs* visible to this \
             process",
        ));
    } else if devices.is_empty() {
        all.push(Finding::new(
            Severity::Note,
            "devices",
            "this machine has no RDMA device, so messages go through shared memory alone",
            "where there is a card load the kernel module of its driver; for a Soft-RoCE device \
             run `./scripts/rxe up`",
        ));
    }
    (all, devices)
}

/// A machine without devices needs no library.
fn severity_of_missing() -> Severity {
    match probe::kernel_devices().is_empty() {
        true => Severity::Note,
        false => Severity::Warning,
    }
}

fn kernel() -> Finding {
    match uname() {
        Ok(names) => {
            let text = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
            let (system, release) = (text(names.sysname()), text(names.release()));
            Finding::ok("kernel", format!("{system} {release}"))
        }
        Err(errno) => Finding::new(
            Severity::Note,
            "kernel",
            format!("its version cannot be read: {errno}"),
            "none is needed",
        ),
    }
}

fn locked_memory() -> Finding {
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => Finding::ok("locked memory", "no limit (RLIMIT_MEMLOCK)"),
        Ok((bytes, _)) => match probe::memory_lock(APPLICATION_BYTES) {
            None if bytes >= APPLICATION_BYTES as u64 => {
                Finding::ok("locked memory", format!("RLIMIT_MEMLOCK is {bytes} bytes"))
            }
            None => Finding::ok(
                "locked memory",
                format!("RLIMIT_MEMLOCK is {bytes} bytes, and CAP_IPC_LOCK permits more"),
            ),
            Some(advice) => Finding::new(
                Severity::Note,
                "locked memory",
                format!(
                    "RLIMIT_MEMLOCK is {bytes} bytes, so that large messages over a device may \
                     fail to register"
                ),
                advice,
            ),
        },
        Err(errno) => Finding::new(
            Severity::Note,
            "locked memory",
            format!("RLIMIT_MEMLOCK cannot be read: {errno}"),
            "none is needed",
        ),
    }
}

/// An application that sends large messages registers as much at least.
const APPLICATION_BYTES: usize = 1 << 30;

fn unmap_reports() -> Finding {
    match probe::unmap_reports() {
        Ok(()) => Finding::ok(
            "userfaultfd",
            "the kernel reports unmapped memory, so that registrations are kept",
        ),
        Err(error) => {
            let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
            let setting = setting.unwrap_or_else(|_| "unknown".to_owned());
            Finding::new(
                Severity::Warning,
                "userfaultfd",
                format!(
                    "{}; vm.unprivileged_userfaultfd is {}, and each large message over a device \
                     registers its memory anew",
                    error.problem(),
                    setting.trim()
                ),
                "allow userfaultfd(2) in the container's policy, or give this user access to \
                 /dev/userfaultfd",
            )
        }
    }
}

fn shared_files(folder: &Path) -> Finding {
    const REMEDY: &str = "mount a tmpfs at /dev/shm with some room (containers: --shm-size), for \
                          named address vectors lie there";
    let about = folder.display().to_string();
    match statvfs(folder) {
        Ok(room) => {
            let free = room.blocks_available() * room.fragment_size();
            let found = format!("{} MiB are free", free >> 20);
            match free >= NEEDED_BYTES {
                true => Finding::ok(about, found),
                false => Finding::new(Severity::Warning, about, found, REMEDY),
            }
        }
        Err(errno) => {
            let found = format!("it cannot be used: {errno}");
            Finding::new(Severity::Warning, about, found, REMEDY)
        }
    }
}

fn huge_pages() -> Option<Finding> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    let (total, free) = (field("HugePages_Total:")?, field("HugePages_Free:")?);
    let size = field("Hugepagesize:")?;
    let found = format!("{total} of {size}, {free} of them free; endpoints need none");
    Some(Finding::ok("huge pages", found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_of_shared_files_is_a_warning() {
        let text = shared_files(Path::new("/nowhere/at/all")).to_string();
        assert!(text.starts_with("warning  /nowhere/at/all: "), "{text}");
        assert!(text.contains("Remedy: mount"), "{text}");
    }
}
