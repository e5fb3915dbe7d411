//! Named address vectors when memory is short, holders are killed, and processes fork (fi_av(3),
//! `docs/adr/0046`).
//!
//! Each scenario runs in a process of its own: one that is killed by a signal fails its test, and
//! no other.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ferrofabric_av::{AvAttr, AvTable};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::PeerAv;
use ferrofabric_contracts::types::AvType;

const DOMAIN: &str = "faults";
const FOLDER: &str = "/dev/shm";

/// Set in a process that runs a scenario, to the name of its address vector.
const SCENARIO: &str = "FERRO_TEST_NAMED_AV_FAULT";

fn attr(name: &str) -> AvAttr {
    AvAttr {
        av_type: Some(AvType::Table),
        name: Some(name.to_owned()),
        ..AvAttr::default()
    }
}

fn name(n: u64) -> NativeAddr {
    NativeAddr {
        incarnation: n,
        node: n ^ 0x5555,
        shm: Some(n),
        verbs: None,
    }
}

/// The name of the address vector, in a process that runs a scenario.
fn scenario() -> Option<String> {
    std::env::var(SCENARIO).ok()
}

/// A process that runs `test` of this file as a scenario, started by `words`.
fn process(words: &[&str], test: &str, name: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let mut command = match words {
        [] => Command::new(&this),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&this);
            command
        }
    };
    command
        .args([
            "--exact",
            &format!("named_av_faults::{test}"),
            "--nocapture",
        ])
        .env(SCENARIO, name);
    command
}

fn run(words: &[&str], test: &str, name: &str) -> Output {
    let output = process(words, test, name).output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Files of address vectors whose names contain `tag`.
fn files(tag: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(FOLDER).unwrap();
    let paths = all.filter_map(|one| Some(one.ok()?.path()));
    let has_tag = |path: &PathBuf| path.to_string_lossy().contains(tag);
    paths.filter(has_tag).collect()
}

/// Runs a command with a file system of 2 MiB in place of the folder of named address vectors.
const SMALL_FOLDER: [&str; 5] = [
    "unshare",
    "-m",
    "sh",
    "-c",
    r#"mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$0" "$@""#,
];

/// Fills the folder. Returns the file that takes the room.
fn fill_up() -> PathBuf {
    let path = Path::new(FOLDER).join("ballast");
    let mut file = File::create(&path).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    path
}

/// In a full folder, insertion and opening fail with `ENOSPC`. Earlier addresses stay, for this
/// holder and for another, and both go on when there is room again.
///
/// Covers: AV-4, AV-6, AV-10
#[test]
fn a_full_folder_is_an_error_and_no_signal() {
    if let Some(name) = scenario() {
        return without_room(&name);
    }
    let mut probe = Command::new(SMALL_FOLDER[0]);
    let probed = probe.args(&SMALL_FOLDER[1..]).arg("true").output();
    if !probed.is_ok_and(|output| output.status.success()) {
        println!("SKIP: no file system can be mounted here");
        return;
    }
    let test = "a_full_folder_is_an_error_and_no_signal";
    let output = run(&SMALL_FOLDER, test, "full");
    assert!(output.status.success(), "it ended with {}", output.status);
}

fn without_room(shared: &str) {
    let [one, other] = [(); 2].map(|()| AvTable::open(&attr(shared), DOMAIN).unwrap());
    let ballast = fill_up();
    let mut inserted = 0;
    // The table grows until there is no room for it.
    let error = loop {
        match one.insert(&name(inserted)) {
            Ok(placed) => assert_eq!(placed.addr.0, inserted),
            Err(error) => break error,
        }
        inserted += 1;
        assert!(inserted < 1 << 20, "so many addresses have room in 2 MiB");
    };
    println!("after {inserted} addresses: {error}");
    assert_eq!(error.errno(), Errno::ENOSPC);
    assert!(error.to_string().contains(FOLDER), "{error}");
    for table in [&one, &other] {
        assert_eq!(table.len() as u64, inserted);
        for n in 0..inserted {
            let addr = table.find(&name(n));
            assert_eq!((addr.0, table.lookup(addr)), (n, Some(name(n))));
        }
        assert!(!table.find(&name(inserted)).is_some());
    }
    let socket_room = other.insert(&name(inserted)).unwrap_err();
    assert_eq!(socket_room.errno(), Errno::ENOSPC);
    let third = AvTable::open(&attr("another"), DOMAIN).err().unwrap();
    println!("opening: {third}");
    assert_eq!(third.errno(), Errno::ENOSPC);
    assert_eq!(files("another"), Vec::<PathBuf>::new());
    std::fs::remove_file(ballast).unwrap();
    let last = other.insert(&name(inserted)).unwrap();
    assert_eq!(one.lookup(last.addr), Some(name(inserted)));
}

/// The next opener of an address vector of any name removes the file that a killed holder leaves;
/// the file of a living holder stays.
///
/// Covers: AV-4
#[test]
fn the_next_opener_removes_files_of_killed_holders() {
    if let Some(name) = scenario() {
        let table = AvTable::open(&attr(&name), DOMAIN).unwrap();
        table.insert(&crate::named_av_faults::name(1)).unwrap();
        println!("ready");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        drop(table);
        return;
    }
    let test = "the_next_opener_removes_files_of_killed_holders";
    let tag = format!("left-{}", std::process::id());
    let mut holders: Vec<_> = ["dead", "alive"]
        .iter()
        .map(|which| {
            let mut child = process(&[], test, &format!("{tag}-{which}"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(said.any(|line| line.unwrap().ends_with("ready")));
            // The holder goes on writing until its end.
            (child, said)
        })
        .collect();
    assert_eq!(files(&tag).len(), 2);
    holders[0].0.kill().unwrap();
    holders[0].0.wait().unwrap();
    // Another process that opens one meanwhile, as tests of other programs do, removes the file, too.
    let other = AvTable::open(&attr(&format!("next-{tag}")), DOMAIN).unwrap();
    assert_eq!(files(&format!("{tag}-dead")), Vec::<PathBuf>::new());
    assert_eq!(files(&format!("{tag}-alive")).len(), 1);
    drop(other);
    drop(holders[1].0.stdin.take());
    assert!(holders[1].0.wait().unwrap().success());
    assert_eq!(files(&tag), Vec::<PathBuf>::new());
}

/// Runs `child` in a forked process, and returns its result, which is the exit status.
fn forked(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the scenario's process has no thread but this one that holds a lock, and the child
    // ends below.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let all = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: ends the child without what the parent's test harness would do at its end.
        unsafe { libc::_exit(i32::from(!all.unwrap_or(false))) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// A child that drops an inherited named address vector leaves it to its parent; the child reads
/// it, does not change it, and may open the same one for itself.
///
/// Covers: AV-4
#[test]
fn a_forked_child_leaves_a_named_address_vector_alone() {
    if let Some(name) = scenario() {
        return parent_and_child(&name);
    }
    let test = "a_forked_child_leaves_a_named_address_vector_alone";
    let name = format!("forked-{}", std::process::id());
    assert!(run(&[], test, &name).status.success());
    assert_eq!(files(&name), Vec::<PathBuf>::new());
}

fn parent_and_child(shared: &str) {
    let mut held = Some(AvTable::open(&attr(shared), DOMAIN).unwrap());
    let table = |held: &Option<AvTable>| held.as_ref().map(|table| table.find(&name(1)));
    let addr = held.as_ref().unwrap().insert(&name(1)).unwrap().addr;
    let is_left_alone = forked(|| {
        let inherited = held.as_ref().unwrap();
        let reads = inherited.lookup(addr) == Some(name(1));
        let refused = inherited.insert(&name(2)).is_err() && inherited.remove(addr).is_err();
        drop(held.take());
        reads && refused
    });
    assert_eq!(files(shared).len(), 1, "the child took the file away");
    assert!(is_left_alone, "the child changed what it had inherited");
    // Another opener finds the table, not a new one.
    let second = AvTable::open(&attr(shared), DOMAIN).unwrap();
    assert_eq!(second.find(&name(1)), addr);
    drop(second);
    assert_eq!(table(&held), Some(addr));
    let has_its_own = forked(|| {
        let own = AvTable::open(&attr(shared), DOMAIN).unwrap();
        let placed = own.insert(&name(3)).unwrap();
        own.find(&name(1)) == addr && placed.new
    });
    assert!(has_its_own);
    let held = held.unwrap();
    assert!(held.find(&name(3)).is_some());
    assert_eq!(files(shared).len(), 1);
}

/// Another version of this library has the file open: an opener gets an error, and does not wait.
///
/// Covers: AV-4
#[test]
fn a_file_of_another_version_is_an_error() {
    let name = format!("version-{}", std::process::id());
    let _held = AvTable::open(&attr(&name), DOMAIN).unwrap();
    let [path] = &files(&name)[..] else {
        panic!("{:?}", files(&name));
    };
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut head = [0; 4096];
    file.read_exact_at(&mut head, 0).unwrap();
    // The mark without its lowest byte, which has the version.
    let mark = head.windows(7).position(|bytes| bytes == b"a orref");
    let version = mark.expect("the file has its mark") - 1;
    file.write_all_at(&[head[version] ^ 0x40], version as u64)
        .unwrap();
    let error = AvTable::open(&attr(&name), DOMAIN).map(drop).unwrap_err();
    assert_eq!(error.errno(), Errno::EPROTO, "{error}");
    assert!(error.to_string().contains("another version"), "{error}");
}
