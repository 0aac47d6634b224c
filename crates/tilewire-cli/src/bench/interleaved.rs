//! Timing several ways of doing one thing against each other.
//!
//! A shared machine changes speed by the second, so the sides take turns sample by sample. The order differs in every
//! round, so that none always follows the same neighbour:
//!
//! ```text
//! round 0   A C B        a sample = as many runs of one side as take `Effort::sample`
//! round 1   B A C        the result = medians over the rounds
//! round 2   A B C
//! ```
//!
//! Sides share buffers, and one that writes around the cache leaves the next a cold destination. So a few untimed runs
//! come before every sample of short work.

use std::time::{Duration, Instant};
use tilewire_testkit::random::Random;

/// Runs at least this long are not warmed up; 64 MiB take about this long.
const LONG: Duration = Duration::from_millis(5);

/// Untimed runs before a sample. One is not enough after a streaming side: the outermost cache does not take in
/// everything at the first touch. A cached 4 MiB transposition ran at 3.4 GB/s after one and at 8.3 after three.
const WARM_UP: u64 = 3;

/// One way of doing the work.
pub struct Side {
    /// The name in reports.
    pub name: &'static str,
    /// Does the work once.
    pub run: Box<dyn FnMut()>,
}

impl Side {
    /// A side that runs `run`.
    pub fn new(name: &'static str, run: impl FnMut() + 'static) -> Side {
        Side { name, run: Box::new(run) }
    }

    /// Times `runs` runs, after some that restore this side's state of the caches. Work longer than [`LONG`] has a
    /// working set that no cache keeps.
    fn warm_sample(&mut self, runs: u64, run: Duration) -> Duration {
        if run < LONG {
            self.sample(WARM_UP);
        }
        self.sample(runs)
    }

    fn sample(&mut self, runs: u64) -> Duration {
        let start = Instant::now();
        for _ in 0..runs {
            (self.run)();
        }
        start.elapsed()
    }

    /// How many runs fill a sample, and how long one takes. Also warms caches, page tables and branch predictors.
    fn calibrate(&mut self, sample: Duration) -> (u64, Duration) {
        let mut runs = 1;
        loop {
            let took = self.sample(runs);
            if took >= sample / 2 {
                let scale = sample.as_secs_f64() / took.as_secs_f64();
                return (((runs as f64 * scale).ceil() as u64).max(1), took.div_f64(runs as f64));
            }
            runs *= 2;
        }
    }
}

/// How much time to spend.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The least length of one sample: well above the clock's resolution and below a scheduler's time slice.
    pub sample: Duration,
    /// Samples of each side.
    pub samples: usize,
}

impl Effort {
    /// Enough to test that it works.
    pub const QUICK: Effort = Effort { sample: Duration::from_micros(100), samples: 3 };
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { sample: Duration::from_micros(500), samples: 25 }
    }
}

/// The measurement of one side, in nanoseconds per run.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// The side's name.
    pub name: &'static str,
    /// The median of the samples.
    pub median_ns: f64,
    /// The distance between the quartiles, a measure of the median's reliability.
    pub spread_ns: f64,
    /// Number of samples.
    pub samples: usize,
}

impl Timing {
    fn of(name: &'static str, mut samples: Vec<f64>) -> Timing {
        samples.sort_by(f64::total_cmp);
        let spread_ns = quantile(&samples, 0.75) - quantile(&samples, 0.25);
        Timing { name, median_ns: quantile(&samples, 0.5), spread_ns, samples: samples.len() }
    }
}

/// Measures all sides in turns; the results are in the order of the sides.
pub fn measure(sides: &mut [Side], effort: Effort) -> Vec<Timing> {
    let runs: Vec<(u64, Duration)> = sides.iter_mut().map(|side| side.calibrate(effort.sample)).collect();
    let mut samples = vec![Vec::with_capacity(effort.samples); sides.len()];
    for round in 0..effort.samples {
        for k in order(round, sides.len()) {
            let (runs, run) = runs[k];
            samples[k].push(sides[k].warm_sample(runs, run).as_nanos() as f64 / runs as f64);
        }
    }
    sides.iter().zip(samples).map(|(side, samples)| Timing::of(side.name, samples)).collect()
}

/// The order of the sides in a round. Not a rotation, in which all keep their neighbours: a side after one that leaves
/// much to be written back was a tenth slower.
pub fn order(round: usize, sides: usize) -> Vec<usize> {
    let (mut random, mut order) = (Random::new(round as u64), (0..sides).collect::<Vec<_>>());
    random.shuffle(&mut order);
    order
}

/// The fastest of some sides by median.
pub fn fastest(timings: &[Timing]) -> Option<&Timing> {
    timings.iter().min_by(|a, b| a.median_ns.total_cmp(&b.median_ns))
}

/// Linear between the two nearest ranks; `sorted` is not empty.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn medians_and_quartiles_interpolate() {
        let timing = Timing::of("x", vec![4.0, 1.0, 3.0, 2.0, 5.0]);
        assert_eq!((timing.median_ns, timing.spread_ns, timing.samples), (3.0, 2.0, 5));
        assert_eq!(Timing::of("x", vec![1.0, 2.0]).median_ns, 1.5);
    }

    #[test]
    fn sides_take_turns_in_any_order() {
        let log = Rc::new(RefCell::new(String::new()));
        let side = |name: &'static str| {
            let log = log.clone();
            Side::new(name, move || {
                log.borrow_mut().push_str(name);
                std::hint::spin_loop();
            })
        };
        // A sample of no time: one run calibrates, then three warm up and one is timed.
        let effort = Effort { sample: Duration::ZERO, samples: 3 };
        let timings = measure(&mut [side("a"), side("b"), side("c")], effort);
        assert_eq!(timings.iter().map(|t| (t.name, t.samples)).collect::<Vec<_>>(), [("a", 3), ("b", 3), ("c", 3)]);
        let turns = |round: usize| order(round, 3).iter().map(|&k| ["aaaa", "bbbb", "cccc"][k]).collect::<String>();
        assert_eq!(*log.borrow(), format!("abc{}{}{}", turns(0), turns(1), turns(2)));
    }

    #[test]
    fn every_side_has_every_neighbour() {
        let mut follows = [[0; 5]; 5];
        for round in 0..200 {
            let order = order(round, 5);
            order.windows(2).for_each(|pair| follows[pair[0]][pair[1]] += 1);
            let mut sorted = order.clone();
            sorted.sort();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        let others = (0..5).flat_map(|a| (0..5).filter(move |&b| a != b).map(move |b| (a, b)));
        others.for_each(|(a, b)| assert!((20..=60).contains(&follows[a][b]), "{a} {b}: {}", follows[a][b]));
        assert!(order(7, 0).is_empty());
    }

    #[test]
    fn the_slower_side_is_found_slower() {
        let work = |n: u64| move || (0..n).for_each(|k| _ = std::hint::black_box(k));
        let sides = &mut [Side::new("slow", work(20_000)), Side::new("fast", work(1_000))];
        let timings = measure(sides, Effort { sample: Duration::from_micros(50), samples: 9 });
        assert_eq!(fastest(&timings).map(|t| t.name), Some("fast"));
    }
}
