//! Ranks in lock step: rank 0 leads, the others follow.
//!
//! ```text
//!   rank 0:  command, turn k ──▶            wait ready k │ clock │ its half │ wait done k │ clock
//!   rank r:  wait turn k (asleep if long) │ ready k      │ its half         │ done k
//! ```
//! Followers sleep between commands that are far apart: they must not burn the cores on which another program is being
//! measured.

use super::side::Side;
use super::words::{Word, Words};
use anyhow::{Context, Result};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};
use tilewire::link::{ShmTransport, Transport};

/// Round trips of a probe: repetitions, and trips in each. The median of the repetitions counts, so that an interrupt
/// spoils one of them and not the probe. `mpi_peer.c` does the same.
const PINGS: (usize, u64) = (9, 20);

/// The leader's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    /// Measure how far apart the ranks are.
    Probe,
    /// Fill the buffers of a side.
    Fill,
    /// Run some steps of a side.
    Run,
    /// Compare the received data of a side.
    Verify,
    /// These sides are done.
    End,
}

const COMMANDS: [Command; 5] = [Command::Probe, Command::Fill, Command::Run, Command::Verify, Command::End];

/// One rank's part of the lock step.
pub struct Lockstep<'l> {
    rank: usize,
    turn: Word<'l>,
    command: Word<'l>,
    side: Word<'l>,
    steps: Word<'l>,
    /// The word of each follower.
    ready: Vec<Word<'l>>,
    done: Vec<Word<'l>>,
    ping: Word<'l>,
    pong: Word<'l>,
    turns: u64,
    pings: u64,
}

impl<'l> Lockstep<'l> {
    /// Collective.
    pub fn new(link: &'l ShmTransport) -> Result<Lockstep<'l>> {
        let words = Words::allocate(link)?;
        let of_followers = || (1..link.world_size()).map(|_| words.next()).collect();
        Ok(Lockstep {
            rank: link.rank().index(),
            turn: words.next(),
            command: words.next(),
            side: words.next(),
            steps: words.next(),
            ready: of_followers(),
            done: of_followers(),
            ping: words.next(),
            pong: words.next(),
            turns: 0,
            pings: 0,
        })
    }

    /// Nanoseconds that a cache line takes from one rank to the other. For rank 0.
    pub fn probe(&mut self) -> Result<f64> {
        self.start(Command::Probe, 0, 0)?;
        let mut ns = [0.0; PINGS.0];
        for ns in &mut ns {
            let start = Instant::now();
            for _ in 0..PINGS.1 {
                self.pings += 1;
                self.ping.store(self.pings, Release);
                self.pong.wait(self.pings)?;
            }
            *ns = start.elapsed().as_nanos() as f64 / (2 * PINGS.1) as f64;
        }
        self.finish()?;
        ns.sort_by(f64::total_cmp);
        Ok(ns[PINGS.0 / 2])
    }

    /// Runs a side and checks everything it moved. For rank 0.
    pub fn check(&mut self, sides: &mut [Side], k: usize) -> Result<()> {
        self.start(Command::Fill, k, 0)?;
        sides[k].run.fill();
        self.finish()?;
        self.run(sides, k, 2)?;
        self.start(Command::Verify, k, 0)?;
        sides[k].run.verify().with_context(|| format!("{} at rank 0", sides[k].name))?;
        self.finish()
    }

    /// Times some steps of a side, until all ranks have done them. For rank 0.
    pub fn run(&mut self, sides: &mut [Side], k: usize, steps: u64) -> Result<Duration> {
        self.start(Command::Run, k, steps)?;
        let start = Instant::now();
        sides[k].run.run(steps).with_context(|| format!("{} at rank 0", sides[k].name))?;
        self.finish()?;
        Ok(start.elapsed())
    }

    /// Releases the followers. For rank 0.
    pub fn end(&mut self) -> Result<()> {
        self.start(Command::End, 0, 0)?;
        self.finish()
    }

    /// Follows the leader's commands, to the end of these sides. For all but rank 0.
    pub fn follow(&mut self, sides: &mut [Side]) -> Result<()> {
        let rank = self.rank;
        let at = |name: &str| format!("{name} at rank {rank}");
        loop {
            self.turns += 1;
            self.turn.wait_asleep(self.turns)?;
            let command = COMMANDS[self.command.load(Relaxed) as usize];
            let (k, steps) = (self.side.load(Relaxed) as usize, self.steps.load(Relaxed));
            self.ready[self.rank - 1].store(self.turns, Release);
            match command {
                // Any two ranks would do; the first two probe.
                Command::Probe if self.rank > 1 => {}
                Command::Probe => {
                    for _ in 0..PINGS.0 as u64 * PINGS.1 {
                        self.pings += 1;
                        self.ping.wait(self.pings)?;
                        self.pong.store(self.pings, Release);
                    }
                }
                Command::Fill => sides[k].run.fill(),
                Command::Run => sides[k].run.run(steps).with_context(|| at(&sides[k].name))?,
                Command::Verify => sides[k].run.verify().with_context(|| at(&sides[k].name))?,
                Command::End => {}
            }
            self.done[self.rank - 1].store(self.turns, Release);
            if command == Command::End {
                return Ok(());
            }
        }
    }

    fn start(&mut self, command: Command, side: usize, steps: u64) -> Result<()> {
        self.turns += 1;
        self.command.store(command as u64, Relaxed);
        self.side.store(side as u64, Relaxed);
        self.steps.store(steps, Relaxed);
        self.turn.store(self.turns, Release);
        self.ready.iter().try_for_each(|ready| ready.wait(self.turns))
    }

    fn finish(&self) -> Result<()> {
        self.done.iter().try_for_each(|done| done.wait(self.turns))
    }
}
