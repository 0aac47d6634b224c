//! Reports in words.

use super::fault::{Event, Fault, Found};
use super::{Certainty, Report};
use crate::check::model::Conflict;
use std::fmt;
use std::ops::Range;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { ranks, launches, faults, schedules, .. } = self;
        let of = |n: u64, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
        let verdict = if faults.is_empty() { "clean".to_string() } else { of(faults.len() as u64, "fault", "faults") };
        let ranks = of(u64::from(*ranks), "rank", "ranks");
        let (launches, runs) =
            (of(u64::from(*launches), "launch", "launches"), of(*schedules, "schedule", "schedules"));
        write!(f, "{verdict}, {}: {ranks}, {launches}, {runs} run", self.certainty)?;
        for (i, found) in faults.iter().enumerate() {
            write!(f, "\n\n{}. {found}", i + 1)?;
        }
        Ok(())
    }
}

impl fmt::Display for Certainty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Certainty::Decided => f.write_str("decided"),
            Certainty::Sampled { why, exhausted: true, .. } => write!(f, "sampled, every schedule run ({why})"),
            Certainty::Sampled { why, seed, .. } => write!(f, "sampled, seed {seed} ({why})"),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fault)?;
        if self.times > 1 {
            write!(f, "\n   and {} more like it", self.times - 1)?;
        }
        if self.with_one_copy {
            write!(f, "\n   with one copy of every role, as the CPU engine runs them")?;
        }
        if !self.prefix.is_empty() {
            write!(f, "\n   what has to happen for it:")?;
            for moment in &self.prefix {
                write!(f, "\n     {} {}", moment.event.party_name(), moment.deed)?;
                if let Some(at) = &moment.event.at {
                    write!(f, "   at {at}")?;
                }
            }
        }
        Ok(())
    }
}

impl Event {
    /// The party, in words.
    pub fn party_name(&self) -> String {
        let mut name = format!("rank {}", self.rank);
        if let Some(block) = self.block {
            name += &format!(" block {block}");
        }
        if let Some(role) = &self.role {
            name += &format!(" role {role}");
        }
        if let Some(copy) = self.copy.filter(|&copy| copy > 0) {
            name += &format!(" copy {copy}");
        }
        if let Some(party) = self.party {
            name += &format!(" ({party})");
        }
        name + &format!(" launch {}", self.launch)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.party_name(), self.op)?;
        self.at.iter().try_for_each(|at| write!(f, "   at {at}"))?;
        self.role_at.iter().try_for_each(|at| write!(f, ", in the role at {at}"))
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Conflict::Unordered => "nothing orders the two accesses: a signal and a wait must stand between them",
            Conflict::OnlyCredited => "only a credit orders the two, and a credit shows no data: use signal",
            Conflict::Elements => "two elements of one each: their order is free",
            Conflict::Scopes => {
                "atomics whose scopes do not contain each other are not atomic together: use Scope::System between ranks"
            }
            Conflict::Sizes => "atomics of different bytes are not atomic together: use one address and one type",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Race { conflict, first, second, memory, bytes } => {
                write!(f, "race on {memory}, bytes {}..{}: {conflict}", bytes.start, bytes.end)?;
                write!(f, "\n   {first}\n   {second}")
            }
            Fault::Promised { first, second, memory, bytes, input, rank } => {
                let (what, instead) = match input {
                    true => ("an input", "read memory that peers write with get, or bind it with Access::InOut"),
                    false => ("an output", "put what peers send into a region, or bind the memory with Access::InOut"),
                };
                let Range { start, end } = bytes;
                write!(
                    f,
                    "{memory}, bytes {start}..{end}, is {what} of rank {rank} and another rank writes it during the launch: "
                )?;
                write!(f, "{instead}\n   {first}\n   {second}")
            }
            Fault::OtherOperation { slot, wait, expected, signal, seen } => {
                let name =
                    |operation: &Option<u16>| operation.map_or("no operation".into(), |n| format!("operation {n}"));
                write!(f, "{slot} is signalled by {} and waited for by {}: ", name(seen), name(expected))?;
                write!(f, "launch the same operations in the same order on both ranks\n   {signal}\n   {wait}")
            }
            Fault::Unwritten { by, memory, bytes } => {
                write!(f, "read of bytes nobody wrote: {memory}, bytes {}..{}\n   {by}", bytes.start, bytes.end)
            }
            Fault::TwoWriters { slot, first, second } => {
                write!(f, "two writers of {slot} that nothing orders: the counter can go backwards")?;
                write!(f, "\n   {first}\n   {second}")
            }
            Fault::NotGrowing { slot, first, before, second, value } => {
                write!(f, "{slot} does not grow: set to {value} after {before}\n   {first}\n   {second}")
            }
            Fault::BelowStart { slot, before, signal, value } => {
                write!(
                    f,
                    "{slot} does not grow: set to {value}, and it held {before} before the first launch\n   {signal}"
                )
            }
            Fault::Skipped { slot, wait, expected, signal, value } => {
                write!(f, "a signal meant for another wait: nobody sets {slot} to {expected}, {value} satisfies it")?;
                write!(f, "\n   {signal}\n   {wait}")
            }
            Fault::StaleFlag { by, memory, byte, before, flag } => {
                write!(f, "packet at byte {byte} of {memory} gets flag {flag} after {before}: a reader can take ")?;
                write!(f, "the old packet for the new one\n   {by}")
            }
            Fault::OverCredit { slot, credit, value, tail, known, wait } => {
                write!(f, "credit ahead of its data: {slot} is set to {value} where {tail} is known to be {known}: ")?;
                write!(f, "the step was never sent, or nobody waited for it\n   {credit}")?;
                wait.iter().try_for_each(|wait| write!(f, "\n   {wait}"))
            }
            Fault::Leftover { slot, signal, value, waited } => {
                write!(
                    f,
                    "left over: {slot} is {value} at the end of launch {} and nobody waited for ",
                    signal.launch
                )?;
                write!(f, "more than {waited}: the next launch takes it for its own")?;
                write!(f, "\n   {signal}")
            }
            Fault::Untaken { by, memory, byte, flag } => {
                write!(
                    f,
                    "left over: nobody takes the packet at byte {byte} of {memory}, flag {flag}, in its launch: "
                )?;
                write!(f, "the next launch takes it for its own\n   {by}")
            }
            Fault::NotReset { slot, write, value } => {
                write!(f, "{slot} is left at {value}: the next launch takes it for its own\n   {write}")
            }
            Fault::Deadlock { waiters, cycle } => {
                let what =
                    if cycle.is_empty() { "a wait for something that nobody will do" } else { "a cycle of waits" };
                write!(f, "deadlock: {what}")?;
                let rest = (0..waiters.len()).filter(|place| !cycle.contains(place));
                for place in cycle.iter().copied().chain(rest) {
                    let waiter = &waiters[place];
                    write!(f, "\n   {} waits for {}", waiter.event.party_name(), waiter.on)?;
                    if let Some(at) = &waiter.event.at {
                        write!(f, " (at {at}")?;
                        waiter.event.role_at.iter().try_for_each(|at| write!(f, ", in the role at {at}"))?;
                        f.write_str(")")?;
                    }
                    write!(f, ", {}", waiter.needs)?;
                }
                Ok(())
            }
            Fault::WrongValue { rank, launch, tensor, element, expected, found, count, at } => {
                let more = if *count > 1 { format!(", and {} more", count - 1) } else { String::new() };
                match found {
                    Some(found) => write!(
                        f,
                        "rank {rank}: element {element} of {tensor} is {found} after launch {launch}, expected {expected}"
                    )?,
                    None => write!(
                        f,
                        "rank {rank}: no kernel has written element {element} of {tensor} by the end of launch {launch}"
                    )?,
                }
                write!(f, "{more}\n   at {at}")
            }
            Fault::NoProducer { slot, wait } => write!(f, "nobody signals {slot}\n   {wait}"),
            Fault::NotResident { launch, why, at } => {
                write!(f, "launch {launch} deadlocks on the device: {why}")?;
                at.as_ref().map_or(Ok(()), |at| write!(f, "\n   at {at}"))
            }
            Fault::Error(error) => write!(f, "{error}"),
        }
    }
}
