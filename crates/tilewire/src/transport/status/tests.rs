//! Lines of several ranks, all on one thread: who looks when is what a test says.

use super::*;

fn world(ranks: usize) -> Vec<Status> {
    SegmentSet::threads(ranks, 0).unwrap().iter().map(Status::of).collect()
}

/// One round of a launch that waits for these ranks: what it looks for is not there.
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
    // It had what it waited for, and waits for something else now.
    b.goes_on();
    looks(b, &[0]);
    looks(a, &[1]);
    assert_eq!(a.judge(), None, "the suspicion is of another wait");
    // A rank that sleeps never answers: no number of looks confirms anything.
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

fn kernel_waits(status: &Status, wanted: u16, has: u16, since: u64, looked: u64) {
    let other = 1 - status.rank;
    let crossing = |from, operation| Crossing { from, operation: Some(operation) };
    let has = [Some(crossing(status.rank, has)), Some(crossing(other, has))];
    let needs = crossing(other, wanted);
    status.device_waits(&DeviceWait { peer: other, needs, has, doing: "a kernel", since: (1, since) }, looked);
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
            found = a.judge_device().or(found);
        }
        assert_eq!(found.is_some(), deadlock);
    }
}

#[test]
fn waits_of_different_launches_are_not_one_wait() {
    let [a, b] = &world(2)[..] else { unreachable!() };
    // Both are always seen in the same kind of wait, of launch after launch.
    for launch in 0..20 {
        let (pa, pb) = (a.device_probe(), b.device_probe());
        kernel_waits(a, 5, 5, launch, pa);
        kernel_waits(b, 6, 6, launch, pb);
        assert_eq!(a.judge_device(), None);
    }
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
