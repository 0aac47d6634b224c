//! One way of doing the work of a contest, as each rank sees it.
#![forbid(unsafe_code)]

use anyhow::Result;

/// What a contest asks of a side, on either rank.
pub trait Run {
    /// Does the work `steps` times.
    fn run(&mut self, steps: u64) -> Result<()>;

    /// Puts known words into what is sent, and others into what is received.
    fn fill(&mut self);

    /// Compares what was received with what the other ranks filled in.
    fn verify(&mut self) -> Result<()>;
}

/// What a side is compared with.
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
    /// Every chunk copied once, the own one too unless it is in place, into windows.
    Moved,
    /// Every chunk transposed once, the own one too, into windows.
    Transposed,
    /// Every input read once, in the memory of its rank, and every output written once.
    Reduced,
    /// One word to each of the others.
    Words,
    /// What is written, and nothing read, around the caches: nothing is judged by it, but where it all goes to memory
    /// no copy is faster.
    Stores,
    /// Our own work without what the others have in addition.
    Plain,
}

impl Limit {
    /// The word of reports.
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
        }
    }
}

/// What is aimed at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// Nothing: the figure is for orientation.
    None,
    /// A share of the limit's speed.
    Ratio(f64),
    /// A time in µs, near and far.
    Time(f64, Option<f64>),
    /// So many times as fast as the best MPI, and where it is said a share of the limit's speed.
    Ahead {
        /// How many times.
        times: f64,
        /// The share.
        ratio: Option<f64>,
    },
}

/// What a side is in its contest.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// One of the variants of a limit; the fastest of them is the limit.
    Limit(Limit),
    /// What races a limit.
    Racer {
        /// Its limit.
        against: Limit,
        /// What it aims at.
        aim: Aim,
        /// How its messages travel.
        protocol: &'static str,
    },
}

/// A side of a contest, on one rank.
pub struct Side<'l> {
    /// The name in reports.
    pub name: String,
    /// What it is here.
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
