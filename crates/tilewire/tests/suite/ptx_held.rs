//! Values that a lane puts into scratch and gets back itself stay in registers. The bytes are the same, there is no
//! shared memory, and there is no barrier until somebody could overwrite the source.

use std::collections::BTreeSet;
use std::slice::from_ref;
use tilewire::hook::{Region, RoleCtx};
use tilewire::ir::scalar::Element;
use tilewire::ptx::Target;
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::transport::layout::Geometry;
use tilewire::{Algorithm, Bf16, F8E4M3, Tensor, Traced, all_reduce, kernel, prelude::*};
use tilewire_testkit::ptx_machine::{Access, Space};
use tilewire_testkit::simulated::{Run, run_as_defined, run_world};

/// The number of lanes of the role.
const LANES: usize = 64;

/// A use of scratch besides one `each` that fills it and one that sends it.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Besides {
    Nothing,
    /// The words are sent in reverse order.
    Turned,
    /// Another `each` reads the scratch.
    Read,
    /// The scratch is filled under a mask.
    Masked,
    /// It is filled in several turns of a loop.
    Turns,
    /// Groups combine neighbours' words.
    Groups,
    /// A credit gives the source back before the words are sent.
    Credit,
    /// The leader writes the source right after the scratch is filled.
    Written,
}

/// One `each` doubles the elements of `x`, another sends them in packets. They come back to `y`.
fn sent<T: Element>(words: usize, x: &Tensor<T>, besides: Besides) -> Traced {
    let count = words * 8 / size_of::<T>();
    let (y, area, given) = (Tensor::<u64>::zeros(words), Tensor::<u8>::zeros(words * 16), Tensor::<u64>::zeros(1));
    let other = Tensor::<T>::zeros(1);
    let traced = kernel("sent", |k| {
        let (x, y, area) = (k.inout(x), k.inout(&y), k.region("area", from_ref(area.memory())));
        let (given, other) = (k.slots("given", from_ref(given.memory()), 8), k.input(&other));
        k.role("main", LANES as u32 / 32).run(|r| {
            let scratch = r.scratch_region(words * 8);
            let size = size_of::<T>() as i64;
            let fill = || {
                r.each(count as i64, |i| match besides {
                    Besides::Masked => scratch.put_if(y.load(0).eq(0u64), 0, i * size, x.load(i)),
                    _ => scratch.put(0, i * size, x.load(i)),
                });
            };
            match besides {
                Besides::Turns => r.for_(0..2, |_| fill()),
                _ => fill(),
            }
            match besides {
                // The load is from an input, which every lane loads. Handing a value out would need a barrier.
                Besides::Written => x.store(count as i64 - 1, other.load(0)),
                Besides::Credit => r.signal_credit(given.slot(0, 0), 1u64),
                _ => {}
            }
            send(r, &scratch, &area, besides, words as i64, |k, word| y.store(k, word));
            if besides == Besides::Read {
                r.each(words as i64, |k| y.store(k, scratch.get::<u64>(0, k * 8) + 1u64));
            }
        });
    });
    traced.unwrap()
}

fn send<'t>(
    r: &RoleCtx<'t>,
    scratch: &Region<'t>,
    area: &Region<'t>,
    besides: Besides,
    words: i64,
    take: impl Fn(Value<'t, i64>, Value<'t, u64>),
) {
    r.each(words, |k| {
        let from = if besides == Besides::Turned { (words - 1) - k } else { k };
        let word = scratch.get::<u64>(0, from * 8);
        let word = if besides == Besides::Groups { word.group_max(3) } else { word };
        area.packet_put(0, k, word, 1u32);
        if besides != Besides::Groups {
            take(k, area.packet_get(0, k, 1u32));
        }
    });
    // Ops that combine neighbours may not stand in an `each` that puts and gets.
    if besides == Besides::Groups {
        r.each(words, |k| take(k, area.packet_get(0, k, 1u32)));
    }
}

/// The number of stores to shared memory, except for values that the leader hands out, which all lanes of the block
/// load.
fn stores(run: &Run, lanes: usize) -> usize {
    let shared = run.trace.accesses(|access| access.space == Space::Shared);
    let handed_out = |store: &Access| {
        let loads = shared.iter().filter(|(_, access)| access.load && access.overlaps(store));
        BTreeSet::from_iter(loads.map(|(_, load)| load.thread)).len() == lanes
    };
    shared.iter().filter(|(_, access)| !access.load && !handed_out(access)).count()
}

fn case<T: Element>(name: &str, words: usize, number: fn(usize) -> T, besides: Besides, held: bool) -> Vec<Run> {
    let x = Tensor::from_fn(words * 8 / size_of::<T>(), number);
    let what = format!("{words} words of {name}, {besides:?}");
    let on = |target| {
        let (text, run) = run_as_defined(&what, &sent(words, &x, besides), target);
        assert_eq!(stores(&run, LANES) == 0, held, "{what}\n{text}");
        run
    };
    [Target::Sm80, Target::Sm90a].map(on).into()
}

#[test]
fn words_of_all_types_are_held() {
    for words in [1, 2, 31, 33, LANES, 2 * LANES] {
        case("f32", words, |i| i as f32 * 0.5, Besides::Nothing, true);
        case("i64", words, |i| i as i64 - 7, Besides::Nothing, true);
        case("bf16", words, |i| Bf16::from_f32(i as f32), Besides::Nothing, true);
        case("i16", words, |i| i as i16 - 100, Besides::Nothing, true);
        case("u8", words, |i| i as u8, Besides::Nothing, true);
        case("fp8", words, |i| F8E4M3::from_f32(i as f32), Besides::Nothing, true);
    }
}

#[test]
fn what_others_read_goes_through_memory() {
    use Besides::{Credit, Groups, Masked, Read, Turned, Turns};
    for besides in [Turned, Read, Masked, Turns, Groups, Credit] {
        case("f32", 40, |i| i as f32, besides, false);
        case("f32", LANES, |i| i as f32, besides, false);
    }
    // Either all lanes have the same number of words, or every lane has at most one. Here neither holds.
    for words in [LANES + 1, 2 * LANES - 1, 3 * LANES] {
        case("f32", words, |i| i as f32, Besides::Nothing, false);
    }
}

#[test]
fn nobody_writes_what_is_still_read() {
    for run in case("u32", LANES, |i| i as u32, Besides::Written, true) {
        let of_x = run.trace.accesses(|access| run.is_to(access, 0, 0));
        let (loads, writes): (Vec<_>, Vec<_>) = of_x.into_iter().partition(|(_, access)| access.load);
        let [write] = writes[..] else { panic!("one store to x: {writes:?}") };
        let readers: Vec<_> = loads.into_iter().filter(|(_, load)| load.overlaps(write.1)).collect();
        assert!(readers.iter().any(|(_, load)| load.thread != write.1.thread), "nobody else reads it: {readers:?}");
        for load in readers.into_iter().filter(|(_, load)| load.thread != write.1.thread) {
            assert!(run.trace.met_between(load, write), "{load:?} {write:?}");
        }
    }
}

/// A one-shot all-reduce has one barrier before it sends its packets: the leader hands out its counters by it.
#[test]
fn all_reduces_hold_what_they_send() {
    for len in [3 * 128, 1024] {
        all_reduce_holds(3, len, 2);
    }
}

fn all_reduce_holds(ranks: usize, len: usize, blocks: usize) {
    let rehearsal = Rehearsal::new(Geometry {
        world_size: ranks,
        per_peer_bytes: 8 << 10,
        max_blocks_per_peer: 4,
        max_slots: 2,
        max_copies: 2,
        packet_bytes: 256 << 10,
        window_sets: 2,
    });
    let trace = |(rank, link): (usize, &RehearsalRank)| {
        let x = Tensor::from_fn(len, |i| (i * (rank + 1)) as f32);
        let reduce =
            all_reduce(link, &Tensor::<f32>::zeros(len), &x).algorithm(Algorithm::OneShot).blocks(blocks).granule(2);
        reduce.trace().unwrap()
    };
    let links = rehearsal.with_copies(2).ranks();
    let traced: Vec<Traced> = links.iter().enumerate().map(trace).collect();
    let run = run_world(&traced, Target::Sm90a).unwrap_or_else(|fault| panic!("{}", fault.0));
    let right: Vec<u8> = (0..len).flat_map(|i| ((i * 6) as f32).to_le_bytes()).collect();
    assert!(run.results.iter().all(|rank| rank.iter().flatten().any(|memory| *memory == right)));
    let warps: usize = traced[0].kernel.roles.values().map(|role| role.warps as usize * role.copies as usize).sum();
    assert_eq!(stores(&run, 32 * warps), 0);
    // For the leader of every block, in its own order: it loads what it sends, has met the others once when it waits,
    // and sends after that.
    let input = traced[0].kernel.params.iter().position(|(_, param)| param.name() == "input").expect("an input");
    for (rank, block) in (0..ranks).flat_map(|rank| (0..blocks as u32).map(move |block| (rank, block))) {
        let leader = |access: &Access| (access.rank, access.block, access.thread) == (rank, block, 0);
        let first = |is: &dyn Fn(&Access) -> bool| {
            let found = run.trace.accesses(|access| leader(access) && is(access));
            found.first().map(|&(at, access)| (at, access.clone())).expect("the leader does it")
        };
        let (loads, by) = first(&|access| access.load && run.is_to(access, rank, input));
        let (waits, _) = first(&|access| access.op.starts_with("ld.acquire.sys"));
        let (sends, _) = first(&|access| access.op == "st.relaxed.sys.global.v2.b64");
        assert!(loads < waits && waits < sends, "rank {rank}, block {block}: {loads} {waits} {sends}");
        assert_eq!(run.trace.meetings(&by, loads, waits), 1, "rank {rank}, block {block}");
    }
}
