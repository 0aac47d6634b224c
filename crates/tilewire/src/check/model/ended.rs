//! What is judged when launches have ended: signals and packets that nobody took, handshakes left open, credits ahead of their data.
//!
//! A signal of data is **left over** when its launch has ended on all ranks and no wait of that launch or one before was for it: the next
//! launch would take it for its own. Counters themselves are kept across launches, and so are credits: a slot of the last steps is free
//! before anybody asks. A counter that credits are given by may carry data as well (packets are cleared before their flags come round), and
//! what asks for it is the next launch; so of a counter with credits only the end of the plan is judged. Where data may be left for the next
//! launch (`Settings::across_launches`), the plan may end in the middle of that: there a signal is left over when what is left grows from
//! launch to launch, or when nobody ever waits for the counter.
//! A word of a handshake has to be at the end of every launch what it was at first.
//!
//! All of this is program order and which launch an op belongs to, so it is the same in every run of the monotone fragment.

use super::detector::Detector;
use super::sighting::Seen;
use super::slots::{SlotHistory, SlotKey};

impl Detector<'_> {
    /// The run is over: so many launches have ended on all ranks; `complete` when those are all.
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

    /// What a launch left behind in a slot.
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
