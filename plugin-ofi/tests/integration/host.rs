//! The plugin finds the libfabric that loaded it, and calls that one. Each test runs itself in a
//! process of its own, since a process has one; `host/libfabric.c` stands in for libfabric.

use crate::support;
use ferrofabric_conformance::this_program::name_beside_this_test;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::{NonNull, null, null_mut};

use ferro_fi::abi::{
    FI_EBADFLAGS, FI_VERSION, fi_fabric_attr, fi_info, fi_log_level, fi_log_subsys, fi_provider,
    fi_rx_attr, fi_tx_attr,
};
use ferro_fi::host::Host;
use ferro_fi::{log, provider, settings};
use ferrofabric_contracts::config::SETTINGS;
use ferrofabric_contracts::error::Errno;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use support::tool::Tool;

/// Set in the process that a test is for.
const CHILD: &str = "FERRO_TEST_HOST";

/// Runs a test's body in a process of its own, then under the tools that look for wrong accesses to
/// memory, and hands out what the first wrote to standard error.
fn alone(test: &str, body: impl FnOnce()) -> String {
    if std::env::var_os(CHILD).is_some() {
        body();
        return String::new();
    }
    let here = Tool::ALL.into_iter().filter(|tool| tool.is_here());
    let mut said: Vec<String> = here.map(|tool| run_under(tool, test)).collect();
    said.swap_remove(0)
}

fn run_under(tool: Tool, test: &str) -> String {
    let mut command = tool.run(&std::env::current_exe().expect("this program"));
    command
        .args(["--exact", &name_beside_this_test(test), "--nocapture"])
        .env(CHILD, "1");
    for setting in SETTINGS {
        let name = setting.name.to_uppercase();
        command
            .env_remove(format!("FERRO_{name}"))
            .env_remove(format!("FI_FERRO_{name}"));
    }
    let output = command.output().expect("the child runs");
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{tool:?}: {text}{errors}"
    );
    errors.into_owned()
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// A loaded stand-in.
struct Double(Library);

impl Double {
    /// Compiles it as `folder/file`, of a name of its own as libraries have it, and loads it for
    /// itself alone.
    fn load(folder: &str, file: &str, version: u32) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("host-{}", std::process::id()))
            .join(folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join(file);
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O0"])
            .args(Tool::here().compiler_options())
            .arg(format!("-DVERSION={version}"))
            .arg(format!("-Wl,-soname,{file}"))
            .arg("-o")
            .arg(&path)
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/integration/host/libfabric.c"
            ))
            .status()
            .expect("a C compiler is installed");
        assert!(status.success());
        // SAFETY: it has no initialisers.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
        std::fs::remove_dir_all(&folder).expect("it is there");
        Self(library.expect("it loads"))
    }

    fn symbol<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: the callers know the signatures.
        *unsafe { self.0.get::<F>(name.to_bytes_with_nul()) }.expect("the symbol")
    }

    /// Calls `body` through the library.
    fn call<T>(&self, body: impl FnOnce() -> T) -> T {
        struct Call<F, T>(Option<F>, Option<T>);
        extern "C" fn run<F: FnOnce() -> T, T>(call: *mut c_void) {
            // SAFETY: it is the one below.
            let call = unsafe { &mut *call.cast::<Call<F, T>>() };
            call.1 = call.0.take().map(|body| body());
        }
        fn run_of<F: FnOnce() -> T, T>(_: &Call<F, T>) -> extern "C" fn(*mut c_void) {
            run::<F, T>
        }
        let mut call = Call(Some(body), None);
        let run = run_of(&call);
        let through: unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void) =
            self.symbol(c"double_call");
        // SAFETY: the signatures are those of the C file.
        unsafe { through(run, (&raw mut call).cast()) };
        call.1.expect("it was called")
    }

    fn record(&self) -> String {
        let record: unsafe extern "C" fn() -> *const c_char = self.symbol(c"double_record");
        // SAFETY: a string of the library.
        let text = unsafe { CStr::from_ptr(record()) };
        text.to_str().expect("plain text").to_owned()
    }

    fn show(&self, level: fi_log_level) {
        let show: unsafe extern "C" fn(c_int) = self.symbol(c"double_show");
        // SAFETY: as declared.
        unsafe { show(level.0 as c_int) };
    }

    fn set(&self, name: &'static CStr, value: &'static CStr) {
        let set: unsafe extern "C" fn(*const c_char, *const c_char) = self.symbol(c"double_set");
        // SAFETY: as declared.
        unsafe { set(name.as_ptr(), value.as_ptr()) };
    }
}

fn attach() -> Option<&'static Host> {
    let provider = Box::leak(Box::new(fi_provider {
        name: c"ferro".as_ptr(),
        ..fi_provider::default()
    }));
    // SAFETY: it lives for ever and has its name.
    unsafe { Host::attach(NonNull::from(provider)) }
}

#[test]
fn of_several_the_one_that_calls_is_taken() {
    alone("of_several_the_one_that_calls_is_taken", || {
        let first = Double::load("first", "libfabric.so.1", FI_VERSION(2, 1));
        let second = Double::load("second", "libfabric.so.1", FI_VERSION(2, 5));
        let host = second.call(attach).expect("the second calls");
        assert_eq!(host.version(), FI_VERSION(2, 5));
        assert!(Host::get().is_some_and(|got| std::ptr::eq(got, host)));

        // The plugin serves one libfabric in a process, and logs a warning to the other.
        first.show(fi_log_level::FI_LOG_WARN);
        assert!(first.call(attach).is_none());
        assert!(
            first
                .record()
                .contains("log 0 0 fi_prov_ini line serves a libfabric of this process already\n"),
            "{}",
            first.record()
        );
        assert_eq!(Host::get().map(Host::version), Some(FI_VERSION(2, 5)));
    });
}

#[test]
fn without_a_caller_the_name_finds_it() {
    alone("without_a_caller_the_name_finds_it", || {
        let _other = Double::load("other", "libanother.so.1", FI_VERSION(2, 1));
        let _double = Double::load("named", "libfabric.so.1", FI_VERSION(2, 5));
        assert_eq!(attach().map(Host::version), Some(FI_VERSION(2, 5)));
    });
}

#[test]
fn whatever_its_name_it_is_found() {
    alone("whatever_its_name_it_is_found", || {
        let _double = Double::load("wheel", "libfabric-1f2e3d.so.1.30", FI_VERSION(2, 4));
        assert_eq!(attach().map(Host::version), Some(FI_VERSION(2, 4)));
    });
}

#[test]
fn where_there_is_none_that_is_said() {
    let errors = alone("where_there_is_none_that_is_said", || {
        assert!(attach().is_none());
        assert!(Host::get().is_none());
        settings::settings().expect("those of the environment");
    });
    assert!(
        is_child() || errors.contains("no libfabric in this process"),
        "{errors}"
    );
}

#[test]
fn an_old_libfabric_is_refused_in_its_log() {
    let errors = alone("an_old_libfabric_is_refused_in_its_log", || {
        let double = Double::load("old", "libfabric.so.1", FI_VERSION(1, 17));
        assert!(double.call(attach).is_none());
        assert!(Host::get().is_none());
        assert!(
            double.record().contains("needs libfabric 2.0 or newer\n"),
            "{}",
            double.record()
        );
    });
    assert!(!errors.contains("libferro-fi"), "{errors}");
}

#[test]
fn it_stays_loaded_and_makes_infos() {
    alone("it_stays_loaded_and_makes_infos", || {
        let double = Double::load("gone", "libfabric.so.1", FI_VERSION(2, 1));
        let host = double.call(attach).expect("it calls");
        let record: unsafe extern "C" fn() -> *const c_char = double.symbol(c"double_record");
        drop(double);

        let info: NonNull<fi_info> = host.new_info().expect("there is memory");
        // SAFETY: it has 4096 bytes, and is not used afterwards.
        unsafe {
            info.cast::<[u8; 5]>().write(*b"mark\0");
            host.free_info(info);
        }
        // SAFETY: a string of the library, which is still there.
        let text = unsafe { CStr::from_ptr(record()) };
        assert!(text.to_bytes().ends_with(b"freed mark\n"), "{text:?}");
    });
}

#[test]
fn it_finds_and_opens_other_providers() {
    alone("it_finds_and_opens_other_providers", || {
        let double = Double::load("others", "libfabric.so.1", FI_VERSION(2, 1));
        let host = double.call(attach).expect("it calls");
        let starve: unsafe extern "C" fn(c_int) = double.symbol(c"double_starve");
        let mut attr = fi_fabric_attr {
            name: c"".as_ptr().cast_mut(),
            ..fi_fabric_attr::default()
        };
        // SAFETY: the double reads the hints and attributes as strings.
        unsafe {
            let hints = host.new_info().expect("there is memory");
            hints.cast::<[u8; 6]>().write(*b"hints\0");
            let attr = NonNull::from(&mut attr);
            attr.cast::<[u8; 5]>().write(*b"attr\0");
            let list = host.offers(hints).expect("the double offers one");
            assert_ne!(list, hints);
            let fabric = host.open_fabric(attr).expect("the double opens it");
            assert_eq!(fabric.cast(), attr);
            let asked = "getinfo 2.0 - - 0x1000000000000000 hints\nfabric attr\n";
            assert!(double.record().contains(asked), "{}", double.record());

            starve(1);
            assert_eq!(host.offers(hints), Err(Errno::ENODATA));
            assert_eq!(host.open_fabric(attr), Err(Errno::ENOMEM));
            host.free_info(list);
            host.free_info(hints);
        }
    });
}

/// libfabric makes "no data" of every error of a provider, so the test calls the provider itself.
///
/// Covers: GI-8
#[test]
fn bad_flags_and_a_lack_of_memory_are_said() {
    alone("bad_flags_and_a_lack_of_memory_are_said", || {
        // SAFETY: no other thread of this process looks at the environment.
        unsafe { std::env::set_var("FERRO_VERBS", "off") };
        let double = Double::load("asked", "libfabric.so.1", FI_VERSION(2, 1));
        // SAFETY: the double is the libfabric that calls.
        let provider = double.call(|| unsafe { provider::fi_prov_ini() });
        // SAFETY: it is the plugin's, which has one.
        let getinfo = unsafe { (*provider).getinfo }.expect("a provider is asked");
        let ask = |flags: u64, hints: *const fi_info| {
            let mut info = null_mut();
            // SAFETY: as fi_getinfo(3) has it.
            let result = unsafe {
                getinfo(
                    FI_VERSION(2, 1),
                    null(),
                    null(),
                    flags,
                    hints,
                    &raw mut info,
                )
            };
            assert_eq!(result == 0, !info.is_null());
            (result, info)
        };
        let free: unsafe extern "C" fn(*mut fi_info) = double.symbol(c"fi_freeinfo");
        let (found, info) = ask(0, null());
        assert_eq!(found, 0);
        // SAFETY: it is the double's.
        unsafe { free(info) };

        // Of each flag that is none, and of a capability that is none in each field.
        for bit in [0, 1, 20, 34, 36, 53, 56] {
            assert_eq!(ask(1 << bit, null()).0, -FI_EBADFLAGS, "bit {bit}");
        }
        let none = 1 << 24;
        for (caps, of_tx, of_rx) in [(none, 0, 0), (0, none, 0), (0, 0, none)] {
            let mut tx = fi_tx_attr {
                caps: of_tx,
                ..fi_tx_attr::default()
            };
            let mut rx = fi_rx_attr {
                caps: of_rx,
                ..fi_rx_attr::default()
            };
            let hints = fi_info {
                caps,
                tx_attr: &raw mut tx,
                rx_attr: &raw mut rx,
                ..fi_info::default()
            };
            let refused = ask(0, &raw const hints).0;
            assert_eq!(refused, -FI_EBADFLAGS, "{caps:#x} {of_tx:#x} {of_rx:#x}");
        }

        let starve: unsafe extern "C" fn(c_int) = double.symbol(c"double_starve");
        // SAFETY: as declared.
        unsafe { starve(1) };
        assert_eq!(ask(0, null()).0, -libc::ENOMEM);
        // SAFETY: as above.
        unsafe { starve(0) };
        let (found, info) = ask(0, null());
        assert_eq!(found, 0);
        // SAFETY: as above.
        unsafe { free(info) };
    });
}

#[test]
fn settings_are_parameters() {
    alone("settings_are_parameters", || {
        let double = Double::load("settings", "libfabric.so.1", FI_VERSION(2, 1));
        let host = double.call(attach).expect("it calls");
        settings::define(host);
        let record = double.record();
        for setting in SETTINGS {
            // 0 is FI_PARAM_STRING.
            let start = format!("param {} 0 {}", setting.name, setting.help.trim());
            let line = record.lines().find(|line| line.starts_with(&start));
            let line = line.unwrap_or_else(|| panic!("no {start} in {record}"));
            assert!(
                line.contains(setting.values) && line.contains(setting.default),
                "{line}"
            );
        }

        assert_eq!(settings::settings().expect("the defaults").rx_buffers, 512);
        double.set(c"rx_buffers", c"32");
        assert_eq!(settings::settings().expect("libfabric's").rx_buffers, 32);
        double.set(c"rx_buffers", c"3");
        let error = settings::settings().expect_err("out of range").to_string();
        assert!(error.contains("FI_FERRO_RX_BUFFERS=3"), "{error}");
        // SAFETY: no other thread of this process looks at the environment.
        unsafe { std::env::set_var("FERRO_RX_BUFFERS", "64") };
        assert_eq!(settings::settings().expect("ours wins").rx_buffers, 64);
    });
}

/// Counts how often it is printed.
struct PrintCounter<'a>(&'a Cell<u32>);

impl std::fmt::Display for PrintCounter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.set(self.0.get() + 1);
        f.write_str("counted")
    }
}

#[test]
fn events_are_lines_of_its_log() {
    alone("events_are_lines_of_its_log", || {
        let double = Double::load("log", "libfabric.so.1", FI_VERSION(2, 1));
        let host = double.call(attach).expect("it calls");
        double.show(fi_log_level::FI_LOG_INFO);
        log::install(host);
        let printed = Cell::new(0);
        let all = || {
            let counted = PrintCounter(&printed);
            tracing::error!(target: "ferrofabric_verbs::cq", "an error");
            tracing::info!(target: "ferrofabric_shm", peer = 7, why = %"none", "two\nlines");
            tracing::debug!(target: "ferrofabric_verbs::mr", "debug {counted}");
            tracing::error!(target: "somebody_else", "not ours");
        };
        let lines = |from: usize| double.record()[from..].to_owned();

        let start = double.record().len();
        all();
        let expected = "log 0 6 ferrofabric_verbs::cq line an error\n\
            log 2 0 ferrofabric_shm line two lines peer=7 why=none\n";
        assert_eq!(lines(start), expected);
        assert_eq!(printed.get(), 0, "what is off is not even printed");

        // An application may turn it up meanwhile.
        double.show(fi_log_level::FI_LOG_DEBUG);
        log::refresh(host);
        let start = double.record().len();
        all();
        assert_eq!(
            lines(start),
            format!("{expected}log 3 8 ferrofabric_verbs::mr line debug counted\n")
        );

        log::stop();
        let start = double.record().len();
        all();
        assert_eq!(lines(start), "");

        log::refresh(host);
        host.log(
            fi_log_level::FI_LOG_WARN,
            fi_log_subsys::FI_LOG_AV,
            "f",
            1,
            "%s",
        );
        assert_eq!(lines(start), "log 0 5 f line %s\n");
    });
}

#[test]
fn a_subscriber_that_is_there_stays() {
    alone("a_subscriber_that_is_there_stays", || {
        let other = tracing::subscriber::NoSubscriber::default();
        tracing::subscriber::set_global_default(other).expect("it is the first");
        let double = Double::load("subscriber", "libfabric.so.1", FI_VERSION(2, 1));
        let host = double.call(attach).expect("it calls");
        double.show(fi_log_level::FI_LOG_DEBUG);
        log::install(host);
        tracing::error!(target: "ferrofabric_verbs", "for the other");
        assert!(!double.record().contains("for the other"));
    });
}
