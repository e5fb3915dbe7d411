//! Workers train parameters in the memory of a server. A worker takes the number of the next batch
//! by fetch-and-add, reads the parameters, and adds its gradient to them by atomic sums. The server
//! takes no part but in its domain's thread. All gradients are whole numbers, so the sums are
//! exact, and the server checks them.
//!
//! `cargo run --release --example parameter_server`

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ferrofabric::info::Progress;
use ferrofabric::{
    AtomicRegion, Buffer, Error, FiAddr, Inbound, MessageSource, Operator, RdmEndpoint,
    ReceivedMessage, RemoteAtomicRegion,
};

const WORKERS: usize = 3;
const BATCHES: u64 = 100;
/// More than one operation changes.
const PARAMETERS: usize = 1000;
const PIECE: usize = RemoteAtomicRegion::<f64>::MAX_ELEMENTS;

/// The tags of a worker's messages.
const HELLO: u64 = 1;
const DONE: u64 = 2;

const TIME_LIMIT: Duration = Duration::from_secs(30);
const TIMEOUT: Option<Duration> = Some(TIME_LIMIT);

pub(crate) fn main() -> Result<(), Error> {
    // A thread of the domain carries the workers' operations out.
    let server = RdmEndpoint::builder().progress(Progress::Auto).open()?;
    let address = server.address().to_string();
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let address = address.clone();
            std::thread::spawn(move || work(&address, number))
        })
        .collect();
    serve(server)?;
    workers
        .into_iter()
        .try_for_each(|worker| worker.join().expect("a worker does not panic"))
}

fn serve(mut server: RdmEndpoint) -> Result<(), Error> {
    let parameters: AtomicRegion<f64> = server.share_atomic(&[0.0; PARAMETERS])?;
    let next_batch: AtomicRegion<u64> = server.share_atomic(&[0])?;
    let handles = [
        parameters.remote().to_bytes(),
        next_batch.remote().to_bytes(),
    ];
    for _ in 0..WORKERS {
        // The handles go to a peer in the address vector.
        let worker = match receive(&mut server, HELLO)?.source() {
            MessageSource::Known(worker) => *worker,
            MessageSource::Unknown(Some(address)) => server.insert(address)?,
            MessageSource::Unknown(None) => unreachable!("the endpoint has all addresses"),
        };
        server.inject(worker, handles.as_flattened())?;
    }
    let begun = Instant::now();
    for _ in 0..WORKERS {
        receive(&mut server, DONE)?;
    }
    let rate = BATCHES as f64 / begun.elapsed().as_secs_f64();
    println!("server: {rate:.0} batches/s of {PARAMETERS} parameters");

    // Each worker has taken one number behind the last batch.
    let taken = next_batch.atomics()[0].load(Ordering::Relaxed);
    assert_eq!(taken, BATCHES + WORKERS as u64);
    assert_eq!(parameters.close(), sum_of_all());
    server.close(TIME_LIMIT)
}

fn receive(server: &mut RdmEndpoint, tag: u64) -> Result<ReceivedMessage, Error> {
    let message = server.recv(Inbound::from(Buffer::new(64)?).tag(tag))?;
    Ok(server.wait_for(message, TIMEOUT)?)
}

fn work(server: &str, number: usize) -> Result<(), Error> {
    let mut worker = RdmEndpoint::open()?;
    let server = worker.insert(server)?;
    worker.tinject(server, HELLO, b"")?;
    let handles = worker.recv(Buffer::new(64)?)?;
    let handles = worker.wait_for(handles, TIMEOUT)?;
    let (parameters, next_batch) = handles.bytes().split_at(RemoteAtomicRegion::<f64>::BYTES);
    let parameters = RemoteAtomicRegion::<f64>::from_bytes(parameters)?;
    let next_batch = RemoteAtomicRegion::<u64>::from_bytes(next_batch)?;

    // Other workers' gradients come on top of its own.
    let (mut least, most) = (vec![0.0; PARAMETERS], sum_of_all());
    let mut batches = 0;
    loop {
        let batch = worker.fetch_atomic(server, next_batch, Operator::SUM, 1)?;
        let batch = worker.wait_for(batch, TIMEOUT)?;
        let values = read(&mut worker, server, parameters)?;
        let is_between = |(at, value): (usize, &f64)| (least[at]..=most[at]).contains(value);
        assert!(values.iter().enumerate().all(is_between), "{values:?}");
        if batch >= BATCHES {
            break;
        }
        let gradient = gradient(batch);
        add(&mut worker, server, parameters, &gradient)?;
        add_to(&mut least, &gradient);
        batches += 1;
    }
    println!("worker {number}: {batches} batches");
    worker.tinject(server, DONE, b"")?;
    worker.close(TIME_LIMIT)
}

fn read(
    worker: &mut RdmEndpoint,
    server: FiAddr,
    parameters: RemoteAtomicRegion<f64>,
) -> Result<Vec<f64>, Error> {
    let mut reads = Vec::new();
    for start in (0..PARAMETERS).step_by(PIECE) {
        let piece = parameters.slice(start..PARAMETERS.min(start + PIECE))?;
        reads.push(worker.atomic_read(server, piece)?);
    }
    let mut values = Vec::new();
    for read in reads {
        values.extend(worker.wait_for(read, TIMEOUT)?);
    }
    Ok(values)
}

fn add(
    worker: &mut RdmEndpoint,
    server: FiAddr,
    parameters: RemoteAtomicRegion<f64>,
    gradient: &[f64],
) -> Result<(), Error> {
    let mut sums = Vec::new();
    for (number, values) in gradient.chunks(PIECE).enumerate() {
        let piece = parameters.slice(number * PIECE..)?;
        sums.push(worker.atomic(server, piece, Operator::SUM, values)?);
    }
    for sum in sums {
        worker.wait_for(sum, TIMEOUT)?;
    }
    Ok(())
}

/// The gradient of a batch: whole numbers, so that no sum is rounded.
fn gradient(batch: u64) -> Vec<f64> {
    let value = |at: usize| ((at as u64 * 31 + batch * 17) % 10) as f64;
    (0..PARAMETERS).map(value).collect()
}

/// The sum of the gradients of all batches.
fn sum_of_all() -> Vec<f64> {
    let mut sums = vec![0.0; PARAMETERS];
    (0..BATCHES).for_each(|batch| add_to(&mut sums, &gradient(batch)));
    sums
}

fn add_to(sums: &mut [f64], gradient: &[f64]) {
    for (sum, value) in sums.iter_mut().zip(gradient) {
        *sum += value;
    }
}
