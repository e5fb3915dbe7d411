//! The examples run.

use std::process::Command;

#[path = "../../examples/data_parallel.rs"]
mod data_parallel;
#[path = "../../examples/key_value.rs"]
mod key_value;
#[path = "../../examples/killed_peer.rs"]
mod killed_peer;
#[path = "../../examples/parameter_server.rs"]
mod parameter_server;
#[path = "../../examples/ping_pong.rs"]
mod ping_pong;
#[path = "../../examples/server.rs"]
mod server;
#[path = "../../examples/timeout.rs"]
mod timeout;
#[path = "../../examples/with_tokio.rs"]
mod with_tokio;

#[test]
fn endpoints_play_ping_pong() {
    ping_pong::main().unwrap();
}

#[test]
fn workers_train_the_same_parameters() {
    data_parallel::main().unwrap();
}

#[test]
fn a_server_answers_unknown_clients() {
    server::main().unwrap();
}

#[test]
fn clients_look_keys_up_in_a_servers_memory() {
    key_value::main().unwrap();
}

#[test]
fn workers_add_to_a_servers_parameters() {
    parameter_server::main().unwrap();
}

#[test]
fn a_wait_gives_up() {
    timeout::main().unwrap();
}

#[test]
fn a_peer_is_killed_and_others_go_on() {
    let mut peer = Command::new(std::env::current_exe().unwrap());
    peer.args(["--exact", "examples::the_peer_that_is_killed", "--ignored"]);
    killed_peer::survive(peer).unwrap();
}

#[test]
#[ignore = "run by another, which kills it"]
fn the_peer_that_is_killed() {
    if std::env::var_os("FERRO_EXAMPLE_SURVIVOR").is_some() {
        killed_peer::die().unwrap();
    }
}

#[test]
fn tasks_of_tokio_talk() {
    with_tokio::main().unwrap();
}
