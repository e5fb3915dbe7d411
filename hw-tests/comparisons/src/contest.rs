//! One measurement at one size: ours and each rival in turn, round after round, and the rows that
//! come of it. A round counts for the distance of the cores that both of its sides saw.

use ferro::failure::Result;
use ferro::providers::Path;

use crate::bench::{Bench, Figure, name_of};
use crate::moments::Moments;
use crate::ours::OurSample;
use crate::peer::{Peer, Rival, Statistic};
use crate::probe::Distance;
use crate::row::{Row, median, minimum};
use crate::{mpi, ours};

/// Our side.
#[derive(Clone, Copy)]
pub(crate) enum OurSide<'a> {
    /// `ferro bench`.
    Ferro,
    /// MPI over our plugin.
    Mpi(&'a mpi::MpiRun),
    /// A program whose processes run both sides by turns: libfabric's collectives over our plugin,
    /// and MPI's. It has one rival, without a program of its own.
    Offload(&'a mpi::MpiRun),
}

impl OurSide<'_> {
    /// The first word in the names of its measurements.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Ferro => "tagged",
            Self::Mpi(_) => "mpi",
            Self::Offload(_) => "offload",
        }
    }

    /// Measures once. A program that runs both sides has the figure of the rival, too.
    fn measure(self, what: &Measurement) -> Result<(OurSample, Option<f64>)> {
        let Measurement {
            path,
            bench,
            size,
            messages,
            cores,
            ..
        } = *what;
        match self {
            Self::Ferro => Ok((ours::measure(path, bench, size, messages, cores)?, None)),
            Self::Mpi(run) => Ok((run.measure(bench, size, messages, cores)?, None)),
            Self::Offload(run) => {
                let (sample, theirs) = run.measure_both(bench, messages, cores)?;
                Ok((sample, Some(theirs)))
            }
        }
    }
}

/// The subject of a measurement, and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measurement {
    pub(crate) suite: &'static str,
    /// The first word of its name.
    pub(crate) kind: &'static str,
    pub(crate) path: Path,
    pub(crate) bench: Bench,
    pub(crate) size: usize,
    /// Messages of a burst.
    pub(crate) messages: u64,
    pub(crate) cores: (usize, usize),
}

impl Measurement {
    /// A row without figures.
    pub(crate) fn empty_row(&self, figure: &Figure, peer: &str, distance: Distance) -> Row {
        Row {
            suite: self.suite.to_owned(),
            bench: format!("{}_{}", self.kind, figure.name),
            path: match self.bench {
                Bench::DatagramLatency => "ud".to_owned(),
                _ => name_of(self.path).to_owned(),
            },
            size: self.size,
            peer: peer.to_owned(),
            metric: figure.metric.to_owned(),
            better: self.bench.better().to_owned(),
            ours: None,
            theirs: None,
            ratio: None,
            rounds: 0,
            near: distance == Distance::Near,
            ours_min: None,
            theirs_min: None,
            skipped: None,
        }
    }

    fn measure_peer(&self, peer: &Peer) -> Result<f64> {
        peer.measure(self.bench, self.size, self.messages, self.cores)
    }
}

/// OurSide and its rivals.
pub(crate) struct Contest<'a> {
    pub(crate) what: Measurement,
    ours: OurSide<'a>,
    /// Of each round.
    samples: Vec<(OurSample, Option<Distance>)>,
    contenders: Vec<Contender>,
}

impl<'a> Contest<'a> {
    pub(crate) fn new(what: Measurement, ours: OurSide<'a>, rivals: Vec<Rival>) -> Self {
        Self {
            what,
            ours,
            samples: Vec::new(),
            contenders: rivals.into_iter().map(Contender::new).collect(),
        }
    }

    /// Measures all sides once.
    ///
    /// # Errors
    ///
    /// When ours does not run. A rival that does not has no figure in this round.
    pub(crate) fn round(&mut self, moments: &Moments) -> Result<()> {
        let Self { what, ours, .. } = *self;
        let ((sample, theirs), distance) = moments.burst(|| ours.measure(&what))?;
        self.samples.push((sample, distance));
        for contender in &mut self.contenders {
            match theirs {
                Some(value) => contender.results.push(Some(Burst {
                    value,
                    distance,
                    variant: 0,
                })),
                None => contender.round(distance, &what, moments),
            }
        }
        Ok(())
    }

    /// Rounds that count for a distance: those of the rival that has most of them, for one that
    /// fails would never have enough.
    pub(crate) fn rounds_at(&self, distance: Distance) -> usize {
        let running = self.contenders.iter().filter(|c| c.is_running());
        let most = running.map(|c| c.pairs(distance, &self.samples).len());
        most.max()
            .unwrap_or_else(|| self.own_at(distance, Statistic::Median).len())
    }

    /// A row for each rival and each distance that there are rounds of.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for figure in self.what.bench.figures(self.what.size) {
            for contender in &self.contenders {
                rows.extend(self.rows_of(contender, &figure));
            }
        }
        rows
    }

    fn rows_of(&self, contender: &Contender, figure: &Figure) -> Vec<Row> {
        let mut rows = Vec::new();
        for distance in Distance::ALL {
            let pairs = contender.pairs(distance, &self.samples);
            if !pairs.is_empty() {
                rows.push(self.row(contender, figure, distance, &pairs));
            }
        }
        if !rows.is_empty() {
            return rows;
        }
        let ran = contender.results.iter().any(Option::is_some);
        if ran {
            let mut row = self.what.empty_row(figure, &contender.name, Distance::Far);
            row.skipped = Some(self.roughly(contender, figure));
            return vec![row];
        }
        // OurSide has figures all the same.
        for distance in Distance::ALL {
            let ours = self.own_at(distance, Statistic::Median);
            if !ours.is_empty() {
                let ours: Vec<f64> = ours.iter().map(|value| figure.of(*value)).collect();
                let mut row = self.what.empty_row(figure, &contender.name, distance);
                row.ours = median(&ours);
                row.ours_min = minimum(&ours);
                row.rounds = ours.len();
                rows.push(row);
            }
        }
        if rows.is_empty() {
            rows.push(self.what.empty_row(figure, &contender.name, Distance::Far));
        }
        for row in &mut rows {
            row.skipped = Some(contender.why_not.clone());
        }
        rows
    }

    /// The medians of the rounds of a distance: of the figures, and of the rounds' ratios.
    fn row(
        &self,
        contender: &Contender,
        figure: &Figure,
        distance: Distance,
        pairs: &[(f64, f64)],
    ) -> Row {
        let ours: Vec<f64> = pairs.iter().map(|p| figure.of(p.0)).collect();
        let theirs: Vec<f64> = pairs.iter().map(|p| figure.of(p.1)).collect();
        let ratios: Vec<f64> = pairs.iter().map(|p| p.0 / p.1).collect();
        let name = contender.peer_at(Some(distance)).map(|peer| &peer.name);
        Row {
            ours: median(&ours),
            theirs: median(&theirs),
            ratio: median(&ratios),
            rounds: pairs.len(),
            ours_min: minimum(&ours),
            theirs_min: minimum(&theirs),
            ..self
                .what
                .empty_row(figure, name.unwrap_or(&contender.name), distance)
        }
    }

    /// The reason why no round counts, and the figures of all rounds together.
    fn roughly(&self, contender: &Contender, figure: &Figure) -> String {
        let all = |values: Vec<f64>| {
            let figures: Vec<f64> = values.iter().map(|value| figure.of(*value)).collect();
            median(&figures).map_or("-".to_owned(), ferro::report::significant)
        };
        let ours = self.samples.iter().map(|(sample, _)| sample.median);
        let theirs = contender.results.iter().flatten().map(|burst| burst.value);
        format!(
            "in no round were the cores idle and of one distance; all rounds say, at best roughly, {} to {}",
            all(ours.collect()),
            all(theirs.collect())
        )
    }

    /// Our figures at a distance.
    fn own_at(&self, distance: Distance, statistic: Statistic) -> Vec<f64> {
        let at = self.samples.iter().filter(|(_, at)| *at == Some(distance));
        at.map(|(sample, _)| statistic.of(sample)).collect()
    }
}

/// A rival in this contest.
struct Contender {
    name: String,
    variants: Vec<Peer>,
    /// The fastest variant at each distance: which is, depends on it.
    chosen: Vec<(Option<Distance>, usize)>,
    /// Of each round.
    results: Vec<Option<Burst>>,
    why_not: String,
}

/// One measurement of a rival.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Burst {
    value: f64,
    distance: Option<Distance>,
    /// Which variant it is of.
    variant: usize,
}

impl Contender {
    fn new(rival: Rival) -> Self {
        Self {
            name: rival.name.to_owned(),
            why_not: format!("{} is not installed", rival.program),
            variants: rival.variants,
            chosen: Vec::new(),
            results: Vec::new(),
        }
    }

    /// Whether the last round has a figure.
    fn is_running(&self) -> bool {
        self.results.last().is_some_and(Option::is_some)
    }

    /// Measures it once, at the distance that ours saw if that lasts.
    fn round(&mut self, distance: Option<Distance>, what: &Measurement, moments: &Moments) {
        let result = self.choose(distance, what, moments).and_then(|variant| {
            let peer = self.variants.get(variant)?;
            match moments.burst(|| what.measure_peer(peer)) {
                Ok((value, distance)) => Some(Burst {
                    value,
                    distance,
                    variant,
                }),
                Err(failure) => {
                    self.why_not = failure.to_string();
                    None
                }
            }
        });
        self.results.push(result);
    }

    /// The fastest variant at this size and distance. A distance at which none has run yet has each
    /// run once.
    fn choose(
        &mut self,
        distance: Option<Distance>,
        what: &Measurement,
        moments: &Moments,
    ) -> Option<usize> {
        if self.variants.len() < 2 {
            return (!self.variants.is_empty()).then_some(0);
        }
        if let Some(chosen) = self.chosen_at(distance) {
            return Some(chosen);
        }
        let mut best: Option<(usize, f64)> = None;
        for (variant, peer) in self.variants.iter().enumerate() {
            match moments.burst(|| what.measure_peer(peer)) {
                Ok((value, _)) if best.is_none_or(|(_, b)| what.bench.is_better(value, b)) => {
                    best = Some((variant, value));
                }
                Ok(_) => {}
                Err(failure) => self.why_not = failure.to_string(),
            }
        }
        let (chosen, _) = best?;
        self.chosen.push((distance, chosen));
        Some(chosen)
    }

    /// The chosen variant; in a round that will not count, at any distance.
    fn chosen_at(&self, distance: Option<Distance>) -> Option<usize> {
        let mut chosen = self.chosen.iter();
        let found = match distance {
            Some(_) => chosen.find(|(at, _)| *at == distance),
            None => chosen.next(),
        };
        found.map(|(_, variant)| *variant)
    }

    fn peer_at(&self, distance: Option<Distance>) -> Option<&Peer> {
        self.variants.get(self.chosen_at(distance).unwrap_or(0))
    }

    /// OurSide and theirs, of the rounds of which both sides saw that distance.
    fn pairs(&self, distance: Distance, ours: &[(OurSample, Option<Distance>)]) -> Vec<(f64, f64)> {
        let statistic = self
            .peer_at(Some(distance))
            .map_or(Statistic::Median, |peer| peer.statistic);
        let variant = self.chosen_at(Some(distance)).unwrap_or(0);
        let rounds = ours.iter().zip(&self.results);
        rounds
            .filter_map(|((sample, our_distance), theirs)| {
                let theirs = (*theirs)?;
                let counts = [*our_distance, theirs.distance] == [Some(distance); 2]
                    && theirs.variant == variant;
                counts.then(|| (statistic.of(sample), theirs.value))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Distance::{Far, Near};
    use super::*;

    fn what(bench: Bench, size: usize) -> Measurement {
        Measurement {
            suite: "shm",
            kind: "tagged",
            path: Path::Shm,
            bench,
            size,
            messages: 1,
            cores: (0, 0),
        }
    }

    fn sample(value: f64) -> OurSample {
        OurSample {
            median: value,
            mean: 10.0 * value,
        }
    }

    fn burst(value: f64, distance: Option<Distance>) -> Option<Burst> {
        Some(Burst {
            value,
            distance,
            variant: 0,
        })
    }

    /// Rounds of ours and of a rival.
    fn contest(
        what: Measurement,
        rounds: &[(f64, Option<Distance>, Option<Burst>)],
    ) -> Contest<'static> {
        Contest {
            what,
            ours: OurSide::Ferro,
            samples: rounds.iter().map(|r| (sample(r.0), r.1)).collect(),
            contenders: vec![Contender {
                name: "rival".to_owned(),
                variants: Vec::new(),
                chosen: Vec::new(),
                results: rounds.iter().map(|r| r.2).collect(),
                why_not: "it is not there".to_owned(),
            }],
        }
    }

    #[test]
    fn a_round_counts_for_the_distance_that_both_sides_saw() {
        let contest = contest(
            what(Bench::Latency, 8),
            &[
                (1.0, Some(Near), burst(2.0, Some(Near))),
                (8.0, Some(Near), burst(9.0, Some(Far))),
                (3.0, Some(Near), burst(4.0, Some(Near))),
                (6.0, Some(Far), burst(5.0, Some(Far))),
                (7.0, Some(Far), burst(7.0, None)),
                (7.0, None, burst(7.0, Some(Far))),
                (7.0, Some(Far), None),
                (7.0, None, burst(7.0, None)),
            ],
        );
        assert_eq!([Near, Far].map(|d| contest.rounds_at(d)), [2, 1]);
        let rows = contest.rows();
        let [near, far] = &rows[..] else {
            panic!("{rows:?}");
        };
        assert_eq!(
            (near.near, near.rounds, near.ours, near.theirs),
            (true, 2, Some(2.0), Some(3.0))
        );
        // Of 1/2 and 3/4.
        assert_eq!(near.ratio, Some(0.625));
        assert_eq!((near.ours_min, near.theirs_min), (Some(1.0), Some(2.0)));
        assert_eq!(
            (far.near, far.rounds, far.ours, far.theirs, far.ratio),
            (false, 1, Some(6.0), Some(5.0), Some(1.2))
        );
        assert!(rows.iter().all(|row| row.skipped.is_none()));
    }

    #[test]
    fn rounds_of_no_distance_make_no_row_of_either() {
        let rounds = [
            (1.0, Some(Near), burst(2.0, Some(Far))),
            (3.0, None, burst(4.0, None)),
        ];
        let contest = contest(what(Bench::Latency, 8), &rounds);
        let rows = contest.rows();
        let [row] = &rows[..] else {
            panic!("{rows:?}");
        };
        assert_eq!((row.ours, row.theirs, row.ratio), (None, None, None));
        assert_eq!(row.rounds, 0);
        let why = row.skipped.as_deref().unwrap();
        assert!(why.contains("in no round"), "{why}");
        assert!(why.ends_with("2.00 to 3.00"), "{why}");
    }

    #[test]
    fn a_rival_that_is_not_there_is_a_row_that_says_so() {
        let rounds = [(1.0, Some(Near), None), (3.0, Some(Far), None)];
        let rows = contest(what(Bench::Bandwidth, 8), &rounds).rows();
        let said: Vec<_> = rows
            .iter()
            .map(|row| (row.near, row.ours, row.theirs, row.skipped.as_deref()))
            .collect();
        let why = Some("it is not there");
        assert_eq!(
            said,
            [(true, Some(1.0), None, why), (false, Some(3.0), None, why)]
        );
        let busy = contest(what(Bench::Bandwidth, 8), &[(1.0, None, None)]).rows();
        assert_eq!((busy.len(), busy[0].ours), (1, None));
    }

    #[test]
    fn a_program_that_runs_both_sides_has_both_figures() {
        // The script gets the arguments -n RANKS FILE CALLS ROUNDS CORE0 CORE1.
        let run = mpi::MpiRun::of_shell(
            r#"echo "{\"median_us\": 6, \"theirs_median_us\": $1, \"messages\": $3}""#,
        );
        let core = ferro::cores::pair().unwrap();
        let what = Measurement {
            cores: core,
            ..what(Bench::OffloadAllreduce(4), 8)
        };
        let rivals = vec![Rival::in_same_run(mpi::OWN_ALLREDUCE)];
        let rows = std::thread::spawn(move || {
            let mut contest = Contest::new(what, OurSide::Offload(&run), rivals);
            contest.round(&Moments::all()).unwrap();
            contest.round(&Moments::all()).unwrap();
            contest.rows()
        });
        let rows = rows.join().unwrap();
        let [row] = &rows[..] else {
            panic!("{rows:?}");
        };
        assert_eq!((row.ours, row.theirs), (Some(6.0), Some(4.0)));
        assert_eq!((row.rounds, row.ratio), (2, Some(1.5)));
        assert_eq!(row.peer, mpi::OWN_ALLREDUCE);
    }

    #[test]
    fn a_variant_is_chosen_for_each_distance() {
        let mut contest = contest(
            what(Bench::Latency, 8),
            &[
                (1.0, Some(Near), burst(2.0, Some(Near))),
                (1.0, Some(Far), burst(9.0, Some(Far))),
                (1.0, Some(Far), burst(4.0, Some(Far))),
            ],
        );
        let contender = &mut contest.contenders[0];
        contender.chosen = vec![(Some(Near), 0), (Some(Far), 1)];
        if let Some(burst) = &mut contender.results[2] {
            burst.variant = 1;
        }
        assert_eq!(contender.chosen_at(None), Some(0));
        let rows = contest.rows();
        assert_eq!(
            rows.iter().map(|row| row.theirs).collect::<Vec<_>>(),
            [Some(2.0), Some(4.0)]
        );
    }

    #[test]
    fn the_rate_of_threads_is_a_bandwidth_too() {
        let rounds = [(2e6, Some(Far), burst(4e6, Some(Far)))];
        let rows = contest(what(Bench::ThreadRate(4), 64), &rounds).rows();
        let figures: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.bench.as_str(),
                    row.metric.as_str(),
                    row.ours,
                    row.theirs,
                )
            })
            .collect();
        assert_eq!(
            figures,
            [
                ("tagged_rate_4_threads", "rate_mps", Some(2e6), Some(4e6)),
                (
                    "tagged_bandwidth_4_threads",
                    "bandwidth_mbs",
                    Some(128.0),
                    Some(256.0)
                ),
            ]
        );
        assert_eq!(rows[1].ratio, Some(0.5));
        assert!(!rows[1].near);
    }
}
