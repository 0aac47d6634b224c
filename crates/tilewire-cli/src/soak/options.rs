//! The words of `tilewire soak`.

use crate::run::Ranks;
use clap::Args;
use clap::builder::RangedU64ValueParser;

/// What to do, and for how long.
#[derive(Args, Debug, PartialEq)]
pub struct Soak {
    /// How long: 1, 10 or 0.1
    #[arg(long, value_name = "M", value_parser = minutes)]
    pub minutes: f64,
    /// Number of ranks [default: 4]
    #[arg(long = "ranks", value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(2..=16))]
    pub count: Option<usize>,
    /// Where they run; under a launcher env is the default, otherwise processes
    #[arg(long = "world", value_name = "WORLD")]
    pub ranks: Option<Ranks>,
    /// What the plan is made from, to run it again; another one each time unless said
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
}

fn minutes(word: &str) -> Result<f64, String> {
    let minutes = word.parse().ok().filter(|minutes| *minutes > 0.0 && *minutes <= 10_000.0);
    minutes.ok_or_else(|| "no number of minutes: write 1, 10 or 0.1".into())
}
