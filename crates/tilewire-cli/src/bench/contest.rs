//! The sides of one case at one size: our kernel, the loops it is compared with, and the memory both write.

use super::buffer::Buffer;
use super::interleaved::{Effort, Side, fastest, measure};
use super::report::Row;
use anyhow::{Context, Result, bail};
use std::time::Duration;
use tilewire::ir::scalar::Number;
use tilewire::tensor::bytes_of;
use tilewire::vm::Prepared;
use tilewire::{Memory, RunError, Traced};

/// The name of our side in reports.
const OURS: &str = "tilewire";

/// A kernel that races hand-written loops. They must produce the same bits before anything is timed.
pub struct Contest {
    bytes: usize,
    ours: Prepared,
    baselines: Vec<Side>,
    outputs: Vec<Output>,
}

/// Memory that every side writes.
struct Output {
    memory: Memory,
    element: usize,
    reset: Box<dyn Fn()>,
}

impl Contest {
    /// A contest over an input of `bytes` bytes.
    pub fn new(bytes: usize, ours: Result<Traced, RunError>, baselines: Vec<Side>) -> Result<Contest> {
        let traced = ours?;
        let ours = Prepared::new(&traced.kernel, &traced.args)?;
        Ok(Contest { bytes, ours, baselines, outputs: Vec::new() })
    }

    /// Compares this buffer after every side; before each, element k is set to `first(k)`.
    pub fn writes<T: Number>(mut self, buffer: &Buffer<T>, first: impl Fn(usize) -> T + 'static) -> Contest {
        let tensor = buffer.tensor::<T>();
        let memory = tensor.memory().clone();
        let reset = Box::new(move || (0..tensor.len()).for_each(|k| tensor.set(k, first(k))));
        self.outputs.push(Output { memory, element: size_of::<T>(), reset });
        self
    }

    /// Checks, then races; `target` is the share of the best loop's speed that the engine aims at.
    pub fn row(mut self, name: &str, target: f64, effort: Effort) -> Result<Row> {
        self.check().with_context(|| format!("{name} of {} bytes", self.bytes))?;
        let mut ours = self.ours;
        let ours = Side::new(OURS, move || ours.run().expect("a launch that succeeded before"));
        let mut sides: Vec<Side> = std::iter::once(ours).chain(self.baselines).collect();
        let timings = measure(&mut sides, effort);
        let best = fastest(&timings[1..]).context("a case has a baseline")?;
        let mut row = Row::local(name.into(), self.bytes, &timings[0], best.name.into(), best.median_ns, target);
        if timings.len() > 2 {
            let each =
                timings[1..].iter().map(|side| format!("{} {:.2}", side.name, side.median_ns / timings[0].median_ns));
            row.each = each.collect::<Vec<_>>().join(", ");
        }
        Ok(row)
    }

    /// A benchmark of a wrong result is worthless: every side must write the same bits as ours.
    fn check(&mut self) -> Result<()> {
        self.outputs.iter().for_each(|output| (output.reset)());
        self.ours.run()?;
        let ours = self.outputs.iter().map(|output| bytes_of(&output.memory)).collect::<Result<Vec<_>, _>>()?;
        for side in &mut self.baselines {
            self.outputs.iter().for_each(|output| (output.reset)());
            (side.run)();
            for (output, ours) in self.outputs.iter().zip(&ours) {
                output.compare(ours, side.name)?;
            }
        }
        Ok(())
    }
}

impl Output {
    fn compare(&self, ours: &[u8], side: &str) -> Result<()> {
        let theirs = bytes_of(&self.memory)?;
        if ours == theirs {
            return Ok(());
        }
        let pairs = ours.chunks(self.element).zip(theirs.chunks(self.element)).enumerate();
        let mut wrong = pairs.filter(|(_, (ours, theirs))| ours != theirs);
        let Some((k, (ours, theirs))) = wrong.next() else { bail!("the result has another length than {side}") };
        let (hex, count) =
            (|bytes: &[u8]| bytes.iter().rev().map(|b| format!("{b:02x}")).collect::<String>(), wrong.count() + 1);
        bail!(
            "the result is wrong: element {k} is 0x{} where the hand-written loop ({side}) has 0x{}, and {count} differ",
            hex(ours),
            hex(theirs),
        )
    }
}

/// Times something without a competitor against a time that the engine's design allows.
pub fn against(name: &str, limit: &'static str, time: Duration, run: impl FnMut() + 'static, effort: Effort) -> Row {
    let timings = measure(&mut [Side::new(OURS, run)], effort);
    Row::local(name.into(), 0, &timings[0], limit.into(), time.as_nanos() as f64, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels;

    #[test]
    fn a_wrong_result_is_an_error_that_names_the_element() {
        let (src, dst) = (Buffer::new(100, |k| k as f32), Buffer::new(100, |_| 0f32));
        let contest = |wrong: usize| {
            let (from, to) = (src.clone(), dst.clone());
            let side = Side::new("by hand", move || {
                to.slice().copy_from_slice(&from.slice());
                to.slice()[3..3 + wrong].fill(-1.0);
            });
            let ours = kernels::copy(&dst.tensor::<f32>(), &src.tensor::<f32>());
            Contest::new(400, ours, vec![side]).unwrap().writes(&dst, |_| 7.0)
        };
        let effort = Effort { sample: Duration::ZERO, samples: 1 };
        assert!(contest(0).row("copy", 0.9, effort).is_ok());
        let error = format!("{:#}", contest(2).row("copy", 0.9, effort).unwrap_err());
        assert!(error.contains("element 3 is 0x40400000") && error.contains("2 differ"), "{error}");
    }
}
