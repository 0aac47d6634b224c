//! `direct` into the windows of far peers: through outboxes, and straight from inputs.

use crate::case::{LONG, SMALL};
use std::time::Duration;
use tilewire::collective::{Launch, Rounds};
use tilewire::ir::Access;
use tilewire::link::{MeshOptions, MeshTransport, ShmOptions, ShmTransport, Transport, Window};
use tilewire::transport::{Rank, RankError, TransferError, TransportError, World};
use tilewire::{
    Knobs, Memory, Primitive, RunError, Tensor, all_gather, all_reduce, all_to_all, broadcast, gather, kernel, recv,
    scatter, send, sendrecv,
};

/// The domains of four ranks.
const SHAPES: [&[&[u32]]; 4] =
    [&[&[0, 1], &[2, 3]], &[&[0], &[1, 2, 3]], &[&[0, 2], &[1, 3]], &[&[0], &[1], &[2], &[3]]];

fn mesh(world: &World, domains: &[&[u32]], seed: Option<u64>) -> Result<MeshTransport, TransportError> {
    let domains = Some(domains.iter().map(|domain| domain.to_vec()).collect());
    MeshTransport::rendezvous(world, MeshOptions { domains, sizes: SMALL, seed, ..MeshOptions::default() })
}

/// Every rank is alone.
fn alone(world: &World, seed: Option<u64>) -> Result<MeshTransport, TransportError> {
    MeshTransport::rendezvous(world, MeshOptions { sizes: SMALL, seed, ..MeshOptions::alone(world.size()) })
}

#[track_caller]
fn run<R: Send>(ranks: usize, body: impl Fn(&World) -> Result<R, RankError> + Sync) -> Vec<R> {
    World::threads(ranks).deadline(LONG).run(|world| body(&world)).unwrap()
}

fn neighbours(link: &dyn Transport) -> (Rank, Rank) {
    let (me, ranks) = (link.rank(), link.world_size());
    (me.after(1, ranks), me.after(ranks - 1, ranks))
}

// ---- inputs and outboxes --------------------------------------------------------------------------------------------

/// Launches a small message several times. The input is overwritten as soon as each launch returns.
fn reuse_inputs(launches: u32, is_hooked: bool, seed: Option<u64>) {
    run(2, |world| {
        let link = alone(world, seed)?;
        let (peer, me) = (world.next(), world.rank().number());
        let (inp, window) = (Tensor::<u32>::zeros(67), Window::<u32>::allocate(&link, 67)?);
        let exchange = sendrecv(&link, window.tensor(), &inp, peer, peer).window(&window).blocks(2);
        let said = exchange.explain()?;
        assert!(said.contains("posted from the input (zero-copy)"), "{said}");
        let mut exchange = match is_hooked {
            false => exchange.build()?,
            true => {
                let hooked = exchange.produce(|c| c.input.load(c.pos()) + 1);
                let said = hooked.explain()?;
                assert!(said.contains("posted from an outbox") && !said.contains("zero-copy"), "{said}");
                hooked.build()?
            }
        };
        assert_eq!(exchange.kernel().to_string().contains("post_flush"), !is_hooked);
        for launch in 0..launches {
            inp.fill(launch << 1 | me);
            exchange.run()?;
            inp.fill(u32::MAX);
            let expected = (launch << 1 | (1 - me)) + u32::from(is_hooked);
            assert_eq!(window.tensor().to_vec(), [expected; 67], "launch {launch}");
        }
        drop(exchange);
        Ok(link.close()?)
    });
}

#[test]
fn an_input_may_be_overwritten_when_its_zero_copy_launch_returns() {
    reuse_inputs(10_000, false, None);
}

#[test]
fn an_input_may_be_overwritten_when_its_launch_through_an_outbox_returns() {
    reuse_inputs(10_000, true, None);
}

#[test]
fn inputs_may_be_overwritten_whatever_the_carrier_delays() {
    (0..4).for_each(|seed| [false, true].into_iter().for_each(|hooked| reuse_inputs(300, hooked, Some(seed))));
}

/// An input whose loads change it is not posted in place, and neither is anything but a plain copy.
#[test]
fn what_is_no_plain_copy_goes_through_an_outbox() {
    run(2, |world| {
        let (link, peer) = (alone(world, Some(1))?, world.next());
        let (inp, window) = (Tensor::<bool>::zeros(33), Window::<bool>::allocate(&link, 33)?);
        inp.fill(true);
        let exchange = sendrecv(&link, window.tensor(), &inp, peer, peer).window(&window);
        assert!(exchange.explain()?.contains("an outbox"));
        exchange.run()?;
        assert_eq!(window.tensor().to_vec(), [true; 33]);
        let (inp, window) = (Tensor::from_slice(&[0u16, 1, 2, 3, 4, 5]), Window::<u16>::allocate(&link, 6)?);
        let exchange = sendrecv(&link, window.tensor(), &inp, peer, peer).window(&window);
        let exchange = exchange.chunk_shape(2, 3).output_shape(3, 2).produce(|c| c.input.at(c.col(), c.row()));
        assert!(exchange.explain()?.contains("an outbox"));
        exchange.run()?;
        assert_eq!(window.tensor().to_vec(), [0, 3, 1, 4, 2, 5]);
        Ok(link.close()?)
    });
}

/// A registration lasts as long as the prepared exchange. Lent memory goes back to its owner earlier.
#[test]
fn lent_memory_is_never_registered_with_a_network() {
    run(2, |world| {
        let (link, peer) = (alone(world, Some(5))?, world.next());
        let (me, window) = (world.rank().number(), Window::<u32>::allocate(&link, 67)?);
        let mut numbers = vec![0; 67];
        let mut kept = Tensor::lend(&mut numbers, |x| {
            let exchange = sendrecv(&link, window.tensor(), x, peer, peer).window(&window);
            let said = exchange.explain()?;
            assert!(said.contains("posted from an outbox") && !said.contains("zero-copy"), "{said}");
            let mut exchange = exchange.build()?;
            for launch in 0..3 {
                x.fill(launch << 1 | me);
                exchange.run()?;
                assert_eq!(window.tensor().to_vec(), [launch << 1 | (1 - me); 67]);
            }
            Ok::<_, RunError>(exchange)
        })?;
        // The owner has its memory back. An owned input of the same shape takes its place.
        numbers.fill(77);
        kept.rebind(window.tensor(), &Tensor::from_fn(67, |_| 50 + me))?;
        kept.run()?;
        assert_eq!(window.tensor().to_vec(), [51 - me; 67]);
        assert_eq!(numbers, [77; 67]);
        drop(kept);
        Ok(link.close()?)
    });
}

// ---- what arrives ---------------------------------------------------------------------------------------------------

/// The bits that every exchange leaves in windows that were full of poison before, including places where nothing may
/// arrive.
fn exchanges(link: &dyn Transport, lens: &[usize]) -> Result<Vec<Vec<u32>>, RunError> {
    const POISON: f32 = -7.5;
    let (me, ranks, root) = (link.rank().index(), link.world_size(), Rank::new(1));
    let (next, before) = neighbours(link);
    let mut all = Vec::new();
    for &len in lens {
        let inp = Tensor::from_slice(
            &(0..len * ranks).map(|i| ((i * 7919 + me * 104_729) % 10_007) as f32 / 37.0).collect::<Vec<_>>(),
        );
        let one = inp.slice(0..len);
        let (long, short) = (Window::<f32>::allocate(link, len * ranks)?, Window::<f32>::allocate(link, len)?);
        for (hooked, blocks) in [(false, 1), (true, 1), (false, 3), (true, 2)] {
            let knobs = Knobs { primitive: Some(Primitive::Direct), blocks: Some(blocks), ..Knobs::default() };
            let mut keep = |window: &Window<f32>| {
                all.push(window.tensor().to_vec().iter().map(|x| x.to_bits()).collect());
                window.tensor().fill(POISON);
            };
            long.tensor().fill(POISON);
            short.tensor().fill(POISON);
            let rounds = [Rounds::Roles, Rounds::Blocks, Rounds::Legs][blocks - 1];
            macro_rules! into {
                ($window:expr, $exchange:expr) => {{
                    let exchange = $exchange.window(&$window).config(knobs).rounds(rounds);
                    match hooked {
                        true => exchange.produce(|c| c.input.load(c.pos()) * 0.5).run()?,
                        false => exchange.run()?,
                    }
                    keep(&$window);
                }};
            }
            into!(short, sendrecv(link, short.tensor(), &one, next, before));
            into!(long, all_to_all(link, long.tensor(), &inp));
            into!(long, all_gather(link, long.tensor(), &one));
            into!(short, broadcast(link, short.tensor(), &one, root));
            into!(long, gather(link, long.tensor(), &one, root));
            into!(short, scatter(link, short.tensor(), &inp, root));
        }
    }
    Ok(all)
}

/// None, one element, less than a granule, and more than a slot, with a short last part.
const LENS: [usize; 4] = [0, 1, 61, 700];

#[test]
fn exchanges_into_windows_give_the_bytes_of_flat_shared_memory() {
    let flat = run(4, |world| Ok(exchanges(&ShmTransport::rendezvous(world, SMALL)?, &LENS)?));
    for shape in SHAPES {
        for seed in [None, Some(11)] {
            let far = run(4, |world| {
                let link = mesh(world, shape, seed)?;
                let all = exchanges(&link, &LENS)?;
                link.close()?;
                Ok(all)
            });
            assert!(far == flat, "seed {seed:?}, domains {shape:?}");
        }
    }
}

#[test]
fn windows_are_written_exactly_in_every_order_of_a_carrier() {
    let flat = run(3, |world| Ok(exchanges(&ShmTransport::rendezvous(world, SMALL)?, &[61])?));
    for seed in 0..20 {
        let far = run(3, |world| Ok(exchanges(&alone(world, Some(seed))?, &[61])?));
        assert!(far == flat, "seed {seed}");
    }
}

/// Each side separately, with windows of other lengths than the message.
#[test]
fn a_message_may_be_shorter_than_the_window_of_its_sender() {
    run(2, |world| {
        let (link, peer) = (alone(world, Some(3))?, world.next());
        let is_sender = world.rank().index() == 0;
        let window = Window::<u8>::allocate(&link, if is_sender { 9 } else { 301 })?;
        assert_eq!(window.posted().and_then(|posted| posted.bytes(peer)), Some(if is_sender { 301 } else { 9 }));
        assert!(window.peer(peer).is_none(), "it is out of reach of loads and stores");
        for launch in 0..3u8 {
            if is_sender {
                send(&link, &Tensor::from_slice(&[launch + 1; 301]), peer).window(&window).run()?;
            } else {
                recv(&link, window.tensor(), peer).window(&window).run()?;
                assert_eq!(window.tensor().to_vec(), [launch + 1; 301]);
            }
        }
        assert!(!is_sender || window.tensor().to_vec() == [0; 9]);
        Ok(link.close()?)
    });
}

#[test]
fn a_window_that_is_shorter_than_its_chunk_is_refused() {
    let errors = run(2, |world| {
        let (link, peer) = (alone(world, None)?, world.next());
        let window = Window::<u32>::allocate(&link, if world.rank().index() == 0 { 100 } else { 60 })?;
        let inp = Tensor::<u32>::zeros(100);
        let is_sender = world.rank().index() == 0;
        let error = is_sender.then(|| send(&link, &inp, peer).window(&window).build().expect_err("it is too short"));
        Ok(error.map(|error| error.to_string()))
    });
    let said = errors[0].as_ref().expect("rank 0 sends");
    assert!(said.contains("240") && said.contains("400") && said.contains("rank 1"), "{said}");
}

#[test]
fn near_legs_never_touch_the_carrier_and_far_ones_carry_their_bytes_once() {
    for (shape, far) in SHAPES.into_iter().zip([[2, 2, 2, 2], [3, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]) {
        let carried = run(4, |world| {
            let link = mesh(world, shape, Some(4))?;
            let (one, window) = (Tensor::<u16>::zeros(1001), Window::<u16>::allocate(&link, 4004)?);
            let mut gather = all_gather(&link, window.tensor(), &one).window(&window).build()?;
            // The first words of this operation on each line travel as mail.
            (0..3).try_for_each(|_| gather.run())?;
            world.bootstrap().barrier("warm", world.deadline())?;
            let before = link.carried_bytes();
            world.bootstrap().barrier("read", world.deadline())?;
            (0..5).try_for_each(|_| gather.run())?;
            Ok(link.carried_bytes() - before)
        });
        assert_eq!(carried, far.map(|far| far * 5 * 2002), "domains {shape:?}");
    }
}

#[test]
fn reductions_with_windows_go_through_staging_where_peers_are_far() {
    for shape in SHAPES {
        run(4, |world| {
            let link = mesh(world, shape, Some(2))?;
            let window = Window::<f32>::allocate(&link, 500)?;
            window.tensor().fill(world.rank().number() as f32);
            let sum = all_reduce(&link, window.tensor(), window.tensor()).window(&window);
            assert!(sum.explain()?.contains("staged"));
            sum.run()?;
            assert_eq!(window.tensor().to_vec(), [6.0; 500]);
            Ok(link.close()?)
        });
    }
}

// ---- windows come and go --------------------------------------------------------------------------------------------

#[test]
fn windows_are_dropped_and_allocated_again_in_any_order() {
    run(3, |world| {
        // Up to 18 windows at the same time, and as many that not all ranks have dropped.
        let sizes = ShmOptions { window_sets: Some(60), ..SMALL };
        let options = MeshOptions { sizes, seed: Some(5), ..MeshOptions::alone(world.size()) };
        let (link, me) = (MeshTransport::rendezvous(world, options)?, world.rank().index());
        let (next, before) = neighbours(&link);
        let mut kept: Vec<Window<u32>> = Vec::new();
        for round in 0..60usize {
            let len = 1 + round * 13 % 57;
            let window = Window::<u32>::allocate(&link, len)?;
            let inp = Tensor::from_slice(&vec![(round * 10 + me) as u32; len]);
            // Every rank drops a different window, so for a while none is free on all ranks.
            let mut shift = sendrecv(&link, window.tensor(), &inp, next, before).window(&window).build()?;
            let expected = vec![(round * 10 + before.index()) as u32; len];
            if round % 3 == me {
                // An exchange that was built with it keeps it registered.
                let tensor = window.tensor().clone();
                drop(window);
                shift.run()?;
                shift.run()?;
                assert_eq!(tensor.to_vec(), expected);
            } else {
                shift.run()?;
                shift.run()?;
                assert_eq!(window.tensor().to_vec(), expected);
                kept.push(window);
            }
            drop(shift);
            if kept.len() > 4 + me {
                kept.swap_remove(round * 7 % kept.len());
            }
        }
        Ok(link.close()?)
    });
}

/// A user's own kernel posts to a window that its rank has dropped.
#[test]
fn a_post_to_a_dropped_window_is_a_typed_error_on_all_ranks() {
    let errors = World::threads(2).deadline(Duration::from_secs(60)).run(|world| {
        let link = alone(&world, None)?;
        let (peer, source) = (world.next(), Memory::zeroed(64));
        let window = Window::<u8>::allocate(&link, 64)?;
        let tensor = window.tensor().clone();
        if world.rank().index() == 1 {
            drop(window);
            world.bootstrap().barrier("dropped", LONG.into())?;
            world.bootstrap().barrier("posted", LONG.into())?;
            assert_eq!(tensor.to_vec(), [0; 64], "a stray write");
            return Ok(link.check_broken());
        }
        world.bootstrap().barrier("dropped", LONG.into())?;
        let posted = window.posted().expect("rank 1 is far");
        let endpoint = link.endpoint(peer).expect("rank 1 can be reached");
        let tilewire::transport::There::Posted(there) = &endpoint.there else { panic!("by posts") };
        let traced = kernel("late", |k| {
            let queue = k.queue("posts", posted.queue().clone());
            let outbox = k.buffer::<u8>("outbox", &[there.outbox.part(0, 64)], Access::In).bank(0);
            k.main(|r| r.post(queue, 1, outbox, 0, 64));
        })?;
        let error = Launch::new(&link, &traced)?.run().err();
        world.bootstrap().barrier("posted", LONG.into())?;
        drop(source);
        Ok(error)
    });
    let errors: Vec<Option<RunError>> = errors.unwrap();
    let said = errors[0].as_ref().expect("the window is gone").to_string();
    assert!(said.contains("region 1 of rank 1") && said.contains("has dropped that window"), "{said}");
    assert!(errors[1].as_ref().is_some_and(|error| error.to_string().contains("rank 0")), "{errors:?}");
}

/// The errors that a rank gets from its transport.
trait Checked {
    fn check_broken(&self) -> Option<RunError>;
}

impl Checked for MeshTransport {
    fn check_broken(&self) -> Option<RunError> {
        self.broken().map(|cause| TransferError::Broken { cause }.into())
    }
}
