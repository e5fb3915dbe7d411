//! Loading on this machine, and on one where the library is broken.

use std::process::Command;

use ferrofabric_verbs_sys::{LoadError, Rdmacm, Verbs};

/// Set in the child that is to see the broken library.
const CHILD: &str = "FERRO_TEST_BROKEN_LIBRARY";

#[test]
fn loading_gives_one_table_or_says_what_to_install() {
    match (Verbs::load(), Verbs::load()) {
        (Ok(first), Ok(second)) => assert!(std::ptr::eq(first, second)),
        (Err(error), Err(_)) => {
            assert!(error.to_string().contains("install libibverbs1"), "{error}");
        }
        (first, second) => panic!("{first:?} {second:?}"),
    }
    match Rdmacm::load() {
        Ok(_) => {}
        Err(error) => assert!(error.to_string().contains("install librdmacm1"), "{error}"),
    }
}

#[test]
fn a_library_that_is_no_library_is_an_error_that_quotes_the_loader() {
    if std::env::var_os(CHILD).is_some() {
        for error in [
            Verbs::load().expect_err("broken"),
            Rdmacm::load().expect_err("broken"),
        ] {
            let LoadError::Open {
                library, reason, ..
            } = &error
            else {
                panic!("{error:?}");
            };
            assert!(
                reason.contains(library) && reason.contains("file too short"),
                "{reason}"
            );
        }
        return;
    }
    // The loader reads its search path at start-up: so a child of this very test.
    let folder = std::env::temp_dir().join(format!("ferro-broken-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    for file in [Verbs::FILE, Rdmacm::FILE] {
        std::fs::write(folder.join(file), b"").expect("an empty file");
    }
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "load::a_library_that_is_no_library_is_an_error_that_quotes_the_loader",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", &folder)
        .output()
        .expect("the child runs");
    std::fs::remove_dir_all(&folder).expect("it is there");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn this_program_does_not_link_the_libraries() {
    let program = std::fs::read(std::env::current_exe().expect("this program")).expect("readable");
    let needed = needed(&program);
    assert!(
        needed.iter().any(|name| name.starts_with("libc.so")),
        "{needed:?}"
    );
    assert!(
        !needed
            .iter()
            .any(|name| name.contains("ibverbs") || name.contains("rdmacm")),
        "{needed:?}"
    );
}

/// The DT_NEEDED names of a 64-bit little-endian ELF file.
fn needed(elf: &[u8]) -> Vec<String> {
    let word = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().expect("8 bytes"));
    let half = |at: usize| {
        usize::from(u16::from_le_bytes(
            elf[at..at + 2].try_into().expect("2 bytes"),
        ))
    };
    let kind = |at: usize| u32::from_le_bytes(elf[at..at + 4].try_into().expect("4 bytes"));
    assert_eq!(&elf[..6], b"\x7fELF\x02\x01");
    let (table, entry, count) = (word(0x28) as usize, half(0x3a), half(0x3c));
    let section = |index: usize| table + index * entry;
    let dynamic = (0..count)
        .map(section)
        .find(|&at| kind(at + 4) == 6)
        .expect("a dynamic section");
    let strings = word(section(kind(dynamic + 0x28) as usize) + 0x18) as usize;
    let (start, len) = (word(dynamic + 0x18) as usize, word(dynamic + 0x20) as usize);
    (start..start + len)
        .step_by(16)
        .filter(|&at| word(at) == 1)
        .map(|at| {
            let name = &elf[strings + word(at + 8) as usize..];
            let end = name.iter().position(|&byte| byte == 0).expect("ended by 0");
            String::from_utf8_lossy(&name[..end]).into_owned()
        })
        .collect()
}
