//! `tilewire fingerprints`: the compiled form of every shipped kernel, as one number for each group of kernels.
//!
//! In: the schedules of `check all` and the plans of `verify --quick`. Out: a line for each group with a hash of the
//! IR, the bytecode and the PTX of its kernels; or, compared with an earlier list, the lines that differ. A change that
//! is not meant to change any kernel leaves the list unchanged. With `--every` there is a line for each kernel, to find
//! the one that changed.

use crate::bench::machine::Machine;
use crate::run::{Collective, Peers, prepare, prepare_all};
use crate::verify::{number_of_ranks, quick_plans};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{Write, stdout};
use std::process::ExitCode;
use tilewire::RunError;
use tilewire::ir::{self, Kernel};
use tilewire::link::{AnyTransport, ShmTransport};
use tilewire::ptx::{self, Target};
use tilewire::transport::{RankError, World};
use tilewire::vm::Prepared;
use tilewire_testkit::shipped::shipped;

/// What to fingerprint.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Numbers of ranks
    #[arg(long, value_name = "LIST", value_delimiter = ',', overrides_with = "ranks",
        default_values_t = [2, 3, 4], value_parser = number_of_ranks)]
    pub ranks: Vec<usize>,
    /// An earlier list to compare with
    #[arg(long, value_name = "FILE")]
    pub against: Option<String>,
    /// A line for each kernel instead of groups
    #[arg(long)]
    pub every: bool,
}

/// Hashes of the three forms of a kernel, or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Print {
    ir: u64,
    bytecode: u64,
    ptx: u64,
}

impl Print {
    /// For no kernel: the initial value of FNV-1a.
    const EMPTY: Print = Print { ir: FNV_BEGIN, bytecode: FNV_BEGIN, ptx: FNV_BEGIN };

    fn of(kernel: &Kernel, bytecode: &str) -> Print {
        let ptx = match ptx::emit(&ir::simplify(kernel), ptx::Options::new(Target::Sm90a)) {
            Ok(module) => module.text,
            Err(error) => error.to_string(),
        };
        let hash = |text: &str| text.bytes().fold(FNV_BEGIN, fnv);
        Print { ir: hash(&kernel.to_string()), bytecode: hash(bytecode), ptx: hash(&ptx) }
    }

    fn and(self, other: Print) -> Print {
        let both = |a: u64, b: u64| b.to_le_bytes().into_iter().fold(a, fnv);
        Print {
            ir: both(self.ir, other.ir),
            bytecode: both(self.bytecode, other.bytecode),
            ptx: both(self.ptx, other.ptx),
        }
    }
}

const FNV_BEGIN: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
}

/// Kernels by group, or individually.
type Prints = BTreeMap<String, (usize, Print)>;

fn add(prints: &mut Prints, group: String, print: Print) {
    let entry = prints.entry(group).or_insert((0, Print::EMPTY));
    *entry = (entry.0 + 1, entry.1.and(print));
}

/// Prints the list, or compares it; status 1 if it differs.
pub fn fingerprints(request: &Request) -> Result<ExitCode> {
    let mut prints = Prints::new();
    for &ranks in &request.ranks {
        of_schedules(ranks, request.every, &mut prints)?;
        of_plans(ranks, request.every, &mut prints)?;
    }
    let text = text_of(&prints);
    match &request.against {
        None => {
            stdout().write_all(text.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        Some(file) => compare(&text, &fs::read_to_string(file).with_context(|| format!("reading {file}"))?),
    }
}

/// The facts that defaults depend on: lists of different processors are not compared.
fn processor() -> String {
    let Machine { cpu, level, caches, .. } = Machine::read();
    let caches: Vec<String> = caches.into_iter().map(|(name, size)| format!("{name} {size}")).collect();
    format!("# {cpu}, {level}, {}", caches.join(", "))
}

fn text_of(prints: &Prints) -> String {
    let mut text = format!("{}\n", processor());
    for (group, (kernels, Print { ir, bytecode, ptx })) in prints {
        _ = writeln!(text, "{ir:016x} {bytecode:016x} {ptx:016x} {kernels}  {group}");
    }
    text
}

/// The schedules that `check all` runs.
fn of_schedules(ranks: usize, every: bool, prints: &mut Prints) -> Result<()> {
    const BLOCKS: usize = 2;
    for case in shipped(ranks, BLOCKS) {
        let plan = case.plan()?;
        for launch in 0..plan.launches() {
            for (rank, (kernel, args)) in plan.traced(launch).enumerate() {
                let bytecode = Prepared::new(kernel, args)
                    .map_or_else(|error| error.to_string(), |prepared| prepared.disassembly());
                let mut group = format!("check, {ranks} ranks, {}: {}", case.collective, case.name);
                if every {
                    _ = write!(group, ", launch {launch}, rank {rank}");
                }
                add(prints, group, Print::of(kernel, &bytecode));
            }
        }
    }
    Ok(())
}

/// The plans that `verify --quick` runs, on rank 0 and on the last rank.
fn of_plans(ranks: usize, every: bool, prints: &mut Prints) -> Result<()> {
    let (options, plans) = quick_plans(ranks);
    let of_ranks = World::threads(ranks).run(|world| -> Result<Vec<Option<Print>>, RankError> {
        let link = AnyTransport::from(ShmTransport::rendezvous(&world, options)?);
        let (me, size) = (world.rank(), world.size());
        let shows = me.index() == 0 || me.index() + 1 == size;
        let mut of_plans = Vec::new();
        for plan in &plans {
            let prepared = match plan.collective {
                Collective::Sendrecv => {
                    let peers = Peers { to: Some(me.after(1, size)), from: Some(me.after(size - 1, size)) };
                    prepare(&link, &plan.case, peers, 1)
                }
                _ => prepare_all(&link, plan, 1),
            };
            let mut op = match prepared {
                Ok(op) => op,
                Err(RunError::Transfer(_)) => {
                    of_plans.push(None);
                    continue;
                }
                Err(error) => return Err(format!("{plan}: {error}").into()),
            };
            let print = op.prepared().filter(|_| shows).map(|op| Print::of(op.kernel(), &op.disassembly()));
            // Peers that were told of an operation must meet, which takes a launch.
            op.launch().map_err(|error| format!("{plan}: {error}"))?;
            of_plans.push(print);
        }
        link.close()?;
        Ok(of_plans)
    })?;
    for (rank, of_plans) in of_ranks.iter().enumerate() {
        for (plan, print) in plans.iter().zip(of_plans) {
            let Some(print) = print else { continue };
            let group = match every {
                true => format!("verify, {ranks} ranks, {plan}, rank {rank}"),
                false => format!("verify, {ranks} ranks, {}: {}", plan.collective.name(), plan.case.hook.name()),
            };
            add(prints, group, *print);
        }
    }
    Ok(())
}

/// Reports the groups that differ from an earlier list.
fn compare(now: &str, before: &str) -> Result<ExitCode> {
    let (groups, differences) = differences(now, before)?;
    differences.iter().try_for_each(|line| writeln!(stdout(), "{line}"))?;
    writeln!(stdout(), "{groups} groups of kernels, {} differ", differences.len())?;
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The number of groups in both lists together, and a line for each that differs, including those that only one list
/// has.
fn differences(now: &str, before: &str) -> Result<(usize, Vec<String>)> {
    let of_line = |line: &str| match line.split_once("  ") {
        Some((hashes, group)) => Ok((group.to_string(), hashes.to_string())),
        None => bail!("'{line}' is not a line of fingerprints"),
    };
    let processor = |text: &str| text.lines().next().unwrap_or_default().to_string();
    if processor(now) != processor(before) {
        let (here, there) = (processor(now), processor(before));
        bail!("this processor is '{here}', and the list is of '{there}': defaults depend on it");
    }
    let lines = |text: &str| text.lines().skip(1).map(of_line).collect::<Result<BTreeMap<_, _>>>();
    let (now, before) = (lines(now)?, lines(before)?);
    if now.is_empty() {
        bail!("nothing was compared");
    }
    let groups: BTreeSet<&String> = now.keys().chain(before.keys()).collect();
    let difference = |group: &String| match (before.get(group), now.get(group)) {
        (Some(before), Some(now)) if before == now => None,
        (Some(before), Some(now)) => {
            let parts = before.split_whitespace().zip(now.split_whitespace());
            let names = ["IR", "bytecode", "PTX", "number of kernels"];
            let other = parts.zip(names).filter(|((before, now), _)| before != now).map(|(_, name)| name);
            Some(other.collect::<Vec<_>>().join(", "))
        }
        (None, _) => Some("new".to_string()),
        (_, None) => Some("gone".to_string()),
    };
    let lines = groups.iter().filter_map(|group| difference(group).map(|what| format!("{group}: {what}")));
    Ok((groups.len(), lines.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_by_group_and_form() {
        let list = |rows: &[&str]| format!("# a processor\n{}\n", rows.join("\n"));
        let before = list(&["1 2 3 4  one", "1 2 3 4  two", "1 2 3 4  three"]);
        let now = list(&["1 2 3 4  one", "1 9 9 4  two", "1 2 3 4  four"]);
        let lines = ["four: new", "three: gone", "two: bytecode, PTX"].map(String::from).to_vec();
        assert_eq!(differences(&now, &before).unwrap(), (4, lines));
        assert_eq!(differences(&now, &now).unwrap(), (3, vec![]));
        assert!(differences(&now, &before.replace("a processor", "another")).is_err());
        assert!(differences("# a processor\n", "# a processor\n").is_err(), "nothing was compared");
    }

    #[test]
    fn a_change_of_one_kernel_changes_its_group() {
        let print = |text: &str| Print { ir: text.bytes().fold(FNV_BEGIN, fnv), bytecode: 1, ptx: 2 };
        let group = |kernels: &[&str]| kernels.iter().fold(Print::EMPTY, |all, kernel| all.and(print(kernel)));
        assert_eq!(group(&["a", "b"]), group(&["a", "b"]));
        assert_ne!(group(&["a", "b"]), group(&["b", "a"]), "they stand in an order");
        assert_ne!(group(&["a", "b"]).ir, group(&["a", "c"]).ir);
    }
}
