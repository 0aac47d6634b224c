//! Proxies that only their rank's thread drives.

use super::*;
use crate::transport::doorbell::Doorbell;
use std::time::Instant;

/// Proxies with their threads, queues, windows and segments, by rank.
type Served = (Vec<Arc<Proxy>>, Vec<Queue>, Vec<Memory>, Vec<SegmentSet>, Vec<ProxyThread>);

/// Ranks with a thread each. Arrivals ring the rank's doorbell, on which these threads sleep, as those of GPU ranks do
/// on a bell of their own.
fn served(rig: Rig) -> Served {
    served_by(rig, |proxy, bell| ProxyThread::start(proxy, Some(bell), ThreadWork::Sleeping).unwrap())
}

fn served_by(rig: Rig, start: impl Fn(&Arc<Proxy>, Doorbell) -> ProxyThread) -> Served {
    let Rig { nodes, segments } = rig;
    let (mut proxies, mut queues, mut outboxes) = (Vec::new(), Vec::new(), Vec::new());
    for Node { proxy, queue, outbox } in nodes {
        proxies.push(Arc::new(proxy));
        queues.push(queue);
        outboxes.push(outbox);
    }
    let start = |(rank, proxy): (usize, &Arc<Proxy>)| start(proxy, segments[rank].doorbell(rank));
    let threads = proxies.iter().enumerate().map(start).collect();
    (proxies, queues, outboxes, segments, threads)
}

fn push_to(queue: &Queue, post: &Posted) {
    let [entries, tickets] = [0, 1].map(|k: usize| queue.memories[k].start().as_ptr());
    // SAFETY: this is the memory of a ring.
    assert!(unsafe { push(entries, tickets, queue.capacity().unwrap(), &post.words()) });
}

fn signal_of(line: u64, word: u64) -> Posted {
    let notice = PostedNotice { slot: line, value: word, parts: 1, kind: NoticeKind::Data };
    Posted { peer: 1, target: 0, span: None, notice: Some(notice) }
}

fn slot_of(segments: &[SegmentSet], rank: usize, line: usize) -> u64 {
    // SAFETY: the word is inside the segment, aligned, and touched only by atomics.
    let word = unsafe { AtomicU64::from_ptr(segments[rank].segment(rank).start().as_ptr().add(line * LINE).cast()) };
    word.load(Ordering::Acquire)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

fn looped(seed: Option<u64>) -> Rig {
    Rig::new(64, |rank, ends| Box::new(LoopCarrier::new(rank, ends.to_vec(), seed)))
}

#[test]
fn what_a_launch_on_a_gpu_posts_arrives_although_nobody_waits() {
    for seed in [None, Some(3)] {
        let (proxies, queues, _outboxes, segments, _threads) = served(looped(seed));
        for word in 1..=50 {
            // The threads sleep before every other launch: posts themselves ring no bell.
            proxies[0].launched();
            push_to(&queues[0], &signal_of(0, matched(word)));
            until("the slot of rank 1 moves", || slot_of(&segments, 1, 0) == matched(word));
            if word % 2 == 0 {
                proxies[0].landed();
            }
        }
    }
}

/// A launch on a CPU posts, and then computes without a wait. Nobody calls the thread after the launch has begun.
#[test]
fn what_a_launch_on_a_cpu_posts_leaves_while_it_computes() {
    for (work, seed) in [(ThreadWork::Computing, None), (ThreadWork::Computing, Some(3)), (ThreadWork::Sleeping, None)]
    {
        let start = |proxy: &Arc<Proxy>, _| ProxyThread::start(proxy, None, work).unwrap();
        let (proxies, queues, _outboxes, segments, _threads) = served_by(looped(seed), start);
        for word in 1..=20 {
            proxies[0].runs();
            // The second signal is held until the first is delivered.
            push_to(&queues[0], &signal_of(0, matched(2 * word - 1)));
            push_to(&queues[0], &signal_of(0, matched(2 * word)));
            until("the slot of rank 1 moves", || slot_of(&segments, 1, 0) == matched(2 * word));
            proxies[0].ran();
        }
        assert_eq!(proxies[0].hand_over(), work == ThreadWork::Sleeping);
    }
}

#[test]
fn a_replay_that_nobody_reports_is_noticed() {
    let (proxies, queues, _outboxes, segments, _threads) = served(looped(None));
    proxies[0].captured();
    for word in 1..=5 {
        // Longer than the thread steps without a pause.
        std::thread::sleep(Duration::from_millis(12));
        push_to(&queues[0], &signal_of(0, matched(word)));
        until("the slot of rank 1 moves", || slot_of(&segments, 1, 0) == matched(word));
    }
}

#[test]
fn a_thread_that_ends_delivers_what_was_posted_before() {
    let (_proxies, queues, _outboxes, segments, mut threads) = served(looped(Some(5)));
    for word in 1..=20 {
        push_to(&queues[0], &signal_of(0, matched(word)));
    }
    drop(threads.remove(0));
    // The peer's thread is woken by its bell.
    until("the slot of rank 1 moves", || slot_of(&segments, 1, 0) == matched(20));
}

#[test]
fn a_thread_that_finds_an_error_tells_all_ranks() {
    let (proxies, queues, _outboxes, segments, _threads) = served(looped(None));
    push_to(&queues[0], &signal_of(EACH as u64, matched(1)));
    proxies[0].launched();
    until("rank 0 stops", || proxies[0].error().is_some());
    assert!(matches!(proxies[0].error(), Some(ProxyError::Line { peer: 1, .. })));
    let cause = Some(Cause { code: AbortCode::Failed, rank: 0, reason: 0 });
    until("all are told", || segments[0].aborts().iter().all(|abort| abort.get() == cause));
}

struct Panics;

impl Carrier for Panics {
    fn open(&mut self, _: u16, _: &Memory, _: &[usize]) -> Result<(), ProxyError> {
        Ok(())
    }

    fn close(&mut self, _: u16) {}

    fn place(&self, _: u16) -> Vec<u8> {
        Vec::new()
    }

    fn reach(&mut self, _: usize, _: u16, _: &[u8]) -> Result<(), ProxyError> {
        Ok(())
    }

    fn reads(&self, _: &Memory) -> bool {
        false
    }

    fn lend(&mut self, _: &Memory) -> Result<(), ProxyError> {
        Ok(())
    }

    fn give_back(&mut self, _: &Memory) {}

    fn write(&mut self, _: &Write<'_>) -> Result<bool, ProxyError> {
        Ok(true)
    }

    fn unconfirmed(&mut self, _: usize) -> Result<usize, ProxyError> {
        Ok(0)
    }

    fn flush_arrivals(&mut self) -> Result<(), ProxyError> {
        Ok(())
    }

    fn poll(&mut self, _: &mut Vec<Event>) -> Result<(), ProxyError> {
        panic!("a carrier panics");
    }
}

#[test]
fn a_thread_that_panics_tells_all_ranks() {
    let (proxies, _queues, _outboxes, segments, _threads) = served(Rig::new(64, |_, _| Box::new(Panics)));
    until("it is told", || proxies[2].error() == Some(&ProxyError::Panicked));
    until("all are told", || segments[0].aborts().iter().all(|abort| abort.get().is_some()));
}

#[test]
fn a_bell_that_belongs_to_no_segment_rings() {
    let (bell, rung) = (Doorbell::alone().unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| bell.sleep(|| rung.load(Ordering::Acquire), Duration::from_secs(30)));
        rung.store(true, Ordering::Release);
        bell.ring();
        assert!(sleeper.join().unwrap());
    });
}
