//! The words of `tilewire soak`.

use crate::args::Words;
use crate::run::{Ranks, number_of};

/// What to do, and for how long.
#[derive(Debug, PartialEq)]
pub struct Soak {
    /// How long.
    pub minutes: f64,
    /// How many ranks, where it is said.
    pub count: Option<usize>,
    /// Where they run, where it is said.
    pub ranks: Option<Ranks>,
    /// What the plan is made from, where it is said.
    pub seed: Option<u64>,
}

/// Reads the words after `soak`.
pub fn parse(words: Words) -> Result<Soak, String> {
    read(words).map_err(|reason| format!("soak: {reason}"))
}

fn read(mut words: Words) -> Result<Soak, String> {
    let (mut minutes, mut soak) = (None, Soak { minutes: 0.0, count: None, ranks: None, seed: None });
    while let Some(word) = words.next() {
        let mut value = || words.value(&word);
        match word.as_str() {
            "--minutes" => minutes = Some(minutes_of(&value()?)?),
            "--ranks" => soak.count = Some(number_of(&value()?, "ranks", 2..=16)? as usize),
            "--world" => soak.ranks = Some(Ranks::parse(&value()?)?),
            "--seed" => soak.seed = Some(number_of(&value()?, "seed", 0..=u64::MAX)?),
            _ => return Err(format!("unknown word '{word}'")),
        }
    }
    let minutes = minutes.ok_or("say how long: --minutes M")?;
    Ok(Soak { minutes, ..soak })
}

fn minutes_of(word: &str) -> Result<f64, String> {
    let minutes = word.parse().ok().filter(|minutes| *minutes > 0.0 && *minutes <= 10_000.0);
    minutes.ok_or_else(|| format!("'{word}' is no number of minutes: write 1, 10 or 0.1"))
}
