//! The distance of a device from the processor on which this thread runs.

use std::fs;
use std::path::Path;

use super::facts::text;

/// Distance of memory to its own processors, as firmware gives it (ACPI 6.5 §5.2.17, SLIT).
const LOCAL: u32 = 10;

/// Distances from this thread's node, by the number of the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NumaDistances(Vec<u32>);

impl NumaDistances {
    /// From where the thread runs now.
    pub(crate) fn here() -> Self {
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
        processor(&stat)
            .and_then(|processor| Self::from(Path::new("/sys/devices/system"), processor))
            .unwrap_or_default()
    }

    /// These, of node 0, 1, ….
    #[cfg(test)]
    pub(crate) fn of(distances: &[u32]) -> Self {
        Self(distances.to_vec())
    }

    /// From a processor, out of sysfs.
    fn from(system: &Path, processor: u32) -> Option<Self> {
        let entries = fs::read_dir(system.join(format!("cpu/cpu{processor}"))).ok()?;
        let node = entries.flatten().find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_prefix("node")?.parse::<u32>().ok()
        })?;
        let distances = text(system.join(format!("node/node{node}/distance")))?;
        let numbers = distances.split_whitespace().map(str::parse);
        numbers.collect::<Result<_, _>>().ok().map(Self)
    }

    /// The distance to a node. A device without a node (a software device), or on a machine without
    /// distances, counts as being on this thread's node.
    pub(crate) fn to(&self, node: Option<u32>) -> u32 {
        node.and_then(|node| self.0.get(node as usize).copied())
            .unwrap_or(LOCAL)
    }
}

/// The processor that a thread ran on last: field 39 of proc_pid_stat(5), whose second may have
/// spaces in it.
fn processor(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: GI-14
    #[test]
    fn distances_are_those_of_the_processors_node() {
        let system = std::env::temp_dir().join(format!("ferro-numa-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = system.join(file);
            fs::create_dir_all(path.parent().expect("inside")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write("cpu/cpu7/node1/x", "");
        write("cpu/cpu7/topology/x", "");
        write("node/node1/distance", "21 10 31\n");
        let distances = NumaDistances::from(&system, 7).expect("distances");
        assert_eq!([0, 1, 2].map(|node| distances.to(Some(node))), [21, 10, 31]);
        assert_eq!((distances.to(None), distances.to(Some(3))), (10, 10));
        assert_eq!(NumaDistances::from(&system, 8), None);
        fs::remove_dir_all(&system).expect("it is ours");
        assert_eq!(NumaDistances::default().to(Some(1)), 10);
    }

    #[test]
    fn the_processor_is_found_behind_any_name() {
        let stat = "12 (a) b (c)) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 \
                    32 33 34 35 3 0 0";
        assert_eq!(processor(stat), Some(3));
        assert_eq!(processor("12 (a) R"), None);
        let own = fs::read_to_string("/proc/thread-self/stat").expect("this is Linux");
        assert!(processor(&own).is_some(), "{own}");
    }
}
