//! Signals that a launch leaves behind, and that the next launch takes for its own.

use crate::checker::litmus::Shared;
use crate::checker::{check, check_with, clean, expect, kinds};
use tilewire::Traced;
use tilewire::check::{Fault, Settings};

#[test]
fn data_that_nobody_takes_is_left_over() {
    let s = Shared::new();
    let last = line!() + 5;
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 1u64);
        r.signal(slots.slot(0, 0), 1);
        bytes.put(0, 8, 1u64);
        r.signal(slots.slot(0, 0), 2);
    });
    let receive = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        out.store(0, bytes.get::<u64>(0, 0));
    });
    expect(&check(&[vec![send, receive]]), "leftover", &[last]);
}

/// One launch of a sender and a receiver with one slot for every step: the steps that the sender sends and that the
/// receiver takes.
fn launch(s: &Shared, sends: std::ops::Range<i64>, takes: std::ops::Range<i64>) -> (Vec<Traced>, u32) {
    let signal = line!() + 4;
    let send = s.rank(|r, bytes, slots, _| {
        for step in sends.clone() {
            bytes.put(0, step * 8, 1u64);
            r.signal(slots.slot(0, 0), step + 1);
        }
    });
    let receive = s.rank(|r, bytes, slots, out| {
        for step in takes.clone() {
            r.wait(slots.slot(0, 0), step + 1);
            out.store(step, bytes.get::<u64>(0, step * 8));
        }
    });
    (vec![send, receive], signal)
}

#[test]
fn a_launch_takes_what_the_one_before_it_left() {
    // One launch sends more steps than are taken, and the next one fewer. In the end every signal was waited for, but
    // launch 1 got a step of launch 0.
    let s = Shared::new();
    let ((first, signal), (second, _)) = (launch(&s, 0..2, 0..1), launch(&s, 2..3, 1..3));
    let launches = [first, second];
    let report = check(&launches);
    assert_eq!(kinds(&report), ["leftover"], "{report}");
    assert!(report.is_decided());
    let fault = expect(&report, "leftover", &[signal]);
    assert!(matches!(fault, Fault::Leftover { value: 2, waited: 1, signal, .. } if signal.launch == 0), "{fault}");
    assert!(fault.to_string().contains("is 2 at the end of launch 0 and nobody waited for more than 1"), "{fault}");
    // A program that intends this says so.
    clean(&check_with(&launches, &Settings { across_launches: true, ..Settings::default() }));
}

#[test]
fn what_is_left_is_told_with_the_deadlock_it_leads_to() {
    // The receiver of the second launch begins with the leftovers of the first, and waits for one more than there is.
    let s = Shared::new();
    let (first, signal) = launch(&s, 0..2, 0..1);
    let (second, _) = launch(&s, 2..3, 1..4);
    let report = check(&[first, second]);
    expect(&report, "leftover", &[signal]);
    expect(&report, "deadlock", &[signal + 5]);
}

#[test]
fn a_receiver_that_is_one_message_behind_takes_old_packets() {
    // Every get finds the flag that it asks for, and is ordered. Only the launch, one too late, shows the mistake.
    for behind in [0, 1] {
        let s = Shared::new();
        let put = line!() + 3;
        let launch = |n: i64| {
            let send = s.rank(move |r, bytes, _, _| {
                r.each(2, |i| bytes.packet_put(0, i + n * 2, i.cast::<u64>(), n as u32 + 1));
            });
            let receive = s.rank(move |r, bytes, _, out| {
                let n = (n - behind).max(0);
                r.each(2, |i| out.store(i, bytes.packet_get(0, i + n * 2, n as u32 + 1)));
            });
            vec![send, receive]
        };
        let launches = [launch(0), launch(1), launch(2)];
        let report = check(&launches);
        if behind == 0 {
            clean(&report);
            continue;
        }
        assert_eq!(kinds(&report), ["untaken"], "{report}");
        let fault = expect(&report, "untaken", &[put]);
        assert!(matches!(fault, Fault::Untaken { by, flag: 2, byte: 32, .. } if by.launch == 1), "{fault}");
        assert!(report.is_decided() && report.to_json().contains("\"kind\":\"untaken\""));
        clean(&check_with(&launches, &Settings { across_launches: true, ..Settings::default() }));
    }
}

#[test]
fn launches_that_end_even_leave_nothing() {
    let s = Shared::new();
    clean(&check(&[launch(&s, 0..2, 0..2).0, launch(&s, 2..3, 2..3).0]));
}

#[test]
fn credits_are_kept_across_launches() {
    // The credit of launch 0 is asked for in launch 1, and that of launch 1 never.
    let s = Shared::new();
    let launch = |n: i64| {
        let send = s.rank(move |r, bytes, slots, _| {
            r.wait(slots.slot(0, 1), n);
            bytes.put(0, 0, 1u64);
            r.signal(slots.slot(0, 0), n + 1);
        });
        let receive = s.rank(move |r, bytes, slots, out| {
            r.wait(slots.slot(0, 0), n + 1);
            out.store(0, bytes.get::<u64>(0, 0));
            r.signal_credit(slots.slot(0, 1), n + 1);
        });
        vec![send, receive]
    };
    clean(&check(&[launch(0), launch(1)]));
}
