//! `tilewire soak`: random transfers among processes for minutes, every byte checked, nothing allowed to grow.
//!
//! - **In**: minutes, ranks, a seed. **Out**: the amount of data moved, the resources of every rank at the start, their
//!   least when warm and at the end, and a status that shows if everything was right and nothing grew.
//! - **Invariants**: all ranks derive the same plan from the seed, so partners agree without asking. The seed is
//!   printed before anything else.
//! - **Must not know**: how a transfer works.
//!
//! | file | holds |
//! |---|---|
//! | `options.rs` | [`Soak`]: the command-line options |
//! | `plan.rs` | [`Round`](plan::Round): random transfers between random ranks |
//! | `usage.rs` | the resources of this process, their least when warm and at the end, and the limits of growth |

mod options;
mod plan;
mod usage;

pub use options::Soak;

use crate::run::{Case, Mesh, Ranks, Transfer, Word, everywhere, in_processes, prepare};
use crate::table::hanging;
use anyhow::Result;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};
use tilewire::link::{AnyTransport, ShmOptions, ShmTransport};
use tilewire::transport::{RankError, World};
use usage::{Floors, Usage};

/// Rounds between two reads of the clock, at which all ranks meet.
const BATCH: usize = 32;
/// Prepared transfers that are kept, to be launched again between others.
const KEPT: usize = 4;

/// Runs it; the status is success if everything was right and nothing grew.
pub fn soak(soak: &Soak) -> Result<ExitCode> {
    let ranks = soak.ranks.unwrap_or_else(|| Ranks::Processes.unless_launched());
    let mesh = match soak.mesh(ranks) {
        Ok(mesh) => mesh,
        Err(why) => {
            _ = writeln!(stderr(), "tilewire: {why}");
            return Ok(ExitCode::from(2));
        }
    };
    let listed = mesh.as_ref().and_then(|mesh| mesh.count(soak.count).ok().flatten()).or(soak.count);
    let count = (ranks != Ranks::Env).then_some(listed.unwrap_or(4)).or(listed);
    if let (Ranks::Processes, Some(mesh), Some(count)) = (ranks, &mesh, count) {
        let more = [vec!["--ranks".to_string(), count.to_string()], mesh.words_of_processes(count)].concat();
        return in_processes(count, &more.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let words = [Word::new("--minutes", soak.minutes), Word::given("--seed", soak.seed)];
    everywhere(ranks, count, &words, |world| soak_rank(world, soak, mesh.as_ref()))
}

/// The work and the resources of one rank.
#[derive(Default)]
struct Account {
    launches: u64,
    bytes: u64,
    start: Usage,
    warm: Usage,
    end: Usage,
}

/// Room for everything that the plan asks for: 8 blocks of 8 slots of 64 KiB. All pages are touched immediately, so
/// that touching the last of them late is not mistaken for growth.
fn options(ranks: usize) -> ShmOptions {
    let usual = ShmOptions::default().geometry(ranks);
    ShmOptions {
        per_peer_bytes: Some(usual.per_peer_bytes.max(8 * 8 * (64 << 10))),
        max_blocks_per_peer: Some(8),
        packet_bytes: Some(256 << 10),
        populate: true,
        ..ShmOptions::default()
    }
}

fn soak_rank(world: &World, soak: &Soak, mesh: Option<&Mesh>) -> Result<bool, RankError> {
    let me = world.rank().index();
    let seed = agreed_seed(world, soak.seed)?;
    if me == 0 {
        let Soak { minutes, .. } = soak;
        let over = mesh.map_or(String::new(), |mesh| format!(" over {}", mesh.describe(world.size())));
        writeln!(stdout(), "soak: {} ranks{over}, {minutes} minutes, seed {seed}", world.size())?;
    }
    let link = match mesh {
        Some(mesh) => mesh.rendezvous(world, options(world.size()))?,
        None => AnyTransport::from(ShmTransport::rendezvous(world, options(world.size()))?),
    };
    let mut account = Account { start: Usage::now()?, ..Account::default() };
    let (began, length) = (Instant::now(), Duration::from_secs_f64(60.0 * soak.minutes));
    let mut plan = plan::Plan::new(seed, world.size(), mesh.is_some());
    let mut floors = Floors::new(length);
    loop {
        batch(&link, &mut plan, seed, me, &mut account)?;
        floors.note(began.elapsed(), Usage::now()?);
        // The clock of rank 0 decides for all.
        let over = [u8::from(began.elapsed() >= length)];
        let said = world.bootstrap().all_gather("soak/batch", &over, world.deadline())?;
        if said[0] == [1] {
            break;
        }
    }
    let took = began.elapsed();
    // Another rank's clock may have ended the run just before this one's last third began.
    floors.note(took.max(length), Usage::now()?);
    (account.warm, account.end) = floors.warm_and_end().expect("a look at the end is in both");
    let all = world.bootstrap().all_gather("soak/accounts", account.to_text().as_bytes(), world.deadline())?;
    link.close()?;
    let all: Vec<Account> = all.iter().map(|text| Account::from_text(&String::from_utf8_lossy(text))).collect();
    let long = length >= usage::JUDGED;
    let grown: Vec<String> = all.iter().enumerate().flat_map(|(rank, account)| account.growth(rank, long)).collect();
    if me == 0 {
        stdout().write_all(report(&all, &grown, (took, long)).as_bytes())?;
    }
    Ok(grown.is_empty())
}

/// The seed that rank 0 was given, or chose.
fn agreed_seed(world: &World, told: Option<u64>) -> Result<u64, RankError> {
    let chosen = || SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64 % 1_000_000_007);
    let own = told.unwrap_or_else(chosen).to_le_bytes();
    let all = world.bootstrap().all_gather("soak/seed", &own, world.deadline())?;
    Ok(u64::from_le_bytes(all[0].as_slice().try_into()?))
}

/// A transfer that has been built, and its number of launches.
struct Kept<'l> {
    case: Case,
    round: u64,
    turn: u64,
    moves: u64,
    transfer: Box<dyn Transfer + 'l>,
}

fn batch(
    link: &AnyTransport,
    plan: &mut plan::Plan,
    seed: u64,
    me: usize,
    account: &mut Account,
) -> Result<(), RankError> {
    let mut kept: VecDeque<Kept> = VecDeque::new();
    for _ in 0..BATCH {
        let round = plan.next();
        let peers = round.peers[me];
        let moves = u64::from(peers.to.is_some()) * (round.case.len * round.case.dtype.size()) as u64;
        let what = |error| format!("seed {seed}, round {}, rank {me}: {}: {error}", round.number, round.case);
        let transfer =
            prepare(link, &round.case, peers, seed ^ round.number).map_err(|error| what(error.to_string()))?;
        kept.push_back(Kept { case: round.case, round: round.number, turn: 0, moves, transfer });
        if kept.len() > KEPT {
            kept.pop_front();
        }
        let newest = kept.len() - 1;
        for again in [vec![newest; round.launches], vec![round.again % kept.len()]].concat() {
            let Kept { case, round, turn, moves, transfer } = &mut kept[again];
            let what = |error| format!("seed {seed}, round {round}, launch {turn}, rank {me}: {case}: {error}");
            transfer.fill(*turn).map_err(|error| what(error.to_string()))?;
            transfer.launch().map_err(|error| what(error.to_string()))?;
            transfer.check(*turn).map_err(|wrong| what(wrong.to_string()))?;
            *turn += 1;
            account.launches += u64::from(*moves > 0);
            account.bytes += *moves;
        }
    }
    Ok(())
}

impl Account {
    fn to_text(&self) -> String {
        let mut text = format!("{} {}", self.launches, self.bytes);
        for Usage { resident, descriptors, mappings } in [self.start, self.warm, self.end] {
            _ = write!(text, " {resident} {descriptors} {mappings}");
        }
        text
    }

    fn from_text(text: &str) -> Account {
        let mut numbers = text.split(' ').map(|word| word.parse::<u64>().expect("every rank runs this version"));
        let mut next = || numbers.next().expect("every rank runs this version");
        let (launches, bytes) = (next(), next());
        let mut usage = || Usage { resident: next(), descriptors: next(), mappings: next() };
        Account { launches, bytes, start: usage(), warm: usage(), end: usage() }
    }

    /// `long`: true if the run was long enough to judge its memory.
    fn growth(&self, rank: usize, long: bool) -> Vec<String> {
        self.end.beyond(&self.warm, long).into_iter().map(|growth| format!("rank {rank}: {growth}")).collect()
    }
}

fn report(all: &[Account], grown: &[String], (took, long): (Duration, bool)) -> String {
    let launches: u64 = all.iter().map(|account| account.launches).sum();
    let bytes: u64 = all.iter().map(|account| account.bytes).sum();
    let (seconds, gib) = (took.as_secs_f64(), bytes as f64 / f64::from(1 << 30));
    let mut text = format!(
        "{launches} sends in {seconds:.1} s: {:.0} per second, {gib:.2} GiB, every byte right\n\n\
         rank  resident MiB: start  warm   end   descriptors: start  warm  end   mappings: start  warm  end\n",
        launches as f64 / seconds,
    );
    for (rank, Account { start, warm, end, .. }) in all.iter().enumerate() {
        let mib = |usage: &Usage| usage.resident as f64 / f64::from(1 << 20);
        let [a, b, c] = [start, warm, end].map(mib);
        let [d, e, f] = [start, warm, end].map(|usage| usage.descriptors);
        let [g, h, i] = [start, warm, end].map(|usage| usage.mappings);
        _ = writeln!(text, "{rank:<4}  {a:>19.1} {b:>5.1} {c:>5.1}  {d:>19} {e:>5} {f:>4}  {g:>16} {h:>5} {i:>4}");
    }
    _ = match grown {
        [] if !long => {
            let least = usage::JUDGED.as_secs();
            let start = format!("nothing grew but perhaps memory, of which {least} s or more tell: ");
            writeln!(text, "\n{}", hanging(&start, usage::BOUND))
        }
        [] => writeln!(text, "\nnothing grew: {}", usage::BOUND),
        grown => writeln!(text, "\nGREW, beyond {}\n{}", usage::BOUND, grown.join("\n")),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_grows_is_named() {
        let usage = |mib: u64, descriptors| Usage { resident: mib << 20, descriptors, mappings: 50 };
        let fine = Account { launches: 3, bytes: 1 << 30, start: usage(80, 9), warm: usage(90, 9), end: usage(91, 9) };
        let leaks = Account { end: usage(300, 11), ..Account::from_text(&fine.to_text()) };
        assert!(fine.growth(0, true).is_empty());
        // Descriptors are counted however short it was.
        assert!(matches!(&leaks.growth(1, false)[..], [one] if one.contains("2 descriptors")));
        let grown = leaks.growth(1, true);
        assert!(grown[0].starts_with("rank 1: 210 MiB") && grown[1].contains("2 descriptors"), "{grown:?}");
        let took = Duration::from_secs(60);
        assert!(report(&[fine, leaks], &grown, (took, true)).contains("GREW"));
    }
}
