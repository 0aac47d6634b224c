//! The fields of a hook's context that say *which* value it handles mean the same in every algorithm, protocol and
//! size, on the CPU engine and in the evaluator. If no single rank qualifies, the build refuses the field, in every
//! algorithm, protocol and size.

use crate::case::{has_far, joined, threads};
use tilewire::check::{Plan, Settings};
use tilewire::collective::{Reducible, Rounds};
use tilewire::link::{ShmOptions, Transport, Window};
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::transport::layout::Geometry;
use tilewire::transport::{RankError, World};
use tilewire::{
    Algorithm, Primitive, RunError, Tensor, Traced, all_gather, all_reduce, broadcast, map, reduce_scatter,
};
use tilewire_testkit::fields::{self, Collective, Form, Leg};

/// Room for messages of 600 elements in packets, and also small slots.
const OPTIONS: ShmOptions = ShmOptions {
    per_peer_bytes: Some(32 << 10),
    max_blocks_per_peer: Some(8),
    max_slots: Some(8),
    max_copies: 1,
    packet_bytes: Some(1 << 20),
    window_sets: None,
    populate: false,
};

/// Runs a form on one rank of a world of threads, and compares its output.
fn runs<T: Reducible>(world: &World, link: &dyn Transport, form: &Form) -> Result<(), RankError> {
    let (me, ranks) = (world.rank().index(), world.size());
    let (sent, received) = form.collective.chunks(me, ranks);
    let direct = form.primitive == Some(Primitive::Direct);
    // A reduction reads its peers' inputs. Everything else writes its peers' outputs. All ranks have equal windows.
    let reads = direct && form.collective.reduces();
    let chunks = if reads { sent } else { form.collective.chunks(ranks - 1, ranks).1 };
    let window = direct.then(|| Window::<T>::allocate(link, chunks * form.len)).transpose()?;
    let reached = || window.as_ref().map(|window| window.tensor().clone());
    let inp = reached().filter(|_| reads).unwrap_or_else(|| Tensor::zeros(sent * form.len));
    let out = reached().filter(|_| !reads).unwrap_or_else(|| Tensor::zeros(received * form.len));
    form.part(link, (&out, &inp), window.as_ref(), true)?;
    match form.fault(me, ranks, &out.to_vec()) {
        Some(fault) => Err(fault.into()),
        None => Ok(()),
    }
}

/// Every form, in one of several layouts of its rounds. Unset choices are the library's.
fn laid_out() -> Vec<Form> {
    let layouts = [(None, None), (Some(2), Some(Rounds::Blocks)), (Some(1), Some(Rounds::Legs))];
    let lay = |(k, form): (usize, Form)| match form.primitive {
        None => form,
        Some(_) => Form { blocks: layouts[k % 3].0, rounds: layouts[k % 3].1, ..form },
    };
    fields::all(&[None], &[None]).into_iter().enumerate().map(lay).collect()
}

#[test]
pub fn fields_that_say_what_a_value_is_mean_the_same_in_every_algorithm_protocol_and_size() {
    let forms = laid_out();
    // No form is left out by mistake.
    for collective in Collective::ALL {
        let of = || forms.iter().filter(|form| form.collective == collective);
        assert!(collective.algorithms().iter().all(|&way| of().any(|form| form.algorithm == way)), "{collective:?}");
        let primitives = [None, Some(Primitive::Packet), Some(Primitive::Staged)];
        assert!(primitives.iter().all(|&way| of().any(|form| form.primitive == way)), "{collective:?}");
        assert!(of().any(|form| form.consumes) && of().any(|form| !form.consumes), "{collective:?}");
    }
    for ranks in [2, 3, 4] {
        threads(ranks, "fields", |world| {
            let link = joined(world, OPTIONS)?;
            // A one-shot all-reduce uses packets, which far peers do not take.
            let is_one_shot =
                |form: &&Form| form.collective == Collective::AllReduce && form.algorithm == Some(Algorithm::OneShot);
            let mut possible = forms.iter().filter(|form| !(has_far(&link) && is_one_shot(form)));
            possible.try_for_each(|form| runs::<i64>(world, &link, form))?;
            Ok(link.close()?)
        });
    }
}

#[test]
fn one_wrong_field_is_seen_and_named() {
    let all = laid_out();
    let form = all.iter().find(|form| form.collective == Collective::AllToAll && !form.consumes).expect("a form");
    let mut out = form.must(1, 3);
    assert_eq!((out.len(), form.fault(1, 3, &out)), (3 * form.len, None));
    // Bits 16 to 19 are `recv_peer`.
    out[77] ^= 1 << 16;
    let fault = form.fault(1, 3, &out).expect("a fault");
    assert!(fault.contains("element 77") && fault.contains("recv_peer"), "{fault}");
}

#[test]
fn an_unconfigured_all_reduce_has_the_same_fields_for_60_and_for_600_elements() {
    threads(3, "sizes", |world| {
        let link = joined(world, OPTIONS)?;
        let mut protocols = Vec::new();
        for len in [60usize, 600] {
            let (inp, out) = (Tensor::<i32>::zeros(len), Tensor::<i32>::zeros(len));
            let builder = || {
                all_reduce(&link, &out, &inp)
                    .produce(|c| c.recv_peer().cast::<i32>())
                    .consume(|c, x| c.output.store(c.pos(), x * 100 + c.peer().cast::<i32>()))
            };
            builder().run()?;
            // 0 + 1 + 2 are the ranks from whose inputs the sum came.
            assert_eq!(out.to_vec(), vec![300 + world.rank().number() as i32; len], "{len} elements");
            protocols.push(builder().trace()?.kernel.roles.len());
        }
        assert_ne!(protocols[0], protocols[1], "both sizes go the same way, so nothing was compared");
        Ok(link.close()?)
    });
}

/// A world on one thread. If it has copies of roles, it is as between GPUs.
fn rehearsal(ranks: usize, copies: usize) -> Vec<RehearsalRank> {
    let geometry = Geometry {
        world_size: ranks,
        per_peer_bytes: 32 << 10,
        max_blocks_per_peer: 8,
        max_slots: 8,
        max_copies: copies,
        packet_bytes: 1 << 20,
        window_sets: 0,
    };
    Rehearsal::new(geometry).with_copies(copies).ranks()
}

/// The evaluator's result of a form.
fn evaluates<T: Reducible>(links: &[RehearsalRank], form: &Form) {
    let ranks = links.len();
    let outputs: Vec<Tensor<T>> =
        (0..ranks).map(|me| Tensor::zeros(form.collective.chunks(me, ranks).1 * form.len)).collect();
    let trace = |link: &RehearsalRank| {
        let me = link.rank().index();
        let inp = Tensor::<T>::zeros(form.collective.chunks(me, ranks).0 * form.len);
        let traced = form.part(link, (&outputs[me], &inp), None, false);
        traced.unwrap_or_else(|error| panic!("{form}: {error}")).expect("all ranks take part")
    };
    let traced: Vec<Traced> = links.iter().map(trace).collect();
    let mut plan = Plan::new(ranks as u32);
    plan.launch(&traced.iter().map(|traced| (&traced.kernel, &traced.args[..])).collect::<Vec<_>>());
    let after = plan.run(&Settings::default(), Some(1)).unwrap_or_else(|error| panic!("{form}: {error}"));
    for (me, output) in outputs.iter().enumerate().filter(|(_, output)| !output.is_empty()) {
        let bytes = after.bytes(output.memory());
        let element =
            |bytes: &[u8]| T::from_bits(bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)));
        let out: Vec<T> = bytes.chunks(size_of::<T>()).map(element).collect();
        assert_eq!(form.fault(me, ranks, &out), None);
    }
}

#[test]
fn fields_mean_the_same_to_the_evaluator_with_and_without_copies_of_roles() {
    let short = |form: &Form| form.len == 60 && form.collective != Collective::Send;
    let here = |form: &Form| form.primitive != Some(Primitive::Direct) && short(form);
    for copies in [1, 2] {
        let links = rehearsal(3, copies);
        laid_out().iter().filter(|form| here(form)).for_each(|form| evaluates::<i64>(&links, form));
        // Several of these elements share a packet. Between GPUs, packets are sent, taken and combined in one pass.
        let one_pass = Form {
            collective: Collective::AllReduce,
            algorithm: Some(Algorithm::OneShot),
            primitive: Some(Primitive::Packet),
            rounds: None,
            blocks: Some(1),
            len: 60,
            shaped: false,
            consumes: false,
            insists: None,
        };
        for shaped in [false, true] {
            evaluates::<i32>(&links, &Form { shaped, ..one_pass });
        }
    }
}

#[test]
fn a_map_is_the_collective_of_one_rank() {
    let (inp, out) = (Tensor::<i64>::zeros(60), Tensor::<i64>::zeros(60));
    map(&out, &inp)
        .output_shape(6, 10)
        .produce(|c| c.rank() + c.peer() + c.recv_peer() + c.shard())
        .consume(|c, x| {
            let place = c.chunk() + c.rows() * 100 + c.cols() * 10_000 + c.world_size() * 1_000_000;
            c.output.store(c.pos(), x + place + (c.rank() + c.peer() + c.recv_peer() + c.shard()) * 10_000_000);
        })
        .run()
        .unwrap();
    assert_eq!(out.to_vec(), [1_100_660; 60]);
}

// ---- refusals -----------------------------------------------------------------------------------------------------

/// True if a form refuses a hook that asks for both ranks. This depends only on the collective and the hook.
fn refuses(form: &Form, hook: Leg) -> bool {
    match hook {
        Leg::Produce => !form.collective.ends_in_one(),
        Leg::Consume => form.consumes && !form.collective.comes_from_one(),
    }
}

#[test]
fn whether_a_field_is_refused_depends_on_the_collective_and_the_leg_alone() {
    let of_all = |form: &Form| !matches!(form.collective, Collective::Send | Collective::Sendrecv);
    let mut refused = 0;
    for ranks in [1, 2, 3] {
        let links = rehearsal(ranks, 1);
        let last = links.len() - 1;
        for form in laid_out().iter().filter(|form| form.primitive != Some(Primitive::Direct) && of_all(form)) {
            for hook in [Leg::Produce, Leg::Consume] {
                let form = Form { insists: Some(hook), ..*form };
                // The root alone produces.
                let first = if form.collective == Collective::Broadcast { last } else { 0 };
                for link in &links[first..] {
                    let (sent, received) = form.collective.chunks(link.rank().index(), ranks);
                    let (inp, out) = (Tensor::<i64>::zeros(sent * form.len), Tensor::zeros(received * form.len));
                    let traced = form.part(link, (&out, &inp), None, false);
                    match (refuses(&form, hook), traced) {
                        (false, Ok(_)) => {}
                        (true, Err(error)) => {
                            let (field, leg) = match hook {
                                Leg::Produce => ("c.peer()", "produce hook"),
                                Leg::Consume => ("c.recv_peer()", "consume hook"),
                            };
                            let text = error.to_string();
                            let says = |words: &str| text.contains(words);
                            assert!(says(field) && says(leg) && says("use c.") && says("fields.rs:"), "{form}: {text}");
                            refused += 1;
                        }
                        (false, Err(error)) => panic!("{form}, {ranks} ranks: {error}"),
                        (true, Ok(_)) => panic!("{form}, {ranks} ranks: not refused"),
                    }
                }
            }
        }
    }
    assert!(refused > 100, "{refused} refusals");
}

#[test]
fn a_refusal_has_the_line_and_the_field_to_use_instead() {
    let link = &rehearsal(3, 1)[2];
    let (one, all) = (Tensor::<i64>::zeros(10), Tensor::<i64>::zeros(30));
    let line = line!() + 3;
    let traced = [
        // From here on, each on a separate line.
        all_gather(link, &all, &one).produce(|c| c.peer()).trace(),
        broadcast(link, &Tensor::<i64>::zeros(10), &one, link.rank()).produce(|c| c.peer()).trace(),
        all_reduce(link, &Tensor::<i64>::zeros(10), &one).produce(|c| c.peer()).trace(),
        all_reduce(link, &one, &Tensor::<i64>::zeros(10)).consume(|c, x| c.output.store(c.recv_peer(), x)).trace(),
        reduce_scatter(link, &one, &all).consume(|c, x| c.output.store(c.pos(), x + c.recv_peer())).trace(),
    ];
    let instead = ["c.rank()", "c.rank()", "c.shard()", "c.shard()", "c.rank()"];
    for (k, (traced, instead)) in traced.into_iter().zip(instead).enumerate() {
        let Err(RunError::Build(error)) = traced else { panic!("case {k} is not refused") };
        // Although several legs call the hook, it is one mistake.
        let [misuse] = error.misuses() else { panic!("{error}") };
        assert_eq!(misuse.at.line, line + k as u32, "{misuse}");
        assert!(misuse.at.file.ends_with("collectives/fields.rs"), "{misuse}");
        assert!(misuse.to_string().contains(&format!("use {instead}")), "{misuse}");
    }
}

/// The message of a refusal. `None` if there is none.
fn text(traced: Result<Traced, RunError>) -> String {
    traced.err().map_or_else(String::new, |error| error.to_string())
}

/// `direct` writes windows by separate produce hooks.
#[test]
fn windows_refuse_what_staging_refuses() {
    threads(2, "windows", |world| {
        let link = joined(world, OPTIONS)?;
        let (window, inp) = (Window::<i64>::allocate(&link, 120)?, Tensor::<i64>::zeros(60));
        let gathers = all_gather(&link, window.tensor(), &inp).window(&window).produce(|c| c.peer()).trace();
        assert!(text(gathers).contains("c.peer() in the produce hook of all_gather"));
        let window = Window::<i64>::allocate(&link, 120)?;
        let out = Tensor::<i64>::zeros(60);
        let reduces = reduce_scatter(&link, &out, window.tensor()).window(&window);
        let reduces = reduces.consume(|c, x| c.output.store(c.pos(), x + c.recv_peer())).trace();
        assert!(text(reduces).contains("c.recv_peer() in the consume hook of reduce_scatter"));
        Ok(link.close()?)
    });
}
