//! For which rank a wait is, as the memory that it waits in says.

use super::error::Timeout;
use crate::ir::{Kernel, Param};
use crate::link::Transport;
use crate::tensor::{Arg, Memory};
use crate::transport::{PeerEndpoint, Rank};

/// For whom the waits of a kernel are, where its parameters' names do not say.
pub(super) struct Awaited {
    /// Of every table of several banks its name, and which rank signals there.
    tables: Vec<(String, Vec<Option<Rank>>)>,
}

impl Awaited {
    /// Writes into the name of every slot and every packet area which rank signals there: a kernel may wait for many.
    pub(super) fn name(kernel: &mut Kernel, args: &[Arg], hosts: &[&dyn Transport]) -> Awaited {
        let of = |host: &&dyn Transport| {
            let (host, me) = (*host, host.rank());
            let peers = Rank::all(host.world_size()).filter(move |&peer| peer != me);
            peers.filter_map(move |peer| Some((peer, host.endpoint(peer)?))).collect::<Vec<_>>()
        };
        let endpoints: Vec<(Rank, PeerEndpoint)> = hosts.iter().flat_map(of).collect();
        let signalled_by = |memory: &Memory| {
            let (peer, _) = endpoints.iter().find(|(_, end)| end.waited().iter().any(|waited| waited.is(memory)))?;
            Some(*peer)
        };
        let mut tables = Vec::new();
        let params: Vec<_> = kernel.params.keys().collect();
        for (id, arg) in params.into_iter().zip(args) {
            let (Param::Slots { name, .. } | Param::Buffer { name, .. }, Arg::Slots(banks) | Arg::Buffer(banks)) =
                (&mut kernel.params[id], arg)
            else {
                continue;
            };
            match &banks[..] {
                [memory] => {
                    if let Some(peer) = signalled_by(memory) {
                        name.push_str(&format!("{OF_RANK}{peer}"));
                    }
                }
                banks => tables.push((name.clone(), banks.iter().map(signalled_by).collect())),
            }
        }
        Awaited { tables }
    }

    /// Of a kernel that waits for nobody.
    pub(super) fn nobody() -> Awaited {
        Awaited { tables: Vec::new() }
    }

    /// The rank that a wait was for.
    pub(super) fn by(&self, timeout: &Timeout) -> Option<Rank> {
        self.of(&timeout.op, timeout.bank)
    }

    /// The rank that signals what is waited for, in a bank where there are several.
    pub(super) fn of(&self, op: &str, bank: Option<i64>) -> Option<Rank> {
        let tables = self.tables.iter().filter(|(name, _)| op.contains(name));
        let table = tables.max_by_key(|(name, _)| name.len());
        let in_table = table.and_then(|(_, peers)| *peers.get(usize::try_from(bank?).ok()?)?);
        in_table.or_else(|| named(op))
    }
}

const OF_RANK: &str = " of rank ";

/// The rank that [`Awaited::name`] wrote into what was waited for.
fn named(op: &str) -> Option<Rank> {
    let (_, rest) = op.rsplit_once(OF_RANK)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok().map(Rank::new)
}
