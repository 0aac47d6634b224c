//! How many blocks run on a device at the same time. All blocks of ranks that wait for each other must.

use super::error::CudaError;
use std::collections::HashMap;

/// The largest need of each stream. Launches of one stream run one after the other, those of different streams side by
/// side.
pub struct Residency {
    multiprocessors: u32,
    /// By stream: the largest need of a launch since the stream was last waited for.
    needs: HashMap<usize, Need>,
}

/// The resources that a launch occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its blocks.
    pub blocks: u32,
    /// How many of them one multiprocessor runs simultaneously.
    pub per_multiprocessor: u32,
}

impl Need {
    /// Multiprocessors it fills, in hundredths: blocks of one launch share them.
    fn hundredths(&self) -> u64 {
        (u64::from(self.blocks) * 100).div_ceil(u64::from(self.per_multiprocessor.max(1)))
    }
}

impl Residency {
    pub(super) fn new(multiprocessors: u32) -> Residency {
        Residency { multiprocessors, needs: HashMap::new() }
    }

    /// Claims room for a launch on a stream; refused if it does not fit beside those of the other streams.
    pub(super) fn claim(&mut self, stream: usize, need: Need) -> Result<(), CudaError> {
        let others = || self.needs.iter().filter(|(of, _)| **of != stream).map(|(_, need)| need);
        // Blocks of different kinds may be spread so that none of the other kind fits beside them.
        let alike = others().all(|other| other.per_multiprocessor == need.per_multiprocessor);
        let of = |need: &Need| if alike { need.hundredths() } else { u64::from(need.blocks) * 100 };
        let taken: u64 = others().map(of).sum();
        check(of(&need) + taken, self.multiprocessors, need, taken)?;
        let known = self.needs.entry(stream).or_insert(need);
        if need.hundredths() > known.hundredths() {
            *known = need;
        }
        Ok(())
    }

    /// All launches of a stream are done.
    pub(super) fn release(&mut self, stream: usize) {
        self.needs.remove(&stream);
    }
}

/// Checks that `ranks` launches of one kind fit a device simultaneously.
///
/// ```
/// use tilewire::cuda::{Need, all_resident};
/// let need = Need { blocks: 32, per_multiprocessor: 1 };
/// assert!(all_resident(need, 4, 132).is_ok());
/// assert!(all_resident(need, 5, 132).unwrap_err().to_string().contains("132"));
/// ```
pub fn all_resident(need: Need, ranks: u32, multiprocessors: u32) -> Result<(), CudaError> {
    let one = need.hundredths();
    check(one * u64::from(ranks), multiprocessors, need, one * u64::from(ranks.saturating_sub(1)))
}

fn check(hundredths: u64, multiprocessors: u32, need: Need, others: u64) -> Result<(), CudaError> {
    if need.per_multiprocessor > 0 && hundredths <= u64::from(multiprocessors) * 100 {
        return Ok(());
    }
    let Need { blocks, per_multiprocessor } = need;
    let others = u32::try_from(others.div_ceil(100)).unwrap_or(u32::MAX);
    Err(CudaError::NotResident { blocks, per_multiprocessor, others, multiprocessors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_of_one_stream_share_and_those_of_others_add() {
        let mut residency = Residency::new(10);
        let need = |blocks| Need { blocks, per_multiprocessor: 2 };
        residency.claim(1, need(12)).unwrap();
        residency.claim(1, need(8)).unwrap();
        residency.claim(2, need(8)).unwrap();
        let error = residency.claim(3, need(1)).unwrap_err();
        assert_eq!(error, CudaError::NotResident { blocks: 1, per_multiprocessor: 2, others: 10, multiprocessors: 10 });
        residency.release(2);
        residency.claim(3, need(1)).unwrap();
    }

    #[test]
    fn what_fits_nowhere_is_refused() {
        assert!(all_resident(Need { blocks: 1, per_multiprocessor: 0 }, 1, 132).is_err());
    }
}
