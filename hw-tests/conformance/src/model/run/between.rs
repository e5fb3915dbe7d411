//! Programs whose ranks are in two processes, on one machine or two: each process runs the steps of
//! its own ranks, and at the end each lists for the other the messages that it has sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

use ferrofabric_contracts::addr::NativeAddr;
use serde::{Deserialize, Serialize};

use super::*;

/// The time for which both processes drive their endpoints between two reports of progress.
const TURN: Duration = Duration::from_millis(10);

/// A message that may be lost has not come if nothing has come for so long.
const QUIET_END: Duration = Duration::from_secs(1);

/// The way to the other process.
pub trait OtherProcess {
    /// Gives it `ours` and gets what it gives, once both have called.
    fn exchange(&mut self, ours: &str) -> String;
}

/// Both ways of a connection.
pub trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// A stream of lines.
pub struct LineStream<S> {
    to: S,
    from: BufReader<S>,
}

impl<S: Stream> LineStream<S> {
    /// The two ends of a stream, which may be the same.
    pub fn new(to: S, from: S) -> Self {
        let from = BufReader::new(from);
        Self { to, from }
    }

    /// Writes a line.
    ///
    /// # Errors
    ///
    /// When nobody reads.
    pub fn put(&mut self, line: &str) -> std::io::Result<()> {
        writeln!(self.to, "{line}")
    }

    /// Reads a line; `None` at the end.
    ///
    /// # Errors
    ///
    /// When none comes in time, if the stream has a timeout.
    pub fn get(&mut self) -> std::io::Result<Option<String>> {
        let mut line = String::new();
        let read = self.from.read_line(&mut line)?;
        Ok((read > 0).then(|| line.trim_end().to_owned()))
    }
}

/// A message that was sent to a rank of the other process.
#[derive(Serialize, Deserialize)]
struct RemoteSend {
    to: NodeNumber,
    number: usize,
    from: NodeNumber,
    tagged: bool,
    tag: u64,
    len: usize,
    data: Option<u64>,
    may_be_lost: bool,
}

/// The messages that the ranks of a process have seen so far.
struct Arrivals {
    seen: usize,
    /// When the last one came.
    last: Instant,
}

/// How far a process is.
#[derive(Serialize, Deserialize)]
struct ProcessProgress {
    sends_are_over: bool,
    has_all: bool,
    failed: Option<Wrong>,
}

/// Runs a program of which this process has the ranks whose number modulo 2 is `process`. Returns
/// what these saw.
///
/// # Errors
///
/// As [`run`]; also what was wrong at the other side.
pub fn run_between(
    fabric: &Fabric,
    program: &RankProgram,
    process: usize,
    other: &mut dyn OtherProcess,
) -> Result<Vec<ReceiverHistory>, Wrong> {
    let mut run = MessageRun::new(fabric, program);
    run.share = (process, 2);
    for rank in 0..program.ranks {
        run.open(rank);
    }
    let names: Vec<String> = run.nodes.iter().map(|live| live.name.to_string()).collect();
    let theirs: Vec<String> = read(&other.exchange(&write(&names)))?;
    for (live, name) in run.nodes.iter_mut().zip(theirs) {
        if live.elsewhere {
            live.name = name.parse::<NativeAddr>().map_err(|why| why.to_string())?;
        }
    }
    run.introduce_all();
    let mut outcome = program.steps.iter().enumerate().try_for_each(|(at, step)| {
        let here = step.actor().is_none_or(|rank| {
            let node = run.node(rank);
            !run.nodes[node].elsewhere
        });
        match here {
            true => run.step(step).map_err(|why| format!("step {at}: {why}")),
            false => Ok(()),
        }
    });
    let theirs = other.exchange(&write(&run.sent_elsewhere()));
    run.note_sent(read(&theirs)?);
    let until = Instant::now() + fabric.patience;
    let mut arrivals = Arrivals {
        seen: 0,
        last: Instant::now(),
    };
    loop {
        let mut ours = ProcessProgress {
            sends_are_over: false,
            has_all: false,
            failed: outcome.as_ref().err().cloned(),
        };
        if outcome.is_ok() {
            match run.turn(&mut arrivals) {
                Ok((sends_are_over, has_all)) => {
                    ours.sends_are_over = sends_are_over;
                    ours.has_all = has_all;
                }
                Err(why) => ours.failed = Some(why),
            }
            if Instant::now() > until {
                ours.failed = Some(format!("it does not end: {}", run.state()));
            }
        }
        let theirs: ProcessProgress = read(&other.exchange(&write(&ours)))?;
        if let Some(why) = ours.failed {
            return Err(why);
        }
        if let Some(why) = theirs.failed {
            return Err(format!("at the other side: {why}"));
        }
        let both = |ours: bool, theirs: bool| ours && theirs;
        if both(ours.sends_are_over, theirs.sends_are_over) && both(ours.has_all, theirs.has_all) {
            break;
        }
    }
    let theirs = other.exchange(&write(&run.written_elsewhere()));
    run.note_written(read(&theirs)?);
    outcome = run.end_one_sided().and_then(|()| run.end_receives());
    // Neither closes before the other is done.
    let failed = outcome.as_ref().err().cloned();
    let theirs: Option<Wrong> = read(&other.exchange(&write(&failed)))?;
    outcome?;
    match theirs {
        Some(why) => Err(format!("at the other side: {why}")),
        None => Ok(run.histories()),
    }
}

fn write(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

fn read<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T, Wrong> {
    serde_json::from_str(text).map_err(|why| format!("the other process says {text}: {why}"))
}

impl MessageRun<'_> {
    /// Drives what is here for a while. Says whether all sends are over, and whether all messages
    /// are here. One that may be lost may come before another one.
    fn turn(&mut self, arrivals: &mut Arrivals) -> Result<(bool, bool), Wrong> {
        let since = Instant::now();
        while since.elapsed() < TURN {
            self.pump_all()?;
            self.take_all_out()?;
        }
        let counted = self.counted()?;
        let sends = counted.iter().all(|(sent, all)| sent == all) && self.is_sent();
        let ops = self.ops_are_over()?;
        let seen = (0..self.nodes.len()).map(|at| self.seen(at)).sum();
        if seen != arrivals.seen {
            let last = Instant::now();
            *arrivals = Arrivals { seen, last };
        }
        let is_quiet = arrivals.last.elapsed() > QUIET_END;
        let has_all = |at| {
            let (seen, sent) = (self.seen(at), self.nodes[at].history.messages.len());
            seen >= self.due(at) && (is_quiet || !self.may_miss(at) || seen >= sent)
        };
        Ok((sends && ops, (0..self.nodes.len()).all(has_all)))
    }

    fn sent_elsewhere(&self) -> Vec<RemoteSend> {
        let elsewhere = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, live)| live.elsewhere);
        // Sends to an address that is removed meanwhile may end either way.
        let removed = |to, at| {
            let mut sends = self.sends.iter();
            sends.any(|send| (send.to, send.message) == (to, at) && send.removed)
        };
        elsewhere
            .flat_map(|(to, live)| {
                let messages = live.history.messages.iter().enumerate();
                messages.map(move |(at, m)| RemoteSend {
                    to,
                    number: m.number,
                    from: m.from,
                    tagged: m.kind == MsgKind::Tagged,
                    tag: m.tag,
                    len: m.len,
                    data: m.data,
                    may_be_lost: m.may_be_lost || removed(to, at),
                })
            })
            .collect()
    }

    /// Nobody here knows when these were sent: they may have come at any time.
    fn note_sent(&mut self, sent: Vec<RemoteSend>) {
        for sent in sent {
            let history = &mut self.nodes[sent.to].history;
            history
                .events
                .insert(0, ReceiverEvent::Sent(history.messages.len()));
            history.messages.push(SentMessage {
                number: sent.number,
                from: sent.from,
                kind: kind(sent.tagged),
                tag: sent.tag,
                len: sent.len,
                data: sent.data,
                may_be_lost: sent.may_be_lost,
            });
        }
    }
}
