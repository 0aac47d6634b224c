//! Kernels of GPUs that have near and far peers: the blocks, slots and warps for each kind of link, as traced.

use std::collections::BTreeSet;
use tilewire::collective::Rounds;
use tilewire::ir::{Kernel, Op};
use tilewire::link::NvlOptions;
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::{Config, Knobs, Primitive, Tensor, all_gather, all_to_all};

/// A rank of GPUs in two domains of equal size, with the sizes that transports between GPUs have.
fn rank(of_domain: usize, domains: usize) -> RehearsalRank {
    let ranks = of_domain * domains;
    let all: Vec<Vec<usize>> = (0..domains).map(|d| (d * of_domain..(d + 1) * of_domain).collect()).collect();
    let all: Vec<&[usize]> = all.iter().map(Vec::as_slice).collect();
    let options = NvlOptions::default();
    let world = Rehearsal::new(options.geometry(ranks)).with_copies(options.copies);
    world.mesh(&all).ranks().swap_remove(1)
}

/// Slot bytes and depths of all pipelines of a kernel. Their geometry words are constants in it.
fn slots(kernel: &Kernel) -> BTreeSet<(usize, usize)> {
    let constants =
        kernel.insts.values().filter_map(|inst| if let Op::Const(c) = inst.op { Some(c.bits) } else { None });
    let word = |bits: u64| ((bits >> 16) as usize, (bits & 0xffff) as usize);
    constants.map(word).filter(|&(bytes, depth)| bytes >= 4096 && (2..=64).contains(&depth)).collect()
}

/// The names of roles, and their warps in a block.
fn warps(kernel: &Kernel) -> Vec<(String, u32)> {
    kernel.roles.values().map(|role| (role.name.clone(), role.warps * role.copies)).collect()
}

/// The blocks of the legs to each peer, as `explain` reports them.
fn blocks(text: &str, leg: &str) -> Vec<usize> {
    let lines = text.lines().filter(|line| line.trim().starts_with(leg));
    let of = |line: &str| line.split(", ").find_map(|part| part.strip_suffix(" blocks")?.parse().ok());
    lines.map(|line| of(line).unwrap_or_else(|| panic!("no blocks in {line}"))).collect()
}

#[test]
fn near_peers_get_many_blocks_and_small_steps_and_far_ones_few_blocks_and_large_steps() {
    for (of_domain, near_blocks) in [(2, 16), (4, 8)] {
        let (link, ranks) = (rank(of_domain, 2), 2 * of_domain);
        let (out, inp) = (Tensor::<f32>::zeros(ranks << 21), Tensor::<f32>::zeros(ranks << 21));
        let exchange = || all_to_all(&link, &out, &inp);
        let (kernel, text) = (exchange().trace().unwrap().kernel, exchange().explain().unwrap());
        // There are exactly as many blocks as have work: for this rank's own chunk, for each near peer and for each far
        // one.
        let (near, far) = (of_domain - 1, of_domain);
        assert_eq!(kernel.blocks as usize, near_blocks * (1 + near) + 4 * far, "2 x {of_domain}");
        let sends = blocks(&text, "send rank");
        assert_eq!(sends.iter().filter(|&&blocks| blocks == near_blocks).count(), near + 1, "{text}");
        assert_eq!(sends.iter().filter(|&&blocks| blocks == 4).count(), far, "{text}");
        assert_eq!(slots(&kernel), [(64 << 10, 8), (256 << 10, 4)].into(), "2 x {of_domain}");
        let named = |warps: &[(&str, u32)]| warps.iter().map(|(name, w)| (name.to_string(), *w)).collect::<Vec<_>>();
        // On the CPU, warps only describe. A rehearsal assigns them as a GPU does.
        let must = named(&[("receive", 8), ("send", 8), ("receive far", 4), ("send far", 4)]);
        assert_eq!(warps(&kernel), must, "near peers have 16 warps of a block and far ones 8");
    }
}

#[test]
fn small_messages_to_far_peers_take_one_block() {
    let link = rank(2, 2);
    let (out, inp) = (Tensor::<f32>::zeros(4 << 18), Tensor::<f32>::zeros(4 << 18));
    let text = all_to_all(&link, &out, &inp).explain().unwrap();
    let mut sends = blocks(&text, "send rank");
    sends.sort_unstable();
    assert_eq!(sends, [1, 1, 16, 16], "1 MiB: {text}");
    let (out, inp) = (Tensor::<f32>::zeros(4 << 16), Tensor::<f32>::zeros(4 << 16));
    let text = all_to_all(&link, &out, &inp).explain().unwrap();
    let mut sends = blocks(&text, "send rank");
    sends.sort_unstable();
    assert_eq!(sends, [1, 1, 8, 8], "256 KiB: {text}");
}

#[test]
fn warps_for_far_peers_can_be_said() {
    let link = rank(2, 2);
    let (out, inp) = (Tensor::<f32>::zeros(4 << 21), Tensor::<f32>::zeros(4 << 21));
    let of = |config: Config| warps(&all_to_all(&link, &out, &inp).config(config).trace().unwrap().kernel);
    let far = |warps| Some(Knobs::warps(warps));
    // These are the warps of a copy. Near roles have four copies.
    let said = of(Config { far: far(2), ..Config::from(Knobs::warps(3)) });
    assert_eq!(said.iter().map(|(_, warps)| *warps).collect::<Vec<_>>(), [12, 12, 2, 2], "{said:?}");
    let said = of(Config { far: far(6), ..Config::default() });
    assert_eq!(said.iter().map(|(_, warps)| *warps).collect::<Vec<_>>(), [4, 4, 6, 6], "{said:?}");
    // Settings for near peers also hold for far ones if there are none for far ones: the same roles serve both.
    let said = of(Config::from(Knobs::warps(4)));
    assert_eq!(said, [("receive".to_string(), 16), ("send".to_string(), 16)]);
    // Far peers get the warps that near ones leave.
    let said = of(Config { far: Some(Knobs::default()), ..Config::from(Knobs::warps(3)) });
    assert_eq!(said.iter().map(|(_, warps)| *warps).collect::<Vec<_>>(), [12, 12, 4, 4], "{said:?}");
}

#[test]
fn layouts_by_blocks_have_exactly_the_blocks_that_have_work() {
    let link = rank(2, 2);
    let (out, inp) = (Tensor::<f32>::zeros(4 << 18), Tensor::<f32>::zeros(4 << 18));
    let knobs = |blocks| Knobs { primitive: Some(Primitive::Staged), blocks: Some(blocks), ..Knobs::default() };
    let config = Config { far: Some(knobs(2)), ..Config::from(knobs(5)) };
    let grid = |rounds| all_to_all(&link, &out, &inp).config(config).rounds(rounds).trace().unwrap().kernel.blocks;
    assert_eq!(grid(Rounds::Blocks), 5 + 5 + 2 + 2);
    assert_eq!(grid(Rounds::Legs), 5 + 2 * (5 + 2 + 2));
}

#[test]
fn a_two_level_gather_has_the_blocks_of_its_legs() {
    for (of_domain, near_blocks) in [(2, 16), (4, 4)] {
        let (link, ranks) = (rank(of_domain, 2), 2 * of_domain);
        let (out, inp) = (Tensor::<f32>::zeros(ranks << 21), Tensor::<f32>::zeros(1 << 21));
        let gather = || all_gather(&link, &out, &inp);
        let (kernel, text) = (gather().trace().unwrap().kernel, gather().explain().unwrap());
        assert!(text.contains("two-level"), "{text}");
        // The chunk of one far rank is passed on. The chunks of other far ranks come through near ranks. One leg goes
        // far.
        let far_legs = of_domain;
        assert_eq!(kernel.blocks as usize, near_blocks * of_domain + 4 * far_legs, "2 x {of_domain}: {text}");
        assert_eq!(slots(&kernel), [(64 << 10, 8), (256 << 10, 4)].into(), "{text}");
    }
}
