//! What our sides are compared with over a network, and the aims.

use super::{KIB, Kind, MIB};

/// Something else that moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// A loop of `fi_writedata` with several writes under way.
    Plain,
    /// The same, but each write is confirmed before the next one, as a launch ends.
    PlainSingly,
    /// `fi_inject_writedata` there and back, polled.
    PlainInject,
    /// A stream over one socket, or messages there and back over one that is polled.
    Socket,
    /// Open MPI over its own TCP.
    MpiTcp,
    /// Open MPI over libfabric.
    MpiFabric,
}

/// A target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// No target: the figure is for orientation.
    None,
    /// A share of the rival's speed.
    Share(f64),
    /// A multiple of the rival's time.
    Times(f64),
    /// Faster than the rival.
    Ahead,
}

impl Rival {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Rival::Plain => "fi_writedata, 8 under way",
            Rival::PlainSingly => "fi_writedata, one by one",
            Rival::PlainInject => "fi_inject_writedata",
            Rival::Socket => "raw TCP",
            Rival::MpiTcp => "Open MPI, TCP",
            Rival::MpiFabric => "Open MPI, libfabric",
        }
    }

    /// The arguments of `mpirun` that choose its way, for a provider (`None`: tcp).
    pub fn words(self, provider: Option<&str>) -> &'static [&'static str] {
        match (self, provider) {
            (Rival::MpiTcp, _) => &["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"],
            // Open MPI leaves out both of these providers unless they are asked for.
            (_, Some("shm")) => {
                &["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "shm"]
            }
            _ => &["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "tcp"],
        }
    }

    /// The target of one of our sides against this rival. Over `shm` bytes need no kernel, and a copy more counts for
    /// more: its aims are those of `direct` and of latency alone.
    pub fn aim(self, ours: &str, kind: Kind, bytes: usize, provider: &str) -> Aim {
        let is_tcp = provider.starts_with("tcp");
        match (self, kind, ours) {
            (Rival::Plain, Kind::Stream, "direct") if bytes >= MIB => Aim::Share(0.9),
            (Rival::Plain, Kind::Stream, "direct") if bytes >= 256 * KIB => Aim::Share(0.75),
            (Rival::Plain, Kind::Stream, "staged") if bytes >= 256 * KIB && is_tcp => Aim::Share(0.65),
            (Rival::PlainInject, Kind::PingPong, "default") => Aim::Times(1.3),
            (Rival::Socket, Kind::PingPong, "default") if is_tcp => Aim::Times(2.0),
            (Rival::MpiTcp | Rival::MpiFabric, Kind::Collective(_), "default") if bytes >= MIB => Aim::Ahead,
            _ => Aim::None,
        }
    }
}

impl Aim {
    /// The share of the rival's speed that it asks for.
    pub fn share(self) -> Option<f64> {
        match self {
            Aim::None => None,
            Aim::Share(share) => Some(share),
            Aim::Times(times) => Some(1.0 / times),
            Aim::Ahead => Some(1.0),
        }
    }

    /// Its words in a table, with the verdict about a share of the rival's speed.
    pub fn verdict(self, ratio: Option<f64>) -> String {
        let words = match self {
            Aim::None => return String::new(),
            Aim::Share(share) => format!("{share:.2}"),
            Aim::Times(times) => format!("its time x {times}"),
            Aim::Ahead => "faster".to_string(),
        };
        let is_met = |ratio: f64| if self == Aim::Ahead { ratio > 1.0 } else { Some(ratio) >= self.share() };
        match ratio.map(is_met) {
            None => words,
            Some(true) => words + ", met",
            Some(false) => words + ", missed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ranks::collectives::work::Work;

    #[test]
    fn aims_are_those_of_the_provider_and_the_size() {
        let of = |rival: Rival, ours, kind, bytes| rival.aim(ours, kind, bytes, "tcp;ofi_rxm");
        assert_eq!(of(Rival::Plain, "direct", Kind::Stream, 64 * KIB), Aim::None);
        assert_eq!(of(Rival::Plain, "direct", Kind::Stream, 256 * KIB), Aim::Share(0.75));
        assert_eq!(of(Rival::Plain, "direct", Kind::Stream, MIB), Aim::Share(0.9));
        assert_eq!(of(Rival::Plain, "staged", Kind::Stream, MIB), Aim::Share(0.65));
        assert_eq!(Rival::Plain.aim("staged", Kind::Stream, MIB, "shm"), Aim::None);
        assert_eq!(of(Rival::Socket, "default", Kind::PingPong, 8), Aim::Times(2.0));
        assert_eq!(of(Rival::MpiTcp, "default", Kind::Collective(Work::AllReduce), MIB), Aim::Ahead);
        assert_eq!(of(Rival::MpiTcp, "default", Kind::Collective(Work::AllReduce), 64 * KIB), Aim::None);
    }

    #[test]
    fn verdicts_are_about_the_share_of_the_rivals_speed() {
        assert_eq!(Aim::Share(0.9).verdict(Some(0.91)), "0.90, met");
        assert_eq!(Aim::Times(1.3).verdict(Some(0.76)), "its time x 1.3, missed");
        assert_eq!(Aim::Times(2.0).verdict(Some(0.51)), "its time x 2, met");
        assert_eq!(Aim::Ahead.verdict(Some(1.0)), "faster, missed");
        assert_eq!(Aim::Ahead.verdict(None), "faster");
        assert_eq!(Aim::None.verdict(Some(2.0)), "");
    }
}
