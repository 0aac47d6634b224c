//! Sizes in bytes as people write them: `64KiB`, `8MiB`, `1GiB`, `4096`.

use std::fmt;

const UNITS: [(&str, u32); 4] = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

impl Size {
    /// Parses `64KiB`, `8MiB`, `1GiB`, `512B` or a plain number of bytes.
    pub fn parse(text: &str) -> Result<Size, String> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let shift = match UNITS.iter().find(|(name, _)| *name == unit) {
            Some(&(_, shift)) => shift,
            None if unit.is_empty() => 0,
            None => return Err(format!("size '{text}': '{unit}' is not a unit; write 4096, 64KiB, 8MiB or 1GiB")),
        };
        if number.is_empty() {
            return Err(format!("size '{text}' has no number; write 4096, 64KiB, 8MiB or 1GiB"));
        }
        let bytes = number.parse::<usize>().ok().and_then(|n| n.checked_mul(1 << shift));
        bytes.map(Size).ok_or_else(|| format!("size '{text}' is larger than this machine can address"))
    }
}

impl fmt::Display for Size {
    /// With the largest unit that divides it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |&&(_, shift): &&(&str, u32)| self.0 != 0 && self.0.is_multiple_of(1 << shift);
        let (unit, shift) = UNITS.iter().find(exact).unwrap_or(&("B", 0));
        f.pad(&format!("{}{unit}", self.0 >> shift))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_plain_numbers_are_read_and_written_back() {
        for (text, bytes) in [("0B", 0), ("1B", 1), ("64KiB", 65536), ("8MiB", 8 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(Size::parse(text), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!(Size::parse("4096"), Ok(Size(4096)));
        assert_eq!(Size(1500).to_string(), "1500B");
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        for (text, reason) in [
            ("64KB", "'KB' is not a unit"),
            ("MiB", "has no number"),
            ("", "has no number"),
            ("-1", "is not a unit"),
            ("1.5MiB", "is not a unit"),
            ("99999999999999999999", "larger than this machine"),
            ("18446744073709551615GiB", "larger than this machine"),
        ] {
            let error = Size::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
