//! Broken lanes and storms of faults on several kinds of NICs (`hw-tests/fake-device/profiles`),
//! and on one that is drawn at random.

use std::process::Command;

use fastrand::Rng;
use ferrofabric_fake_device::profile::{DeviceProfile, VARIABLE};

/// The tests of this program that run on each of these NICs.
const SUBJECTS: [&str; 8] = [
    "endpoints::breakage::",
    "endpoints::changed_pages::",
    "endpoints::endings::",
    "endpoints::faults::",
    "endpoints::flushes::",
    "endpoints::receives::",
    "endpoints::revivals::",
    "endpoints::storms::",
];

/// Runs the tests in a process of its own, whose devices are of this profile.
fn run_on(profile: &str) {
    let program = std::env::current_exe().unwrap();
    let run = Command::new(program)
        .args(SUBJECTS)
        .env(VARIABLE, profile)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "on {profile}:\n{said}");
    let passed = said.lines().find_map(|line| {
        let counts = line.strip_prefix("test result: ok. ")?;
        counts.split(' ').next()?.parse::<u32>().ok()
    });
    assert!(passed.unwrap() > SUBJECTS.len() as u32, "no tests: {said}");
}

#[test]
fn faults_on_mlx5_ib() {
    run_on("mlx5-ib");
}

#[test]
fn faults_on_bnxt() {
    run_on("bnxt");
}

#[test]
fn faults_on_irdma_e810() {
    run_on("irdma-e810");
}

#[test]
fn faults_on_the_worst() {
    run_on("worst");
}

#[test]
fn faults_on_the_worst_with_shared_receives() {
    run_on("worst-with-srq");
}

#[test]
fn faults_on_a_random_nic() {
    let given = std::env::var("FERRO_FAKE_SEED").ok();
    let seed = given.map_or_else(|| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("FERRO_FAKE_SEED={seed}");
    let profile = DeviceProfile::random(&mut Rng::with_seed(seed));
    let text = serde_json::to_string_pretty(&profile).unwrap();
    println!("{text}");
    let file = std::env::temp_dir().join(format!("ferro-nic-{}.json", std::process::id()));
    std::fs::write(&file, text).unwrap();
    run_on(file.to_str().unwrap());
    std::fs::remove_file(file).unwrap();
}

#[test]
#[ignore = "soak: all tests of endpoints on all NICs that carry reliable datagrams"]
fn everything_on_every_nic() {
    let program = std::env::current_exe().unwrap();
    for name in DeviceProfile::names() {
        if !DeviceProfile::named(name)
            .unwrap()
            .carries_reliable_datagrams()
        {
            continue;
        }
        let run = Command::new(&program)
            .args(["endpoints::", "--skip", "endpoints::zoo::"])
            .env(VARIABLE, name)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "on {name}:\n{said}");
    }
}
