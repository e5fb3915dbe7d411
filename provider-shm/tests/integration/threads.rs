//! The threads of a domain, in a process without other threads.

use ferrofabric_conformance::progress;
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::info::Progress;
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_shm::ShmProvider;

#[test]
fn automatic_progress_ends_with_the_domain() {
    let settings = Settings::read(|_| None).unwrap();
    let found = ShmProvider::new().discover(&settings);
    let mut info = found.candidates.into_iter().next().unwrap();
    info.domain.data_progress = Progress::Auto;
    progress::the_thread_ends(|| ShmProvider::new().open(&info, &settings).unwrap());
}
