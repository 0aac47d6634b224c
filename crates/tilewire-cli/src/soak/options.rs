//! The options of `tilewire soak`.

use crate::run::{Apart, CpuWire, Mesh, Ranks, Shuffle};
use crate::verify::Engine;
use clap::Args;
use clap::builder::RangedU64ValueParser;

/// The work, and its duration.
#[derive(Args, Debug, PartialEq)]
pub struct Soak {
    /// Minutes to run: 1, 10 or 0.1
    #[arg(long, value_name = "M", value_parser = minutes)]
    pub minutes: f64,
    /// Number of ranks [default: 4]
    #[arg(long = "ranks", value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(2..=16))]
    pub count: Option<usize>,
    /// Where they run; under a launcher env is the default, otherwise processes
    #[arg(long = "world", value_name = "WORLD")]
    pub ranks: Option<Ranks>,
    /// The transport; over fabric, and over mesh with processes, every message goes in slots
    #[command(flatten)]
    pub wire: CpuWire,
    /// The domains of a mesh
    #[command(flatten)]
    pub apart: Apart,
    /// Seed of the plan, to repeat a run; random by default
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
}

impl Soak {
    /// The domains of ranks that post to each other, if they do, among ranks of this kind.
    pub fn mesh(&self, ranks: Ranks) -> Result<Option<Mesh>, String> {
        let mesh = Mesh::of(self.wire.transport, self.apart.clone(), Shuffle::default())?;
        if let Some(mesh) = &mesh {
            mesh.fits(ranks == Ranks::Threads, ranks.name(), Engine::Cpu)?;
            mesh.count(self.count)?;
        }
        Ok(mesh)
    }
}

fn minutes(word: &str) -> Result<f64, String> {
    let minutes = word.parse().ok().filter(|minutes| *minutes > 0.0 && *minutes <= 10_000.0);
    minutes.ok_or_else(|| "not a number of minutes: write 1, 10 or 0.1".into())
}
