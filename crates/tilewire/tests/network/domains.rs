//! Segments of processes in domains: what is mapped, what is a shadow, and what they tell each other. These tests need
//! no network.

use std::time::{Duration, Instant};
use tilewire::transport::{AbortCode, Cause, Domains, Monitor, SegmentError, SegmentOptions, SegmentSet};
use tilewire_testkit::job::{Job, Member};

fn create(member: &mut Member, domains: Domains) -> Result<SegmentSet, SegmentError> {
    let options = SegmentOptions { domains, deadline: Duration::from_secs(10), ..SegmentOptions::default() };
    SegmentSet::create_with(member.rank, member.size, 1 << 16, &options, &mut |mine| member.exchange(mine))
}

fn mapped_segments() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("memfd:tilewire")).count()
}

#[test]
fn segments_are_mapped_within_domains_alone() {
    if let Some(mut member) = Member::of_this_process() {
        let mut set = create(&mut member, Domains::Given(vec![vec![0, 2], vec![1]])).unwrap();
        let near: Vec<usize> = (0..3).filter(|&rank| set.is_mapped(rank)).collect();
        assert_eq!(near, if member.rank == 1 { vec![1] } else { vec![0, 2] });
        assert_eq!(mapped_segments(), near.len());
        assert!((0..3).all(|rank| set.mapped(rank).is_some() == near.contains(&rank)));
        // Breaking it reaches the domain, and no other rank.
        let monitor = Monitor::start(set.take_control(), set.aborts()).unwrap();
        assert!((0..3).all(|rank| rank == member.rank || !monitor.has_left(rank)), "a shadow has not left");
        member.report("here");
        member.hear();
        if member.rank == 0 {
            set.abort_all(Cause { code: AbortCode::Failed, rank: 0, reason: 0 });
        }
        member.report("told");
        member.hear();
        member.report(format!("{:?}", set.abort(member.rank)));
        member.hear();
        // Goodbyes are waited for within the domain: rank 1 waits for nobody.
        let start = Instant::now();
        monitor.goodbye(Duration::from_secs(10)).unwrap();
        assert!(member.rank != 1 || start.elapsed() < Duration::from_secs(1));
        return member.report("left");
    }
    let mut job = Job::start("domains::segments_are_mapped_within_domains_alone", 3);
    job.gather();
    for step in ["here", "told"] {
        job.expect(0..3, step);
        (0..3).for_each(|rank| job.tell(rank, b"go on"));
    }
    job.expect([0, 2], "Abort(rank 0 gave up after an error)");
    job.expect([1], "Abort(none)");
    (0..3).for_each(|rank| job.tell(rank, b"go on"));
    job.expect(0..3, "left");
    job.finish();
}

#[test]
fn processes_of_a_host_find_each_other() {
    if let Some(mut member) = Member::of_this_process() {
        let set = create(&mut member, Domains::Found).unwrap();
        assert_eq!(set.domains(), [vec![0, 1, 2]]);
        return member.report("found");
    }
    let mut job = Job::start("domains::processes_of_a_host_find_each_other", 3);
    (0..2).for_each(|_| _ = job.gather());
    job.expect(0..3, "found");
    job.finish();
}

#[test]
fn domains_that_are_no_partition_are_an_error_on_all_ranks() {
    if let Some(mut member) = Member::of_this_process() {
        let error = create(&mut member, Domains::Given(vec![vec![0], vec![0, 1]])).unwrap_err();
        return member.report(error.to_string());
    }
    let mut job = Job::start("domains::domains_that_are_no_partition_are_an_error_on_all_ranks", 2);
    job.gather();
    for rank in 0..2 {
        let said = job.report(rank);
        assert!(said.contains("exactly once"), "{said}");
    }
}
