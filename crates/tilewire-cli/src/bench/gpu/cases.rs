//! The measured cases and their limits.

use super::collectives::{Group, ReduceWay, Way};
use super::columns::Source;
use super::frozen::{Frozen, Scheme};
use super::ours::{Hook, Pair};
use super::posts;
use super::race::{HELD, Side, race};
use crate::bench::report::Row;
use crate::bench::size::Size;
use crate::progress::Progress;
use crate::run::Mesh;
use anyhow::{Result, bail};
use std::sync::Arc;
use tilewire::cuda::{Device, Graph, Stream};
use tilewire::link::{NvlOptions, NvlTransport};
use tilewire::{Bf16, Knobs, Primitive};

/// What to measure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Sizes of large messages; by default 1, 8, 64 and 256 MiB.
    pub sizes: Option<Vec<Size>>,
    /// Numbers of blocks; by default 2, 4, 8 and 16.
    pub blocks: Option<Vec<usize>>,
    /// The cases; all if empty.
    pub cases: Vec<String>,
    /// Our configuration, to try other values than the defaults.
    pub config: Knobs,
    /// Fewer samples.
    pub quick: bool,
    /// The domains of ranks that post to each other, if they do: other cases are measured then.
    pub mesh: Option<Mesh>,
}

const KEYS: [&str; 10] =
    ["oneway", "both", "direct", "small", "hooks", "all_to_all", "columns", "all_reduce", "ways", "host"];

/// Checks that there is such a case, of ranks that post to each other or of others.
pub fn check_key(key: &str, posts: bool) -> Result<(), String> {
    let keys = if posts { &posts::KEYS[..] } else { &KEYS };
    if keys.contains(&key) { Ok(()) } else { Err(format!("there is no case '{key}'; there are: {}", keys.join(", "))) }
}

/// The device and everything measured on it.
struct Bench<'a> {
    device: Arc<Device>,
    stream: Arc<Stream>,
    hold: Graph,
    /// Dropped after everything that launches its kernels.
    frozen: Frozen,
    pair: Pair<'a>,
    plan: &'a Plan,
    rows: Vec<Row>,
}

pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    if let Some(mesh) = &plan.mesh {
        return posts::run(plan, mesh);
    }
    let device = Device::open(0)?;
    let ranks = NvlTransport::virtual_ranks(&device, 2, NvlOptions::default())?;
    let stream = Stream::new(&device)?;
    let frozen = Frozen::new(&device)?;
    let hold = frozen.hold(HELD)?;
    let mut bench = Bench { device, stream, frozen, hold, pair: Pair::new(&ranks), plan, rows: Vec::new() };
    let wanted = |key: &str| plan.cases.is_empty() || plan.cases.iter().any(|case| case == key);
    let sizes = plan.sizes.clone().unwrap_or_else(|| [1, 8, 64, 256].map(|mib| Size(mib << 20)).to_vec());
    let blocks = plan.blocks.clone().unwrap_or_else(|| vec![2, 4, 8, 16]);
    for size in &sizes {
        if !size.0.is_multiple_of(1 << 20) {
            bail!("the hand-written kernels take whole MiB, not {size}");
        }
    }
    let large = KEYS[..3].iter().filter(|key| wanted(key)).count() * sizes.len() * blocks.len();
    let mut progress = Progress::new(large + 6);
    if wanted("small") {
        progress.step("small messages");
        bench.small()?;
    }
    for key in KEYS[..3].iter().filter(|key| wanted(key)) {
        for size in &sizes {
            for &blocks in &blocks {
                progress.step(&format!("{key}, {size}, {blocks} blocks"));
                match *key {
                    "oneway" => bench.one_way(size.0, blocks)?,
                    "both" => bench.both(size.0, blocks)?,
                    _ => bench.direct(size.0, blocks)?,
                }
            }
        }
    }
    if wanted("hooks") {
        progress.step("hooks");
        bench.hooks()?;
    }
    if wanted("all_to_all") {
        progress.step("all-to-all");
        bench.all_to_all()?;
    }
    if wanted("columns") {
        progress.step("column slices");
        bench.columns()?;
    }
    if wanted("all_reduce") {
        progress.step("all-reduce");
        bench.all_reduce()?;
    }
    if wanted("ways") {
        progress.step("ways of an all-reduce");
        bench.ways_to_reduce()?;
    }
    if wanted("host") {
        progress.step("host");
        bench.host()?;
    }
    Ok(bench.rows)
}

/// Takes the graphs of a scheme as a side and keeps the rest for checking.
fn keep(mut scheme: Scheme, sides: &mut Vec<Side>, kept: &mut Vec<Scheme>) {
    let name = scheme.side.name.clone();
    sides.push(std::mem::replace(&mut scheme.side, Side { name, graphs: Vec::new() }));
    kept.push(scheme);
}

/// All sides but one.
fn without(which: usize, sides: Vec<Side>, times: Vec<f64>) -> (Vec<Side>, Vec<f64>) {
    sides.into_iter().zip(times).enumerate().filter(|(k, _)| *k != which).map(|(_, both)| both).unzip()
}

impl Bench<'_> {
    fn samples(&self) -> usize {
        if self.plan.quick { 7 } else { 15 }
    }

    /// The GPU's time for each side.
    fn race(&self, sides: &[Side], samples: usize) -> Result<Vec<f64>> {
        race(&self.device, &self.stream, Some(&self.hold), sides, samples)
    }

    /// Enough buffers that a round through them leaves nothing in the cache, within reason.
    fn rotation(bytes: usize) -> usize {
        (192usize << 20).div_ceil(bytes).clamp(1, 24)
    }

    /// Slot sizes that hand-written kernels are tried with: with fewer steps than groups, some groups are wasted.
    fn slots(bytes: usize, blocks: usize) -> Vec<usize> {
        let share = bytes / blocks;
        [16 << 10, 32 << 10, 64 << 10, 128 << 10].into_iter().filter(|slot| share.is_multiple_of(*slot)).collect()
    }

    fn config(&self, primitive: Primitive, blocks: usize) -> Knobs {
        Knobs { primitive: Some(primitive), blocks: Some(blocks), ..self.plan.config }
    }

    fn one_way(&mut self, bytes: usize, blocks: usize) -> Result<()> {
        let rotation = Self::rotation(bytes);
        let ours = self.pair.one_way(bytes, self.config(Primitive::Staged, blocks), Hook::Copy, rotation)?;
        let (mut sides, mut kept) = (vec![ours], Vec::new());
        for slot in Self::slots(bytes, blocks) {
            keep(self.frozen.one_way(bytes, blocks, slot, rotation)?, &mut sides, &mut kept);
        }
        let times = self.race(&sides, self.samples())?;
        kept.iter().try_for_each(|scheme| scheme.check(false))?;
        self.row("one way, two hops", "staged", blocks, bytes, &sides, &times, 0.97);
        Ok(())
    }

    fn both(&mut self, bytes: usize, blocks: usize) -> Result<()> {
        let rotation = Self::rotation(2 * bytes);
        let ours = self.pair.both_ways(bytes, self.config(Primitive::Staged, blocks), rotation)?;
        let (mut sides, mut kept) = (vec![ours], Vec::new());
        for slot in Self::slots(bytes, blocks) {
            keep(self.frozen.both_ways(bytes, blocks, slot, rotation)?, &mut sides, &mut kept);
        }
        let times = self.race(&sides, self.samples())?;
        kept.iter().try_for_each(|scheme| scheme.check(true))?;
        self.row("both ways, each", "staged", blocks, bytes, &sides, &times, 0.97);
        Ok(())
    }

    fn direct(&mut self, bytes: usize, blocks: usize) -> Result<()> {
        let rotation = Self::rotation(bytes);
        let ours = self.pair.direct(bytes, self.config(Primitive::Direct, blocks), rotation)?;
        let (mut sides, mut kept) = (vec![ours], Vec::new());
        for beside in [false, true] {
            keep(self.frozen.one_hop(bytes, blocks, rotation, beside)?, &mut sides, &mut kept);
        }
        let times = self.race(&sides, self.samples())?;
        kept.iter().try_for_each(|scheme| scheme.check(false))?;
        self.row("one way, one hop", "direct", blocks, bytes, &sides, &times, 0.95);
        Ok(())
    }

    fn small(&mut self) -> Result<()> {
        for bytes in [32, 1 << 10, 8 << 10, 16 << 10, 64 << 10, 128 << 10] {
            let config = self.plan.config;
            let ours = self.pair.one_way(bytes, config, Hook::Copy, 1)?;
            let (mut sides, mut kept) = (vec![ours, self.frozen.empty()?], Vec::new());
            for blocks in [1, 4, 8] {
                if bytes / 8 / blocks >= 128 || blocks == 1 {
                    keep(self.frozen.packets(bytes, blocks)?, &mut sides, &mut kept);
                }
            }
            let times = self.race(&sides, 2 * self.samples())?;
            kept.iter().try_for_each(|scheme| scheme.check(false))?;
            // Compared with an empty graph: how much longer it takes.
            let target = if bytes <= 16 << 10 { 1.0 / 1.1 } else { 1.0 / 1.35 };
            self.against_nothing("small", ("chosen", 0), bytes, &sides[..2], &times[..2], target)?;
            let hand = without(1, sides, times);
            self.row("small, against packets", "chosen", 0, bytes, &hand.0, &hand.1, 0.97);
        }
        Ok(())
    }

    fn hooks(&mut self) -> Result<()> {
        let (bytes, blocks) = (64 << 20, 16);
        let config = self.config(Primitive::Staged, blocks);
        let mut sides = Vec::new();
        for (name, hook) in
            [("plain copy", Hook::Copy), ("scale f32", Hook::Scale), ("transpose bf16", Hook::Transpose(8192, 4096))]
        {
            let side = self.pair.one_way(bytes, config, hook, 3)?;
            sides.push(Side { name: name.into(), ..side });
        }
        let times = self.race(&sides, self.samples())?;
        for (k, target) in [(1, 0.97), (2, 0.85)] {
            let name = format!("hook: {}", sides[k].name);
            let limit = ("plain copy".to_string(), times[0]);
            self.push(&name, "staged", blocks, bytes, times[k], limit, String::new(), target);
        }
        Ok(())
    }

    /// Four ranks, 64 MiB each, by 16 blocks: four for each round, including that of the own chunk.
    fn all_to_all(&mut self) -> Result<()> {
        let (ranks, bytes, blocks, rotation) = (4, 64 << 20, 4, 2);
        let group = Group::new(&self.device, ranks, NvlOptions::default())?;
        let config = Knobs { blocks: Some(blocks), ..self.plan.config };
        let mut sides = vec![group.all_to_all(bytes, config, Way::Direct, rotation)?];
        let mut kept = Vec::new();
        // The whole volume, by all blocks.
        keep(self.frozen.one_hop(ranks * bytes, ranks * ranks * blocks, 1, false)?, &mut sides, &mut kept);
        let times = self.race(&sides, self.samples())?;
        kept.drain(..).try_for_each(|scheme| scheme.check(false))?;
        let name = "all-to-all of 4 ranks, 16";
        self.row(&format!("{name} blocks each, one hop"), "direct", 0, bytes, &sides, &times, 0.9);

        let mut sides = vec![group.all_to_all(bytes, config, Way::Staged, rotation)?];
        // The whole volume on the wire, by the blocks that send and receive it. Beside it, by the other blocks, the
        // chunks that ranks pass to themselves. And for comparison the wire volume alone.
        let (wire, senders) = (ranks * bytes / ranks * (ranks - 1), ranks * (ranks - 1) * blocks);
        for slot in Self::slots(wire / 2, senders / 2) {
            let own = Some((bytes, ranks * blocks));
            keep(self.frozen.both_ways_beside(wire / 2, senders / 2, slot, 1, own)?, &mut sides, &mut kept);
        }
        let limits = sides.len();
        keep(self.frozen.both_ways(wire / 2, senders / 2, 32 << 10, 1)?, &mut sides, &mut kept);
        let times = self.race(&sides, self.samples())?;
        kept.iter().try_for_each(|scheme| scheme.check(true))?;
        self.row(&format!("{name} blocks each, two hops"), "staged", 0, bytes, &sides[..limits], &times[..limits], 0.9);
        let alone = [0, limits].map(|k| times[k]);
        let limit = (format!("{}, nothing beside", sides[limits].name), alone[1]);
        self.push(
            &format!("{name} blocks each, own chunks not counted"),
            "staged",
            0,
            bytes,
            alone[0],
            limit,
            String::new(),
            0.9,
        );

        let plain = group.all_to_all(bytes, config, Way::Staged, rotation)?;
        let sides =
            [group.all_to_all(bytes, config, Way::Quantised, rotation)?, Side { name: "plain".into(), ..plain }];
        let times = self.race(&sides, self.samples())?;
        self.row("all-to-all of 4 ranks, bf16 as fp8, against plain", "staged", 0, bytes, &sides, &times, 1.0 / 0.85);
        self.rows.iter_mut().rev().take(4).for_each(|row| row.ranks = ranks);
        Ok(())
    }

    /// Four ranks and chunks of 8 MiB that are columns of a larger matrix: against chunks that lie one after the other,
    /// and against a copy that puts them there.
    fn columns(&mut self) -> Result<()> {
        let (ranks, bytes, rotation) = (4, 8 << 20, 2);
        let group = Group::new(&self.device, ranks, NvlOptions::default())?;
        let before = self.rows.len();
        for (primitive, protocol, how) in
            [(Primitive::Direct, "direct", "one hop"), (Primitive::Staged, "staged", "two hops")]
        {
            let config = Knobs { primitive: Some(primitive), blocks: Some(4), ..self.plan.config };
            let side = |source| group.columns(bytes, config, source, rotation);
            let sides = [side(Source::InPlace)?, side(Source::Contiguous)?, side(Source::Copied)?];
            let times = self.race(&sides, self.samples())?;
            for (k, target) in [(1, 0.9), (2, 1.5)] {
                let (name, limit) =
                    (format!("columns of 4 ranks, {how}, against {}", sides[k].name), sides[k].name.clone());
                self.push(&name, protocol, 0, ranks * bytes, times[0], (limit, times[k]), String::new(), target);
            }
        }
        self.rows[before..].iter_mut().for_each(|row| row.ranks = ranks);
        Ok(())
    }

    /// Four ranks, one-shot, against an empty graph on as many streams.
    fn all_reduce(&mut self) -> Result<()> {
        let ranks = 4;
        let group = Group::new(&self.device, ranks, NvlOptions { copies: 1, ..NvlOptions::default() })?;
        let before = self.rows.len();
        let said = self.plan.blocks.clone().unwrap_or_default();
        // The library's number of blocks, unless one is given.
        let all = if said.is_empty() { vec![None] } else { said.into_iter().map(Some).collect() };
        for blocks in all {
            for bytes in [1 << 10, 16 << 10, 64 << 10] {
                let config = Knobs { blocks, ..self.plan.config };
                let ours = group.all_reduce(bytes, config, (ReduceWay::Packets, 1), |x| x as f32)?;
                let sides = [ours, self.frozen.empty_on(&group.streams())?];
                // Graphs are dropped before the memory they use.
                let (mut kept, mut sides) = (Vec::new(), Vec::from(sides));
                for blocks in [1, 8, 16, 32] {
                    if bytes / 8 / blocks >= 64 {
                        let (side, memory) = self.frozen.packet_reduce(&group.streams(), bytes, blocks)?;
                        sides.push(side);
                        kept.push(memory);
                    }
                }
                let times = self.race(&sides, 2 * self.samples())?;
                kept.iter().try_for_each(|by_hand| by_hand.check())?;
                let (name, blocks) = ("all-reduce of 4 ranks", blocks.unwrap_or(0));
                self.against_nothing(name, ("packet", blocks), bytes, &sides[..2], &times[..2], 1.0 / 1.6)?;
                let hand = without(1, sides, times);
                self.row(&format!("{name}, against packets"), "packet", blocks, bytes, &hand.0, &hand.1, 0.9);
            }
        }
        self.rows[before..].iter_mut().for_each(|row| row.ranks = ranks);
        Ok(())
    }

    /// All ways of an all-reduce of bf16, each against the fastest: where defaults should switch. Twenty in a graph, as
    /// steps of a model do them.
    fn ways_to_reduce(&mut self) -> Result<()> {
        const TIMES: usize = 20;
        for ranks in [2, 4, 8] {
            let group = Group::new(&self.device, ranks, NvlOptions { copies: 1, ..NvlOptions::default() })?;
            for bytes in [1 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 8 << 20] {
                let mut sides = Vec::new();
                let ways = [ReduceWay::Default, ReduceWay::OneShotWindows, ReduceWay::TwoPhaseWindows];
                // Larger messages have no room in the packets' memory.
                let packets = (bytes <= 256 << 10).then_some(ReduceWay::Packets);
                for way in ways.into_iter().chain(packets) {
                    let number = |x: u64| Bf16::from_f32(x as f32);
                    match group.all_reduce(bytes, self.plan.config, (way, TIMES), number) {
                        Ok(side) => sides.push(side),
                        // The memory for packets is per peer, so it depends on the number of ranks.
                        Err(_) if way == ReduceWay::Packets => {}
                        Err(error) => return Err(error),
                    }
                }
                let times: Vec<f64> = self.race(&sides, self.samples())?.iter().map(|us| us / TIMES as f64).collect();
                let fastest = times.iter().copied().fold(f64::MAX, f64::min);
                for (side, &us) in sides.iter().zip(&times) {
                    let name = format!("all-reduce of {ranks}, {}", side.name);
                    let limit = ("the fastest way".to_string(), fastest);
                    self.push(&name, "chosen", 0, bytes, us, limit, String::new(), 0.0);
                    self.rows.iter_mut().rev().take(1).for_each(|row| row.ranks = ranks);
                }
            }
        }
        Ok(())
    }

    /// The host's cost of a launch against a launch of the driver, and of a new kernel against 100 ms.
    fn host(&mut self) -> Result<()> {
        let (run_us, build_ms) = self.pair.host_cost(self.config(Primitive::Staged, 4))?;
        let launch_us = self.frozen.launch_cost()?;
        let limit = ("a launch of the driver + 3 µs".to_string(), launch_us + 3.0);
        self.push(
            "host: a prepared run()",
            "staged",
            0,
            1 << 20,
            run_us,
            limit,
            format!("driver {launch_us:.2} µs"),
            1.0,
        );
        let limit = ("100 ms".to_string(), 100e3);
        self.push("host: trace, PTX, load", "staged", 0, 1 << 20, build_ms * 1e3, limit, String::new(), 1.0);
        self.rows.iter_mut().rev().take(2).for_each(|row| row.gbps = None);
        Ok(())
    }

    /// Ours and an empty graph in two ways. Queued: these times, which are the GPU's alone. In a row: as a loop of
    /// replays sees it, including the host's launches. The targets are for figures in a row.
    fn against_nothing(
        &mut self,
        name: &str,
        (protocol, blocks): (&'static str, usize),
        bytes: usize,
        sides: &[Side],
        queued: &[f64],
        target: f64,
    ) -> Result<()> {
        let in_a_row = race(&self.device, &self.stream, None, sides, 2 * self.samples())?;
        for (how, times) in [("in a row", &in_a_row[..]), ("queued", queued)] {
            let name = format!("{name}, against nothing, {how}");
            self.row(&name, protocol, blocks, bytes, sides, times, target);
        }
        Ok(())
    }

    /// The first side is ours; the fastest of the others is the limit.
    #[expect(clippy::too_many_arguments, reason = "a row has as many columns")]
    fn row(
        &mut self,
        name: &str,
        protocol: &'static str,
        blocks: usize,
        bytes: usize,
        sides: &[Side],
        times: &[f64],
        target: f64,
    ) {
        let others = || sides.iter().zip(times).skip(1);
        let best = others().min_by(|a, b| a.1.total_cmp(b.1)).expect("a side to compare with");
        let each: Vec<String> = others().map(|(side, time)| format!("{} {:.2}", side.name, time / times[0])).collect();
        let limit = (best.0.name.clone(), *best.1);
        self.push(name, protocol, blocks, bytes, times[0], limit, each.join(", "), target);
    }

    #[expect(clippy::too_many_arguments, reason = "a row has as many columns")]
    fn push(
        &mut self,
        name: &str,
        protocol: &'static str,
        blocks: usize,
        bytes: usize,
        median_us: f64,
        (limit, limit_us): (String, f64),
        each: String,
        target: f64,
    ) {
        self.rows.push(Row {
            name: if blocks > 0 { format!("{name}, {blocks} blocks") } else { name.to_string() },
            engine: "cuda",
            transport: "nvl",
            protocol,
            ranks: 2,
            blocks,
            bytes,
            place: "device",
            median_us,
            spread_us: None,
            gbps: Some(bytes as f64 / median_us / 1e3),
            limit,
            ratio: limit_us / median_us,
            target: Some(target),
            each,
            samples: self.samples(),
        });
    }
}
