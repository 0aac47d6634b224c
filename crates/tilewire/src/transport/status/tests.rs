//! Status lines of several ranks on a single thread, so that each test decides which rank looks when.

use super::*;

fn world(ranks: usize) -> Vec<Status> {
    SegmentSet::threads(ranks, 0).unwrap().iter().map(Status::of).collect()
}

/// One round of a launch that waits for these ranks and does not find what it needs.
fn looks(status: &Status, peers: &[usize]) {
    let probe = status.probe();
    status.waits(Kind::Launch, peers, &"a launch", probe);
}

#[test]
fn ranks_that_wait_for_each_other_are_found_when_all_have_looked_again() {
    let [a, b, c] = &world(3)[..] else { unreachable!() };
    looks(a, &[1]);
    looks(b, &[2]);
    assert_eq!(a.judge(), None);
    assert_eq!(a.judge(), None, "rank 2 does not wait");
    looks(c, &[0]);
    assert_eq!(a.judge(), None, "a suspicion is not enough");
    for status in [a, b, c] {
        assert_eq!(a.judge(), None, "not all have answered");
        looks(status, &[(status.rank + 1) % 3]);
    }
    let Some(Verdict::Deadlock(waiting)) = a.judge() else { panic!("nothing found") };
    let found: Vec<_> = waiting.iter().map(|it| (it.rank, it.peers.clone(), it.doing.as_str())).collect();
    assert_eq!(found, [(0, vec![1], "a launch"), (1, vec![2], "a launch"), (2, vec![0], "a launch")]);
}

#[test]
fn a_rank_that_has_gone_on_meanwhile_is_no_part_of_a_deadlock() {
    let [a, b] = &world(2)[..] else { unreachable!() };
    looks(a, &[1]);
    looks(b, &[0]);
    assert_eq!(a.judge(), None);
    // It got what it waited for, and now waits for something else.
    b.goes_on();
    looks(b, &[0]);
    looks(a, &[1]);
    assert_eq!(a.judge(), None, "the suspicion is of another wait");
    // A sleeping rank never answers, so no number of looks confirms anything.
    for _ in 0..10 {
        looks(a, &[1]);
        assert_eq!(a.judge(), None);
    }
    looks(b, &[0]);
    assert!(a.judge().is_some());
}

#[test]
fn who_waits_for_several_is_stuck_only_if_all_are() {
    let [a, b, c] = &world(3)[..] else { unreachable!() };
    for _ in 0..4 {
        looks(a, &[1, 2]);
        looks(b, &[0]);
        assert_eq!((a.judge(), b.judge()), (None, None), "rank 2 may still come, and rank 1 hangs on rank 0");
    }
    c.closes();
    assert_eq!(a.judge(), None);
    looks(a, &[1, 2]);
    looks(b, &[0]);
    let Some(Verdict::Deadlock(waiting)) = a.judge() else { panic!("nothing found") };
    assert_eq!(waiting.len(), 3);
    assert_eq!(waiting[2].to_string(), "rank 2 waits for all others in close()");
}

/// One round of a call for the n-th window, as in `gathering.rs`. Returns true if all ranks have come.
fn gathers(status: &Status, nth: u64) -> bool {
    let (probe, missing) = (status.probe(), status.missing(nth));
    if !missing.is_empty() {
        status.waits(Kind::Gathering, &missing, &"a window", probe);
    }
    missing.is_empty()
}

#[test]
fn a_call_for_a_window_and_a_launch_that_wait_for_each_other_are_found() {
    for judge in [0, 1] {
        let [a, b] = &world(2)[..] else { unreachable!() };
        let nth = a.calls_for_window();
        for _ in 0..10 {
            assert!(!gathers(a, nth));
            assert_eq!(a.judge(), None, "rank 1 is slow, and nothing else");
        }
        looks(b, &[0]);
        let judge = [a, b][judge];
        assert_eq!(judge.judge(), None, "a suspicion is not enough");
        looks(b, &[0]);
        assert_eq!(judge.judge(), None, "not all have answered");
        assert!(!gathers(a, nth));
        let Some(Verdict::Deadlock(waiting)) = judge.judge() else { panic!("nothing found") };
        let found: Vec<_> = waiting.iter().map(|it| (it.rank, it.peers.clone(), it.doing.as_str())).collect();
        assert_eq!(found, [(0, vec![1], "a window"), (1, vec![0], "a launch")]);
    }
}

#[test]
fn a_rank_that_has_what_it_waits_for_and_comes_to_the_call_is_no_part_of_a_deadlock() {
    let [a, b] = &world(2)[..] else { unreachable!() };
    let nth = a.calls_for_window();
    assert!(!gathers(a, nth));
    looks(b, &[0]);
    assert_eq!(a.judge(), None);
    // What it waited for had been there all along: it looks, continues, and calls for its window.
    b.goes_on();
    assert_eq!(b.calls_for_window(), nth);
    assert_eq!(a.judge(), None);
    assert!(gathers(a, nth) && gathers(b, nth), "all have come");
    // A rank that took its call back has not come.
    b.calls_no_more();
    assert!(!gathers(a, nth));
    assert!(b.calls_for_more(0) && !a.calls_for_more(1));
    b.lets_go();
    assert!(gathers(a, nth), "nobody waits here for who has let go");
    assert_eq!(a.let_go(), [1]);
}

#[test]
fn a_rank_that_came_and_gave_up_is_not_the_one_that_is_late() {
    let [a, b, c] = &world(3)[..] else { unreachable!() };
    let late = |status: &Status, nth| status.late_for(nth, status.missing(nth));
    let nth = a.calls_for_window();
    assert_eq!(b.calls_for_window(), nth);
    assert_eq!(late(a, nth), [2]);
    a.calls_no_more();
    assert_eq!((b.missing(nth), late(b, nth)), (vec![0, 2], vec![2]));
    // It counts again once it comes again, and for a later window as long as it does not come.
    assert_eq!(a.calls_for_window(), nth);
    assert_eq!(b.missing(nth), [2]);
    c.calls_for_window();
    assert_eq!(b.calls_for_window(), nth + 1);
    assert_eq!(late(b, nth + 1), [0, 2]);
    // All others came and gave up, so there is no one else to name.
    assert_eq!((a.calls_for_window(), c.calls_for_window()), (nth + 1, nth + 1));
    a.calls_no_more();
    c.calls_no_more();
    assert_eq!(late(b, nth + 1), [0, 2]);
}

#[test]
fn a_call_needs_every_rank_and_is_stuck_when_one_of_them_is() {
    let [a, b, c, d] = &world(4)[..] else { unreachable!() };
    let nth = a.calls_for_window();
    // Rank 1 waits for rank 0, and rank 2 computes. Rank 2 may come, but rank 1 never will.
    for status in [a, b] {
        assert!(status.judge().is_none());
    }
    let round = || {
        gathers(a, nth);
        looks(b, &[0]);
        // Rank 3 waits for rank 2, which continues eventually.
        looks(d, &[2]);
    };
    round();
    assert_eq!((a.judge(), d.judge()), (None, None));
    round();
    assert_eq!(d.judge(), None);
    let Some(Verdict::Deadlock(waiting)) = a.judge() else { panic!("nothing found") };
    assert_eq!(waiting.iter().map(|it| it.rank).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(c.calls_for_window(), nth);
    assert_eq!(a.missing(nth), [1, 3]);
}

#[test]
fn a_call_for_a_window_waits_in_vain_for_a_rank_that_closes() {
    let [a, b] = &world(2)[..] else { unreachable!() };
    let nth = a.calls_for_window();
    assert_eq!(b.open(), [0, 1]);
    b.closes();
    assert_eq!(b.open(), [0]);
    gathers(a, nth);
    assert_eq!(a.judge(), None);
    gathers(a, nth);
    let Some(Verdict::Deadlock(waiting)) = a.judge() else { panic!("nothing found") };
    assert_eq!(waiting[1].to_string(), "rank 1 waits for all others in close()");
}

#[test]
fn a_rank_that_calls_for_a_window_on_another_transport_has_come() {
    let [a, b] = &world(2)[..] else { unreachable!() };
    let nth = a.calls_for_window();
    assert_eq!(a.missing(nth), [1]);
    b.is_elsewhere(true);
    assert!(gathers(a, nth), "they compare their transports");
    b.is_elsewhere(false);
    assert_eq!(a.missing(nth), [1]);
}

#[test]
fn the_rank_that_is_late_is_at_the_end_of_the_chain() {
    let [a, b, c, d] = &world(4)[..] else { unreachable!() };
    looks(a, &[1]);
    looks(b, &[2]);
    assert_eq!((a.late(1), a.late(2), a.late(3)), (2, 2, 3));
    looks(c, &[3]);
    assert_eq!(a.late(1), 3);
    looks(d, &[0]);
    assert_eq!(a.late(1), 3, "a chain that comes round ends before it does");
}

/// A kernel waits for data of operation `wanted` from `peer`; its launch has `has`.
fn kernel_waits_for(status: &Status, (peer, wanted): (usize, u16), has: &[Dealings], since: u64, looked: u64) {
    let needs = Some(Crossing { from: peer, operation: Some(wanted) });
    let wait = DeviceWait { peer, needs, has, doing: "a kernel", since: (1, since), host_waits: 0 };
    status.device_waits(&wait, looked);
}

/// The same for a launch that has operation `has` in both directions with every other rank.
fn kernel_waits(status: &Status, wanted: u16, has: u16, since: u64, looked: u64) {
    let all = both_ways(status, has);
    kernel_waits_for(status, (1 - status.rank, wanted), &all, since, looked);
}

impl Status {
    /// Judges this rank's kernels, all of which have started.
    fn judge_kernels(&self) -> Option<Verdict> {
        match self.judge_device() {
            Some(Found::NobodyComes) => panic!("a kernel that runs has started"),
            Some(Found::Forever(verdict)) => Some(verdict),
            None => None,
        }
    }
}

fn both_ways(status: &Status, operation: u16) -> Vec<Dealings> {
    let with = |peer| Dealings { peer, sent: Operations::One(operation), received: Operations::One(operation) };
    (0..status.segments.len()).filter(|&peer| peer != status.rank).map(with).collect()
}

#[test]
fn kernels_that_need_what_the_others_launch_has_not_are_found_and_those_of_one_operation_are_not() {
    let [a, b] = &world(2)[..] else { unreachable!() };
    let mut found = None;
    for (theirs, deadlock) in [(5, false), (6, true)] {
        for _ in 0..5 {
            let (pa, pb) = (a.device_probe(), b.device_probe());
            kernel_waits(a, 5, 5, 0, pa);
            kernel_waits(b, theirs, theirs, 0, pb);
            found = a.judge_kernels().or(found);
        }
        assert_eq!(found.is_some(), deadlock);
    }
}

#[test]
fn waits_of_different_launches_are_not_one_wait() {
    let [a, b] = &world(2)[..] else { unreachable!() };
    // Both are always seen in the same kind of wait, but in launch after launch.
    for launch in 0..20 {
        let (pa, pb) = (a.device_probe(), b.device_probe());
        kernel_waits(a, 5, 5, launch, pa);
        kernel_waits(b, 6, 6, launch, pb);
        assert_eq!(a.judge_kernels(), None);
    }
}

/// Three ranks, each in a launch that waits for the next rank's. `has` says what each launch has. Returns what rank 0
/// finds in a few rounds.
fn ring_of_kernels(has: impl Fn(&Status) -> Vec<Dealings>, answers: [bool; 3]) -> Option<Verdict> {
    let all = world(3);
    let mut found = None;
    for round in 0..5 {
        for status in all.iter().filter(|status| round == 0 || answers[status.rank]) {
            let peer = (status.rank + 1) % 3;
            let probe = status.device_probe();
            kernel_waits_for(status, (peer, 5 + status.rank as u16), &has(status), 0, probe);
        }
        found = found.or(all[0].judge_kernels());
    }
    found
}

#[test]
fn a_cycle_of_three_kernels_in_three_operations_is_found_when_all_have_looked_again() {
    let own = |status: &Status| both_ways(status, 5 + status.rank as u16);
    let Some(Verdict::Deadlock(waiting)) = ring_of_kernels(own, [true; 3]) else { panic!("nothing found") };
    let found: Vec<_> = waiting.iter().map(|it| (it.rank, it.peers.clone())).collect();
    assert_eq!(found, [(0, vec![1]), (1, vec![2]), (2, vec![0])]);
    for slow in 0..3 {
        let answers = [0, 1, 2].map(|rank| rank != slow);
        assert_eq!(ring_of_kernels(own, answers), None, "rank {slow} may be about to go on");
    }
    // Launches that have nothing with the rank that waits for them: receives, in a ring.
    let receives = |status: &Status| {
        let received = Operations::One(5 + status.rank as u16);
        vec![Dealings { peer: (status.rank + 1) % 3, sent: Operations::None, received }]
    };
    assert!(ring_of_kernels(receives, [true; 3]).is_some());
}

#[test]
fn a_launch_that_may_have_what_is_needed_breaks_the_chain() {
    let own = |status: &Status| both_ways(status, 5 + status.rank as u16);
    for giver in 0..3 {
        let needed = (5 + (giver + 2) % 3) as u16;
        let with = |sent| Dealings { peer: (giver + 2) % 3, sent, received: Operations::None };
        let gives = |status: &Status, has: Vec<Dealings>| if status.rank == giver { has } else { own(status) };
        let of = |has: Vec<Dealings>| ring_of_kernels(|status| gives(status, has.clone()), [true; 3]);
        assert_eq!(of(vec![with(Operations::One(needed))]), None, "its other parts may be at work");
        assert_eq!(of(vec![with(Operations::Several)]), None);
        assert!(of(vec![with(Operations::One(99))]).is_some());
        // More peers than the line has room for: what the launch has with the rest is unknown.
        let many = |first: usize| {
            let with = |peer| Dealings { peer, sent: Operations::None, received: Operations::None };
            (first..first + 40).map(with).collect::<Vec<_>>()
        };
        assert_eq!(of(many(100)), None);
        assert!(of(many(0)).is_some(), "of those that are told it is");
    }
}

/// Rank 0 waits for a credit of rank 1. Rank 1's launch has `given` for rank 0's data and waits for an operation that
/// rank 0's launch does not have. Returns what rank 0 finds in a few rounds.
fn waits_for_a_credit(given: Operations) -> Option<Verdict> {
    let [a, b] = &world(2)[..] else { unreachable!() };
    let mut found = None;
    for _ in 0..5 {
        let (pa, pb) = (a.device_probe(), b.device_probe());
        let needs = Some(Crossing { from: 0, operation: None });
        let has = [Dealings { peer: 1, sent: Operations::Credits, received: Operations::None }];
        let wait = DeviceWait { peer: 1, needs, has: &has, doing: "a kernel", since: (1, 0), host_waits: 0 };
        a.device_waits(&wait, pa);
        kernel_waits_for(b, (0, 9), &[Dealings { peer: 0, sent: Operations::None, received: given }], 0, pb);
        found = found.or(a.judge_kernels());
    }
    found
}

#[test]
fn a_launch_that_only_gives_credits_may_still_give_them() {
    assert_eq!(waits_for_a_credit(Operations::Credits), None, "the role that signals may still be computing");
    assert_eq!(waits_for_a_credit(Operations::One(5)), None, "data that comes in it is acknowledged");
    assert!(waits_for_a_credit(Operations::None).is_some());
}

#[test]
fn a_kernel_that_hangs_on_a_cycle_or_on_a_rank_that_closes_is_stuck() {
    let all = world(3);
    let mut found = None;
    for _ in 0..3 {
        // Rank 0 waits for rank 1; ranks 1 and 2 wait for each other.
        for (rank, peer) in [(0, 1), (1, 2), (2, 1)] {
            let probe = all[rank].device_probe();
            kernel_waits_for(&all[rank], (peer, 5 + rank as u16), &both_ways(&all[rank], 5 + rank as u16), 0, probe);
        }
        found = found.or(all[0].judge_kernels());
    }
    let Some(Verdict::Deadlock(waiting)) = found else { panic!("nothing found") };
    assert_eq!(waiting.iter().map(|it| it.rank).collect::<Vec<_>>(), [0, 1, 2]);

    let all = world(3);
    all[2].closes();
    let mut found = None;
    for _ in 0..3 {
        for (rank, peer) in [(0, 1), (1, 2)] {
            let probe = all[rank].device_probe();
            kernel_waits_for(&all[rank], (peer, 5 + rank as u16), &both_ways(&all[rank], 5 + rank as u16), 0, probe);
        }
        found = found.or(all[0].judge_kernels());
    }
    let Some(Verdict::Deadlock(waiting)) = found else { panic!("nothing found") };
    assert_eq!(waiting[2].to_string(), "rank 2 waits for all others in close()");
}

/// A rank whose kernels and host may both wait. Each test decides which of them looks when.
struct Mixed<'s> {
    status: &'s Status,
    /// The number of the host's wait for its kernels.
    host_waits: u64,
    since: u64,
}

impl Mixed<'_> {
    fn new(status: &Status) -> Mixed<'_> {
        Mixed { status, host_waits: 1, since: 0 }
    }

    /// One round of a kernel that waits for operation 5 of a peer, and has that operation with all ranks.
    fn kernel(&self, peer: usize) {
        let (status, needs) = (self.status, Some(Crossing { from: peer, operation: Some(5) }));
        let (has, since) = (both_ways(status, 5), (1, self.since));
        let wait = DeviceWait { peer, needs, has: &has, doing: "a kernel", since, host_waits: self.host_waits };
        status.device_waits(&wait, status.device_probe());
    }

    /// One round of a first meeting with a peer. If `idle`, nothing is on the GPU.
    fn meets(&self, peer: usize, idle: bool) {
        let probe = self.status.probe();
        self.status.waits(Kind::Meeting, &[peer], &"a meeting", probe);
        if idle {
            self.status.device_is_idle(self.status.host_waits_since().unwrap());
        }
    }
}

/// A few rounds of two ranks; returns what either finds.
fn rounds(all: &[Status], mut round: impl FnMut(&[Status])) -> Option<Verdict> {
    let mut found = None;
    for _ in 0..5 {
        round(all);
        found = all.iter().fold(found, |found, status| found.or(status.judge()).or(status.judge_kernels()));
    }
    found
}

/// Judges a kernel of rank 0 whose host waits for it, together with a rank 1 whose host behaves as `host` says.
fn kernel_and_host(host: impl Fn(&Status)) -> Option<Verdict> {
    rounds(&world(2), |all| {
        Mixed::new(&all[0]).kernel(1);
        host(&all[1]);
    })
}

#[test]
fn a_kernel_and_a_host_that_wait_for_each_other_are_found() {
    let meets = |status: &Status| Mixed::new(status).meets(0, true);
    let gathers = |status: &Status| {
        gathers(status, 1);
        status.device_is_idle(status.host_waits_since().unwrap());
    };
    let found = |verdict: Option<Verdict>| {
        let Some(Verdict::Deadlock(waiting)) = verdict else { panic!("nothing found") };
        waiting.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let kernel = "rank 0 waits for rank 1 in a kernel";
    assert_eq!(found(kernel_and_host(meets)), [kernel, "rank 1 waits for rank 0 in a meeting"]);
    let verdict = rounds(&world(2), |all| {
        all[1].words(1).line.0.windows.store(1, Ordering::Relaxed);
        Mixed::new(&all[0]).kernel(1);
        gathers(&all[1]);
    });
    assert_eq!(found(verdict), [kernel, "rank 1 waits for rank 0 in a window"]);
    // Each of them finds out by itself.
    for judge in 0..2 {
        let all = world(2);
        let round = || {
            Mixed::new(&all[0]).kernel(1);
            meets(&all[1]);
            if judge == 0 { all[0].judge_kernels() } else { all[1].judge() }
        };
        assert_eq!(round(), None, "a suspicion is not enough");
        assert!(round().is_some());
    }
}

#[test]
fn a_kernel_and_a_host_of_which_one_may_go_on_are_no_deadlock() {
    // The peer has something on its GPU, which may provide what the kernel needs.
    assert_eq!(kernel_and_host(|status| Mixed::new(status).meets(0, false)), None);
    // It had nothing there in an earlier wait, but has launched since.
    let earlier = |status: &Status| {
        Mixed::new(status).meets(0, true);
        status.goes_on();
        Mixed::new(status).meets(0, false);
    };
    assert_eq!(kernel_and_host(earlier), None);
    // Its host does not wait, or waits for a rank that does not.
    assert_eq!(kernel_and_host(|_| ()), None);
    assert_eq!(kernel_and_host(|status| status.device_is_idle(1)), None);
    // The host of the kernel's rank is doing something else, and may come to the meeting.
    let works = |host_waits| {
        rounds(&world(2), |all| {
            Mixed { host_waits, ..Mixed::new(&all[0]) }.kernel(1);
            Mixed::new(&all[1]).meets(0, true);
        })
    };
    assert_eq!(works(0), None);
    assert!(works(3).is_some());
}

#[test]
fn a_kernel_and_a_host_that_were_seen_in_several_waits_are_no_deadlock() {
    // All are waiting whenever they are checked, but one is not in a single wait: the kernel, its host, or the host at
    // the meeting.
    for changes in 0..3 {
        let mut turn = 0;
        let found = rounds(&world(2), |all| {
            turn += 2;
            let of = |which| if changes == which { turn } else { 0 };
            Mixed { since: of(0), host_waits: 1 + of(1), ..Mixed::new(&all[0]) }.kernel(1);
            if changes == 2 {
                all[1].goes_on();
            }
            Mixed::new(&all[1]).meets(0, true);
        });
        assert_eq!(found, None, "{changes}");
    }
    // One of them never looks again.
    for silent in 0..2 {
        let mut is_first = true;
        let found = rounds(&world(2), |all| {
            if silent != 0 || is_first {
                Mixed::new(&all[0]).kernel(1);
            }
            if silent != 1 || is_first {
                Mixed::new(&all[1]).meets(0, true);
            }
            is_first = false;
        });
        assert_eq!(found, None, "{silent}");
    }
}

#[test]
fn a_cycle_through_kernels_and_hosts_of_several_ranks_is_found() {
    // Rank 0 meets rank 1, whose kernel waits for rank 2, which meets rank 0.
    let cycle = |first_idle: bool| {
        rounds(&world(3), |all| {
            Mixed::new(&all[0]).meets(1, first_idle);
            Mixed::new(&all[1]).kernel(2);
            Mixed::new(&all[2]).meets(0, true);
        })
    };
    // No rank needs what is on rank 0's GPU.
    for first_idle in [true, false] {
        let Some(Verdict::Deadlock(waiting)) = cycle(first_idle) else { panic!("nothing found") };
        let found: Vec<_> = waiting.iter().map(|it| (it.rank, it.peers.clone())).collect();
        assert_eq!(found, [(0, vec![1]), (1, vec![2]), (2, vec![0])]);
    }
    // A kernel waits for a second kernel, which waits for a host that waits for the first. Only the first kernel's host
    // waits for it.
    let found = rounds(&world(3), |all| {
        Mixed::new(&all[0]).kernel(1);
        let has = [Dealings { peer: 2, sent: Operations::None, received: Operations::One(5) }];
        kernel_waits_for(&all[1], (2, 5), &has, 0, all[1].device_probe());
        Mixed::new(&all[2]).meets(0, true);
    });
    assert!(found.is_some());
}

#[test]
fn a_launch_that_waits_for_a_host_that_waits_for_its_own_starts() {
    for (host_waits, comes) in [(1, true), (0, false)] {
        let [a, b] = &world(2)[..] else { unreachable!() };
        let mut starts = false;
        for _ in 0..5 {
            let wait = DeviceWait { peer: 1, needs: None, has: &[], doing: "a start", since: (0, 7), host_waits };
            a.device_waits(&wait, a.device_probe());
            Mixed::new(b).meets(0, true);
            assert_eq!((a.judge(), b.judge()), (None, None), "the kernel may need nobody");
            starts |= matches!(a.judge_device(), Some(Found::NobodyComes));
        }
        assert_eq!(starts, comes);
    }
}

#[test]
fn the_rank_that_is_late_is_found_through_kernels_that_wait() {
    let [a, b, _, d] = &world(4)[..] else { unreachable!() };
    Mixed::new(b).kernel(2);
    looks(d, &[1]);
    assert_eq!((a.late(1), a.late(3)), (2, 2));
}

#[test]
fn what_a_launch_has_is_told_in_one_word_a_peer() {
    let all = [Operations::None, Operations::Credits, Operations::One(0), Operations::One(0x7fff), Operations::Several];
    for (sent, received) in all.iter().flat_map(|&sent| all.map(|received| (sent, received))) {
        let with = Dealings { peer: 71, sent, received };
        assert_eq!(Dealings::from_word(with.to_word()), with);
    }
    assert_eq!(Operations::None.and(Some(3)).and(Some(3)), Operations::One(3));
    assert_eq!(Operations::One(3).and(Some(4)), Operations::Several);
    assert_eq!(Operations::None.and(None), Operations::Credits);
    assert_eq!(Operations::Credits.and(None).and(Some(3)).and(None), Operations::One(3));
}

#[test]
fn all_ranks_are_told_the_verdict_that_was_first() {
    let [a, b] = &world(2)[..] else { unreachable!() };
    let verdict = |rank: usize| Verdict::OtherOperation {
        here: (rank, "all_reduce\tof\n4 f32".to_string()),
        there: (1 - rank, "all_gather".to_string()),
    };
    a.tell_all(&verdict(0));
    b.tell_all(&verdict(1));
    let cause = Cause { code: AbortCode::Mismatched, rank: 0, reason: 0 };
    for status in [a, b] {
        assert_eq!(Abort::new(status.segments[status.rank].clone()).get(), Some(cause));
        let Some(Verdict::OtherOperation { here, there }) = status.verdict(cause) else { panic!("no verdict") };
        assert_eq!((here, there), ((0, "all_reduce of 4 f32".to_string()), (1, "all_gather".to_string())));
    }
    assert_eq!(a.verdict(Cause { code: AbortCode::Died, ..cause }), None);
}

/// The first rank has written all texts, and is interrupted before it has set all abort words.
#[test]
fn a_rank_that_finds_out_second_also_ends_all_waits_with_the_verdict_that_was_first() {
    let ranks = world(5);
    let verdict =
        |rank: usize| Verdict::OtherOperation { here: (rank, "this".to_string()), there: (0, "that".to_string()) };
    let abort = |status: &Status| Abort::new(status.segments[status.rank].clone());
    for status in &ranks {
        let words = status.words(status.rank);
        words.verdict.write(&verdict(1).to_text());
        words.line.0.judged.store(2, Ordering::Release);
    }
    abort(&ranks[0]).set(Cause { code: AbortCode::Mismatched, rank: 1, reason: 0 });
    ranks[4].tell_all(&verdict(4));
    for status in &ranks {
        abort(status).set(Cause { code: AbortCode::Failed, rank: 4, reason: 0 });
        let cause = abort(status).get().unwrap();
        assert_eq!(status.verdict(cause), Some(verdict(1)), "rank {}: {cause}", status.rank);
    }
}
