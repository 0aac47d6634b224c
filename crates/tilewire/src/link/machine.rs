//! The descriptions of machines that ranks exchange at the rendezvous, and the one that stands for all of them.
//!
//! Default choices must be the same on all ranks, but ranks may run on different machines. So every rank sends a
//! description of its machine, every rank receives the same list, and choices are made for [`Machine::of_all`].

use crate::cuda::{Device, Seat};
use crate::processor::Processor;
use crate::transport::rendezvous::{Parameters, Said};
use crate::transport::{Rank, TransportError};
use std::fmt;
use std::str::FromStr;

/// The facts about the machine of a rank that default choices depend on. Its text form is what ranks exchange.
///
/// ```
/// use tilewire::link::{Machine, Processor};
/// let of = |intel, second_level| Machine::Cpu(Processor { intel, second_level });
/// let hosts = [of(false, 1 << 20), of(true, 2 << 20)];
/// assert_eq!(Machine::of_all(&hosts), of(true, 1 << 20));
/// assert_eq!(hosts[0].to_string().parse(), Ok(hosts[0]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// Kernels run on a processor.
    Cpu(Processor),
    /// Kernels run on a GPU.
    Gpu {
        /// The number of ranks of the world that run on this GPU.
        sharers: usize,
        /// The number of multiprocessors.
        multiprocessors: usize,
        /// The shared memory of a block in bytes.
        shared_bytes: usize,
    },
}

impl Machine {
    /// The machine of a rank whose kernels run on this seat, or on the processor if it has none.
    pub(crate) fn here(seat: Option<&Seat>) -> Machine {
        let of = |seat: &Seat| Machine::of_device(seat.stream.device(), seat.sharers.max(1) as usize);
        seat.map_or_else(|| Machine::Cpu(Processor::here()), of)
    }

    /// A GPU shared by at most this many ranks.
    pub(crate) fn of_device(device: &Device, sharers: usize) -> Machine {
        let (multiprocessors, shared_bytes) = (device.multiprocessors(), device.target().shared_bytes());
        Machine::Gpu { sharers, multiprocessors: multiprocessors as usize, shared_bytes: shared_bytes as usize }
    }

    /// The same machine, if it is a GPU, shared by this many ranks.
    pub(super) fn shared_by(self, sharers: usize) -> Machine {
        match self {
            Machine::Gpu { multiprocessors, shared_bytes, .. } => {
                Machine::Gpu { sharers: sharers.max(1), multiprocessors, shared_bytes }
            }
            cpu => cpu,
        }
    }

    /// The machine that stands for the machines of all ranks. It depends only on the set of machines, so all ranks of a
    /// world get the same one. If all machines are alike, it is that machine.
    ///
    /// | fact | for all ranks | reason |
    /// |---|---|---|
    /// | CPU or GPU | a GPU if there is one | one thread of a CPU runs any number of blocks, and a GPU needs several |
    /// | maker of the processor | Intel if there is one | small rings suit all; large ones suit other makers' only |
    /// | second-level cache | the least | slots that fit the smaller cache fit the larger one |
    /// | ranks on a GPU | the most | all blocks of all ranks on it run simultaneously |
    /// | multiprocessors | the least | likewise, on the smallest GPU |
    /// | shared memory | the least | bulk copies of all ranks go through slots of one size |
    ///
    /// # Panics
    /// If the slice is empty, which it never is for a world.
    pub fn of_all(machines: &[Machine]) -> Machine {
        machines.iter().copied().reduce(Machine::and).expect("a world has a rank")
    }

    fn and(self, other: Machine) -> Machine {
        match (self, other) {
            (Machine::Cpu(a), Machine::Cpu(b)) => Machine::Cpu(a.and(b)),
            (gpu @ Machine::Gpu { .. }, Machine::Cpu(_)) | (Machine::Cpu(_), gpu) => gpu,
            (
                Machine::Gpu { sharers: a, multiprocessors: b, shared_bytes: c },
                Machine::Gpu { sharers, multiprocessors, shared_bytes },
            ) => Machine::Gpu {
                sharers: a.max(sharers),
                multiprocessors: b.min(multiprocessors),
                shared_bytes: c.min(shared_bytes),
            },
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Machine::Cpu(Processor { intel, second_level }) => {
                write!(f, "cpu intel={} second_level={second_level}", u8::from(*intel))
            }
            Machine::Gpu { sharers, multiprocessors, shared_bytes } => {
                write!(f, "gpu sharers={sharers} multiprocessors={multiprocessors} shared_bytes={shared_bytes}")
            }
        }
    }
}

/// A text that describes no [`Machine`].
#[derive(Clone, PartialEq, Eq)]
pub struct NoMachine {
    text: String,
}

errors! {
    struct NoMachine {
        NoMachine { text } => "'{text}' describes no machine: do all ranks run the same version?",
    }
}

impl FromStr for Machine {
    type Err = NoMachine;

    fn from_str(text: &str) -> Result<Machine, NoMachine> {
        let mut words = text.split(' ');
        let kind = words.next();
        let mut fact = |name: &str| -> Option<usize> {
            words.next()?.strip_prefix(name)?.strip_prefix('=')?.parse().ok().filter(|&value| value < 1 << 40)
        };
        let mut machine = || match kind? {
            "cpu" => {
                let intel = fact("intel").filter(|&intel| intel < 2)? == 1;
                Some(Machine::Cpu(Processor { intel, second_level: fact("second_level")? }))
            }
            "gpu" => Some(Machine::Gpu {
                // Choices divide by it.
                sharers: fact("sharers").filter(|&sharers| sharers > 0)?,
                multiprocessors: fact("multiprocessors")?,
                shared_bytes: fact("shared_bytes")?,
            }),
            _ => None,
        };
        let machine = machine();
        machine.filter(|_| words.next().is_none()).ok_or_else(|| NoMachine { text: text.to_string() })
    }
}

/// The name of the parameter in which ranks send the description. Its value may differ between ranks.
pub(super) const MACHINE: &str = "machine";

impl Machine {
    /// Adds the description as the first value that a rank sends at the rendezvous, after the version.
    pub(super) fn say(self, new: Parameters) -> Parameters {
        new.with(MACHINE, self)
    }

    /// The machines that all ranks described, by rank.
    pub(super) fn heard(said: &Said) -> Result<Vec<Machine>, TransportError> {
        let machine = |(rank, of_rank): (Rank, &Vec<String>)| {
            let peer = |error: NoMachine| TransportError::Peer { rank, what: error.to_string() };
            of_rank.get(1).map_or("", String::as_str).parse().map_err(peer)
        };
        Rank::all(said.len()).zip(said).map(machine).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(intel: bool, second_level: usize) -> Machine {
        Machine::Cpu(Processor { intel, second_level })
    }

    fn gpu(sharers: usize, multiprocessors: usize, shared_bytes: usize) -> Machine {
        Machine::Gpu { sharers, multiprocessors, shared_bytes }
    }

    #[test]
    fn machines_are_read_as_they_are_written() {
        for machine in [cpu(false, 1 << 20), cpu(true, 0), gpu(1, 132, 232_448), gpu(8, 0, 0)] {
            assert_eq!(machine.to_string().parse(), Ok(machine));
        }
        let bad = [
            "",
            "cpu",
            "not said",
            "cpu intel=2 second_level=1",
            "cpu intel=1 second_level=",
            "cpu intel=1 second_level=-1",
            "cpu intel=1 second_level=1 more",
            "cpu second_level=1 intel=1",
            "gpu sharers=0 multiprocessors=1 shared_bytes=1",
            "gpu sharers=1 multiprocessors=1",
            "gpu sharers=1 multiprocessors=1 shared_bytes=99999999999999999999",
            "tpu intel=1 second_level=1",
        ];
        for text in bad {
            let error = text.parse::<Machine>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("'{text}' describes no machine")), "{error}");
        }
        let said =
            [cpu(true, 5).to_string(), "nonsense".to_string()].map(|text| vec!["version".to_string(), text]).to_vec();
        assert!(matches!(Machine::heard(&said), Err(TransportError::Peer { rank, .. }) if rank == Rank::new(1)));
    }

    #[test]
    fn all_machines_together_are_the_same_in_any_order_and_those_of_one_kind_stay() {
        let all = [cpu(false, 1 << 20), cpu(true, 2 << 20), gpu(2, 132, 200), gpu(4, 148, 100), cpu(false, 512 << 10)];
        for a in all {
            assert_eq!(Machine::of_all(&[a; 3]), a);
            for (b, c) in all.into_iter().flat_map(|b| all.map(|c| (b, c))) {
                let [ab, ba] = [[a, b, c], [c, a, b]].map(|machines| Machine::of_all(&machines));
                assert_eq!(ab, ba, "{a}, {b}, {c}");
                assert_eq!(Machine::of_all(&[Machine::of_all(&[a, b]), c]), ab, "{a}, {b}, {c}");
            }
        }
        assert_eq!(Machine::of_all(&all), gpu(4, 132, 100));
        assert_eq!(Machine::of_all(&[all[0], all[1], all[4]]), cpu(true, 512 << 10));
    }
}
