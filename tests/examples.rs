//! The examples run.

#[path = "../examples/messages.rs"]
mod messages;

#[test]
fn messages_go_from_endpoint_to_endpoint() {
    messages::main().unwrap();
}
