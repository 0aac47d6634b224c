//! `transport/doorbell.rs`, `transport/proxy/duty.rs` and `transport/proxy/turns.rs` over a mapping that is one word,
//! and a futex that never times out.

#[path = "../../crates/tilewire/src/transport/doorbell.rs"]
pub(crate) mod doorbell;

#[path = "../../crates/tilewire/src/transport/proxy/duty.rs"]
mod duty;

#[path = "../../crates/tilewire/src/transport/proxy/turns.rs"]
mod turns;

mod futex {
    use crate::sync::AtomicU32;
    use std::time::Duration;

    pub(super) fn wait(word: &AtomicU32, seen: u32, _: Duration) {
        word.wait(seen);
    }

    pub(super) fn wake_all(word: &AtomicU32) {
        word.wake_all();
    }
}

mod mapping {
    use crate::sync::AtomicU32;

    pub(super) struct Line(pub AtomicU32);

    pub(super) struct Header {
        pub doorbell: Line,
    }

    pub(super) struct Mapping(pub Header);

    pub(super) const HEADER: usize = 4096;

    impl Mapping {
        pub(super) fn own(_: usize, _: bool, _: bool) -> Option<Mapping> {
            Some(Mapping(Header { doorbell: Line(AtomicU32::new(0)) }))
        }

        pub(super) fn header(&self) -> &Header {
            &self.0
        }
    }
}

pub(crate) mod models {
    use super::doorbell::Doorbell;
    use super::duty::Duty;
    use super::mapping::{Header, Line, Mapping};
    use super::turns::Turns;
    use crate::Bounds;
    use crate::sync::{Arc, AtomicBool, AtomicU32, Ordering, fence};
    use loom::thread;
    use std::time::Duration;

    fn bell() -> Doorbell {
        Doorbell::new(Arc::new(Mapping(Header { doorbell: Line(AtomicU32::new(0)) })))
    }

    fn waits_for(bell: &Doorbell, slot: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
        let (bell, slot) = (bell.clone(), slot.clone());
        thread::spawn(move || assert!(bell.sleep(|| slot.load(Ordering::Acquire), Duration::MAX)))
    }

    fn signals(bell: &Doorbell, slot: &AtomicBool, fenced: bool) {
        slot.store(true, Ordering::Release);
        if fenced {
            fence(Ordering::SeqCst);
        }
        bell.ring();
    }

    /// Starts one thread per slot, which waits for that slot. This thread sets the slots one after the other.
    fn signalled(slots: usize, fenced: bool) {
        let (bell, slots) = (bell(), Vec::from_iter((0..slots).map(|_| Arc::new(AtomicBool::new(false)))));
        let sleepers: Vec<_> = slots.iter().map(|slot| waits_for(&bell, slot)).collect();
        slots.iter().for_each(|slot| signals(&bell, slot, fenced));
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        assert_eq!(bell.word().load(Ordering::Relaxed) & Doorbell::SLEEPERS, 0, "all are awake, and one is counted");
    }

    pub(crate) fn doorbell(bounds: &Bounds) {
        bounds.check(5, || signalled(1, true));
    }

    pub(crate) fn sleepers(bounds: &Bounds) {
        bounds.check(3, || signalled(2, true));
    }

    /// The signaller of the library has no fence. Its store of the slot may pass its load of the bell, and the sleeper
    /// then sleeps until its nap is over. Here naps never end, so loom reports a deadlock; it aborts the process, so
    /// this runs in one of its own.
    pub(crate) fn without_fence(_: &Bounds) {
        let program = std::env::current_exe().expect("this program");
        let output = std::process::Command::new(program).arg("lost_wake_up").output().expect("it runs again");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains("deadlock"), "no wake-up can be lost any more: {text}");
    }

    pub(crate) fn lost_wake_up(bounds: &Bounds) {
        bounds.check(4, || signalled(1, false));
    }

    /// A proxy that a thread serves: the posts to deliver, the slot that moves when they are delivered, and the bell of
    /// the rank that waits for it.
    struct Served {
        duty: Duty,
        posted: AtomicBool,
        slot: AtomicBool,
        bell: Doorbell,
    }

    impl Served {
        fn new() -> Served {
            let [posted, slot] = [(); 2].map(|()| AtomicBool::new(false));
            Served { duty: Duty::new(bell()), posted, slot, bell: bell() }
        }

        fn post(&self) {
            self.posted.store(true, Ordering::Release);
        }

        /// Like `Proxy::step`. Only one thread steps in these models, so no lock is needed.
        fn step(&self) -> bool {
            // Acquire here and release in `post`, like the turn of an entry in the ring.
            let is_posted = self.posted.load(Ordering::Acquire);
            if is_posted {
                self.posted.store(false, Ordering::Relaxed);
                signals(&self.bell, &self.slot, true);
            }
            is_posted
        }
    }

    fn served() -> (Arc<Served>, thread::JoinHandle<()>) {
        let served = Arc::new(Served::new());
        let other = served.clone();
        (served, thread::spawn(move || other.duty.serve(|| other.step(), || false, || 0)))
    }

    /// A waiting thread that has posted hands the proxy over and sleeps until its slot moves.
    pub(crate) fn hand_over(bounds: &Bounds) {
        bounds.check(3, || {
            let (proxy, thread) = served();
            proxy.post();
            proxy.duty.hand_over();
            assert!(proxy.bell.sleep(|| proxy.slot.load(Ordering::Acquire), Duration::MAX));
            proxy.duty.take_back();
            proxy.duty.end();
            thread.join().unwrap();
        });
    }

    /// Does the same twice. In between the thread sleeps, or is about to.
    pub(crate) fn hand_over_again(bounds: &Bounds) {
        bounds.check(2, || {
            let (proxy, thread) = served();
            for _ in 0..2 {
                proxy.post();
                proxy.duty.hand_over();
                assert!(proxy.bell.sleep(|| proxy.slot.load(Ordering::Acquire), Duration::MAX));
                proxy.duty.take_back();
                proxy.slot.store(false, Ordering::Relaxed);
            }
            proxy.duty.end();
            thread.join().unwrap();
        });
    }

    /// A thread that is told to end does so, whatever it was told before.
    pub(crate) fn ended(bounds: &Bounds) {
        bounds.check(4, || {
            let (proxy, thread) = served();
            proxy.duty.end();
            thread.join().unwrap();
        });
    }

    /// A proxy that several threads of a rank drive: the number of arrivals taken, what has arrived, the slot that
    /// moves then, and the bell of the rank that waits for it.
    struct Driven {
        turns: Turns<u32>,
        arrived: AtomicBool,
        slot: AtomicBool,
        bell: Doorbell,
    }

    impl Driven {
        /// Like `Proxy::step`, with a poll of the carrier inside.
        fn step(&self) {
            let Ok(Some(mut taken)) = self.turns.try_enter() else { return };
            if self.arrived.load(Ordering::Acquire) {
                self.arrived.store(false, Ordering::Relaxed);
                *taken += 1;
                signals(&self.bell, &self.slot, true);
            }
        }
    }

    /// One thread waits and drives, and `steppers` others step once. Something arrives at any time.
    fn driven(steppers: usize) {
        let (bell, [arrived, slot]) = (bell(), [(); 2].map(|()| AtomicBool::new(false)));
        let driven = Arc::new(Driven { turns: Turns::new(0, bell.clone()), arrived, slot, bell });
        let spawn = |work: fn(&Driven)| {
            let driven = driven.clone();
            thread::spawn(move || work(&driven))
        };
        // The carrier rings the rank's bell, as a signal does.
        let carrier = spawn(|driven| signals(&driven.bell, &driven.arrived, true));
        let steppers: Vec<_> = (0..steppers).map(|_| spawn(Driven::step)).collect();
        let ready = || {
            driven.step();
            driven.slot.load(Ordering::Acquire)
        };
        assert!(driven.bell.sleep(ready, Duration::MAX));
        carrier.join().unwrap();
        steppers.into_iter().for_each(|stepper| stepper.join().unwrap());
        assert_eq!(*driven.turns.enter().unwrap(), 1, "it is taken once");
        assert_eq!(driven.bell.word().load(Ordering::Relaxed) & Doorbell::SLEEPERS, 0);
    }

    pub(crate) fn two_steppers(bounds: &Bounds) {
        bounds.check(3, || driven(1));
    }

    pub(crate) fn three_steppers(bounds: &Bounds) {
        bounds.check(2, || driven(2));
    }
}
