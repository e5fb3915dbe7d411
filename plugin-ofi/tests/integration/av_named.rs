//! Named address vectors between two processes, in terms of C (fi_av(3)): one makes it, the other
//! finds it, and it lives until the last of them has closed it or died.

use crate::{client, two, vector};
use ferrofabric_conformance::this_program::name_beside_this_test;
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use client::{Info, Opened, Party};
use ferro_fi::abi::{FI_EINVAL, FI_READ, fi_addr_t, fi_av_attr, fi_av_type, fi_cq_tagged_entry};
use two::{EAGAIN, PATIENCE, everywhere};
use vector::{NONE, Vector, names};

/// Set in the process that makes the vector: the vector's name, and its type.
const NAME: &str = "FERRO_TEST_VECTOR";
const TYPE: &str = "FERRO_TEST_VECTOR_TYPE";

/// The start of the maker's lines, among those of the test harness.
const MARK: &str = "MAKER ";

/// The process that makes the vector, and the lines that it has written.
struct Maker {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Maker {
    fn start(test: &str, name: &str, type_: fi_av_type) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name_beside_this_test(test), "--nocapture"])
            .env(NAME, name)
            .env(TYPE, type_.0.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The harness writes the name of the test before, on the same line.
                if let Some((_, said)) = line.split_once(MARK) {
                    let _ = tell.send(said.to_owned());
                }
            }
        });
        Self {
            input: process.stdin.take().unwrap(),
            process,
            lines,
        }
    }

    /// The maker's next line.
    fn says(&self) -> String {
        let said = self.lines.recv_timeout(PATIENCE);
        said.expect("the maker of the vector says nothing")
    }

    fn says_number(&self) -> u64 {
        self.says().parse().unwrap()
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// It ends by itself.
    fn end(mut self) {
        self.tell("end");
        assert!(self.process.wait().unwrap().success());
    }
}

fn attr(name: &CString, type_: fi_av_type, flags: u64) -> fi_av_attr {
    fi_av_attr {
        type_,
        name: name.as_ptr(),
        flags,
        ..fi_av_attr::default()
    }
}

/// The process that makes the address vector.
fn make(info: &Info<'_>, name: &str) {
    let name = CString::new(name).unwrap();
    let type_ = fi_av_type(std::env::var(TYPE).unwrap().parse().unwrap());
    let opened = Opened::new(info);
    let party = opened.party_of(info, attr(&name, type_, 0));
    let own = party.insert(&party.name());
    let third = party.insert(&names(&party, 1)[0]);
    println!("{MARK}{own}");
    println!("{MARK}{third}");
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
    });
    let mut into = [0u8; 8];
    assert_eq!(party.receive(into.as_mut_ptr(), 8, null_mut(), 3), 0);
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some((len, from)) = poll(&party) {
            assert_eq!((len, into), (8, *b"question"));
            // It was never inserted here.
            answer(&party, from);
        }
        match told.try_recv().as_deref() {
            Ok("end") => break,
            Ok("look") => {
                let gone = Vector(party.av).lookup(third, 64) == Err(-FI_EINVAL);
                println!("{MARK}{}", u8::from(gone));
            }
            Ok(line) => panic!("{line}"),
            Err(_) => assert!(Instant::now() < until, "nobody ends the maker"),
        }
    }
    party.close();
    opened.close();
}

/// A completion with its source, if there is one.
fn poll(party: &Party) -> Option<(usize, fi_addr_t)> {
    let (mut entry, mut from) = (fi_cq_tagged_entry::default(), 0);
    let out = (&raw mut entry).cast();
    // SAFETY: there is room for one.
    match unsafe { call!(party.cq, ops.readfrom(out, 1, &raw mut from)) } {
        1 => Some((entry.len, from)),
        error => {
            assert_eq!(error, EAGAIN);
            None
        }
    }
}

fn answer(party: &Party, to: fi_addr_t) {
    send(party, to, b"answered");
}

fn send(party: &Party, to: fi_addr_t, bytes: &[u8; 8]) {
    let until = Instant::now() + PATIENCE;
    while party.inject(bytes, to, 3) != 0 {
        assert!(Instant::now() < until, "no room for a message");
        // SAFETY: nothing is read, so nothing is lost.
        unsafe { call!(party.cq, ops.read(null_mut(), 0)) };
    }
}

/// Runs a test for both types, with a maker of its own for each.
fn with_makers(test: &'static str, body: impl Fn(&Vectors<'_>, Maker)) {
    everywhere(test, |info| {
        if let Ok(name) = std::env::var(NAME) {
            return make(info, &name);
        }
        let opened = Opened::new(info);
        for type_ in [fi_av_type::FI_AV_MAP, fi_av_type::FI_AV_TABLE] {
            let name = format!("{test} {} {}", type_.0, std::process::id());
            let c_name = CString::new(name.clone()).unwrap();
            let vectors = Vectors {
                info,
                opened: &opened,
                name: &c_name,
                type_,
            };
            assert_eq!(vectors.find().err(), Some(-libc::ENOENT));
            let maker = Maker::start(test, &name, type_);
            body(&vectors, maker);
            let gone = vectors.find().err();
            assert_eq!(gone, Some(-libc::ENOENT), "it is left behind");
        }
        opened.close();
    });
}

/// The named vectors of a test, as its own process opens them.
struct Vectors<'a> {
    info: &'a Info<'a>,
    opened: &'a Opened,
    name: &'a CString,
    /// The maker's.
    type_: fi_av_type,
}

impl Vectors<'_> {
    fn find(&self) -> Result<Vector, i32> {
        self.open(&mut attr(self.name, fi_av_type::FI_AV_UNSPEC, FI_READ))
    }

    fn open(&self, attr: &mut fi_av_attr) -> Result<Vector, i32> {
        Vector::open(self.opened, attr)
    }

    /// An endpoint on the vector, and in it.
    fn party(&self) -> Party {
        let attr = attr(self.name, fi_av_type::FI_AV_UNSPEC, 0);
        let party = self.opened.party_of(self.info, attr);
        party.insert(&party.name());
        party
    }
}

/// Sends to the maker, which finds its peers in the vector alone, and receives its answer.
fn talk(party: &Party, maker: fi_addr_t) {
    let mut into = [0u8; 8];
    assert_eq!(party.receive(into.as_mut_ptr(), 8, null_mut(), 3), 0);
    send(party, maker, b"question");
    let until = Instant::now() + PATIENCE;
    let from = loop {
        if let Some((_, from)) = poll(party) {
            break from;
        }
        assert!(Instant::now() < until, "no answer");
    };
    assert_eq!((from, into), (maker, *b"answered"));
}

/// Each process sends to entries of the other, by the same addresses; an entry that one removes is
/// gone for both; and the vector outlives its maker, which is killed.
///
/// Covers: AV-1, AV-4, AV-5, AV-6
#[test]
fn a_vector_outlives_its_maker() {
    with_makers("a_vector_outlives_its_maker", |vectors, mut maker| {
        let [its, third] = [(); 2].map(|()| maker.says_number());
        // The type of the first opener counts, and is returned.
        let mut open = attr(vectors.name, fi_av_type::FI_AV_UNSPEC, 0);
        let av = vectors.open(&mut open).unwrap();
        assert_eq!(open.type_, vectors.type_);
        let other = match open.type_ {
            fi_av_type::FI_AV_MAP => fi_av_type::FI_AV_TABLE,
            _ => fi_av_type::FI_AV_MAP,
        };
        let refused = vectors.open(&mut attr(vectors.name, other, 0)).err();
        assert_eq!(refused, Some(-FI_EINVAL));
        assert!(!open.map_addr.is_null());
        // SAFETY: the array is there as long as the vector, and nobody writes now.
        let listed = unsafe { std::slice::from_raw_parts(open.map_addr.cast::<u64>(), 3) };
        assert_eq!(listed, [its, third, NONE]);
        let party = vectors.party();
        talk(&party, its);
        assert!(av.lookup(third, 64).is_ok());
        assert_eq!(av.remove(&mut [third], 0), 0);
        maker.tell("look");
        assert_eq!(maker.says(), "1", "the maker still has a removed entry");
        let before = av.lookup(its, 64).unwrap();
        maker.kill();
        assert_eq!(av.lookup(its, 64).unwrap(), before);
        let reader = vectors.find().unwrap();
        assert_eq!(reader.lookup(its, 64).unwrap(), before);
        assert_eq!(client::close(av.0.cast()), 0);
        assert_eq!(client::close(reader.0.cast()), 0);
        // The endpoint's is the last.
        assert_eq!(Vector(party.av).remove(&mut [its], 0), 0);
        party.close();
    });
}

/// The other way round: the process that found the vector closes first, and it goes with its maker,
/// which ends by itself or is killed.
///
/// Covers: AV-4
#[test]
fn a_vector_goes_with_its_last_opener() {
    with_makers("a_vector_goes_with_its_last_opener", |vectors, maker| {
        let [its, third] = [(); 2].map(|()| maker.says_number());
        let party = vectors.party();
        talk(&party, its);
        party.close();
        // The maker has it still, with all entries.
        let reader = vectors.find().unwrap();
        assert!(reader.lookup(third, 64).is_ok());
        assert_eq!(client::close(reader.0.cast()), 0);
        match vectors.type_ {
            fi_av_type::FI_AV_MAP => maker.kill(),
            _ => maker.end(),
        }
    });
}
