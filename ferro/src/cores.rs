//! Cores: which two to measure on, and pinning.

use std::collections::BTreeSet;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::failure::{Failure, Result};

const THIS_THREAD: Pid = Pid::from_raw(0);

/// The cores that this process may use.
///
/// # Errors
///
/// When the kernel does not say.
pub fn allowed() -> Result<Vec<usize>> {
    let set =
        sched_getaffinity(THIS_THREAD).map_err(|e| Failure::io("ask for the allowed cores", e))?;
    Ok((0..CpuSet::count())
        .filter(|core| set.is_set(*core).unwrap_or(false))
        .collect())
}

/// Two cores that share no execution units; the same one twice where there is but one.
///
/// # Errors
///
/// As [`allowed`].
pub fn pair() -> Result<(usize, usize)> {
    let allowed = allowed()?;
    let first = *allowed
        .first()
        .ok_or_else(|| Failure::new("this process may use no core"))?;
    let siblings = thread_siblings(first);
    let other = allowed
        .iter()
        .find(|core| !siblings.contains(core))
        .or_else(|| allowed.get(1));
    Ok((first, other.copied().unwrap_or(first)))
}

/// Pins the calling thread, and with it the processes that it starts from now on, to some cores.
///
/// # Errors
///
/// For cores that there are not.
pub fn pin(cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    let pinned = cores
        .iter()
        .try_for_each(|core| set.set(*core))
        .and_then(|()| sched_setaffinity(THIS_THREAD, &set));
    pinned.map_err(|e| Failure::io(format!("pin to core {cores:?}"), e))
}

fn thread_siblings(core: usize) -> BTreeSet<usize> {
    let file = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let mut siblings = std::fs::read_to_string(file)
        .map(|text| parse_list(&text))
        .unwrap_or_default();
    siblings.insert(core);
    siblings
}

/// The kernel's list format: `0,4-6`.
fn parse_list(text: &str) -> BTreeSet<usize> {
    let mut cores = BTreeSet::new();
    for part in text.trim().split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(low), Ok(high)) = (low.parse::<usize>(), high.parse::<usize>()) {
            cores.extend(low..=high.min(low + 4096));
        }
    }
    cores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists() {
        assert_eq!(parse_list("0,4-6\n"), BTreeSet::from([0, 4, 5, 6]));
        assert_eq!(parse_list("3"), BTreeSet::from([3]));
        assert_eq!(parse_list("junk"), BTreeSet::new());
    }

    #[test]
    fn a_pinned_thread_runs_where_it_was_told() {
        let (_, core) = pair().unwrap();
        std::thread::spawn(move || {
            pin(&[core]).unwrap();
            assert_eq!(allowed().unwrap(), [core]);
        })
        .join()
        .unwrap();
        assert!(pin(&[usize::MAX]).is_err());
    }
}
