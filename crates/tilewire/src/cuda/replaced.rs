//! What a launch was bound to before it was rebound.

/// What launches in flight use although the next ones use something else, in the order of the launches.
pub(super) struct Replaced<T, E> {
    all: Vec<T>,
    /// An event that comes after the launches that use the first so many.
    mark: Option<(E, usize)>,
}

impl<T, E> Replaced<T, E> {
    /// The most that is kept, so that a host that never waits keeps no more memory than this.
    pub(super) const MOST: usize = 256;

    /// What is kept before a mark says until when. It is little: what launches use may be scarce, as the control lines
    /// of a window are.
    const MARKED_FROM: usize = 2;

    /// True if something is kept and no mark says until when.
    pub(super) fn wants_mark(&self) -> bool {
        self.mark.is_none() && self.all.len() >= Self::MARKED_FROM
    }

    /// The event comes after all launches so far.
    pub(super) fn mark(&mut self, event: E) {
        self.mark = Some((event, self.all.len()));
    }

    /// Drops what is not used any more, if the mark has happened.
    pub(super) fn trim(&mut self, has_happened: impl FnOnce(&E) -> bool) {
        if let Some((_, over)) = self.mark.take_if(|(event, _)| has_happened(event)) {
            self.all.drain(..over);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.all.len() >= Self::MOST
    }

    pub(super) fn keep(&mut self, old: T) {
        self.all.push(old);
    }

    /// Everything that was in flight has ended.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<T, E> Default for Replaced<T, E> {
    fn default() -> Self {
        Replaced { all: Vec::new(), mark: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Ten thousand launches and rebinds of a host that never waits, on a device that is always this many behind.
    #[test]
    fn what_launches_in_flight_use_is_kept_until_they_have_ended_and_never_without_limit() {
        for (behind, least_waits) in [(1, 0), (100, 0), (1000, 30)] {
            let tensors: Vec<Arc<()>> = (0..10_000).map(|_| Arc::default()).collect();
            let mut replaced = Replaced::default();
            let (mut over, mut most, mut waits) = (0, 0, 0);
            for (k, tensor) in tensors.iter().enumerate() {
                // The launch of `tensor`, and the event before it.
                if replaced.wants_mark() {
                    replaced.mark(k);
                }
                over = over.max((k + 1).saturating_sub(behind));
                replaced.trim(|&event| over >= event);
                if replaced.is_full() {
                    replaced.clear();
                    (over, waits) = (k + 1, waits + 1);
                }
                replaced.keep(tensor.clone());
                most = most.max(replaced.all.len());
                let in_flight = tensors[over..=k].iter();
                assert!(in_flight.clone().all(|tensor| Arc::strong_count(tensor) == 2), "{behind} behind, at {k}");
            }
            assert!(most <= 256, "{most} are kept");
            assert!(if least_waits == 0 { waits == 0 } else { waits >= least_waits }, "{behind} behind: {waits} waits");
            replaced.clear();
            assert!(tensors.iter().all(|tensor| Arc::strong_count(tensor) == 1));
        }
    }
}
