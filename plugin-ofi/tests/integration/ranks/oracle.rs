//! Collectives of members of a group, against results that are computed in order. The members here
//! are driven in turn; others may be driven by other processes, which make the same calls.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Instant;

use ferro_fi::abi::{FI_COLLECTIVE, fi_addr_t, fi_datatype, fi_op, fid_domain};

use super::elements::{DATATYPES, Element, OPERATORS, encoded, same};
use super::{PATIENCE, Rank, reduces};

/// Bytes behind the results of operations, which stay as they are.
const BEHIND: [u8; 64] = [0x77; 64];

/// A group, the members of which are the first ranks in order.
pub struct Members<'a> {
    /// How many it has.
    number: usize,
    /// Those that are driven here, each with its rank and its address of the group.
    here: Vec<(usize, &'a Rank, fi_addr_t)>,
    /// The context of the last operation.
    context: Cell<usize>,
}

impl<'a> Members<'a> {
    pub fn new(number: usize, here: Vec<(usize, &'a Rank, fi_addr_t)>) -> Self {
        Self {
            number,
            here,
            context: Cell::new(0),
        }
    }

    /// Those that are driven here.
    pub fn here(&self) -> &[(usize, &'a Rank, fi_addr_t)] {
        &self.here
    }

    /// Each operator on elements of each type, as the domain has them, with each of these numbers
    /// of elements.
    pub fn reductions(&self, domain: *mut fid_domain, lens: &[usize]) {
        let mut tested = 0;
        for datatype in DATATYPES {
            for op in OPERATORS {
                if !reduces(domain, datatype, op) {
                    continue;
                }
                tested += 1;
                lens.iter()
                    .for_each(|&len| self.allreduce((datatype, op), len));
            }
        }
        // Integers have ten operators, floats seven, their complex numbers five. Builds of
        // libfabric differ in the others.
        assert!(tested >= 8 * 10 + 2 * 7 + 5, "{tested} operators in all");
    }

    /// Data that moves, with each root.
    pub fn data(&self, len: usize) {
        for root in 0..self.number {
            self.broadcast(root, len);
            self.scatter(root, len);
        }
        self.allgather(len);
    }

    /// Begins an operation at each member here.
    fn begin(&self, mut call: impl FnMut(usize, &Rank, fi_addr_t, usize) -> isize) {
        self.context.set(self.context.get() + 1);
        for &(rank, this, group) in &self.here {
            assert_eq!(call(rank, this, group, self.context.get()), 0);
        }
    }

    /// Waits until it is over at each member here.
    fn complete(&self) {
        let context = self.context.get();
        let mut missing: BTreeSet<usize> = self.here.iter().map(|&(rank, ..)| rank).collect();
        let until = Instant::now() + PATIENCE;
        while !missing.is_empty() {
            for &(rank, this, _) in &self.here {
                if let Some(entry) = this.read() {
                    let got = (entry.op_context as usize, entry.flags);
                    assert_eq!(got, (context, FI_COLLECTIVE));
                    assert!(missing.remove(&rank), "twice");
                }
            }
            assert!(
                Instant::now() < until,
                "not complete: {context} at {missing:?}"
            );
            // Others may have the same processor.
            std::thread::yield_now();
        }
    }

    /// A barrier, which no member leaves before this one has entered it.
    pub fn barrier(&self, last: usize) {
        self.begin(|rank, this, group, context| match rank == last {
            true => 0,
            false => this.barrier(group, context),
        });
        let Some((_, this, group)) = self.here.iter().find(|(rank, ..)| *rank == last) else {
            return self.complete();
        };
        for _ in 0..if self.number > 1 { 1000 } else { 0 } {
            for (_, this, _) in &self.here {
                assert!(this.read().is_none());
            }
        }
        assert_eq!(this.barrier(*group, self.context.get()), 0);
        self.complete();
    }

    fn allreduce(&self, (datatype, op): (fi_datatype, fi_op), len: usize) {
        let elements: Vec<Vec<Element>> = (0..self.number)
            .map(|rank| {
                (0..len)
                    .map(|at| Element::of(datatype, value(rank, at)))
                    .collect()
            })
            .collect();
        let inputs: Vec<_> = elements.iter().map(|all| encoded(datatype, all)).collect();
        let mut outputs = vec![vec![0xa5; inputs[0].len()]; self.number];
        self.begin(|rank, this, group, context| {
            let buffers = (&*inputs[rank], &mut *outputs[rank]);
            this.allreduce(buffers, len, (datatype, op), group, context)
        });
        self.complete();
        let expected: Vec<Element> = (0..len)
            .map(|at| {
                let of = elements.iter().map(|all| all[at]);
                of.reduce(|one, other| one.reduced(op, other)).unwrap()
            })
            .collect();
        let expected = encoded(datatype, &expected);
        for &(rank, ..) in &self.here {
            let what = || format!("{datatype:?} {op:?} of {len} at {rank} of {}", self.number);
            assert!(same(datatype, &outputs[rank], &expected), "{}", what());
        }
    }

    fn broadcast(&self, root: usize, len: usize) {
        // A page behind the data would show that the collective goes beyond it; a pattern does
        // here.
        let mut buffers: Vec<_> = (0..self.number)
            .map(|rank| match rank == root {
                true => [&*data_of(root, len), &BEHIND].concat(),
                false => [&*vec![0; len * 4], &BEHIND].concat(),
            })
            .collect();
        self.begin(|rank, this, group, context| {
            let at = (group, this.addrs[root]);
            this.broadcast(&mut buffers[rank], len, fi_datatype::FI_UINT32, at, context)
        });
        self.complete();
        let expected = [&*data_of(root, len), &BEHIND].concat();
        for &(rank, ..) in &self.here {
            assert!(
                buffers[rank] == expected,
                "broadcast of {len} by {root} at {rank}"
            );
        }
    }

    fn scatter(&self, root: usize, len: usize) {
        let data = data_of(root, len * self.number);
        let mut results = vec![vec![0x77; len * 4 + BEHIND.len()]; self.number];
        self.begin(|rank, this, group, context| {
            let from = (rank == root).then_some(&*data);
            let (buffers, at) = ((from, &mut *results[rank]), (group, this.addrs[root]));
            this.scatter(buffers, len, fi_datatype::FI_UINT32, at, context)
        });
        self.complete();
        for &(rank, ..) in &self.here {
            let expected = [&data[rank * len * 4..(rank + 1) * len * 4], &BEHIND].concat();
            assert!(
                results[rank] == expected,
                "scatter of {len} by {root} at {rank}"
            );
        }
    }

    fn allgather(&self, len: usize) {
        let inputs: Vec<_> = (0..self.number).map(|rank| data_of(rank, len)).collect();
        let room = len * 4 * self.number + BEHIND.len();
        let mut results = vec![vec![0x77; room]; self.number];
        self.begin(|rank, this, group, context| {
            let buffers = (&*inputs[rank], &mut *results[rank]);
            this.allgather(buffers, len, fi_datatype::FI_UINT32, group, context)
        });
        self.complete();
        let expected = [&*inputs.concat(), &BEHIND].concat();
        for &(rank, ..) in &self.here {
            assert!(results[rank] == expected, "allgather of {len} at {rank}");
        }
    }
}

/// The value of an element of a rank.
fn value(rank: usize, at: usize) -> i64 {
    ((rank * 7 + at * 3 + rank * at) % 4) as i64
}

/// The bytes of 32-bit elements of a rank.
fn data_of(rank: usize, len: usize) -> Vec<u8> {
    (0..len)
        .flat_map(|at| (rank * 1_000_003 + at + 1).to_le_bytes()[..4].to_vec())
        .collect()
}
