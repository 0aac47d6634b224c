//! `tilewire bench kernels`: the CPU engine's kernels against hand-written loops, in one thread.
//!
//! A [`Case`] makes a [`Contest`] for every size. To put the engine in, give the contest's `ours`:
//!
//! ```text
//! let mut op = ...;   // prepared on the same buffers as the baselines
//! contest.ours = Some(Side::new("tilewire", move || op.run().unwrap()));
//! ```

use super::buffer::Buffer;
use super::interleaved::{Effort, Side, fastest, measure};
use super::progress::Progress;
use super::report::Row;
use super::size::Size;
use crate::handwritten as hand;
use std::hint::black_box;
use std::time::Duration;

/// The sizes measured when none are asked for: within L2, within L3, beyond both.
pub const SIZES: [Size; 3] = [Size(64 << 10), Size(1 << 20), Size(64 << 20)];

/// One kind of work.
struct Case {
    name: &'static str,
    /// Sizes measured besides those asked for. A case that has no size has only the size 0 here.
    extra: &'static [usize],
    sized: bool,
    /// Prepares the sides for an input of about so many bytes.
    contest: fn(bytes: usize) -> Contest,
}

/// The sides of one case at one size.
struct Contest {
    /// Bytes of the input, after rounding to what the case can do; 0 where bytes are not the point.
    bytes: usize,
    /// The engine's side; without it the baselines are compared with the best of them.
    ours: Option<Side>,
    limit: Limit,
}

enum Limit {
    /// As fast as the fastest of these in the same run.
    Baselines(Vec<Side>),
    /// A fixed time, where there is nothing to race: what the engine's design allows.
    Target { label: &'static str, time: Duration },
}

const CASES: [Case; 9] = [
    Case { name: "copy", extra: &[], sized: true, contest: copy },
    Case { name: "scale f32", extra: &[], sized: true, contest: scale },
    Case { name: "f32 += bf16", extra: &[], sized: true, contest: accumulate },
    Case { name: "quantise f8e4m3", extra: &[], sized: true, contest: quantise },
    Case { name: "gather f32", extra: &[], sized: true, contest: gather },
    // 1024 x 1024: rows a page apart, the worst stride for a cache.
    Case { name: "transpose f32", extra: &[4 << 20], sized: true, contest: transpose },
    Case { name: "empty launch", extra: &[0], sized: false, contest: empty_launch },
    Case { name: "one element", extra: &[0], sized: false, contest: one_element },
    Case { name: "trace + build", extra: &[0], sized: false, contest: trace_and_build },
];

/// Measures every case at every size.
pub fn run(sizes: &[Size]) -> Vec<Row> {
    let plan: Vec<(&Case, usize)> = CASES.iter().flat_map(|case| case.sizes(sizes).map(move |b| (case, b))).collect();
    let mut progress = Progress::new(plan.len());
    let mut rows = Vec::new();
    for (case, bytes) in plan {
        progress.step(&format!("{} {}", case.name, if bytes > 0 { Size(bytes).to_string() } else { String::new() }));
        rows.extend((case.contest)(bytes).rows(case.name));
    }
    rows
}

impl Case {
    fn sizes(&self, asked: &[Size]) -> impl Iterator<Item = usize> + use<> {
        let mut sizes = self.extra.to_vec();
        if self.sized {
            sizes.extend(asked.iter().map(|size| size.0));
        }
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter()
    }
}

impl Contest {
    fn new(bytes: usize, baselines: Vec<Side>) -> Contest {
        Contest { bytes, ours: None, limit: Limit::Baselines(baselines) }
    }

    fn target(label: &'static str, time: Duration) -> Contest {
        Contest { bytes: 0, ours: None, limit: Limit::Target { label, time } }
    }

    fn rows(self, name: &str) -> Vec<Row> {
        let effort = Effort::default();
        match self.limit {
            Limit::Target { label, time } => {
                let Some(ours) = self.ours else { return Vec::new() };
                let timings = measure(&mut [ours], effort);
                vec![Row::local(name.into(), self.bytes, &timings[0], label.into(), time.as_nanos() as f64)]
            }
            Limit::Baselines(baselines) => {
                let raced = self.ours.is_some();
                let mut sides: Vec<Side> = self.ours.into_iter().chain(baselines).collect();
                let timings = measure(&mut sides, effort);
                let (ours, baselines) = timings.split_at(usize::from(raced));
                let best = fastest(baselines).expect("a case has a baseline");
                let row = |timing, name| Row::local(name, self.bytes, timing, best.name.into(), best.median_ns);
                if raced {
                    return vec![row(&ours[0], name.into())];
                }
                baselines.iter().map(|timing| row(timing, format!("{name}: {}", timing.name))).collect()
            }
        }
    }
}

fn copy(bytes: usize) -> Contest {
    let bytes = bytes.max(1);
    let (src, dst) = (Buffer::new(bytes, |k| k as u8), Buffer::new(bytes, |_| 0u8));
    let side = |name, copy: fn(&mut [u8], &[u8])| {
        let (src, dst) = (src.clone(), dst.clone());
        Side::new(name, move || copy(black_box(&mut dst.slice()), black_box(&src.slice())))
    };
    let sides = vec![
        side("memcpy", hand::copy_memcpy),
        side("cached", hand::copy_temporal),
        side("streamed", hand::copy_non_temporal),
    ];
    Contest::new(bytes, sides)
}

fn scale(bytes: usize) -> Contest {
    let count = (bytes / 4).max(1);
    let (src, dst) = (Buffer::new(count, ramp), Buffer::new(count, |_| 0f32));
    let side = |name, scale: fn(&mut [f32], &[f32], f32)| {
        let (src, dst) = (src.clone(), dst.clone());
        Side::new(name, move || scale(black_box(&mut dst.slice()), black_box(&src.slice()), black_box(1.25)))
    };
    Contest::new(count * 4, vec![side("cached", hand::scale_f32), side("streamed", hand::scale_f32_non_temporal)])
}

fn accumulate(bytes: usize) -> Contest {
    let count = (bytes / 2).max(1);
    // Zeros keep the sums finite however often they are repeated, at the same speed.
    let (src, dst) = (Buffer::new(count, |k| (k as u16 & 1) << 15), Buffer::new(count, ramp));
    let run = move || hand::accumulate_bf16(black_box(&mut dst.slice()), black_box(&src.slice()));
    Contest::new(count * 2, vec![Side::new("by hand", run)])
}

fn quantise(bytes: usize) -> Contest {
    let groups = (bytes / 4 / hand::GROUP).max(1);
    let count = groups * hand::GROUP;
    let (src, dst, scales) = (Buffer::new(count, ramp), Buffer::new(count, |_| 0u8), Buffer::new(groups, |_| 0f32));
    let side = |name, quantise: fn(&mut [u8], &mut [f32], &[f32])| {
        let (src, dst, scales) = (src.clone(), dst.clone(), scales.clone());
        let run = move || {
            quantise(black_box(&mut dst.slice()), black_box(&mut scales.slice()), black_box(&src.slice()));
        };
        Side::new(name, run)
    };
    let sides = vec![side("cached", hand::quantise_f8e4m3), side("streamed", hand::quantise_f8e4m3_non_temporal)];
    Contest::new(count * 4, sides)
}

/// A gather of the whole source, shuffled.
fn gather(bytes: usize) -> Contest {
    let count = (bytes / 4).max(1);
    let (src, dst) = (Buffer::new(count, ramp), Buffer::new(count, |_| 0f32));
    let idx = Buffer::new(count, |k| k as i32);
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    for k in (1..count).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        idx.slice().swap(k, (state >> 33) as usize % (k + 1));
    }
    let side = |name, gather: unsafe fn(&mut [f32], &[f32], &[i32])| {
        let (src, dst, idx) = (src.clone(), dst.clone(), idx.clone());
        let run = move || {
            // SAFETY: the indices are a permutation of the source's.
            unsafe { gather(black_box(&mut dst.slice()), black_box(&src.slice()), black_box(&idx.slice())) };
        };
        Side::new(name, run)
    };
    Contest::new(count * 4, vec![side("scalar", hand::gather_i32), side("vector", hand::gather_i32_vector)])
}

/// As square as a matrix of whole 64 x 64 blocks can be.
fn transpose(bytes: usize) -> Contest {
    let count = (bytes / 4).max(64 * 64);
    let rows = ((count as f64).sqrt() as usize / 64 * 64).max(64);
    let cols = (count / rows / 64 * 64).max(64);
    let (src, dst) = (Buffer::new(rows * cols, ramp), Buffer::new(rows * cols, |_| 0f32));
    let side = |name, transpose: fn(&mut [f32], &[f32], usize, usize)| {
        let (src, dst) = (src.clone(), dst.clone());
        Side::new(name, move || transpose(black_box(&mut dst.slice()), black_box(&src.slice()), rows, cols))
    };
    let sides = vec![side("cached", hand::transpose_f32), side("streamed", hand::transpose_f32_non_temporal)];
    Contest::new(rows * cols * 4, sides)
}

fn empty_launch(_: usize) -> Contest {
    Contest::target("target 20 ns", Duration::from_nanos(20))
}

fn one_element(_: usize) -> Contest {
    Contest::target("target 60 ns", Duration::from_nanos(60))
}

fn trace_and_build(_: usize) -> Contest {
    Contest::target("target 200 µs", Duration::from_micros(200))
}

/// Small values of both signs.
fn ramp(k: usize) -> f32 {
    (k % 251) as f32 - 125.5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_with_a_baseline_gives_a_row_at_a_small_size() {
        let rows = run(&[Size(1000)]);
        for case in CASES.iter().filter(|case| case.sized) {
            let ours: Vec<_> = rows.iter().filter(|row| row.name.starts_with(case.name)).collect();
            assert!(!ours.is_empty(), "{}", case.name);
            assert!(ours.iter().all(|row| row.median_us > 0.0 && row.ratio > 0.0));
            assert!(ours.iter().any(|row| row.ratio == 1.0), "the best of the baselines is the limit");
        }
    }

    #[test]
    fn our_side_is_compared_with_the_best_baseline_or_the_target() {
        let mut contest = copy(64);
        contest.ours = Some(Side::new("tilewire", || _ = black_box(0)));
        let rows = contest.rows("copy");
        assert_eq!((rows.len(), rows[0].name.as_str(), rows[0].bytes), (1, "copy", 64));
        let mut contest = empty_launch(0);
        contest.ours = Some(Side::new("tilewire", || _ = black_box(0)));
        assert_eq!(contest.rows("empty launch")[0].limit, "target 20 ns");
    }
}
