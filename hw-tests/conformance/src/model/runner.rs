//! Runs programs, whatever their steps send: opens and closes the endpoints of ranks, and inserts
//! and removes their addresses.

use super::history::NodeNumber;
use super::program::RankProgram;

/// A violation, in words.
pub(crate) type Wrong = String;

/// The run of a program.
pub(crate) trait Runner {
    /// A step of the program.
    type Step;

    /// The endpoint of each rank.
    fn current(&self) -> &[NodeNumber];

    /// How many endpoints there were.
    fn nodes(&self) -> usize;

    /// Opens an endpoint for a rank, which has a new number from now on.
    fn open(&mut self, rank: usize);

    /// Inserts a rank's address at another rank.
    fn insert(&mut self, at: usize, peer: usize);

    /// Removes an endpoint's address at another endpoint, if it is there.
    fn remove(&mut self, at: NodeNumber, peer: NodeNumber);

    /// Has every pair of ranks exchange a message, both ways.
    fn warm_up(&mut self) -> Result<(), Wrong>;

    /// Runs a step.
    fn step(&mut self, step: &Self::Step) -> Result<(), Wrong>;

    /// Ends what is under way, after the last step.
    fn finish(&mut self) -> Result<(), Wrong>;

    /// Reads what has completed at an endpoint, which drives it. Returns how much that was.
    fn pump(&mut self, at: NodeNumber) -> Result<usize, Wrong>;

    /// Runs a program.
    ///
    /// # Errors
    ///
    /// The violation, and the step that it happened at.
    fn run(&mut self, program: &RankProgram<Self::Step>) -> Result<(), Wrong> {
        for rank in 0..program.ranks {
            self.open(rank);
        }
        self.introduce_all();
        if program.warm {
            self.warm_up()?;
        }
        for (at, step) in program.steps.iter().enumerate() {
            self.step(step).map_err(|why| format!("step {at}: {why}"))?;
        }
        self.finish().map_err(|why| format!("at the end: {why}"))
    }

    /// Inserts every rank's address at every rank.
    fn introduce_all(&mut self) {
        let ranks = self.current().len();
        for at in 0..ranks {
            for peer in 0..ranks {
                self.insert(at, peer);
            }
        }
    }

    /// Opens a rank anew, whose endpoint `gone` is closed: the others remove its address, and
    /// insert the new one.
    fn replace(&mut self, rank: usize, gone: NodeNumber) {
        self.open(rank);
        for peer in 0..self.current().len() {
            self.remove(self.current()[peer], gone);
            self.insert(peer, rank);
            self.insert(rank, peer);
        }
    }

    /// The rank that a step names: numbers of ranks count modulo the number of ranks.
    fn rank(&self, named: u8) -> usize {
        usize::from(named) % self.current().len()
    }

    /// The endpoint of the rank that a step names.
    fn node(&self, named: u8) -> NodeNumber {
        self.current()[self.rank(named)]
    }

    /// [`pump`](Self::pump) at all endpoints.
    fn pump_all(&mut self) -> Result<usize, Wrong> {
        (0..self.nodes()).map(|node| self.pump(node)).sum()
    }
}
