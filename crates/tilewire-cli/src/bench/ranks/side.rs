//! One way of doing the work of a contest, as each rank sees it.
#![forbid(unsafe_code)]

use anyhow::Result;

/// The interface of a side to its contest, on either rank.
pub trait Run {
    /// Does the work `steps` times.
    fn run(&mut self, steps: u64) -> Result<()>;

    /// Fills the sent memory with known words, and the received memory with others.
    fn fill(&mut self);

    /// Compares the received data with what the other ranks filled in.
    fn verify(&mut self) -> Result<()>;
}

/// The limit that a side is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Through a ring in shared memory.
    TwoCopy,
    /// Into the receiver's memory, by the sender.
    OneCopy,
    /// The same, each rank copying one half.
    HalfEach,
    /// One word.
    CacheLine,
    /// Small messages that carry their flags, or are followed by one.
    SmallMessage,
    /// Every chunk copied once into windows, including the own one unless it is in place.
    Moved,
    /// Every chunk transposed once into windows, including the own one.
    Transposed,
    /// Every input read once, in the memory of its rank, and every output written once.
    Reduced,
    /// One word to each of the others.
    Words,
    /// Only writes, around the caches, and nothing read. Nothing is judged by it, but if everything goes to memory no
    /// copy is faster.
    Stores,
    /// Our own work without the additions of the others.
    Plain,
    /// Our own work after everything was copied into a contiguous buffer.
    Copied,
}

impl Limit {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Limit::TwoCopy => "two-copy limit",
            Limit::OneCopy => "one-copy limit",
            Limit::HalfEach => "one copy, half each",
            Limit::CacheLine => "cache-line limit",
            Limit::SmallMessage => "small-message limit",
            Limit::Moved => "one copy of every chunk",
            Limit::Transposed => "one transposition of every chunk",
            Limit::Reduced => "one pass over every input",
            Limit::Words => "a word to each",
            Limit::Stores => "stores alone",
            Limit::Plain => "plain",
            Limit::Copied => "copied first",
        }
    }
}

/// A target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// No target: the figure is for orientation.
    None,
    /// A share of the limit's speed.
    Ratio(f64),
    /// A time in µs, near and far.
    Time(f64, Option<f64>),
    /// A multiple of the best MPI's speed, and optionally a share of the limit's.
    Ahead {
        /// The multiple.
        times: f64,
        /// The share.
        ratio: Option<f64>,
    },
}

/// The part of a side in its contest.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// One of the variants of a limit; the fastest of them is the limit.
    Limit(Limit),
    /// A side that races a limit.
    Racer {
        /// Its limit.
        against: Limit,
        /// Its target.
        aim: Aim,
        /// How its messages travel.
        protocol: &'static str,
    },
}

/// A side of a contest, on one rank.
pub struct Side<'l> {
    /// The name in reports.
    pub name: String,
    /// Its part in the contest.
    pub part: Part,
    /// Does the work.
    pub run: Box<dyn Run + 'l>,
}

impl<'l> Side<'l> {
    /// A variant of a limit.
    pub fn limit(name: impl Into<String>, limit: Limit, run: impl Run + 'l) -> Side<'l> {
        Side { name: name.into(), part: Part::Limit(limit), run: Box::new(run) }
    }
}
