//! The hand-written kernels, as graphs.

use super::race::{Side, median_of};
use anyhow::{Result, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire::Tensor;
use tilewire::cuda::{CudaError, Device, Foreign, ForeignEntry, Graph, Grid, Stream};
use tilewire::tensor::bytes_of;

/// Built as the head of `frozen.cu` describes.
const TEXT: &str = include_str!("frozen.ptx");
/// Samples of host times.
pub const HOST_SAMPLES: usize = 200;
/// Slots of a block.
const DEPTH: usize = 8;

/// The kernels, their streams and the state they keep between launches.
pub struct Frozen {
    device: Arc<Device>,
    streams: [Arc<Stream>; 2],
    /// The stream for copies beside a scheme.
    beside: Arc<Stream>,
    module: Arc<Foreign>,
}

/// Memory of one scheme, which lives as long as its graphs.
pub struct Scheme {
    pub side: Side,
    _memory: Vec<Tensor<u64>>,
    inputs: Vec<Tensor<u64>>,
    outputs: Vec<Tensor<u64>>,
    /// Source and destination of the copy beside it.
    own: Option<[Tensor<u64>; 2]>,
}

impl Frozen {
    pub fn new(device: &Arc<Device>) -> Result<Frozen> {
        let streams = [Stream::new(device)?, Stream::new(device)?];
        let beside = Stream::new(device)?;
        Ok(Frozen { device: device.clone(), streams, beside, module: Foreign::load(device, TEXT)? })
    }

    /// An empty graph on two streams.
    pub fn empty(&self) -> Result<Side> {
        self.empty_on(&self.streams.each_ref())
    }

    /// An empty graph on some streams.
    pub fn empty_on(&self, streams: &[&Arc<Stream>]) -> Result<Side> {
        let empty = self.module.entry("empty")?;
        let launch = || streams.iter().try_for_each(|stream| self.launch(&empty, stream, grid(1, 32), &[]));
        let graph = streams[0].capture::<CudaError>(&streams[1..], launch)?;
        Ok(Side { name: "empty graph".into(), graphs: vec![graph] })
    }

    /// Keeps one stream busy for this long.
    pub fn hold(&self, time: Duration) -> Result<Graph> {
        let (hold, stream) = (self.module.entry("hold")?, &self.streams[0]);
        let launch = || self.launch(&hold, stream, grid(1, 1), &[time.as_nanos() as u64]);
        Ok(stream.capture::<CudaError>(&[], launch)?)
    }

    /// Microseconds that the host needs for an empty launch.
    pub fn launch_cost(&self) -> Result<f64> {
        let empty = self.module.entry("empty")?;
        median_of(HOST_SAMPLES, || {
            let start = Instant::now();
            for stream in &self.streams {
                self.launch(&empty, stream, grid(1, 32), &[])?;
            }
            let took = start.elapsed().as_secs_f64() * 1e6 / 2.0;
            self.streams.iter().try_for_each(|stream| stream.sync())?;
            Ok(took)
        })
    }

    /// One hop by `blocks` blocks. `beside`: with an empty kernel on a second stream, since a transfer is two launches.
    pub fn one_hop(&self, bytes: usize, blocks: usize, rotation: usize, beside: bool) -> Result<Scheme> {
        let (entry, empty) = (self.module.entry("one_hop")?, self.module.entry("empty")?);
        let (inputs, outputs) = (self.filled(bytes, rotation)?, self.zeros(bytes, rotation)?);
        let mut graphs = Vec::new();
        for (x, y) in inputs.iter().zip(&outputs) {
            let arguments = [address(y), address(x), bytes as u64];
            let copy = || self.launch(&entry, &self.streams[0], grid(blocks, 512), &arguments);
            graphs.push(if beside {
                self.graph(|| copy().and_then(|()| self.launch(&empty, &self.streams[1], grid(1, 32), &[])))?
            } else {
                self.streams[0].capture::<CudaError>(&[], copy)?
            });
        }
        let alone = if beside { "beside an empty kernel" } else { "alone" };
        let side = Side { name: format!("one-hop copy {alone}"), graphs };
        Ok(Scheme { side, _memory: Vec::new(), inputs, outputs, own: None })
    }

    /// Two hops, one way, with slots of `slot` bytes.
    pub fn one_way(&self, bytes: usize, blocks: usize, slot: usize, rotation: usize) -> Result<Scheme> {
        let (send, receive) = (self.module.entry("two_hop_send")?, self.module.entry("two_hop_receive")?);
        let (inputs, outputs) = (self.filled(bytes, rotation)?, self.zeros(bytes, rotation)?);
        let staging = self.device.zeros::<u64>(blocks * DEPTH * slot / 8)?;
        let words = self.device.zeros::<u64>(blocks * (2 * DEPTH + 2) * 16)?;
        let at = |lines: usize| address(&words) + (lines * 128) as u64;
        let (tail, head, steps) = (at(0), at(blocks * DEPTH), at(2 * blocks * DEPTH));
        let mut graphs = Vec::new();
        for (x, y) in inputs.iter().zip(&outputs) {
            let geometry = [bytes as u64, slot as u64, DEPTH as u64];
            let of = |first: [u64; 2], step: u64| [&first[..], &geometry, &[tail, head, step]].concat();
            let sent = of([address(&staging), address(x)], steps);
            let received = of([address(y), address(&staging)], steps + (blocks * 128) as u64);
            graphs.push(self.graph(|| {
                self.launch(&send, &self.streams[0], grid(blocks, 1024), &sent)?;
                self.launch(&receive, &self.streams[1], grid(blocks, 1024), &received)
            })?);
        }
        let side = Side { name: format!("hand-written two-hop, slots of {} KiB", slot >> 10), graphs };
        Ok(Scheme { side, _memory: vec![staging, words], inputs, outputs, own: None })
    }

    /// Both ways in one block.
    pub fn both_ways(&self, bytes: usize, blocks: usize, slot: usize, rotation: usize) -> Result<Scheme> {
        self.both_ways_beside(bytes, blocks, slot, rotation, None)
    }

    /// Both ways in one block. `own` adds a copy beside it, of (bytes, blocks): the chunks that ranks pass to
    /// themselves.
    pub fn both_ways_beside(
        &self,
        bytes: usize,
        blocks: usize,
        slot: usize,
        rotation: usize,
        own: Option<(usize, usize)>,
    ) -> Result<Scheme> {
        let (entry, copy) = (self.module.entry("both_ways")?, self.module.entry("one_hop")?);
        let own_blocks = own.map_or(0, |(_, blocks)| blocks);
        let own = match own {
            Some((bytes, _)) => Some([self.filled(bytes, 1)?.remove(0), self.zeros(bytes, 1)?.remove(0)]),
            None => None,
        };
        let (inputs, outputs) = (self.filled(bytes, 2 * rotation)?, self.zeros(bytes, 2 * rotation)?);
        let area = blocks * DEPTH * slot / 8;
        let staging = [self.device.zeros::<u64>(area)?, self.device.zeros::<u64>(area)?];
        let lines = blocks * (2 * DEPTH + 2);
        let words = [self.device.zeros::<u64>(lines * 16)?, self.device.zeros::<u64>(lines * 16)?];
        let mut graphs = Vec::new();
        for (x, y) in inputs.chunks(2).zip(outputs.chunks(2)) {
            let arguments = |me: usize| {
                let peer = 1 - me;
                let tail = |rank: usize| address(&words[rank]);
                let head = |rank: usize| address(&words[rank]) + (blocks * DEPTH * 128) as u64;
                let step = address(&words[me]) + (2 * blocks * DEPTH * 128) as u64;
                [
                    address(&y[me]),
                    address(&x[me]),
                    address(&staging[peer]),
                    address(&staging[me]),
                    bytes as u64,
                    slot as u64,
                    DEPTH as u64,
                    tail(peer),
                    tail(me),
                    head(peer),
                    head(me),
                    step,
                ]
            };
            let others = [&self.streams[1], &self.beside];
            let others = if own.is_some() { &others[..] } else { &others[..1] };
            graphs.push(self.streams[0].capture::<CudaError>(others, || {
                let launch = |me: usize| self.launch(&entry, &self.streams[me], grid(blocks, 1024), &arguments(me));
                launch(0)?;
                launch(1)?;
                own.as_ref().map_or(Ok(()), |[x, y]| {
                    let arguments = [address(y), address(x), x.memory().bytes() as u64];
                    self.launch(&copy, &self.beside, grid(own_blocks, 512), &arguments)
                })
            })?);
        }
        let beside = if own.is_some() { " and own chunks beside" } else { "" };
        let side = Side { name: format!("hand-written both ways, slots of {} KiB{beside}", slot >> 10), graphs };
        let memory = staging.into_iter().chain(words).collect();
        Ok(Scheme { side, _memory: memory, inputs, outputs, own })
    }

    /// Packets, one way.
    pub fn packets(&self, bytes: usize, blocks: usize) -> Result<Scheme> {
        let (send, receive) = (self.module.entry("packet_send")?, self.module.entry("packet_receive")?);
        let (inputs, outputs) = (self.filled(bytes, 1)?, self.zeros(bytes, 1)?);
        let packets = self.device.zeros::<u64>(2 * bytes / 8 * 2)?;
        let words = self.device.zeros::<u64>(3 * blocks * 16)?;
        let at = |part: usize| address(&words) + (part * blocks * 128) as u64;
        let threads = (bytes / 8 / blocks).next_multiple_of(32).clamp(32, 1024);
        let sent = [address(&packets), address(&inputs[0]), bytes as u64, at(0), at(2)];
        let received = [address(&outputs[0]), address(&packets), bytes as u64, at(1), at(2)];
        let graph = self.graph(|| {
            self.launch(&send, &self.streams[0], grid(blocks, threads), &sent)?;
            self.launch(&receive, &self.streams[1], grid(blocks, threads), &received)
        })?;
        let side = Side { name: format!("hand-written packets, {blocks} blocks"), graphs: vec![graph] };
        Ok(Scheme { side, _memory: vec![packets, words], inputs, outputs, own: None })
    }

    /// A one-shot all-reduce of whole numbers by four ranks, each on its stream.
    pub fn packet_reduce(&self, streams: &[&Arc<Stream>], bytes: usize, blocks: usize) -> Result<(Side, Reduced)> {
        let ranks = streams.len();
        ensure!(ranks == 4, "packet_reduce is written for four ranks");
        let entry = self.module.entry("packet_reduce")?;
        let input = |me: usize| {
            let of = |i: usize| u64::from(((mixed((me << 32 | i) as u64) % 1000) as f32).to_bits());
            let words: Vec<u64> = (0..bytes / 8).map(|i| of(2 * i) | of(2 * i + 1) << 32).collect();
            Ok(self.device.tensor(&words)?)
        };
        let inputs = (0..ranks).map(input).collect::<Result<Vec<_>>>()?;
        let outputs = self.zeros(bytes, ranks)?;
        let (inboxes, steps) = (self.zeros(2 * ranks * 2 * bytes, ranks)?, self.zeros(blocks * 128, ranks)?);
        let threads = (bytes / 8 / blocks).next_multiple_of(32).clamp(32, 1024);
        let launch = |(me, stream): (usize, &&Arc<Stream>)| {
            let mut words = vec![address(&outputs[me]), address(&inputs[me])];
            words.extend(inboxes.iter().map(address));
            words.extend([bytes as u64, me as u64, address(&steps[me])]);
            self.launch(&entry, stream, grid(blocks, threads), &words)
        };
        let graph =
            streams[0].capture::<CudaError>(&streams[1..], || streams.iter().enumerate().try_for_each(launch))?;
        let side = Side { name: format!("hand-written packets, {blocks} blocks"), graphs: vec![graph] };
        Ok((side, Reduced { _memory: inboxes.into_iter().chain(steps).collect(), inputs, outputs }))
    }

    fn graph(&self, body: impl FnOnce() -> Result<(), CudaError>) -> Result<Graph> {
        Ok(self.streams[0].capture(&[&self.streams[1]], body)?)
    }

    fn launch(&self, entry: &ForeignEntry, stream: &Arc<Stream>, grid: Grid, words: &[u64]) -> Result<(), CudaError> {
        // SAFETY: every caller in this file passes the arguments that `frozen.cu` declares for its entry. A `Scheme` or
        // a `Reduced` keeps the memory, and its owner drops it after its graphs were waited for.
        unsafe { entry.launch(stream, grid, words) }
    }

    fn filled(&self, bytes: usize, count: usize) -> Result<Vec<Tensor<u64>>> {
        let fill = |k: usize| {
            let data: Vec<u64> = (0..bytes / 8).map(|i| mixed((k * bytes + i) as u64)).collect();
            Ok(self.device.tensor(&data)?)
        };
        (0..count).map(fill).collect()
    }

    fn zeros(&self, bytes: usize, count: usize) -> Result<Vec<Tensor<u64>>> {
        (0..count).map(|_| Ok(self.device.zeros(bytes / 8)?)).collect()
    }
}

/// A hand-written all-reduce.
pub struct Reduced {
    _memory: Vec<Tensor<u64>>,
    inputs: Vec<Tensor<u64>>,
    outputs: Vec<Tensor<u64>>,
}

impl Reduced {
    /// Checks that every rank has the sum.
    pub fn check(&self) -> Result<()> {
        let inputs = self.inputs.iter().map(|x| x.try_to_vec()).collect::<Result<Vec<_>, _>>()?;
        for y in &self.outputs {
            for (i, y) in y.try_to_vec()?.into_iter().enumerate() {
                let sum = |shift: u32| inputs.iter().map(|x| f32::from_bits((x[i] >> shift) as u32)).sum::<f32>();
                let right = [0, 32].into_iter().all(|shift| sum(shift) == f32::from_bits((y >> shift) as u32));
                ensure!(right, "the all-reduce by hand gives something else");
            }
        }
        Ok(())
    }
}

impl Scheme {
    /// Checks that every byte arrived; if `both`, each rank has the other's.
    pub fn check(&self, both: bool) -> Result<()> {
        for (k, y) in self.outputs.iter().enumerate() {
            let x = &self.inputs[if both { k ^ 1 } else { k }];
            ensure!(bytes_of(x.memory())? == bytes_of(y.memory())?, "{} gives something else", self.side.name);
        }
        if let Some([x, y]) = &self.own {
            ensure!(bytes_of(x.memory())? == bytes_of(y.memory())?, "{} gives something else beside", self.side.name);
        }
        Ok(())
    }
}

fn grid(blocks: usize, threads: usize) -> Grid {
    Grid { blocks: blocks as u32, threads: threads as u32, shared_bytes: 0 }
}

fn address(tensor: &Tensor<u64>) -> u64 {
    tensor.memory().start().addr().get() as u64
}

/// Numbers that do not resemble their neighbours.
pub fn mixed(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}
