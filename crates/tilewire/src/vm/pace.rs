//! Decides whether a role's stores for another rank go through the cache or around it, by measuring which is faster.
//!
//! A line that another core has read is in that core's cache, and must be fetched back before it is written. This costs
//! almost nothing between cores that share a third-level cache. Between cores that do not (other dies, other sockets)
//! it takes longer than everything else: stores around the cache are then some ten times as fast. Between near cores
//! they are about half as fast (docs/decisions/0008).
//!
//! No property of the machine says which case applies, because virtual processors and threads move. So we measure work
//! that is done anyway:
//!
//! - **A peer is *far* if our stores to it are slow.** Steps are timed. When they are slow, one step goes around the
//!   cache to learn how long that takes. If the time is spent in a hook's computation, both ways take equally long and
//!   everything stays in the cache.
//! - **A peer is *near* again if its counter is quick to read** at the first wait of a launch: 30 ns, compared with 140
//!   ns from afar. Stores cannot show this: lines written around the cache are in no cache, so they are fast to write
//!   for a whole round of the ring. Later waits of a launch cannot show it either, because all reads are slow behind
//!   stores around the cache. Only a line that the peer has written since our last read is informative: any other line
//!   is in this core's cache, however far the peer is. A wait by groups of slots has such lines beside the one it waits
//!   for. They are read only for this purpose, once between two writes (and by the drain when the geometry changes,
//!   which wastes that look). Otherwise we use the line of the wait itself, if its value is there at the first look. A
//!   launch that begins within a group writes before it waits. It looks before its first store, beside the last counter
//!   that the previous launch waited for.
//! - **A role that cannot look gradually forgets.** There may be no wait, or it may be for another rank than the
//!   destination.
//!
//! Results do not depend on any of this.
#![forbid(unsafe_code)]

use super::lane::rows::FETCHED;
use std::cell::Cell;

/// Smaller steps are not worth reading the clock for, and have their lines fetched ahead.
const PACED_FROM: u64 = FETCHED as u64 + 1;

/// In a step that goes around the cache, only pieces of at least this many bytes do: shorter rows are mostly half
/// lines.
pub(crate) const AROUND_FROM: usize = 1 << 10;

/// Ticks per 4 KiB from which a way counts as slow: 15 to 20 ns a line. Near peers take 2 to 6, far ones 30 to 40.
const SLOW: u64 = 2500;

/// How many times slower the way through the cache must be before we leave it.
const FAR: u64 = 3;

/// When steps are slow for another reason than the way they go, one in this many still tries going around the cache.
const TRIAL: u32 = 512;

/// A look that takes fewer ticks is at a nearby line: some 60 to 110 ns. A hit in the core's own cache takes 25.
const NEAR_LOOK: u64 = 220;

/// How many looks in a row must be short. Some are short by accident, because the processor prefetched the line. A role
/// that is slow again within `DECEIVED` steps was misled, and requires twice as many the next time.
const NEAR_LOOKS: std::ops::RangeInclusive<u32> = 3..=24;
const DECEIVED: u32 = 256;

/// The most neighbouring counters to look at.
const BESIDE: u64 = 3;

/// After this many launches in a row without a short look, what we know is too old and is forgotten. The role then
/// writes through the cache again and soon finds out whether that is slow. If the peer is still far, it forgets half as
/// often from then on.
const BLIND: std::ops::RangeInclusive<u32> = 64..=4096;

/// How a kernel's puts into regions of other ranks are written. Results do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Puts {
    /// The way that proves faster over repeated launches: around the cache if the other rank's core has another
    /// third-level cache.
    #[default]
    Measured,
    /// Through the cache, unless an `each` stores enough for [`StorePolicy::from`](super::StorePolicy::from) to apply.
    ThroughCache,
    /// Around the cache, except for short pieces.
    AroundCache,
}

/// A turn before the first.
const LONG_AGO: u32 = 0x8000_0000;

/// A counter that is waited for, together with some that precede it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Its table and bank.
    pub slot: i32,
    pub bank: i64,
    /// Its number, and how many preceding counters are waited for with it.
    pub index: u64,
    pub beside: u64,
}

/// What one role knows about its stores. These are cells because a launch's shortcut has only a shared reference to the
/// machine.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Steps of at least this many bytes are timed; `u64::MAX`: none.
    from: u64,
    turns: Cell<u32>,
    /// The step under way: when it began, its bytes, and whether it goes around the cache.
    began: Cell<Option<(u64, u64, bool)>>,
    /// Ticks per 4 KiB through the cache and around it; 0: not known yet.
    through: Cell<u64>,
    around: Cell<u64>,
    is_far: Cell<bool>,
    /// True if the next wait is the first of a launch and precedes all stores.
    is_first: Cell<bool>,
    /// The group last waited for after a store: its neighbours have not been looked at yet.
    owed: Cell<Option<Group>>,
    /// How many looks in a row were short, how many are required, and the turn at which that was last reached.
    short_looks: Cell<u32>,
    wanted_looks: Cell<u32>,
    near_since: Cell<u32>,
    /// The turn at which everything was last forgotten for lack of looks.
    forgot_at: Cell<u32>,
    /// Launches in a row without a short look, and how many are allowed.
    blind: Cell<u32>,
    most_blind: Cell<u32>,
    /// Random state for the order of looks.
    guess: Cell<u64>,
}

impl Pace {
    /// For a role that puts nothing into regions of other ranks.
    pub(crate) const fn none() -> Pace {
        Pace {
            from: u64::MAX,
            turns: Cell::new(0),
            began: Cell::new(None),
            through: Cell::new(0),
            around: Cell::new(0),
            is_far: Cell::new(false),
            is_first: Cell::new(false),
            owed: Cell::new(None),
            short_looks: Cell::new(0),
            wanted_looks: Cell::new(*NEAR_LOOKS.start()),
            near_since: Cell::new(LONG_AGO),
            forgot_at: Cell::new(LONG_AGO),
            blind: Cell::new(0),
            most_blind: Cell::new(*BLIND.start()),
            guess: Cell::new(1),
        }
    }

    pub(crate) fn of(puts: Puts) -> Pace {
        match puts {
            Puts::ThroughCache => Pace::none(),
            // Without a cheap clock, or without stores around the cache, there is only one way.
            Puts::Measured if cfg!(target_arch = "x86_64") => Pace { from: PACED_FROM, ..Pace::none() },
            Puts::Measured => Pace::none(),
            Puts::AroundCache => {
                Pace { from: 0, is_far: Cell::new(true), wanted_looks: Cell::new(u32::MAX), ..Pace::none() }
            }
        }
    }

    /// The size in bytes from which a step must call `begin` and `end`.
    #[inline(always)]
    pub(crate) fn from(&self) -> u64 {
        self.from
    }

    /// Begins a step of `bytes` bytes; true if it goes around the cache.
    #[inline]
    pub(crate) fn begin(&self, bytes: u64) -> bool {
        let around = self.choose();
        self.is_first.set(false);
        self.began.set(Some((ticks(), bytes, around)));
        around
    }

    /// Ends the current step; false if there is none.
    #[inline]
    pub(crate) fn end(&self) -> bool {
        let Some((began, bytes, around)) = self.began.take() else { return false };
        let took = ticks().saturating_sub(began);
        self.learn(around, took.saturating_mul(4096) / bytes.max(1));
        true
    }

    /// True if the readers are far: the first wait must then [`look`](Pace::look).
    #[inline(always)]
    pub(crate) fn is_far(&self) -> bool {
        self.is_far.get()
    }

    /// A launch begins.
    #[inline(always)]
    pub(crate) fn launch(&self) {
        self.began.set(None);
        self.is_first.set(!self.is_said());
        if self.is_far() {
            self.age();
        }
    }

    /// True if the user chose the way.
    fn is_said(&self) -> bool {
        self.wanted_looks.get() == u32::MAX
    }

    #[inline(never)]
    fn age(&self) {
        self.blind.set(self.blind.get().saturating_add(1));
        if self.blind.get() > self.most_blind.get() && !self.is_said() {
            self.forgot_at.set(self.turns.get());
            self.forget();
        }
    }

    /// Performs a wait. `wait` loads the counter and returns true if it has arrived. `look` loads another counter of
    /// the same bank. Returns the result of `wait`.
    #[inline]
    pub(crate) fn look(&self, group: Group, wait: impl FnOnce() -> bool, look: impl Fn(u64) -> u64) -> bool {
        if !self.is_first.take() {
            let is_there = wait();
            if is_there && group.beside > 0 && !self.is_said() {
                self.owed.set(Some(group));
            }
            return is_there;
        }
        let (is_there, took) = timed(wait);
        if !is_there {
            // The neighbours are still worth a look when the wait is over. This counter is not: it has been read.
            self.is_first.set(group.beside > 0);
            return false;
        }
        if group.beside == 0 {
            self.saw(took);
        }
        self.owed.set(None);
        self.look_beside(group, look);
        true
    }

    /// The group to look beside before the first store of a launch that has not waited yet.
    #[inline(always)]
    pub(crate) fn take_owed(&self) -> Option<Group> {
        if self.is_first.get() && self.is_far() { self.owed.take() } else { None }
    }

    /// Looks at the neighbours of a counter.
    pub(crate) fn look_beside(&self, Group { index, beside, .. }: Group, look: impl Fn(u64) -> u64) {
        let beside = beside.min(BESIDE);
        // The order must be unpredictable, or the processor fetches the lines before we look at them.
        self.guess.set(self.guess.get().wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
        for k in 0..beside {
            let back = 1 + ((self.guess.get() >> 33) + k) % beside;
            if back <= index {
                self.saw(timed(|| look(index - back)).1);
            }
        }
    }

    fn saw(&self, took: u64) {
        if took >= NEAR_LOOK {
            self.short_looks.set(0);
            return;
        }
        self.blind.set(0);
        self.short_looks.set(self.short_looks.get().saturating_add(1));
        if self.is_far() && self.short_looks.get() >= self.wanted_looks.get() {
            self.near_since.set(self.turns.get());
            self.forget();
        }
    }

    /// Discards everything that was learnt.
    fn forget(&self) {
        self.through.set(0);
        self.around.set(0);
        self.short_looks.set(0);
        self.blind.set(0);
        self.owed.set(None);
        self.is_far.set(false);
    }

    fn choose(&self) -> bool {
        let turn = self.turns.get().wrapping_add(1);
        self.turns.set(turn);
        let is_trial = self.through.get() > SLOW && (self.around.get() == 0 || turn.is_multiple_of(TRIAL));
        self.is_far() || is_trial
    }

    /// A faster time is believed immediately. A slower one is believed only gradually, since any step may be
    /// interrupted.
    fn learn(&self, around: bool, ticks: u64) {
        let way = if around { &self.around } else { &self.through };
        let most = if way.get() == 0 { u64::MAX } else { way.get().saturating_mul(2) };
        way.set(ticks.clamp(1, most));
        let (through, around) = (self.through.get(), self.around.get());
        if through > SLOW && around != 0 && through > FAR.saturating_mul(around) && !self.is_far.replace(true) {
            self.short_looks.set(0);
            let soon_after = |turn: &Cell<u32>| self.turns.get().wrapping_sub(turn.get()) < DECEIVED;
            let next = |count: &Cell<u32>, soon, range: std::ops::RangeInclusive<u32>| {
                let doubled = if soon { count.get().saturating_mul(2) } else { 0 };
                count.set(doubled.clamp(*range.start(), *range.end()));
            };
            next(&self.wanted_looks, soon_after(&self.near_since), NEAR_LOOKS);
            next(&self.most_blind, soon_after(&self.forgot_at), BLIND);
        }
    }
}

#[cfg(target_arch = "x86_64")]
use super::clock::ticks;
#[cfg(all(target_arch = "x86_64", not(test)))]
use super::clock::timed;
#[cfg(test)]
use tests::timed;

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

#[cfg(not(any(target_arch = "x86_64", test)))]
fn timed<R>(work: impl FnOnce() -> R) -> (R, u64) {
    (work(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        /// How long every look takes.
        static LOOK: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn timed<R>(work: impl FnOnce() -> R) -> (R, u64) {
        (work(), LOOK.get())
    }

    fn group(index: u64, beside: u64) -> Group {
        Group { slot: 0, bank: 0, index, beside }
    }

    /// Runs `steps` steps where 4 KiB take the given ticks each way. Returns how many went around the cache.
    fn run(pace: &Pace, steps: u32, (through, around): (u64, u64)) -> u32 {
        let mut count = 0;
        for _ in 0..steps {
            let goes_around = pace.choose();
            count += u32::from(goes_around);
            pace.learn(goes_around, if goes_around { around } else { through });
        }
        count
    }

    const NEAR: (u64, u64) = (300, 400);
    const FAR_AWAY: (u64, u64) = (6000, 400);

    #[test]
    fn near_peers_are_written_through_the_cache() {
        assert_eq!(run(&Pace::of(Puts::Measured), 10_000, NEAR), 0);
        let busy = (SLOW, 1);
        assert_eq!(run(&Pace::of(Puts::Measured), 10_000, busy), 0, "however fast it would be around it");
    }

    #[test]
    fn far_peers_are_written_around_it_from_the_second_step_on() {
        let pace = Pace::of(Puts::Measured);
        assert_eq!(run(&pace, 10_000, FAR_AWAY), 9_999);
        assert!(pace.is_far());
    }

    #[test]
    fn long_hooks_write_through_the_cache() {
        let pace = Pace::of(Puts::Measured);
        assert!(run(&pace, 10_000, (6000, 5000)) <= 1 + 10_000 / TRIAL);
        assert!(!pace.is_far());
    }

    #[test]
    fn peers_that_move_are_followed() {
        let pace = Pace::of(Puts::Measured);
        run(&pace, 5_000, NEAR);
        assert!(run(&pace, 100, FAR_AWAY) >= 90, "found by the stores");
        let wanted = *NEAR_LOOKS.start();
        for _ in 0..10 {
            (1..wanted).for_each(|_| pace.saw(80));
            pace.saw(400);
        }
        assert!(pace.is_far(), "some short looks may be by chance");
        (0..wanted).for_each(|_| pace.saw(80));
        assert_eq!(run(&pace, 1000, NEAR), 0, "found by looks alone");
        assert!(run(&pace, 100, FAR_AWAY) >= 90);
    }

    #[test]
    fn who_was_deceived_by_looks_wants_more_of_them() {
        let pace = Pace::of(Puts::Measured);
        run(&pace, 1000, FAR_AWAY);
        for wanted in [3, 6, 12, 24, 24] {
            (1..wanted).for_each(|_| pace.saw(80));
            assert!(pace.is_far());
            pace.saw(80);
            assert!(!pace.is_far());
            run(&pace, 50, FAR_AWAY);
        }
        (0..24).for_each(|_| pace.saw(80));
        run(&pace, 1000, NEAR);
        run(&pace, 50, FAR_AWAY);
        assert_eq!(pace.wanted_looks.get(), 3);
    }

    #[test]
    fn the_first_wait_of_a_launch_looks_beside_what_it_waits_for() {
        let pace = Pace::of(Puts::Measured);
        run(&pace, 100, FAR_AWAY);
        for (index, beside, expected) in [(7, 3, vec![4, 5, 6]), (0, 3, vec![]), (1, 3, vec![0]), (7, 0, vec![])] {
            let looked = std::cell::RefCell::new(Vec::new());
            let look = |other| {
                looked.borrow_mut().push(other);
                0
            };
            pace.launch();
            assert!(!pace.look(group(index, beside), || false, |_| unreachable!("it is still to be waited for")));
            assert!(pace.look(group(index, beside), || true, look));
            looked.borrow_mut().sort();
            assert_eq!(looked.take(), expected);
            assert!(pace.look(group(index, beside), || true, |_| unreachable!("not the first wait")));
            pace.launch();
            pace.begin(1 << 16);
            assert!(pace.look(group(index, beside), || true, |_| unreachable!("behind a store")));
            pace.end();
        }
    }

    #[test]
    fn who_waits_for_one_counter_is_told_by_it_unless_it_had_to_wait() {
        for (had_to_wait, look, is_far) in [(true, 80, true), (false, 400, true), (false, 80, false)] {
            let pace = Pace::of(Puts::Measured);
            run(&pace, 100, FAR_AWAY);
            LOOK.set(look);
            for _ in 0..*NEAR_LOOKS.start() {
                assert!(pace.is_far());
                pace.launch();
                assert!(!had_to_wait || !pace.look(group(7, 0), || false, |_| unreachable!()));
                assert!(pace.look(group(7, 0), || true, |_| unreachable!()));
            }
            assert_eq!(pace.is_far(), is_far, "{look}");
        }
    }

    #[test]
    fn a_group_of_counters_tells_at_once() {
        let pace = Pace::of(Puts::Measured);
        for (look, is_far) in [(400, true), (80, false)] {
            run(&pace, 100, FAR_AWAY);
            LOOK.set(look);
            pace.launch();
            assert!(pace.look(group(31, 3), || true, |_| 0));
            assert_eq!(pace.is_far(), is_far);
        }
        run(&pace, 100, FAR_AWAY);
        assert_eq!(pace.wanted_looks.get(), 6, "it was deceived");
        pace.launch();
        assert!(pace.look(group(31, 15), || true, |_| 0) && pace.is_far(), "of many beside it, a few are looked at");
    }

    #[test]
    fn a_launch_that_begins_within_a_group_looks_before_its_first_store() {
        let pace = Pace::of(Puts::Measured);
        run(&pace, 100, FAR_AWAY);
        LOOK.set(80);
        let launch = || {
            pace.launch();
            let owed = pace.take_owed();
            pace.begin(1 << 16);
            pace.end();
            assert_eq!(pace.take_owed(), None, "behind a store");
            assert!(pace.look(group(11, 3), || true, |_| unreachable!("behind a store")));
            owed
        };
        assert_eq!(launch(), None);
        assert_eq!(launch(), Some(group(11, 3)));
        assert!(pace.is_far());
        pace.look_beside(group(11, 3), |_| 0);
        assert!(!pace.is_far());
        assert_eq!(launch(), None, "near");
        run(&pace, 100, FAR_AWAY);
        pace.launch();
        assert!(pace.look(group(15, 3), || true, |_| 0));
        pace.launch();
        assert_eq!(pace.take_owed(), None, "it was looked beside");
    }

    #[test]
    fn one_step_that_is_interrupted_changes_nothing() {
        let pace = Pace::of(Puts::Measured);
        run(&pace, 100, NEAR);
        pace.learn(false, 1_000_000);
        assert_eq!(run(&pace, 10, NEAR), 0);
    }

    #[test]
    fn who_has_not_looked_for_long_finds_out_again_by_and_by_less_often() {
        let pace = Pace::of(Puts::Measured);
        run(&pace, 100, FAR_AWAY);
        LOOK.set(400);
        for most in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            for _ in 0..most {
                pace.launch();
                // A long look may be about another rank.
                pace.look(group(7, 0), || true, |_| unreachable!());
                assert!(pace.is_far(), "{most}");
            }
            pace.launch();
            assert!(!pace.is_far());
            assert_eq!(run(&pace, 100, FAR_AWAY), 99);
        }
        (0..=4096).for_each(|_| pace.launch());
        assert_eq!(run(&pace, 1000, NEAR), 0);
        run(&pace, 100, FAR_AWAY);
        assert_eq!(pace.most_blind.get(), 64, "it had been near for long");
    }

    #[test]
    fn what_is_said_stays() {
        let (through, around) = (Pace::of(Puts::ThroughCache), Pace::of(Puts::AroundCache));
        LOOK.set(1);
        for _ in 0..5000 {
            around.launch();
            assert!(around.look(group(7, 3), || true, |_| unreachable!("what is said need not be found out")));
        }
        assert_eq!((through.from(), around.from(), run(&around, 1000, NEAR)), (u64::MAX, 0, 1000));
    }

    #[test]
    fn a_step_is_begun_once_and_ended_once() {
        let pace = Pace::of(Puts::Measured);
        assert!(!pace.end());
        pace.begin(1 << 16);
        assert!(pace.end() && !pace.end());
        assert_eq!(Pace::none().from(), u64::MAX);
    }
}
