//! Layouts as a C compiler has them, for tests. A committed text holds them, for machines without
//! the headers; where the headers are there, the text is computed anew, and so checked itself.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles a C program against the headers in a folder, runs it, and returns what it prints.
///
/// # Panics
///
/// If there is no C compiler, or the program does not compile or run.
pub fn run_c(program: &str, include: &OsStr) -> String {
    // Tests of one process run beside each other.
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let binary = std::env::temp_dir().join(format!("ferro-layout-{}-{run}", std::process::id()));
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-w", "-o"])
        .arg(&binary)
        .arg("-isystem")
        .arg(include)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler is installed");
    compiler
        .stdin
        .take()
        .expect("asked for")
        .write_all(program.as_bytes())
        .expect("the compiler reads");
    assert!(
        compiler.wait().expect("it ends").success(),
        "the C program does not compile"
    );
    let output = Command::new(&binary).output().expect("it runs");
    fs::remove_file(&binary).expect("it is there");
    String::from_utf8(output.stdout).expect("plain text")
}

/// Checks that a committed text is what C has now. A text that is not is written anew first, for
/// the developer to look at the difference.
///
/// # Panics
///
/// If the text was out of date.
pub fn assert_current(path: &Path, committed: &str, fresh: &str) {
    if fresh == committed {
        return;
    }
    fs::write(path, fresh).expect("the text can be written");
    panic!(
        "{} was out of date and has been written anew; look at the difference and run again",
        path.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_prints_what_the_headers_have() {
        let folder = std::env::temp_dir().join(format!("ferro-headers-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("here.h"), "struct here { char a; long b; };\n").expect("a header");
        let program = "#include <here.h>\n#include <stddef.h>\n#include <stdio.h>\n\
            int main(void) { printf(\"%zu\\n\", offsetof(struct here, b)); return 0; }\n";
        assert_eq!(run_c(program, folder.as_os_str()), "8\n");
        fs::remove_dir_all(&folder).expect("it is there");
    }

    #[test]
    fn a_text_that_is_out_of_date_is_written_anew() {
        let path = std::env::temp_dir().join(format!("ferro-text-{}", std::process::id()));
        fs::write(&path, "old\n").expect("a file");
        assert_current(&path, "old\n", "old\n");
        let outcome = std::panic::catch_unwind(|| assert_current(&path, "old\n", "new\n"));
        assert!(outcome.is_err());
        assert_eq!(fs::read_to_string(&path).expect("a file"), "new\n");
        fs::remove_file(&path).expect("it is there");
    }
}
