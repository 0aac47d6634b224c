//! When waiting ends.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// The moment at which a wait gives up.
///
/// A moment, not a duration: related calls share one deadline, and the last gets the time the first left over.
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
    /// The default time until a deadline.
    pub const DEFAULT: Duration = Duration::from_secs(30);

    /// This long from now. A length beyond the clock's range means never.
    pub fn after(length: Duration) -> Deadline {
        Deadline { at: Instant::now().checked_add(length) }
    }

    /// Waits forever, by choice: only a rank's death ends such a wait.
    pub const fn never() -> Deadline {
        Deadline { at: None }
    }

    /// Parses a length of time as `tilewire launch --deadline` and `TILEWIRE_DEADLINE` accept it: `500ms`, `30s`, `2m`,
    /// or `off` for never. The inner `None` means never; the outer one means that the text is none of these.
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

    /// The time left: zero once the deadline has passed, `None` if it never passes.
    pub fn remaining(self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// True if the moment has passed.
    pub fn is_over(self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }

    /// The moment; `None` for never.
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
