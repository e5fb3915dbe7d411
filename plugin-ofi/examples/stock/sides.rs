//! A program with two sides: one listens, the other connects, and both talk in lines of text.

use std::io::{BufRead, BufReader, Error};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;

use super::ended;

/// The lines of the other side.
pub(crate) type Lines = std::io::Lines<BufReader<TcpStream>>;

/// Runs the side that the arguments name: `serve` gets a port, `ask` an address and the words of a
/// task.
pub(crate) fn run(
    program: &str,
    task: &str,
    serve: impl FnOnce(&str) -> Result<(), String>,
    ask: impl FnOnce(&str, &[&str]) -> Result<(), String>,
) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ran = match arguments.as_slice() {
        ["listen", port] => serve(port),
        [address, task @ ..] => ask(address, task),
        [] => Err(format!("wanted: listen PORT, or HOST:PORT {task}")),
    };
    ended(program, ran)
}

/// Waits for the other side.
pub(crate) fn accept(port: &str) -> Result<(TcpStream, Lines), String> {
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).map_err(failed("listen"))?;
    let (stream, _) = listener.accept().map_err(failed("accept"))?;
    with_lines(stream)
}

/// Connects to the other side.
pub(crate) fn connect(address: &str) -> Result<(TcpStream, Lines), String> {
    with_lines(TcpStream::connect(address).map_err(failed("connect"))?)
}

fn with_lines(stream: TcpStream) -> Result<(TcpStream, Lines), String> {
    let reader = stream.try_clone().map_err(failed("duplicate the stream"))?;
    Ok((stream, BufReader::new(reader).lines()))
}

/// The other side's next line.
pub(crate) fn next(lines: &mut Lines) -> Result<String, String> {
    match lines.next() {
        Some(line) => line.map_err(failed("read from the other side")),
        None => Err("the other side is gone".to_owned()),
    }
}

/// The error of a step.
pub(crate) fn failed(step: &'static str) -> impl Fn(Error) -> String {
    move |error| format!("{step}: {error}")
}
