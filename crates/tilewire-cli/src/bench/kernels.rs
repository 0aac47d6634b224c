//! `tilewire bench kernels`: the CPU engine's kernels against hand-written loops, in one thread.
//!
//! A [`Case`] makes a [`Contest`] for every size, all sides on the same buffers. Results are compared before they are
//! timed.

use super::buffer::Buffer;
use super::contest::{Contest, against};
use super::interleaved::{Effort, Side};
use super::report::Row;
use super::size::Size;
use crate::handwritten as hand;
use crate::kernels;
use crate::progress::Progress;
use anyhow::Result;
use std::hint::black_box;
use std::time::Duration;
use tilewire::vm::Prepared;
use tilewire::{Bf16, F8E4M3, Scalar, Tensor, kernel};

/// The default sizes: within L2, within L3, beyond both.
pub const SIZES: [Size; 3] = [Size(64 << 10), Size(1 << 20), Size(64 << 20)];

/// One kind of work.
struct Case {
    /// Its name for `--cases`.
    key: &'static str,
    /// Its name in reports.
    name: &'static str,
    kind: Kind,
}

/// Does the work once.
type Launch = Box<dyn FnMut()>;

enum Kind {
    /// Races hand-written loops on an input of about `bytes` bytes, and also at the sizes in `always`. The engine aims
    /// at `target` of the best loop's speed.
    Race { contest: fn(bytes: usize) -> Result<Contest>, always: &'static [usize], target: f64 },
    /// A case without a size: compared with a time that the engine's design allows.
    Fixed { limit: &'static str, time: Duration, prepare: fn() -> Result<Launch> },
}

const CASES: [Case; 9] = [
    Case { key: "copy", name: "copy", kind: Kind::Race { contest: copy, always: &[], target: 0.95 } },
    Case { key: "scale", name: "scale f32", kind: Kind::Race { contest: scale, always: &[], target: 0.95 } },
    Case {
        key: "accumulate",
        name: "f32 += bf16",
        kind: Kind::Race { contest: accumulate, always: &[], target: 0.90 },
    },
    Case {
        key: "quantise",
        name: "quantise f8e4m3",
        kind: Kind::Race { contest: quantise, always: &[], target: 0.90 },
    },
    Case { key: "gather", name: "gather f32", kind: Kind::Race { contest: gather, always: &[], target: 0.87 } },
    // 1024 x 1024: rows a page apart, the worst stride for a cache.
    Case {
        key: "transpose",
        name: "transpose f32",
        kind: Kind::Race { contest: transpose, always: &[4 << 20], target: 0.90 },
    },
    Case { key: "empty", name: "empty launch", kind: fixed("target 20 ns", Duration::from_nanos(20), empty_launch) },
    Case { key: "one", name: "one element", kind: fixed("target 60 ns", Duration::from_nanos(60), one_element) },
    Case {
        key: "build",
        name: "trace + build",
        kind: fixed("target 200 µs", Duration::from_micros(200), trace_and_build),
    },
];

const fn fixed(limit: &'static str, time: Duration, prepare: fn() -> Result<Launch>) -> Kind {
    Kind::Fixed { limit, time, prepare }
}

/// What to measure and for how long.
pub struct Plan<'p> {
    /// Bytes of the inputs.
    pub sizes: &'p [Size],
    /// Keys of the cases; all if empty.
    pub cases: &'p [String],
    /// How much time to spend on each.
    pub effort: Effort,
}

/// Rejects a word that is not the key of a case.
pub fn check_key(key: &str) -> Result<(), String> {
    let keys = CASES.map(|case| case.key);
    if keys.contains(&key) { Ok(()) } else { Err(format!("there is no case '{key}'; there are: {}", keys.join(", "))) }
}

/// Measures every case at every size; a result that differs from the hand-written one is an error.
pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    let wanted = |case: &&Case| plan.cases.is_empty() || plan.cases.iter().any(|key| key == case.key);
    let steps: Vec<(&Case, usize)> = CASES
        .iter()
        .filter(wanted)
        .flat_map(|case| case.sizes(plan.sizes).into_iter().map(move |b| (case, b)))
        .collect();
    let mut progress = Progress::new(steps.len());
    let mut row = |case: &Case, bytes: usize| {
        progress.step(&format!("{} {}", case.name, if bytes > 0 { Size(bytes).to_string() } else { String::new() }));
        match case.kind {
            Kind::Race { contest, target, .. } => contest(bytes)?.row(case.name, target, plan.effort),
            Kind::Fixed { limit, time, prepare } => Ok(against(case.name, limit, time, prepare()?, plan.effort)),
        }
    };
    steps.into_iter().map(|(case, bytes)| row(case, bytes)).collect()
}

impl Case {
    /// The sizes to measure; a case without size has the size 0.
    fn sizes(&self, asked: &[Size]) -> Vec<usize> {
        let Kind::Race { always, .. } = self.kind else { return vec![0] };
        let mut sizes: Vec<usize> = always.iter().copied().chain(asked.iter().map(|size| size.0)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

fn copy(bytes: usize) -> Result<Contest> {
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
    let ours = kernels::copy(&dst.tensor::<u8>(), &src.tensor());
    Ok(Contest::new(bytes, ours, sides)?.writes(&dst, |k| !(k as u8)))
}

fn scale(bytes: usize) -> Result<Contest> {
    let count = (bytes / 4).max(1);
    let (src, dst) = (Buffer::new(count, ramp), Buffer::new(count, |_| 0f32));
    let side = |name, scale: fn(&mut [f32], &[f32], f32)| {
        let (src, dst) = (src.clone(), dst.clone());
        Side::new(name, move || scale(black_box(&mut dst.slice()), black_box(&src.slice()), black_box(1.25)))
    };
    let sides = vec![side("cached", hand::scale_f32), side("streamed", hand::scale_f32_non_temporal)];
    let ours = kernels::scale(&dst.tensor(), &src.tensor(), &Scalar::new(1.25));
    Ok(Contest::new(count * 4, ours, sides)?.writes(&dst, |_| f32::NAN))
}

fn accumulate(bytes: usize) -> Result<Contest> {
    let count = (bytes / 2).max(1);
    // No sum gets large however often it is repeated: an addend below half a unit of the sum no longer changes it.
    let addend = |k: usize| Bf16::from_f32((k % 17) as f32 / 8.0 - 1.0).to_bits();
    let (src, dst) = (Buffer::new(count, addend), Buffer::new(count, ramp));
    let (from, to) = (src.clone(), dst.clone());
    let by_hand = move || hand::accumulate_bf16(black_box(&mut to.slice()), black_box(&from.slice()));
    let ours = kernels::accumulate(&dst.tensor(), &src.tensor());
    Ok(Contest::new(count * 2, ours, vec![Side::new("by hand", by_hand)])?.writes(&dst, ramp))
}

fn quantise(bytes: usize) -> Result<Contest> {
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
    let ours = kernels::quantise(&dst.tensor::<F8E4M3>(), &scales.tensor(), &src.tensor());
    Ok(Contest::new(count * 4, ours, sides)?.writes(&dst, |_| 0xff).writes(&scales, |_| f32::NAN))
}

/// A gather of the whole source, shuffled.
fn gather(bytes: usize) -> Result<Contest> {
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
    let sides = vec![side("scalar", hand::gather_i32), side("vector", hand::gather_i32_vector)];
    let ours = kernels::gather(&dst.tensor(), &src.tensor(), &idx.tensor());
    Ok(Contest::new(count * 4, ours, sides)?.writes(&dst, |_| f32::NAN))
}

/// The most nearly square matrix of whole 64 x 64 blocks.
fn transpose(bytes: usize) -> Result<Contest> {
    let count = (bytes / 4).max(64 * 64);
    let rows = ((count as f64).sqrt() as usize / 64 * 64).max(64);
    let cols = (count / rows / 64 * 64).max(64);
    let (src, dst) = (Buffer::new(rows * cols, ramp), Buffer::new(rows * cols, |_| 0f32));
    let side = |name, transpose: fn(&mut [f32], &[f32], usize, usize)| {
        let (src, dst) = (src.clone(), dst.clone());
        Side::new(name, move || transpose(black_box(&mut dst.slice()), black_box(&src.slice()), rows, cols))
    };
    let sides = vec![
        side("cached", hand::transpose_f32),
        side("streamed", hand::transpose_f32_non_temporal),
        side("down", hand::transpose_f32_down),
        side("down, streamed", hand::transpose_f32_down_non_temporal),
    ];
    // The loops count rows of the result, kernels rows of the input.
    let ours = kernels::transpose(&dst.tensor(), &src.tensor(), cols, rows);
    Ok(Contest::new(rows * cols * 4, ours, sides)?.writes(&dst, |_| f32::NAN))
}

fn empty_launch() -> Result<Launch> {
    launches(&kernel("empty", |k| k.main(|_| {}))?)
}

fn one_element() -> Result<Launch> {
    launches(&kernels::copy(&Tensor::<f32>::zeros(1), &Tensor::from_slice(&[1.0]))?)
}

fn launches(traced: &tilewire::Traced) -> Result<Launch> {
    let mut prepared = Prepared::new(&traced.kernel, &traced.args)?;
    prepared.run()?;
    Ok(Box::new(move || prepared.run().expect("a launch that succeeded before")))
}

fn trace_and_build() -> Result<Launch> {
    let (out, inp) = (Tensor::<f32>::zeros(1024), Tensor::<f32>::zeros(1024));
    let build = move || -> Result<Prepared> {
        let traced = kernels::copy(&out, &inp)?;
        Ok(Prepared::new(&traced.kernel, &traced.args)?)
    };
    build()?;
    Ok(Box::new(move || _ = black_box(build().expect("a build that succeeded before"))))
}

/// Small values of both signs.
fn ramp(k: usize) -> f32 {
    (k % 251) as f32 - 125.5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_gives_a_row_for_every_size() {
        let effort = Effort { sample: Duration::from_micros(1), samples: 1 };
        let rows = run(&Plan { sizes: &[Size(1), Size(1000), Size(40000)], cases: &[], effort }).unwrap();
        for case in &CASES {
            let rows: Vec<_> = rows.iter().filter(|row| row.name == case.name).collect();
            assert_eq!(rows.len(), case.sizes(&[Size(1), Size(1000), Size(40000)]).len(), "{}", case.name);
            assert!(rows.iter().all(|row| row.median_us > 0.0 && row.ratio > 0.0));
        }
    }

    #[test]
    fn cases_are_chosen_by_key() {
        let effort = Effort { sample: Duration::ZERO, samples: 1 };
        let rows = run(&Plan { sizes: &[Size(64)], cases: &["copy".into(), "empty".into()], effort }).unwrap();
        assert_eq!(
            rows.iter().map(|row| (row.name.as_str(), row.bytes)).collect::<Vec<_>>(),
            [("copy", 64), ("empty launch", 0)]
        );
        assert!(check_key("empty").is_ok());
        assert!(check_key("fly").unwrap_err().contains("transpose"));
    }
}
