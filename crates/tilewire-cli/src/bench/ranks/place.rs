//! The place of two ranks, derived from the time that a cache line takes between them.
#![forbid(unsafe_code)]

/// How near the ranks' processors are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Two threads of one core.
    Smt,
    /// Cores that share a cache.
    Near,
    /// Cores that do not.
    Far,
    /// Unknown: more ranks than cores take turns on them, and a probe measures the scheduler.
    Crowded,
}

impl Place {
    /// The places that a probe distinguishes, nearest first.
    pub const ALL: [Place; 3] = [Place::Smt, Place::Near, Place::Far];
    /// All places.
    pub const EVERY: [Place; 4] = [Place::Smt, Place::Near, Place::Far, Place::Crowded];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Place::Smt => "smt",
            Place::Near => "near",
            Place::Far => "far",
            Place::Crowded => "crowded",
        }
    }

    /// The place where a line takes `one_way_ns` nanoseconds; `None` if something disturbed the probe. The borders lie
    /// between the observed times: about 30, 60 and 260 ns on an EPYC, 105 to 155 (one place, by its bandwidth) on an
    /// Ice Lake Xeon.
    pub fn of(one_way_ns: f64) -> Option<Place> {
        match one_way_ns {
            ns if ns < 46.0 => Some(Place::Smt),
            ns if ns < 180.0 => Some(Place::Near),
            ns if ns < 600.0 => Some(Place::Far),
            _ => None,
        }
    }

    /// The place of a sample: that of the probes before and after it, if they agree.
    pub fn agreed(before_ns: f64, after_ns: f64) -> Option<Place> {
        Place::of(before_ns).filter(|&place| Place::of(after_ns) == Some(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_binned_and_noise_is_thrown_away() {
        for (ns, place) in [
            (0.0, Some(Place::Smt)),
            (45.9, Some(Place::Smt)),
            (46.0, Some(Place::Near)),
            (179.9, Some(Place::Near)),
            (180.0, Some(Place::Far)),
            (599.0, Some(Place::Far)),
            (600.0, None),
            (f64::INFINITY, None),
            (f64::NAN, None),
        ] {
            assert_eq!(Place::of(ns), place, "{ns}");
        }
    }

    #[test]
    fn a_sample_counts_only_where_both_probes_agree() {
        assert_eq!(Place::agreed(60.0, 70.0), Some(Place::Near));
        assert_eq!(Place::agreed(60.0, 260.0), None);
        assert_eq!(Place::agreed(9999.0, 9999.0), None);
    }
}
