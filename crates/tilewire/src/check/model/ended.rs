//! Checks at the end of launches: signals and packets that nobody took, handshakes left open, credits ahead of their
//! data.
//!
//! A signal of data is **left over** if its launch has ended on all ranks and no wait of that launch or an earlier one
//! was for it: the next launch would mistake it for its own. Counters themselves are kept across launches. So are
//! credits: a slot of the last steps is free before anybody asks. A counter of credits may carry data as well (packets
//! are cleared before their flags wrap around), and the next launch asks for it. So a counter with credits is checked
//! only at the end of the plan.
//!
//! If data may be left for the next launch (`Settings::across_launches`), the plan may end in the middle of that. Then
//! a signal is left over if the remainder grows from launch to launch, or if nobody ever waits for the counter. A word
//! of a handshake must have its initial value at the end of every launch.
//!
//! All of this is program order and the launch of each op, so it is the same in every run of the monotone fragment.

use super::detector::Detector;
use super::sighting::Seen;
use super::slots::{SlotHistory, SlotKey};

impl Detector<'_> {
    /// The run is over: `ended` launches have ended on all ranks; `complete` if those are all.
    pub fn finish(&mut self, ended: u32, complete: bool) {
        self.flush();
        self.report_promised();
        let ahead = self.credits.ahead(&self.slots, |party| self.parties[party as usize].name.rank());
        ahead.into_iter().for_each(|ahead| self.report(Seen::Ahead(ahead), &[]));
        let (slots, mut seen) = (self.slots.sorted(), Vec::new());
        for launch in 0..ended {
            let is_last = complete && launch + 1 == ended;
            seen.extend(slots.iter().filter_map(|&(key, slot)| self.left_in(key, slot, launch, is_last)));
        }
        if !self.watch.across_launches {
            seen.extend(self.packets.left(ended).into_iter().map(Seen::Untaken));
        }
        seen.into_iter().for_each(|seen| self.report(seen, &[]));
    }

    /// The signal that a launch left behind in a slot.
    fn left_in(&self, key: SlotKey, slot: &SlotHistory, launch: u32, is_last: bool) -> Option<Seen> {
        let last = slot.last_by(launch)?;
        if slot.is_handshake() {
            let open = last.value != slot.initial();
            return open.then(|| Seen::NotReset { slot: key, signal: last.clone() });
        }
        // What an earlier launch left is reported there.
        let across = self.watch.across_launches;
        let judged = is_last || last.launch == launch && !slot.is_credited() && !across;
        let waited = slot.waited_by(launch);
        let ahead =
            |launch: u32| slot.last_by(launch).map_or(0, |last| last.value.saturating_sub(slot.waited_by(launch)));
        let continues = || across && slot.is_waited_for() && (launch == 0 || ahead(launch) <= ahead(launch - 1));
        let left = judged && !last.credit && last.atomic.is_none() && last.value > waited && !continues();
        left.then(|| Seen::Leftover { slot: key, signal: last.clone(), waited })
    }
}
