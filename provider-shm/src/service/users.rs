//! Whether a peer belongs to the same user. The kernel translates the other side's user ID into
//! this process's user namespace, and reports one number, the overflow ID, for all users without an
//! ID there. So the overflow ID identifies no user.

use std::fs::read_to_string;

/// The kernel's own default.
const OVERFLOW_ID: u32 = 65_534;

/// Compares users.
pub(super) struct Users {
    overflow_id: u32,
}

impl Users {
    pub(super) fn new() -> Self {
        let said = read_to_string("/proc/sys/kernel/overflowuid");
        let id = said.ok().and_then(|said| said.trim().parse().ok());
        Self {
            overflow_id: id.unwrap_or(OVERFLOW_ID),
        }
    }

    /// Whether a user ID from the kernel is that of this process.
    pub(super) fn is_own(&self, id: u32) -> bool {
        let own = nix::unistd::geteuid().as_raw();
        id == own && (id != self.overflow_id || is_everybody_mapped())
    }
}

/// Whether every user has an ID in this user namespace, so that the overflow ID belongs to one
/// user.
fn is_everybody_mapped() -> bool {
    read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_everybody(&map))
}

/// Lines of a map: the first ID here, the first ID in the parent namespace, the number of IDs.
/// Ranges do not overlap.
fn maps_everybody(map: &str) -> bool {
    let counts = map.lines().map(|line| {
        let count = line.split_ascii_whitespace().nth(2);
        count.and_then(|count| count.parse::<u64>().ok())
    });
    // The last number is no ID.
    counts.sum::<Option<u64>>() >= Some(u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_map_leaves_users_without_an_id() {
        assert!(maps_everybody("         0          0 4294967295\n"));
        assert!(maps_everybody("0 0 1000\n1000 500000 4294966295\n"));
        for some in [
            "",
            "\n",
            "0 1000 1\n",
            "0 100000 65536\n",
            "0 0 -1\n",
            "x y z",
        ] {
            assert!(!maps_everybody(some), "{some:?}");
        }
    }

    #[test]
    fn the_overflow_id_identifies_no_user_of_a_partial_map() {
        let own = nix::unistd::geteuid().as_raw();
        let (all, none) = (Users::new(), own ^ 1);
        assert!(all.is_own(own) || own == all.overflow_id);
        assert!(!all.is_own(none));
        // As if this process's ID were the overflow ID.
        let users = Users { overflow_id: own };
        assert_eq!(users.is_own(own), is_everybody_mapped());
    }
}
