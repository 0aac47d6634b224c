//! Sides that take turns, sample by sample.

use anyhow::Result;
use std::sync::Arc;
use std::time::Duration;
use tilewire::cuda::{Device, Event, Graph, Stream};

/// Graphs of one kind of work; successive replays take the next one.
pub struct Side {
    pub name: String,
    pub graphs: Vec<Graph>,
}

/// Duration of a sample: short ones are lost in the resolution of the events.
const SAMPLE_US: f64 = 300.0;

/// How long the stream is held before a sample, until the host has queued all its replays. A graph of a few empty
/// kernels takes the GPU less time than the host, and the GPU is to be measured.
pub const HELD: Duration = Duration::from_micros(700);

/// Median microseconds of one replay of each side. `hold` holds the stream for [`HELD`]. Without it, replays begin as
/// the host launches them, and if that takes longer than the GPU, the host is what is measured.
pub fn race(
    device: &Arc<Device>,
    stream: &Arc<Stream>,
    hold: Option<&Graph>,
    sides: &[Side],
    samples: usize,
) -> Result<Vec<f64>> {
    let (start, stop) = (Event::new(device)?, Event::new(device)?);
    let mut next = vec![0; sides.len()];
    let mut sample = |k: usize, replays: usize| -> Result<f64> {
        hold.map_or(Ok(()), |hold| hold.replay(stream))?;
        start.record(stream)?;
        for _ in 0..replays {
            let graphs = &sides[k].graphs;
            graphs[next[k] % graphs.len()].replay(stream)?;
            next[k] += 1;
        }
        stop.record(stream)?;
        Ok(stop.since(&start)?.as_secs_f64() * 1e6 / replays as f64)
    };
    // Once around each side's buffers, and then as many replays as fill a sample.
    let mut replays = Vec::new();
    for (k, side) in sides.iter().enumerate() {
        sample(k, side.graphs.len().max(3))?;
        let once = sample(k, 3)?;
        replays.push(((SAMPLE_US / once) as usize).clamp(3, 60));
    }
    let mut times = vec![Vec::new(); sides.len()];
    for _ in 0..samples {
        for k in 0..sides.len() {
            times[k].push(sample(k, replays[k])?);
        }
    }
    stream.sync()?;
    Ok(times.into_iter().map(median).collect())
}

/// The median of `count` measurements.
pub fn median_of(count: usize, mut once: impl FnMut() -> Result<f64>) -> Result<f64> {
    Ok(median((0..count).map(|_| once()).collect::<Result<_>>()?))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
