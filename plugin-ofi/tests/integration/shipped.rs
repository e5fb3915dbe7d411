//! The library as it ships: its needs of the system that loads it.

use std::path::PathBuf;

use goblin::elf::Elf;
use goblin::elf::dynamic::DF_1_NODELETE;

/// Where cargo puts what these tests are linked with, it puts the library itself.
fn library() -> Vec<u8> {
    let program = std::env::current_exe().expect("this program");
    let path: PathBuf = program.with_file_name("libferro_fi.so");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn it_needs_the_c_library_and_nothing_else() {
    const ANYWHERE: [&str; 7] = [
        "ld-linux",
        "libc.so",
        "libdl.so",
        "libgcc_s.so",
        "libm.so",
        "libpthread.so",
        "librt.so",
    ];
    let library = library();
    let elf = Elf::parse(&library).expect("an ELF file");
    assert!(
        elf.libraries.iter().any(|name| name.starts_with("libc.so")),
        "{:?}",
        elf.libraries
    );
    for name in &elf.libraries {
        assert!(
            ANYWHERE.iter().any(|start| name.starts_with(start)),
            "needs {name}"
        );
    }
    // An undefined symbol would stop the library from loading, or bind to another library's.
    for symbol in elf.dynsyms.iter().filter(|symbol| symbol.is_import()) {
        let name = elf.dynstrtab.get_at(symbol.st_name).unwrap_or_default();
        assert!(
            !["fi_", "ibv_", "rdma_"]
                .iter()
                .any(|start| name.starts_with(start)),
            "needs {name}"
        );
    }
}

#[test]
fn it_offers_the_entry_point_and_nothing_else() {
    let library = library();
    let elf = Elf::parse(&library).expect("an ELF file");
    let offered: Vec<_> = elf
        .dynsyms
        .iter()
        .filter(|symbol| !symbol.is_import() && symbol.st_shndx != 0)
        .filter_map(|symbol| elf.dynstrtab.get_at(symbol.st_name))
        .collect();
    assert_eq!(offered, ["fi_prov_ini"]);
}

#[test]
fn it_stays_mapped_for_the_threads_that_run_it() {
    let library = library();
    let elf = Elf::parse(&library).expect("an ELF file");
    let flags = elf.dynamic.expect("it is dynamic").info.flags_1;
    assert_ne!(flags & DF_1_NODELETE, 0, "{flags:#x}");
}
