//! When waiting ends.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// The moment at which a wait gives up.
///
/// A moment, not a length: several calls that belong together share one, and the last of them gets what the first left over.
///
/// ```
/// use std::time::Duration;
/// use tilewire::transport::Deadline;
///
/// let soon = Deadline::after(Duration::from_secs(5));
/// assert!(!soon.is_over() && soon.remaining() <= Some(Duration::from_secs(5)));
/// assert!(Deadline::after(Duration::ZERO).is_over());
/// assert_eq!(Deadline::never().remaining(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    at: Option<Instant>,
}

impl Deadline {
    /// What is used where nobody says otherwise.
    pub const DEFAULT: Duration = Duration::from_secs(30);

    /// This long from now. A length too long for the clock is never.
    pub fn after(length: Duration) -> Deadline {
        Deadline { at: Instant::now().checked_add(length) }
    }

    /// Waits without end, by choice: only a rank's death ends them.
    pub const fn never() -> Deadline {
        Deadline { at: None }
    }

    /// Reads a length of time as `tilewire launch --deadline` and `TILEWIRE_DEADLINE` take it: `500ms`, `30s`, `2m`, or `off`
    /// for never. The inner `None` is never, the outer one is a text that is none of these.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tilewire::transport::Deadline;
    /// assert_eq!(Deadline::parse_length("2m"), Some(Some(Duration::from_secs(120))));
    /// assert_eq!(Deadline::parse_length("off"), Some(None));
    /// assert_eq!(Deadline::parse_length("soon"), None);
    /// ```
    pub fn parse_length(text: &str) -> Option<Option<Duration>> {
        if text == "off" {
            return Some(None);
        }
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let milliseconds = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            _ => return None,
        };
        Some(Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(milliseconds)?)))
    }

    /// What is left: nothing when it is over, `None` when it never is.
    pub fn remaining(self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether the moment has passed.
    pub fn is_over(self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }

    /// The moment, unless it is never.
    pub fn instant(self) -> Option<Instant> {
        self.at
    }
}

impl Default for Deadline {
    /// [`Deadline::DEFAULT`] from now.
    fn default() -> Self {
        Deadline::after(Deadline::DEFAULT)
    }
}

impl From<Duration> for Deadline {
    fn from(length: Duration) -> Self {
        Deadline::after(length)
    }
}
