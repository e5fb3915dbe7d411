//! Runs the targets. Ends with a line as of a test program, and with 1 when a target broke.

use std::process::ExitCode;

use clap::Parser;
use ferrofabric_fuzz::{RunOptions, checks_overflow, drawn_seed, folder, run, targets};

/// Random input for every parser.
#[derive(Debug, Parser)]
#[command(name = "ferrofabric-fuzz")]
struct Arguments {
    /// Random inputs of each target
    #[arg(long, default_value_t = 100_000)]
    inputs: u64,
    /// Where the random numbers start; drawn where it is not given
    #[arg(long)]
    seed: Option<u64>,
    /// One target alone
    #[arg(long)]
    target: Option<String>,
    /// Print the names of the targets
    #[arg(long)]
    list: bool,
    /// Write the inputs that targets begin with to their corpus
    #[arg(long)]
    write_seeds: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let chosen: Vec<_> = targets::ALL
        .iter()
        .filter(|one| {
            arguments
                .target
                .as_deref()
                .is_none_or(|name| name == one.name)
        })
        .collect();
    if chosen.is_empty() {
        eprintln!("no such target");
        return ExitCode::from(2);
    }
    if arguments.list {
        for target in chosen {
            println!("{}", target.name);
        }
        return ExitCode::SUCCESS;
    }
    if arguments.write_seeds {
        for target in chosen {
            for (name, bytes) in (target.seeds)() {
                let folder = folder(target);
                let written = std::fs::create_dir_all(&folder)
                    .and_then(|()| std::fs::write(folder.join(name), bytes));
                if let Err(error) = written {
                    eprintln!("{}: {error}", folder.display());
                    return ExitCode::from(2);
                }
            }
        }
        return ExitCode::SUCCESS;
    }
    if !checks_overflow() {
        eprintln!("this program is built without overflow checks");
        return ExitCode::from(2);
    }
    let seed = arguments.seed.unwrap_or_else(drawn_seed);
    println!("seed {seed}");
    let (mut passed, mut failed) = (0, 0);
    for target in chosen {
        let options = RunOptions {
            inputs: arguments.inputs,
            seed,
        };
        let report = run(target, options);
        println!(
            "{}: {} inputs, {} different things seen, {:.1} s",
            report.target,
            report.inputs,
            report.seen,
            report.took.as_secs_f64()
        );
        match report.broken.is_empty() {
            true => passed += 1,
            false => failed += 1,
        }
        for input in report.broken {
            println!("{}: broken by {input}", report.target);
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {failed} failed; 0 ignored");
    ExitCode::from(u8::from(failed != 0))
}
