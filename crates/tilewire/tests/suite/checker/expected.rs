//! Values that hosts put into tensors and must find in them, settings of a rehearsal, and reports with the user's line
//! beside the library's.

use crate::checker::{clean, expect, kinds};
use tilewire::check::{Fault, Settings, Values};
use tilewire::link::Staged;
use tilewire::rehearsal::Rehearsal;
use tilewire::{RunError, Tensor, all_to_all, kernel, sendrecv};

const LEN: usize = 40;

fn tensors(ranks: usize) -> Vec<Tensor<f32>> {
    (0..ranks).map(|_| Tensor::zeros(LEN)).collect()
}

fn sent(rank: usize, launch: usize) -> Vec<f32> {
    (0..LEN).map(|i| (1000 * launch + 100 * rank + i) as f32).collect()
}

/// A ring shift of three launches, with the expected value of an element `i` that arrives as `x`.
fn shifted(hook: fn(f32) -> f32) -> tilewire::check::Report {
    let (x, y) = (tensors(3), tensors(3));
    let mut plan = Rehearsal::small(3, 1)
        .plan(3, |link, _| {
            let (to, from) = link.neighbours();
            let rank = link.number() as usize;
            sendrecv(link, &y[rank], &x[rank], to, from).produce(|c| c.input.load(c.pos()) * 2.0).trace()
        })
        .unwrap();
    plan.inputs(|rank, launch| vec![Values::of(&x[rank as usize], sent(rank as usize, launch))]);
    plan.expect(|rank, launch| {
        let from = (rank as usize + 2) % 3;
        vec![Values::of(&y[rank as usize], sent(from, launch).into_iter().map(hook))]
    });
    plan.verify(&Settings::default())
}

#[test]
fn outputs_are_compared_after_every_launch() {
    clean(&shifted(|x| x * 2.0));
    let report = shifted(|x| if x < 2000.0 { x * 2.0 } else { x });
    assert_eq!(kinds(&report), ["wrong-value"; 3], "{report}");
    let Fault::WrongValue { launch: 2, element: 0, found: Some(found), count: 40, .. } = &report.faults[0].fault else {
        panic!("{report}")
    };
    assert!(found.starts_with("4"), "{found}");
    assert!(report.to_string().contains("expected.rs"), "the line of the values is named:\n{report}");
}

#[test]
fn any_nan_is_like_any_other() {
    let y = Tensor::<f32>::zeros(2);
    let traced = kernel("nan", |k| {
        let out = k.output(&y);
        k.main(|r| r.each(2, |i| out.store(i, (i.cast::<f32>() * 0.0) / 0.0)));
    })
    .unwrap();
    let mut plan = tilewire::check::Plan::new(1);
    plan.launch(&[(&traced.kernel, &traced.args[..])]);
    plan.expect(|_, _| vec![Values::of(&y, [f32::NAN, -f32::NAN])]);
    clean(&plan.verify(&Settings::default()));
}

#[test]
fn elements_that_nobody_wrote_are_named() {
    let (x, y) = (tensors(2), tensors(2));
    let mut plan = Rehearsal::small(2, 1)
        .plan(2, |link, _| {
            let rank = link.number() as usize;
            // The last element of every chunk stays as it is.
            all_to_all(link, &y[rank], &x[rank]).consume(|c, v| c.output.store_if(c.pos().lt(19), c.pos(), v)).trace()
        })
        .unwrap();
    plan.expect(|rank, _| vec![Values::of(&y[rank as usize], [0.0; LEN])]);
    let report = plan.verify(&Settings::default());
    assert!(kinds(&report).iter().all(|kind| *kind == "not-written") && !report.is_clean(), "{report}");
    assert!(report.to_string().contains("no kernel has written element 19"), "{report}");
}

#[test]
fn a_rehearsal_is_checked_as_its_settings_say() {
    let run = |settings: Settings| {
        Rehearsal::small(2, 1).settings(settings).check(1, |link, _| {
            let (x, y) = (Tensor::<f32>::zeros(4), Tensor::<f32>::zeros(4));
            let (to, from) = link.neighbours();
            sendrecv(link, &y, &x, to, from).trace()
        })
    };
    clean(&run(Settings::default()).unwrap());
    let report = run(Settings { step_limit: 3, ..Settings::default() }).unwrap();
    let fault = expect(&report, "step-limit", &[]);
    assert_eq!(fault.lines().len(), 1, "a step limit names a line: {fault}");
}

#[test]
fn the_role_is_named_beside_the_line_of_a_schedule() {
    let role = line!() + 11;
    let report = Rehearsal::small(2, 1).check(2, |link, _| {
        let (x, y) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
        let (to, from) = link.neighbours();
        let staged = |len| Staged::<f32>::new(link, len).tile(16).depth(2);
        // The receiver expects one tile more than arrives.
        let (to, from) = (staged(64).with(to)?, staged(80).with(from)?);
        Ok::<_, RunError>(kernel("ring", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            let (tx, rx) = (to.sender(k), from.receiver(k));
            k.role("send", 1).run(|r| tx.send(r, |at| x.load(at.pos)));
            k.role("receive", 1).run(|r| rx.recv(r, |at, v| y.store(at.pos % 64, v)));
        })?)
    });
    let report = report.unwrap();
    let fault = expect(&report, "deadlock", &[]);
    let event = &fault.events()[0];
    assert!(event.at.as_ref().unwrap().file.ends_with("staged.rs"), "{fault}");
    let at = event.role_at.as_ref().expect("the role stands in this file");
    assert!(at.file.ends_with("expected.rs") && (role..role + 2).contains(&at.line), "{at}");
    assert!(fault.to_string().contains("in the role at"), "{fault}");
}
