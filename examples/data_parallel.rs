//! Workers train the same parameters, each on its part of the data: in each round they add up their
//! gradients by an allreduce, and take the same step. So all have the same parameters, bit for bit,
//! without a server. A barrier and a broadcast begin the training.
//!
//! `cargo run --release --example data_parallel`

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use ferrofabric::addr::Address;
use ferrofabric::{Error, Operator, RdmEndpoint};

const WORKERS: usize = 4;
const ROUNDS: usize = 200;
/// Points on a line for each worker.
const POINTS: usize = 500;
const SLOPE: f64 = 3.0;
const OFFSET: f64 = -2.0;
const STEP: f64 = 0.5;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

pub(crate) fn main() -> Result<(), Error> {
    // Processes would exchange their addresses in a file or over a connection.
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..WORKERS).map(|_| channel()).unzip();
    let workers: Vec<_> = (receivers.into_iter().enumerate())
        .map(|(number, addresses)| {
            let to_all = senders.clone();
            std::thread::spawn(move || work(number, &to_all, &addresses))
        })
        .collect();
    let mut results = Vec::new();
    for worker in workers {
        results.push(worker.join().expect("a worker does not panic")?);
    }
    let [slope, offset] = results[0];
    println!("{WORKERS} workers: y = {slope:.3} x + {offset:.3}");
    assert!(results.iter().all(|other| *other == results[0]));
    assert!((slope - SLOPE).abs() < 0.01 && (offset - OFFSET).abs() < 0.01);
    Ok(())
}

fn work(
    number: usize,
    to_all: &[Sender<(usize, Address)>],
    addresses: &Receiver<(usize, Address)>,
) -> Result<[f64; 2], Error> {
    let mut endpoint = RdmEndpoint::builder().collectives(true).open()?;
    for to in to_all {
        let own = (number, endpoint.address());
        to.send(own).expect("a worker waits for all addresses");
    }
    let mut all: Vec<_> = addresses.iter().take(WORKERS).collect();
    all.sort_unstable_by_key(|&(number, _)| number);
    let mut members = Vec::new();
    for (_, address) in all {
        members.push(endpoint.insert(address)?);
    }
    let join = endpoint.join(&members)?;
    let group = endpoint.wait_for(join, TIMEOUT)?;

    // The first worker has the parameters to begin with.
    let first = endpoint.broadcast(&group, members[0], &[0.5, 0.5])?;
    let mut parameters = endpoint.wait_for(first, TIMEOUT)?;
    for _ in 0..ROUNDS {
        let gradient = gradient(number, &parameters);
        let sum = endpoint.allreduce(&group, Operator::SUM, &gradient)?;
        let sum = endpoint.wait_for(sum, TIMEOUT)?;
        for (parameter, gradient) in parameters.iter_mut().zip(sum) {
            *parameter -= STEP * gradient / (WORKERS * POINTS) as f64;
        }
    }
    // No worker closes its endpoint before all have the result.
    let last = endpoint.barrier(&group)?;
    endpoint.wait_for(last, TIMEOUT)?;
    endpoint.leave(group)?;
    Ok([parameters[0], parameters[1]])
}

/// Half the gradient of the squared distance between a worker's points and the line.
fn gradient(worker: usize, parameters: &[f64]) -> [f64; 2] {
    let mut sum = [0.0; 2];
    for point in 0..POINTS {
        let x = (worker * POINTS + point) as f64 / (WORKERS * POINTS) as f64 * 2.0 - 1.0;
        let distance = parameters[0] * x + parameters[1] - (SLOPE * x + OFFSET);
        sum[0] += distance * x;
        sum[1] += distance;
    }
    sum
}
