//! Decides which waits never end. Waits of hosts in calls and of kernels on GPUs are judged together; [`super`] has the
//! argument.

use super::device::DeviceSeen;
use super::{Kind, Seen, Status, Verdict, Waiting};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Something that can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    /// The rank's thread that owns the transport, in a call that publishes its wait or in one that waits for the rank's
    /// kernels.
    Host(usize),
    /// A launch of a rank on a GPU.
    Kernels(usize),
}

impl Party {
    fn rank(self) -> usize {
        match self {
            Party::Host(rank) | Party::Kernels(rank) => rank,
        }
    }

    /// Index of this party in a list of all parties.
    fn place(self) -> usize {
        match self {
            Party::Host(rank) => 2 * rank,
            Party::Kernels(rank) => 2 * rank + 1,
        }
    }
}

/// Parties that may be waiting for each other forever.
pub(super) struct Suspicion {
    of: Vec<Suspect>,
}

struct Suspect {
    party: Party,
    /// Epoch of its line.
    epoch: u64,
    /// The ranks it waits for, as a verdict reports them.
    peers: Vec<usize>,
    /// The probe it has to answer; `None` for a closing rank.
    probe: Option<u64>,
}

/// The result of judging this rank's waiting kernels.
pub(crate) enum Found {
    /// They wait forever.
    Forever(Verdict),
    /// A launch waits to start for a rank that never comes, so it may as well start.
    NobodyComes,
}

/// The contents of all lines, each at one moment.
struct Lines {
    hosts: Vec<Option<Seen>>,
    kernels: Vec<Option<DeviceSeen>>,
}

/// What a wait depends on.
struct Needs {
    of: Vec<Party>,
    /// True if every one of them is needed, so that the wait is stuck if any one is. Otherwise any of them may end the
    /// wait.
    each: bool,
}

impl Needs {
    /// True if the wait may be stuck, given the parties that may be stuck.
    fn is_stuck(&self, stuck: &[bool]) -> bool {
        let is_stuck = |party: &Party| stuck[party.place()];
        if self.each { self.of.iter().any(is_stuck) } else { self.of.iter().all(is_stuck) }
    }
}

impl Lines {
    /// What a party's wait depends on; `None` if it does not wait, or if something else may end its wait.
    fn needs(&self, party: Party) -> Option<Needs> {
        let only = |party| Some(Needs { of: vec![party], each: false });
        match party {
            Party::Host(rank) => match &self.hosts[rank] {
                // It waits for all ranks, and does nothing more whatever they do.
                Some(Seen { kind: Kind::Closing, .. }) => Some(Needs { of: Vec::new(), each: false }),
                Some(Seen { kind, peers, .. }) => {
                    let of: Vec<Party> = peers.iter().map(|&peer| Party::Host(peer)).collect();
                    (!of.is_empty()).then_some(Needs { of, each: *kind == Kind::Gathering })
                }
                None => self.kernels[rank].as_ref()?.host_waits.then_some(Party::Kernels(rank)).and_then(only),
            },
            Party::Kernels(rank) => {
                let DeviceSeen { peer, needs, .. } = self.kernels[rank].as_ref()?;
                let host = self.hosts.get(*peer)?.as_ref();
                match (needs, &self.kernels[*peer]) {
                    (_, _) if host.is_some_and(|host| host.kind == Kind::Closing) => only(Party::Host(*peer)),
                    // A launch that has not started waits for a launch that the peer's host has yet to make.
                    (None, _) => only(Party::Host(*peer)),
                    (Some(needs), Some(there)) if there.may_give(*peer, rank, *needs) => None,
                    (Some(_), Some(_)) => only(Party::Kernels(*peer)),
                    (Some(_), None) => host.filter(|host| host.is_idle).and_then(|_| only(Party::Host(*peer))),
                }
            }
        }
    }
}

impl Status {
    /// Looks for a deadlock that includes this waiting rank. One call may suspect it, and a later call confirm it.
    pub fn judge(&self) -> Option<Verdict> {
        self.confirmed(Party::Host(self.rank), &self.suspicion).map(Verdict::Deadlock)
    }

    /// Like [`Status::judge`], for waiting kernels of this rank.
    pub(crate) fn judge_device(&self) -> Option<Found> {
        let waiting = self.confirmed(Party::Kernels(self.rank), &self.device_suspicion)?;
        let is_pending = self.device_seen(self.rank).is_some_and(|seen| seen.is_pending());
        Some(if is_pending { Found::NobodyComes } else { Found::Forever(Verdict::Deadlock(waiting)) })
    }

    fn confirmed(&self, own: Party, suspicion: &Mutex<Option<Suspicion>>) -> Option<Vec<Waiting>> {
        let mut suspicion = suspicion.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(Suspicion { of }) = &*suspicion else {
            *suspicion = self.suspect(own);
            return None;
        };
        let unchanged = || of.iter().all(|it| self.waits_still(it));
        if unchanged() && !of.iter().all(|it| self.has_answered(it)) {
            return None;
        }
        let waiting =
            of.iter().map(|it| Waiting { rank: it.party.rank(), peers: it.peers.clone(), doing: self.doing(it.party) });
        let waiting: Vec<Waiting> = waiting.collect();
        let is_so = unchanged();
        *suspicion = None;
        is_so.then_some(waiting)
    }

    fn waits_still(&self, Suspect { party, epoch, .. }: &Suspect) -> bool {
        match party {
            Party::Host(rank) => self.is_still(*rank, *epoch),
            Party::Kernels(rank) => self.device_is_still(*rank, *epoch),
        }
    }

    fn has_answered(&self, Suspect { party, probe, .. }: &Suspect) -> bool {
        let words = self.words(party.rank());
        let looked = match party {
            Party::Host(_) => &words.line.0.looked,
            Party::Kernels(_) => &words.device.0.looked,
        };
        // Acquire: the epochs must be reread after this load, not before.
        probe.is_none_or(|probe| looked.load(Ordering::Acquire) >= probe)
    }

    fn doing(&self, party: Party) -> String {
        let words = self.words(party.rank());
        match party {
            Party::Host(_) => words.text.read(),
            Party::Kernels(_) => words.device_text.read(),
        }
    }

    /// The parties that may wait for each other forever, if `own` is one of them, with the probes they have to answer.
    fn suspect(&self, own: Party) -> Option<Suspicion> {
        let ranks = 0..self.segments.len();
        let (hosts, kernels) = ranks.clone().map(|rank| (self.seen(rank), self.device_seen(rank))).unzip();
        let lines = Lines { hosts, kernels };
        let needs: Vec<Option<Needs>> =
            ranks.flat_map(|rank| [Party::Host(rank), Party::Kernels(rank)]).map(|party| lines.needs(party)).collect();
        let mut stuck: Vec<bool> = needs.iter().map(Option::is_some).collect();
        loop {
            let still = |needs: &Option<Needs>| needs.as_ref().is_some_and(|needs| needs.is_stuck(&stuck));
            let after: Vec<bool> =
                needs.iter().zip(&stuck).map(|(needs, is_stuck)| *is_stuck && still(needs)).collect();
            if after == stuck {
                break;
            }
            stuck = after;
        }
        let closes = |party: Party| matches!(party, Party::Host(rank) if lines.hosts[rank].as_ref().is_some_and(|seen| seen.kind == Kind::Closing));
        if !stuck[own.place()] || closes(own) {
            return None;
        }
        // Only those that this wait depends on. Others may have a deadlock of their own, which they find themselves.
        let (mut parties, mut next) = (Vec::new(), vec![own]);
        while let Some(party) = next.pop() {
            if !parties.contains(&party) {
                parties.push(party);
                let of = needs[party.place()].iter().flat_map(|needs| needs.of.iter().copied());
                next.extend(of.filter(|party| stuck[party.place()]));
            }
        }
        // A launch that is waiting to start is not a deadlock: its own rank finds out and starts it.
        let is_pending = |party: &Party| match party {
            Party::Host(_) => false,
            Party::Kernels(rank) => lines.kernels[*rank].as_ref().is_some_and(DeviceSeen::is_pending),
        };
        if parties.iter().any(|party| *party != own && is_pending(party)) {
            return None;
        }
        parties.sort_unstable_by_key(|party| party.place());
        let suspect = |party: Party| {
            let (words, rank) = (self.words(party.rank()), party.rank());
            let (epoch, peers, probe) = match party {
                Party::Host(_) => {
                    // A host without a line waits for its kernels. Their line says so, and they are among the suspects.
                    let seen = lines.hosts[rank].as_ref()?;
                    let answers = seen.kind.answers();
                    (
                        seen.epoch,
                        if answers { seen.peers.clone() } else { Vec::new() },
                        answers.then_some(&words.line.0.probe),
                    )
                }
                Party::Kernels(_) => {
                    let seen = lines.kernels[rank].as_ref()?;
                    (seen.epoch, vec![seen.peer], Some(&words.device.0.probe))
                }
            };
            // AcqRel: all lines were read before, and what is waited for is checked afterwards.
            let probe = probe.map(|probe| probe.fetch_add(1, Ordering::AcqRel) + 1);
            Some(Suspect { party, epoch, peers, probe })
        };
        Some(Suspicion { of: parties.into_iter().filter_map(suspect).collect() })
    }
}
