//! A line that says what is being measured: on a terminal only, so that pipes and logs stay quiet.

use std::io::{IsTerminal, Write, stderr};

/// The progress of a known number of steps.
pub struct Progress {
    done: usize,
    total: usize,
    shown: bool,
}

impl Progress {
    /// Starts before the first of `total` steps.
    pub fn new(total: usize) -> Progress {
        Progress { done: 0, total, shown: stderr().is_terminal() }
    }

    /// Says that the next step begins.
    pub fn step(&mut self, what: &str) {
        self.done += 1;
        if self.shown {
            _ = write!(stderr(), "\r\x1b[K[{}/{}] {what}", self.done, self.total);
            _ = stderr().flush();
        }
    }
}

impl Drop for Progress {
    /// Leaves an empty line behind for whatever is printed next.
    fn drop(&mut self) {
        if self.shown {
            _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
