//! Tensors that exist, registered as windows: on threads, on processes, and where far ranks post.

use crate::case::{LONG, SMALL};
use tilewire::link::{MeshOptions, MeshTransport, ShmTransport, Tensors, Transport, Window};
use tilewire::transport::{RankError, TransportError, World};
use tilewire::{RunError, Tensor, all_gather, all_reduce};
use tilewire_testkit::ranks::in_processes;

fn run(ranks: usize, body: impl Fn(&World) -> Result<(), RankError> + Sync) {
    World::threads(ranks).deadline(LONG).run(|world| body(&world)).unwrap();
}

/// Every rank gathers three elements of all into its window, several times.
fn gathers(link: &dyn Transport, out: &Tensor<u32>, window: &Window<u32>, seed: u32) -> Result<(), RunError> {
    let (me, ranks) = (link.rank().number(), link.world_size() as u32);
    let inp = Tensor::<u32>::zeros(3);
    let mut gather = all_gather(link, out, &inp).window(window).build()?;
    for launch in 0..3 {
        let of = |rank: u32| [0, 1, 2].map(|i| seed + 100 * launch + 10 * rank + i);
        inp.copy_from(&of(me));
        gather.run()?;
        assert_eq!(out.to_vec(), (0..ranks).flat_map(of).collect::<Vec<_>>());
        tilewire::barrier(link).run()?;
    }
    Ok(())
}

#[track_caller]
fn is_deregistered(result: Result<(), RunError>) {
    let error = result.unwrap_err();
    let is_it = matches!(&error, RunError::Transport(error) if matches!(**error, TransportError::Deregistered { .. }));
    assert!(is_it && error.to_string().contains("register its tensor again"), "{error}");
}

/// Registered, used, deregistered, refused, registered again and used again.
fn comes_and_goes(link: &dyn Transport, out: &Tensor<u32>) -> Result<(), RunError> {
    let first = Window::register(link, out)?;
    assert!(out.memory().is_shared());
    gathers(link, out, &first, 0)?;
    let inp = Tensor::<u32>::zeros(3);
    let mut built = all_gather(link, out, &inp).window(&first).build()?;
    built.run()?;
    first.deregister(link)?;
    is_deregistered(built.run());
    is_deregistered(all_gather(link, out, &inp).window(&first).build().map(|_| ()));
    let again = first.deregister(link).unwrap_err();
    assert!(matches!(again, TransportError::Deregistered { .. }), "{again}");
    let second = Window::register(link, out)?;
    assert_ne!(first.number(), second.number());
    gathers(link, out, &second, 7000)?;
    is_deregistered(built.run());
    drop((built, first));
    gathers(link, out, &second, 9000)
}

#[test]
fn any_tensor_of_a_thread_becomes_a_window_and_is_an_ordinary_one_again() {
    run(3, |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        comes_and_goes(&link, &Tensor::zeros(9))?;
        // A part of a larger tensor.
        let large = Tensor::<u32>::zeros(50);
        comes_and_goes(&link, &large.slice(20..29))?;
        assert!((0..50).filter(|i| !(20..29).contains(i)).all(|i| large.get(i) == 0));
        Ok(link.close()?)
    });
}

#[test]
fn far_ranks_post_to_ordinary_tensors() {
    for domains in [vec![vec![0], vec![1], vec![2]], vec![vec![0, 1], vec![2]]] {
        run(3, |world| {
            let options =
                MeshOptions { domains: Some(domains.clone()), sizes: SMALL, seed: Some(3), ..MeshOptions::default() };
            let link = MeshTransport::rendezvous(world, options)?;
            let out = Tensor::<u32>::zeros(9);
            let window = Window::register(&link, &out)?;
            let view = window.view();
            for (peer, at) in link_ranks(&link).zip(&view.peers) {
                assert_eq!(at.bytes, 36);
                assert_eq!((at.address == 0, at.key != 0), (link.is_far(peer), link.is_far(peer)), "rank {peer}");
                assert_eq!(window.address(peer), at.address);
            }
            assert_eq!(view.address, out.memory().start().as_ptr() as u64);
            window.deregister(&link)?;
            drop(window);
            comes_and_goes(&link, &out)?;
            Ok(link.close()?)
        });
    }
}

fn link_ranks(link: &dyn Transport) -> impl Iterator<Item = tilewire::Rank> {
    tilewire::Rank::all(link.world_size())
}

#[test]
fn one_tensor_is_one_window_however_often_it_is_registered() {
    run(2, |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let out = Tensor::<u32>::zeros(6);
        let [first, second] = [Window::register(&link, &out)?, Window::register(&link, &out)?];
        assert_eq!((first.number(), first.lines().number()), (second.number(), second.lines().number()));
        first.deregister(&link)?;
        gathers(&link, &out, &second, 0)?;
        second.deregister(&link)?;
        // An allocated window is registered, too.
        let made = Window::<u32>::allocate(&link, 6)?;
        let known = Window::register(&link, made.tensor())?;
        assert_eq!(made.number(), known.number());
        drop(made);
        gathers(&link, known.tensor(), &known, 50)?;
        // Found by any part of it, as long as there is a handle.
        let part = known.tensor().slice(2..4);
        assert_eq!(link.window_of(part.memory()).expect("it lies there").number(), known.number());
        assert!(link.window_of(out.memory()).is_none(), "it was deregistered");
        drop(known);
        assert!(link.window_of(part.memory()).is_none(), "nobody has it any more");
        Ok(link.close()?)
    });
}

/// What was built with a window goes on without its handle. The tensor may be registered anew meanwhile.
#[test]
fn a_handle_that_is_dropped_ends_no_launches() {
    run(2, |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (inp, out) = (Tensor::from_slice(&[world.rank().number()]), Tensor::<u32>::zeros(2));
        let window = Window::register(&link, &out)?;
        let mut gather = all_gather(&link, &out, &inp).window(&window).build()?;
        drop(window);
        gather.run()?;
        let other = Window::register(&link, &out)?;
        let mut sum = all_reduce(&link, &Tensor::<u32>::zeros(2), &out).window(&other).build()?;
        for _ in 0..3 {
            out.fill(9);
            gather.run()?;
            assert_eq!(out.to_vec(), [0, 1]);
            sum.run()?;
        }
        drop((gather, sum));
        Ok(link.close()?)
    });
}

#[test]
fn what_cannot_be_registered_is_refused_on_all_ranks() {
    run(2, |world| {
        let (link, me) = (ShmTransport::rendezvous(world, SMALL)?, world.rank().index());
        let out = Tensor::<u32>::zeros(20);
        let window = Window::register(&link, &out.slice(5..15))?;
        // Rank 1's tensor shares bytes with its window.
        let parts = [Tensor::zeros(10), out.slice(0..10)];
        let error = Window::register(&link, &parts[me]).unwrap_err();
        assert!(me == 0 || matches!(error, TransportError::OverlapsWindow { .. }), "{error}");
        assert!(error.to_string().contains("share some, but not all"), "{error}");
        // Rank 1's tensor is a window already, and rank 0's is not.
        let parts = [Tensor::zeros(10), out.slice(5..15)];
        let error = Window::register(&link, &parts[me]).unwrap_err();
        assert!(matches!(error, TransportError::Mismatch { .. }), "{error}");
        assert!(error.to_string().contains(&format!("window {} again", window.number())), "{error}");
        // Host code has rank 1's elements in place.
        let mine = Tensor::<u32>::zeros(10);
        if me == 1 {
            mine.cells()[3].set(1);
        }
        let error = Window::register(&link, &mine).unwrap_err().to_string();
        assert!(error.contains("took its cells"), "{error}");
        let error = Window::register(&link, &Tensor::<u32>::zeros(12).reshape(3, 4)?.columns(0..2)).unwrap_err();
        assert!(error.to_string().contains("gaps"), "{error}");
        // Rank 0 asks for another type.
        let error = match me {
            0 => Window::register(&link, &Tensor::<f32>::zeros(10)).unwrap_err(),
            _ => Window::register(&link, &Tensor::<u32>::zeros(10)).unwrap_err(),
        };
        assert!(matches!(error, TransportError::Mismatch { .. }), "{error}");
        // All this broke nothing.
        let other = Tensor::<u32>::zeros(6);
        gathers(&link, &other, &Window::register(&link, &other)?, 0)?;
        Ok(link.close()?)
    });
}

#[test]
fn a_registered_tensor_has_no_cells_whichever_handle_is_used() {
    let result = World::threads(1).run(|world| {
        let link = ShmTransport::rendezvous(&world, SMALL)?;
        let tensor = Tensor::from_slice(&[1.5f32, 2.5]);
        let (before, window) = (tensor.slice(1..2), Window::register(&link, &tensor)?);
        tensor.set(1, 4.5);
        assert_eq!((before.to_vec(), window.tensor().to_vec()), (vec![4.5], vec![1.5, 4.5]));
        Ok(before.cells().len())
    });
    assert!(result.unwrap_err().to_string().contains("a window has no cells"));
}

#[cfg(target_os = "linux")]
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Sets, numbers and registrations come back, and so does memory.
#[cfg(target_os = "linux")]
#[test]
fn a_thousand_tensors_are_registered_and_dropped() {
    run(2, |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let kept = Tensor::<u32>::zeros(6);
        for cycle in 0..1000u32 {
            let fresh = Tensor::<u32>::zeros(6);
            let out = if cycle % 2 == 0 { &kept } else { &fresh };
            let window = Window::register(&link, out)?;
            assert!(window.lines().number() <= 2);
            if cycle % 100 == 7 {
                gathers(&link, out, &window, cycle)?;
            }
            match cycle % 3 {
                0 => window.deregister(&link)?,
                _ => drop(window),
            }
        }
        Ok(link.close()?)
    });
}

#[cfg(target_os = "linux")]
fn among_processes(world: &World) -> Result<(), RankError> {
    let link = ShmTransport::rendezvous(world, SMALL)?;
    // Heap memory, on rank 1 alone.
    let heap = Tensor::<u32>::zeros(9);
    let mappable = link.zeros::<u32>(20)?;
    let error = match world.rank().number() {
        1 => Window::register(&link, &heap).unwrap_err(),
        _ => Window::register(&link, &mappable.slice(3..12)).unwrap_err(),
    };
    let text = error.to_string();
    assert!(text.contains("link.zeros()") && text.contains("Window::allocate"), "{text}");
    // The window begins somewhere in the memory, elsewhere on every rank.
    let first = 2 + world.rank().index();
    let out = mappable.slice(first..first + 9);
    let window = Window::register(&link, &out)?;
    assert!(link_ranks(&link).all(|rank| window.address(rank) != 0));
    window.deregister(&link)?;
    drop(window);
    comes_and_goes(&link, &out)?;
    assert!((0..20).filter(|i| !(first..first + 9).contains(i)).all(|i| mappable.get(i) == 0));
    // Nothing stays mapped.
    let cycle = || Window::register(&link, &out).map(drop);
    cycle()?;
    let before = mappings();
    (0..50).try_for_each(|_| cycle())?;
    assert!(mappings() <= before + 2, "{before} mappings have become {}", mappings());
    Ok(link.close()?)
}

#[cfg(target_os = "linux")]
#[test]
fn processes_map_tensors_of_the_transport() {
    in_processes("registered_windows::processes_map_tensors_of_the_transport", 3, among_processes);
}
