//! Ranks of several processes, which are on one machine or on two.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use ferro_fi::abi::{FI_ADDR_NOTAVAIL, fid_av_set, fid_mc};

use super::oracle::Members;
use super::{Rank, Ranks, address_of, offer};
use crate::child;
use crate::client::{Libfabric, Opened};
use crate::support::nodes::Meeting;
use crate::support::plugin::Plugin;
use crate::support::skip;
use crate::support::tool::Tool;
use crate::two;

/// The ranks of a process.
const HERE: &str = "FERRO_TEST_RANKS";

/// A process of a test.
pub struct RankProcess<'a> {
    pub ranks: &'a [usize],
    pub variables: &'a [(&'a str, &'a str)],
    /// A kill ends it.
    pub is_killed: bool,
}

/// The ranks of this process, which have the addresses of all.
pub struct RanksHere {
    pub ranks: Ranks,
    /// Of each of them, its number among all.
    numbers: Vec<usize>,
    /// How many there are in all processes.
    pub number: usize,
}

/// A group of the first ranks.
pub struct FirstRanks {
    number: usize,
    /// Of each member here, where it stands among the ranks here, and what it has joined.
    joined: Vec<(usize, *mut fid_mc, *mut fid_av_set)>,
}

/// Runs `body` in each of these processes, with its ranks. With a meeting the other machine has the
/// other ranks.
pub fn in_processes(
    test: &str,
    processes: &[RankProcess<'_>],
    meeting: Option<&mut Meeting>,
    body: impl FnOnce(RanksHere),
) {
    if child::is_here() {
        return be_process(body);
    }
    let plugin = Plugin::new();
    let mut children: Vec<Child> = (processes.iter())
        .map(|process| process.start(test, &plugin))
        .collect();
    let mut outputs: Vec<_> = (children.iter_mut())
        .map(|one| BufReader::new(one.stdout.take().unwrap()))
        .collect();
    let names: Option<Vec<String>> = outputs.iter_mut().map(names_in).collect();
    let Some(names) = names else {
        // There is no libfabric, which the first process says.
        let all_end = |one: &mut Child| assert!(one.wait().unwrap().success());
        return children.iter_mut().for_each(all_end);
    };
    let mut names = names.join(" ");
    if let Some(meeting) = meeting {
        let theirs = meeting.exchange(&names);
        names = format!("{names} {theirs}");
    }
    for one in &mut children {
        writeln!(one.stdin.as_mut().unwrap(), "{names}").unwrap();
    }
    for (process, mut one) in processes.iter().zip(children) {
        let status = one.wait().unwrap();
        let ranks = process.ranks;
        assert_eq!(status.success(), !process.is_killed, "{ranks:?}: {status}");
    }
}

/// The names of ranks that a process prints; `None`: it says why it has none.
fn names_in(output: &mut impl BufRead) -> Option<String> {
    for line in output.lines().map(Result::unwrap) {
        if let Some((_, names)) = line.split_once("NAMES ") {
            return Some(names.to_owned());
        }
        if line.starts_with("SKIP") {
            println!("{line}");
            return None;
        }
    }
    panic!("a process ended without the names of its ranks");
}

impl RankProcess<'_> {
    fn start(&self, test: &str, plugin: &Plugin) -> Child {
        let mut command = Tool::asked_for().run(&std::env::current_exe().unwrap());
        let ranks: Vec<String> = self.ranks.iter().map(usize::to_string).collect();
        child::again(&mut command, test, self.variables);
        plugin.choose(&mut command);
        piped(command.env(HERE, ranks.join(" "))).spawn().unwrap()
    }
}

fn piped(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::piped()).stdout(Stdio::piped())
}

fn be_process(body: impl FnOnce(RanksHere)) {
    let Some(libfabric) = Libfabric::load() else {
        return skip("there is no libfabric 2 here (libfabric1, or ci/mpi)");
    };
    let numbers: Vec<usize> = (std::env::var(HERE).unwrap().split_whitespace())
        .map(|number| number.parse().unwrap())
        .collect();
    let domain = std::env::var(two::DOMAIN).unwrap_or_default();
    let info = offer(&libfabric, &domain).unwrap();
    let opened = Opened::new(&info);
    let mut ranks: Vec<Rank> = (numbers.iter())
        .map(|_| Rank::open(&opened, &info))
        .collect();
    let names: Vec<String> = (numbers.iter().zip(&ranks))
        .map(|(number, rank)| {
            let name = two::name_of(rank.ep);
            let bytes: Vec<String> = name.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{number}:{}", bytes.concat())
        })
        .collect();
    println!("\nNAMES {}", names.join(" "));
    let names = names_of_all();
    ranks.iter_mut().for_each(|rank| rank.insert(&names));
    body(RanksHere {
        ranks: Ranks { opened, ranks },
        numbers,
        number: names.len(),
    });
}

/// The names of the ranks of all processes, in order.
fn names_of_all() -> Vec<Vec<u8>> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let mut names: Vec<(usize, Vec<u8>)> = (line.split_whitespace())
        .map(|entry| {
            let (number, name) = entry.split_once(':').unwrap();
            let byte = |at: usize| u8::from_str_radix(&name[at * 2..at * 2 + 2], 16).unwrap();
            let bytes = (0..name.len() / 2).map(byte).collect();
            (number.parse().unwrap(), bytes)
        })
        .collect();
    names.sort();
    assert!(names.iter().map(|(number, _)| *number).eq(0..names.len()));
    names.into_iter().map(|(_, name)| name).collect()
}

impl RanksHere {
    /// Has those of the first ranks that are here join a group of the first ranks.
    pub fn join(&self, number: usize) -> FirstRanks {
        let members: Vec<usize> = (0..number).collect();
        let is_member = |at: &usize| self.numbers[*at] < number;
        let joined: Vec<_> = ((0..self.numbers.len()).filter(is_member))
            .map(|at| {
                let rank = &self.ranks.ranks[at];
                let set = rank.set(&members);
                (at, rank.join(FI_ADDR_NOTAVAIL, set, number).unwrap(), set)
            })
            .collect();
        let mut missing = joined.clone();
        self.ranks.until("a join", || {
            missing.retain(|&(at, group, _)| match self.ranks.ranks[at].event() {
                None => true,
                Some(event) => {
                    let of = (event.context as usize, event.fid);
                    assert_eq!(of, (number, group.cast()));
                    false
                }
            });
            // Others may have the same processor.
            std::thread::yield_now();
            missing.is_empty()
        });
        FirstRanks { number, joined }
    }

    /// Its members.
    pub fn members(&self, group: &FirstRanks) -> Members<'_> {
        let member = |&(at, mc, _): &(usize, *mut fid_mc, _)| {
            (self.numbers[at], &self.ranks.ranks[at], address_of(mc))
        };
        Members::new(group.number, group.joined.iter().map(member).collect())
    }

    /// Closes all objects.
    pub fn close(self, groups: &[FirstRanks]) {
        let all: Vec<_> = (groups.iter())
            .flat_map(|group| group.joined.iter().copied())
            .collect();
        self.ranks.close(&all);
    }
}
