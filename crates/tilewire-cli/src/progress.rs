//! The progress of a command: on a terminal a line that is redrawn; pipes and logs stay quiet unless lines are
//! requested.
#![forbid(unsafe_code)]

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{Write, stderr};
use std::time::{Duration, Instant};

/// Time between two lines.
const PAUSE: Duration = Duration::from_secs(2);

/// The progress of a known number of steps.
pub enum Progress {
    /// A line on a terminal, removed at the end. Nothing if stderr is no terminal.
    Drawn(ProgressBar),
    /// Lines that a launcher can pass on: the first, and one every other second.
    Lines {
        /// When the last one was printed.
        said: Option<Instant>,
        /// Steps that have begun.
        begun: usize,
        /// All steps.
        total: usize,
    },
}

impl Progress {
    /// Starts before the first of `total` steps. No separate thread draws it, which would disturb measurements.
    pub fn new(total: usize) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template("[{pos}/{len}] {wide_msg}").expect("the template is right"));
        Progress::Drawn(bar)
    }

    /// Progress as lines, for any kind of stderr.
    pub fn in_lines(total: usize) -> Progress {
        Progress::Lines { said: None, begun: 0, total }
    }

    /// Announces the next step.
    pub fn step(&mut self, what: &str) {
        match self {
            Progress::Drawn(bar) => {
                bar.inc(1);
                bar.set_message(what.to_string());
                // However soon after the last one: this step may take long.
                bar.force_draw();
            }
            Progress::Lines { said, begun, total } => {
                *begun += 1;
                if said.is_none_or(|said| said.elapsed() >= PAUSE) {
                    *said = Some(Instant::now());
                    _ = writeln!(stderr(), "[{begun}/{total}] {what}");
                }
            }
        }
    }
}
