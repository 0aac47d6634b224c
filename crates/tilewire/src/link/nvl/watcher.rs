//! The thread of a rank on a GPU: it passes the abort word on to the device, and finds waits that can never end.
#![forbid(unsafe_code)]

use crate::cuda::{BesideCaptures, CudaError, Seat, Stalled, Stopped, Stream, UnmetRequirement};
use crate::tensor::Between;
use crate::transport::pairing::Names;
use crate::transport::proxy::Proxy;
use crate::transport::{
    Abort, Crossing, Dealings, DeviceWait, Doorbell, Found, Operations, Rank, Status, TransportError, Unmet, Verdict,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Tells other ranks what this rank's kernels wait for, and detects waits that can never end.
pub(super) struct StallWatch {
    rank: usize,
    status: Status,
    names: Names,
    proxy: Arc<OnceLock<Arc<Proxy>>>,
    /// The last two different marks, each with the probe that was read before it.
    seen: [(u64, u64); 2],
    /// The published wait. `looks` counts the looks since then: of a launch's several waits, each look may see another.
    told: Option<(Between, (u64, u64))>,
    looks: u32,
}

impl StallWatch {
    /// Time between two looks.
    const PERIOD: Duration = Duration::from_millis(20);

    pub(super) fn new(rank: usize, status: Status, names: Names, proxy: Arc<OnceLock<Arc<Proxy>>>) -> StallWatch {
        StallWatch { rank, status, names, proxy, seen: [(0, 0); 2], told: None, looks: 0 }
    }

    /// Takes everything that has arrived by posts. Returns true if posts of this rank are on their way: they may end
    /// the wait of another rank, although this one waits.
    fn settle(&self) -> bool {
        self.proxy.get().is_some_and(|proxy| proxy.settle())
    }

    /// Looks before another wait of the same launch is published: long enough for two ranks to answer each other. A
    /// wait that continues changes `since`, so no wait stays published once it is over.
    const TURN: u32 = 15;

    fn goes_on(&mut self) {
        self.status.device_goes_on();
        (self.seen, self.told, self.looks) = ([(0, 0); 2], None, 0);
    }

    /// Tells all ranks that a kernel found another operation: the host may be waiting for another rank's kernel.
    fn tell_of(&self, by: &Stopped) {
        let Some(peer) = by.peer else { return };
        let there = self.names.of(Rank::new(peer), by.seen as u16);
        let there = there.unwrap_or_else(|| format!("its operation {}", by.seen));
        let (here, there) = ((self.rank, by.launch.clone()), (peer as usize, there));
        self.status.tell_all(&Verdict::OtherOperation { here, there });
    }

    /// Tells all ranks that a kernel required something that does not hold.
    fn tell_unmet(&self, by: &UnmetRequirement) {
        let span = by.span.map(|span| [span.rank, span.offset, span.bytes, span.size]);
        let (at, launch) = (by.at.to_string(), by.launch.clone());
        self.status.tell_all(&Verdict::Required(Box::new(Unmet { rank: self.rank, span, at, launch })));
    }

    fn look(&mut self, seat: &Seat) {
        let Seat { stream, launches, .. } = seat;
        // If the device is gone, nothing is known about it.
        if let Some(since) = self.status.host_waits_since()
            && stream.is_idle().unwrap_or(false)
            // What ended launches posted is theirs to give until it is delivered.
            && !self.settle()
        {
            self.status.device_is_idle(since);
        }
        let (host_waits, probe) = (stream.host_waits(), self.status.device_probe());
        // After the probe, and before the mark: the kernel's next poll finds what had arrived when the probe was read.
        let posts = self.settle();
        let stalled = launches.stalled().filter(|_| !posts);
        // Read after the mark: a wait that gives up reports first, and then takes its mark back.
        match launches.reported() {
            Some(CudaError::OtherOperation(by)) => return self.tell_of(&by),
            Some(CudaError::Required(by)) => return self.tell_unmet(&by),
            // The line stays until the abort words are set, since other ranks with the same deadline are looking for
            // the late rank.
            Some(CudaError::Timeout(_)) => return,
            _ => {}
        }
        // If it is the same before and after, the host waits for this launch.
        let host_waits = Some(host_waits).filter(|&number| number == stream.host_waits()).unwrap_or(0);
        match stalled {
            Some(stalled) => self.lasts(stalled, host_waits, probe),
            None => match stream.lacks().filter(|_| host_waits != 0) {
                Some(lacks) => self.waits_to_start(stream, lacks, host_waits, probe),
                None => self.goes_on(),
            },
        }
    }

    /// A launch may not start before a peer's launch arrives, and the host waits for it.
    fn waits_to_start(&mut self, stream: &Stream, (number, peer): (u64, u32), host_waits: u64, probe: u64) {
        (self.seen, self.told, self.looks) = ([(0, 0); 2], None, 0);
        // No running launch has this number: running launches are identified by addresses.
        let (peer, since) = (peer as usize, (0, number));
        let doing = "a launch that has not started";
        self.status.device_waits(&DeviceWait { peer, needs: None, has: &[], doing, since, host_waits }, probe);
        if let Some(Found::NobodyComes) = self.status.judge_device() {
            stream.start_without(number);
        }
    }

    /// A wait of a running launch is still going on.
    fn lasts(&mut self, stalled: Stalled, host_waits: u64, probe: u64) {
        let Stalled { at, has, name, mark, since } = stalled;
        self.looks += 1;
        match self.told {
            Some(told) if told == (at, since) => {}
            Some((_, same)) if same == since && self.looks < Self::TURN => return,
            _ => {
                self.goes_on();
                self.told = Some((at, since));
            }
        }
        let [last, before] = self.seen;
        // A mark is written after a poll that found nothing. So once it has changed twice, the second of these polls
        // came after the earlier mark was seen here, and after the probe that was read with it.
        let looked = if mark != last.0 && last.0 != before.0 { before.1 } else { 0 };
        if mark != last.0 {
            self.seen = [(mark, probe), last];
        }
        let peer = if at.from as usize == self.rank { at.to } else { at.from };
        let needs = Some(Crossing { from: at.from as usize, operation: at.operation });
        let has = dealings(self.rank, peer as usize, &has);
        let wait = DeviceWait { peer: peer as usize, needs, has: &has, doing: &name, since, host_waits };
        self.status.device_waits(&wait, looked);
        if let Some(Found::Forever(verdict)) = self.status.judge_device() {
            self.status.tell_all(&verdict);
        }
    }
}

/// What a launch of rank `me` that connects these pairs exchanges with each of its peers. The dealings with `first`
/// come first, since a line has room for only some.
fn dealings(me: usize, first: usize, has: &[Between]) -> Vec<Dealings> {
    let mut all = vec![Dealings { peer: first, sent: Operations::None, received: Operations::None }];
    for it in has {
        let sends = it.from as usize == me;
        let peer = if sends { it.to } else { it.from } as usize;
        let known = all.iter().position(|with| with.peer == peer).unwrap_or_else(|| {
            all.push(Dealings { peer, sent: Operations::None, received: Operations::None });
            all.len() - 1
        });
        let of = if sends { &mut all[known].sent } else { &mut all[known].received };
        *of = of.and(it.operation);
    }
    all
}

/// Passes this rank's abort word on to the device, where kernels poll it, and watches for waits that can never end.
pub(super) struct Watcher {
    own: Abort,
    doorbell: Doorbell,
    seat: Seat,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(super) fn start(
        own: Abort,
        doorbell: Doorbell,
        seat: Seat,
        mut stalls: StallWatch,
    ) -> Result<Watcher, TransportError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut watcher = Watcher { own, doorbell, seat, stop, thread: None };
        let (own, doorbell, seat) = (watcher.own.clone(), watcher.doorbell.clone(), watcher.seat.clone());
        let stop = watcher.stop.clone();
        let run = move || {
            // A capture of others forbids some calls to all threads, and would fail if one of them came from here.
            let _calls = BesideCaptures::now();
            // Relaxed: the words themselves are all the information.
            let over = || own.get().is_some() || stop.load(Ordering::Relaxed);
            while !doorbell.sleep(over, StallWatch::PERIOD) {
                stalls.look(&seat);
            }
            if let Some(cause) = own.get() {
                // If the device is gone, so are its kernels.
                _ = seat.give_up(cause.to_word());
            }
        };
        let thread = std::thread::Builder::new().name("tilewire-nvl".to_string()).spawn(run);
        let source = |source| crate::transport::SegmentError::System { call: "starting a thread", source };
        watcher.thread = Some(thread.map_err(source)?);
        Ok(watcher)
    }

    pub(super) fn pass_on(&self) -> Result<(), CudaError> {
        self.own.get().map_or(Ok(()), |cause| self.seat.give_up(cause.to_word()))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.doorbell.ring();
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(from: u32, to: u32, operation: Option<u16>) -> Between {
        Between { from, to, operation }
    }

    #[test]
    fn a_launch_that_only_gives_credits_has_dealings_with_their_receiver() {
        // Rank 0 signals `recv.head` of rank 1, and waits for nothing from it.
        let none = Operations::None;
        let with = |peer, sent, received| Dealings { peer, sent, received };
        let found = dealings(0, 2, &[between(1, 0, None)]);
        assert_eq!(found, [with(2, none, none), with(1, none, Operations::Credits)]);
        // Data takes precedence over credits, in either order.
        for has in [[None, Some(7)], [Some(7), None]] {
            let has = has.map(|operation| between(1, 0, operation));
            assert_eq!(dealings(0, 1, &has), [with(1, none, Operations::One(7))]);
        }
        let has = [between(0, 1, Some(7)), between(0, 1, Some(8)), between(0, 1, None)];
        assert_eq!(dealings(0, 1, &has), [with(1, Operations::Several, none)]);
    }
}
