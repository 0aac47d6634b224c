//! Domains of a mesh: given by the user, or found from what the ranks can reach.
//!
//! ```text
//!   1  every rank sends its host, process and device to all
//!   2  every rank sends the list of ranks that its kernels reach to all
//!   3  a rank joins a domain if it and all members of the domain reach each other in both directions
//! ```
#![forbid(unsafe_code)]

use crate::transport::domains::{grouped, is_partition};
use crate::transport::rendezvous::{Parameters, Shared};
use crate::transport::{Rank, TransportError, host_name};

/// The place of a rank's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    host: String,
    process: String,
    /// The number of the rank's device in its process; empty for a CPU.
    pub(super) ordinal: String,
    /// The name of the rank's device, which is the same in all processes; empty for a CPU.
    pub(super) device: String,
}

impl Place {
    fn of(values: &[String]) -> Option<Place> {
        let [.., host, process, ordinal, device] = values else { return None };
        let [host, process, ordinal, device] = [host, process, ordinal, device].map(String::clone);
        Some(Place { host, process, ordinal, device })
    }

    pub(super) fn is_on_host_of(&self, other: &Place) -> bool {
        self.host == other.host
    }

    #[cfg(feature = "cuda")]
    pub(super) fn is_in_this_process(&self) -> bool {
        self.host == host_name() && self.process == std::process::id().to_string()
    }
}

/// Finds the domains. `device` is the number and name of this rank's device. `reaches` says whether kernels of this
/// rank (the first place) reach memory of another rank (the second). Collective.
pub(super) fn found(
    world: &Shared,
    device: (String, String),
    reaches: impl Fn(&Place, &Place) -> Result<bool, TransportError>,
) -> Result<Vec<Vec<u32>>, TransportError> {
    let told = Parameters::new("mesh/places")
        .with("host", host_name())
        .with("process", std::process::id())
        .with("ordinal", device.0)
        .with("device", device.1)
        .agree(world, &["host", "process", "ordinal", "device"], world.deadline())?;
    let places = told.iter().zip(Rank::all(world.size())).map(|(values, rank)| {
        Place::of(values).ok_or_else(|| TransportError::Peer { rank, what: "it did not say where it is".to_string() })
    });
    let places = places.collect::<Result<Vec<Place>, _>>()?;
    let me = &places[world.rank().index()];
    let reach = places.iter().map(|place| Ok(if reaches(me, place)? { '1' } else { '0' }));
    let (reach, objection) = match reach.collect::<Result<String, TransportError>>() {
        Ok(reach) => (reach, None),
        Err(error) => (String::new(), Some(error)),
    };
    let told = Parameters::new("mesh/reach").with("reach", reach).object(objection);
    let told = told.agree(world, &["reach"], world.deadline())?;
    let reach = told.iter().map(|values| values.last().is_some_and(|bits| bits.len() == world.size()));
    if let Some(rank) = reach.into_iter().position(|is_whole| !is_whole) {
        let what = "it did not say which ranks it reaches".to_string();
        return Err(TransportError::Peer { rank: Rank::new(rank as u32), what });
    }
    let bit = |from: usize, to: usize| told[from].last().is_some_and(|bits| bits.as_bytes()[to] == b'1');
    Ok(grouped(world.size(), bit))
}

/// Checks that every rank is in exactly one domain.
pub(super) fn check(domains: &[Vec<u32>], ranks: usize) -> Result<(), TransportError> {
    if is_partition(domains, ranks) {
        return Ok(());
    }
    Err(TransportError::Domains { domains: domains.to_vec(), ranks })
}

/// True if two ranks are in different domains.
pub(super) fn are_apart(domains: &[Vec<u32>], a: Rank, b: Rank) -> bool {
    domain_of(domains, a) != domain_of(domains, b)
}

/// The number of a rank's domain.
pub(super) fn domain_of(domains: &[Vec<u32>], rank: Rank) -> Option<usize> {
    domains.iter().position(|domain| domain.contains(&rank.number()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::World;

    #[test]
    fn a_rank_is_in_a_domain_only_if_it_is_reached_too() {
        // Even ranks reach everybody, odd ones only each other.
        let reaches = |me: &Place, other: &Place| {
            let odd = |place: &Place| place.device.parse::<u32>().is_ok_and(|number| number % 2 == 1);
            Ok(me.is_on_host_of(other) && (!odd(me) || odd(other)))
        };
        let of = World::threads(5).run(|world| {
            let number = world.rank().number().to_string();
            Ok(found(&Shared::of(&world), (number.clone(), number), reaches)?)
        });
        assert!(of.unwrap().iter().all(|found| *found == [vec![0, 2, 4], vec![1, 3]]));
    }

    #[test]
    fn a_rank_that_cannot_say_whom_it_reaches_ends_the_rendezvous_of_all() {
        let of = World::threads(2).run(|world| {
            let fails = world.rank().number() == 1;
            let reaches = |_: &Place, _: &Place| if fails { Err(TransportError::NoWindows) } else { Ok(true) };
            Ok(found(&Shared::of(&world), Default::default(), reaches).unwrap_err().to_string())
        });
        assert!(of.unwrap().iter().all(|error| error.contains("no windows")), "all are told");
    }
}
