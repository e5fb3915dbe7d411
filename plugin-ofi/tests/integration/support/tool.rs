//! Tools that look for wrong accesses to memory, and the processes of tests that run under them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::has_program;

/// Says under which tool all processes of tests are to run: `valgrind` or `asan`.
const ASKED_FOR: &str = "FERRO_TEST_UNDER";

/// Set for a process of a test that runs under a tool.
const HERE: &str = "FERRO_TEST_TOOL";

/// The tool that a process runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Nothing.
    Plain,
    /// The address sanitizer of the C compiler: C code is compiled for it, and all allocations of
    /// the process are watched.
    Asan,
    /// Valgrind's memcheck.
    Valgrind,
}

impl Tool {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Asan, Self::Valgrind];

    /// The one for processes of tests that name none.
    ///
    /// # Panics
    ///
    /// When the variable names another.
    pub fn asked_for() -> Self {
        match std::env::var(ASKED_FOR).as_deref() {
            Err(_) | Ok("") => Self::Plain,
            Ok("asan") => Self::Asan,
            Ok("valgrind") => Self::Valgrind,
            Ok(other) => panic!("{ASKED_FOR}={other} is no tool"),
        }
    }

    /// The one that this process runs under.
    pub fn here() -> Self {
        let name = std::env::var(HERE).unwrap_or_default();
        let here = Self::ALL.into_iter().find(|tool| tool.name() == name);
        here.unwrap_or(Self::Plain)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Asan => "asan",
            Self::Valgrind => "valgrind",
        }
    }

    /// Whether it is installed; where it is not, prints why a test is skipped.
    pub fn is_here(self) -> bool {
        let missing = match self {
            Self::Plain => return true,
            Self::Asan if sanitizer().is_none() => "the C compiler has no address sanitizer",
            Self::Valgrind if !has_program("valgrind") => "valgrind is not installed here",
            _ => return true,
        };
        // The Soft-RoCE machine has neither a compiler nor the time.
        let word = match std::env::var_os("FERRO_MACHINE") {
            Some(_) => "for other machines",
            None => "SKIP",
        };
        println!("{word}: {missing}");
        false
    }

    /// The options that compile C code of a test.
    pub fn compiler_options(self) -> &'static [&'static str] {
        match self {
            Self::Asan => &["-fsanitize=address", "-g"],
            _ => &["-g"],
        }
    }

    /// Starts a program under it.
    ///
    /// # Panics
    ///
    /// When it is not installed.
    pub fn run(self, program: &Path) -> Command {
        let mut command = match self {
            Self::Valgrind => {
                let mut command = Command::new("valgrind");
                command
                    // One thread runs at a time: without turns, one that polls would keep the one
                    // that it waits for from running.
                    .args(["--fair-sched=yes", "--error-exitcode=9", "--quiet"])
                    .arg(program);
                command
            }
            _ => Command::new(program),
        };
        if self == Self::Asan {
            // The program itself is compiled without it, so its library has to be the first.
            let library = sanitizer().expect("the C compiler has an address sanitizer");
            command.env("LD_PRELOAD", library);
            // Memory that libraries keep until the end is no fault, and no leak of the test's. An
            // allocation that fails returns NULL, so that its caller has to handle it.
            command.env(
                "ASAN_OPTIONS",
                "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
            );
        }
        command.env(HERE, self.name());
        command
    }
}

/// The library of the C compiler's address sanitizer.
fn sanitizer() -> Option<PathBuf> {
    let asked = Command::new("cc")
        .arg("-print-file-name=libasan.so")
        .output();
    let path = PathBuf::from(String::from_utf8(asked.ok()?.stdout).ok()?.trim());
    // A compiler that has none says the name again.
    path.is_absolute().then_some(path)
}
