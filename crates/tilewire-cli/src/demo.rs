//! `tilewire` without arguments: what this is, shown on this machine in a few seconds.

use crate::bench::{Effort, Size, glance};
use anyhow::{Result, ensure};
use std::io::{Write, stdout};
use std::time::Duration;
use tilewire::vm::Prepared;
use tilewire::{Scalar, Tensor, map};

const ROWS: usize = 512;
const COLS: usize = 768;

/// The lines of [`transposed_and_scaled`], as printed; a test compares them with this file.
const SOURCE: &str = "\
    map(out, inp).chunk_shape(ROWS, COLS).produce(|c| c.input.at(c.col(), c.row()) * factor).trace()
";

fn transposed_and_scaled(
    out: &Tensor<f32>,
    inp: &Tensor<f32>,
    factor: &Scalar<f32>,
) -> Result<tilewire::Traced, tilewire::BuildError> {
    map(out, inp).chunk_shape(ROWS, COLS).produce(|c| c.input.at(c.col(), c.row()) * factor).trace()
}

/// Runs the demonstration.
pub fn demo() -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "tilewire: write what happens to one tile, tilewire sends it.\n")?;
    writeln!(out, "This hook reads a [{ROWS}, {COLS}] chunk transposed and scales it by a number read at launch:\n")?;
    writeln!(out, "    {SOURCE}")?;
    hook(&mut out)?;
    writeln!(
        out,
        "\nThe same engine against hand-written AVX2 loops on this machine, one thread, 1 MiB (1.00 = as fast):\n"
    )?;
    out.flush()?;
    let effort = Effort { sample: Duration::from_micros(300), samples: 9 };
    let cases = ["copy", "scale", "accumulate", "quantise", "gather", "empty", "one"];
    out.write_all(glance(Size(1 << 20), &cases, effort)?.as_bytes())?;
    out.write_all(NEXT.as_bytes())?;
    Ok(())
}

const NEXT: &str = "
This was one rank. Between ranks the same hooks run in send, recv and sendrecv; the other collectives are next.

Try next:
  tilewire emit transpose --ir --lines      the kernel a hook becomes, with the source line of every instruction
  tilewire emit quantise --bytecode         what the CPU engine runs
  tilewire bench kernels                    all figures, from 64 KiB to 64 MiB
  tilewire run sendrecv --ranks 4 --hook transpose --world processes
                                            a ring of transfers, every byte checked
  tilewire check all --ranks 3              races and deadlocks of what ships
";

/// Builds and runs the hook, and compares it with a plain loop.
fn hook(out: &mut impl Write) -> Result<()> {
    let inp = Tensor::from_fn(ROWS * COLS, |k| (k % 1021) as f32 * 0.37 - 100.0);
    let (result, factor) = (Tensor::zeros(ROWS * COLS), Scalar::new(0.5f32));
    let traced = transposed_and_scaled(&result, &inp, &factor)?;
    let mut prepared = Prepared::new(&traced.kernel, &traced.args)?;
    for scale in [0.5, 1.7] {
        factor.set(scale);
        prepared.run()?;
        let plain = |k: usize| inp.get(k % ROWS * COLS + k / ROWS) * scale;
        let equal = (0..ROWS * COLS).filter(|&k| result.get(k).to_bits() == plain(k).to_bits()).count();
        writeln!(out, "  scale {scale}: {equal} of {} elements equal a plain loop's to the bit", ROWS * COLS)?;
        ensure!(equal == ROWS * COLS, "the result of the hook is wrong");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_is_right_and_the_lines_shown_are_the_lines_run() {
        hook(&mut Vec::new()).unwrap();
        let lines = |text: &str| text.lines().map(|line| line.trim().to_string()).collect::<Vec<_>>().join("\n");
        assert_eq!(lines(include_str!("demo.rs")).matches(lines(SOURCE).as_str()).count(), 2);
    }
}
