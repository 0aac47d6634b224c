//! Our own sides: tilewire's transfers behind the same trait as the limits. One launch is one message.
#![forbid(unsafe_code)]

use super::limits::Buffers;
use super::messages::{Half, Pattern, Patterned, Payload};
use crate::bench::ranks::links::Links;
use crate::bench::ranks::side::{Aim, Limit, Part, Run, Side};
use anyhow::{Result, bail};
use tilewire::collective::{Exchange, PreparedExchange};
use tilewire::link::{Transport, Window};
use tilewire::transport::Rank;
use tilewire::{F8E4M3, Prepared, Primitive, Tensor, kernel, map, recv, send, sendrecv};

/// One of our sides, and its target.
#[derive(Clone, Copy, Debug)]
pub struct Race {
    /// Its name in reports.
    pub name: &'static str,
    /// How the message travels; `None`: as the library chooses by default.
    pub primitive: Option<Primitive>,
    /// The limit it is compared with.
    pub against: Limit,
    /// Its target.
    pub aim: Aim,
    /// True if its waits have a deadline, and see a peer's failure.
    pub deadline: bool,
}

impl Race {
    /// With the world's deadline, as users have it.
    pub const fn new(name: &'static str, primitive: Primitive, against: Limit, aim: Aim) -> Race {
        Race { name, primitive: Some(primitive), against, aim, deadline: true }
    }

    fn part(&self) -> Part {
        let protocol = match self.primitive {
            Some(Primitive::Packet) => "packet",
            Some(Primitive::Direct) => "direct",
            Some(Primitive::Bulk) => "bulk",
            Some(_) => "staged",
            None => "default",
        };
        Part::Racer { against: self.against, aim: self.aim, protocol }
    }

    /// A side over the buffers of a contest.
    pub fn side<'l>(&self, buffers: &Buffers<'l>) -> Result<Side<'l>> {
        self.over(buffers.ours, buffers.pattern, &buffers.private, &buffers.targets)
    }

    /// A side over a transport. `window` is what `direct` arrives in; the source is private in any case.
    pub fn over<'l>(
        &self,
        link: &'l dyn Transport,
        pattern: Pattern,
        private: &Payload,
        window: &Window<u64>,
    ) -> Result<Side<'l>> {
        let target = if self.primitive == Some(Primitive::Direct) { window.tensor() } else { &private.target };
        let payload = Payload { source: private.source.clone(), target: target.clone() };
        let half = Transfers::build(link, pattern, self, &payload, window)?;
        let run = Patterned::new(half, pattern, link.rank().index(), payload);
        Ok(Side { name: self.name.into(), part: self.part(), run: Box::new(run) })
    }
}

type Prepares<'l> = PreparedExchange<'l>;

/// The launches that a pattern needs on this rank.
struct Transfers<'l> {
    send: Option<Prepares<'l>>,
    receive: Option<Prepares<'l>>,
    both: Option<Prepares<'l>>,
}

impl<'l> Transfers<'l> {
    fn build(
        link: &'l dyn Transport,
        pattern: Pattern,
        race: &Race,
        payload: &Payload,
        window: &Window<u64>,
    ) -> Result<Transfers<'l>> {
        let (rank, peer) = (link.rank().index(), other(link));
        let build = |exchange: Exchange<'_, 'l, u64, u64>| {
            let exchange = match race.primitive {
                Some(primitive) => exchange.primitive(primitive),
                None => exchange,
            };
            let exchange = if race.deadline { exchange } else { exchange.deadline(None).unwatched() };
            let exchange = if race.primitive == Some(Primitive::Direct) { exchange.window(window) } else { exchange };
            exchange.build()
        };
        let Payload { source, target } = payload;
        let mut own = Transfers { send: None, receive: None, both: None };
        if pattern == Pattern::PingPong || (pattern == Pattern::Stream && rank == 0) {
            own.send = Some(build(send(link, source, peer))?);
        }
        if pattern == Pattern::PingPong || (pattern == Pattern::Stream && rank == 1) {
            own.receive = Some(build(recv(link, target, peer))?);
        }
        if pattern == Pattern::Both {
            own.both = Some(build(sendrecv(link, target, source, peer, peer))?);
        }
        Ok(own)
    }
}

const BUILT: &str = "built for this pattern";

impl Half for Transfers<'_> {
    #[inline]
    fn send(&mut self, _number: u64) -> Result<()> {
        Ok(self.send.as_mut().expect(BUILT).run()?)
    }

    #[inline]
    fn receive(&mut self, _number: u64) -> Result<()> {
        Ok(self.receive.as_mut().expect(BUILT).run()?)
    }

    #[inline]
    fn exchange(&mut self, _number: u64) -> Result<()> {
        Ok(self.both.as_mut().expect(BUILT).run()?)
    }
}

fn other(link: &dyn Transport) -> Rank {
    link.rank().after(1, 2)
}

/// One way with a hook, f32 in: a launch, and the expected result.
struct Hooked<'l> {
    /// A separate pass before the message, if the hook is not part of the launch.
    before: Option<PreparedExchange<'static>>,
    launch: Prepares<'l>,
    inp: Tensor<f32>,
    /// `None` for a rank that only sends.
    fault: Option<Fault>,
}

/// The first received element that differs from the expected one.
type Fault = Box<dyn Fn(&Tensor<f32>) -> Option<usize>>;

impl Run for Hooked<'_> {
    fn run(&mut self, steps: u64) -> Result<()> {
        (0..steps).try_for_each(|_| {
            self.before.as_mut().map_or(Ok(()), PreparedExchange::run)?;
            Ok(self.launch.run()?)
        })
    }

    fn fill(&mut self) {
        (0..self.inp.len()).for_each(|k| self.inp.set(k, ramp(k)));
    }

    fn verify(&mut self) -> Result<()> {
        match self.fault.as_ref().and_then(|fault| fault(&self.inp)) {
            Some(element) => bail!("element {element} is wrong"),
            None => Ok(()),
        }
    }
}

/// Small values of both signs, exact in fp8 after at most one rounding.
fn ramp(k: usize) -> f32 {
    (k % 251) as f32 - 125.5
}

/// Rows of the chunk that is transposed.
const ROWS: usize = 1024;

/// Staged transfers of `bytes` bytes of f32: plain, with hooks, and with the same work in a separate pass before a
/// plain one. Both ranks fill the same input, so the receiver knows the expected result.
pub fn hooked<'l>(links: &'l Links, bytes: usize) -> Result<Vec<Side<'l>>> {
    let link = links.ours();
    let count = (bytes / 4).next_multiple_of(ROWS);
    let (rows, cols) = (ROWS, count / ROWS);
    let (inp, out, narrow) = (Tensor::<f32>::zeros(count), Tensor::<f32>::zeros(count), Tensor::<F8E4M3>::zeros(count));
    let (peer, sends) = (other(link), link.rank().index() == 0);
    let (done, narrowed) = (Tensor::<f32>::zeros(count), Tensor::<F8E4M3>::zeros(count));
    let launches: [(Option<PreparedExchange<'static>>, Prepares<'l>); 7] = if sends {
        let send = || send(link, &inp, peer).primitive(Primitive::Staged);
        let then_send = || tilewire::send(link, &done, peer).primitive(Primitive::Staged).build();
        let scales = map(&done, &inp).produce(|c| c.input.load(c.pos()) * 2.0).build()?;
        let quantises = map(&narrowed, &inp).produce(|c| c.input.load(c.pos()).cast::<F8E4M3>()).build()?;
        let transposes = map(&done, &inp)
            .chunk_shape(rows, cols)
            .output_shape(cols, rows)
            .produce(|c| c.input.at(c.col(), c.row()))
            .build()?;
        [
            (None, send().build()?),
            (None, send().produce(|c| c.input.load(c.pos()) * 2.0).build()?),
            (None, send().produce(|c| c.input.load(c.pos()).cast::<F8E4M3>()).build()?),
            (
                None,
                send()
                    .chunk_shape(rows, cols)
                    .output_shape(cols, rows)
                    .produce(|c| c.input.at(c.col(), c.row()))
                    .build()?,
            ),
            (Some(scales), then_send()?),
            (Some(quantises), tilewire::send(link, &narrowed, peer).primitive(Primitive::Staged).build()?),
            (Some(transposes), then_send()?),
        ]
    } else {
        let recv_wide = || recv(link, &out, peer).primitive(Primitive::Staged);
        let recv_narrow = || recv(link, &narrow, peer).primitive(Primitive::Staged);
        let all = [
            recv_wide().build()?,
            recv_wide().build()?,
            recv_narrow().build()?,
            recv_wide().chunk_shape(rows, cols).output_shape(cols, rows).build()?,
            recv_wide().build()?,
            recv_narrow().build()?,
            recv_wide().build()?,
        ];
        all.map(|launch| (None, launch))
    };
    let wide = |must: fn(&Tensor<f32>, usize, usize, usize) -> f32| -> Fault {
        let out = out.clone();
        Box::new(move |inp| (0..out.len()).find(|&k| out.get(k) != must(inp, k, rows, cols)))
    };
    let as_narrow = || -> Fault {
        let narrow = narrow.clone();
        Box::new(move |inp| {
            (0..narrow.len()).find(|&k| narrow.get(k).to_bits() != F8E4M3::from_f32(inp.get(k)).to_bits())
        })
    };
    let scaled = || wide(|inp, k, _, _| inp.get(k) * 2.0);
    // The output has `cols` rows of `rows` elements.
    let transposed = || wide(|inp, k, rows, cols| inp.get(k % rows * cols + k / rows));
    let faults = [
        ("staged copy", wide(|inp, k, _, _| inp.get(k))),
        ("scale f32", scaled()),
        ("quantise f32 to f8e4m3", as_narrow()),
        ("transpose f32", transposed()),
        ("scale, then send", scaled()),
        ("quantise, then send", as_narrow()),
        ("transpose, then send", transposed()),
    ];
    let racer = Part::Racer { against: Limit::Plain, aim: Aim::None, protocol: "staged" };
    let sides = launches.into_iter().zip(faults).enumerate().map(|(k, ((before, launch), (name, fault)))| Side {
        name: name.into(),
        part: if k == 0 { Part::Limit(Limit::Plain) } else { racer.clone() },
        run: Box::new(Hooked { before, launch, inp: inp.clone(), fault: (!sends).then_some(fault) }),
    });
    Ok(sides.collect())
}

/// A launch without a transfer.
struct Empty<F>(F);

impl<F: FnMut() -> Result<()>> Run for Empty<F> {
    fn run(&mut self, steps: u64) -> Result<()> {
        (0..steps).try_for_each(|_| (self.0)())
    }

    fn fill(&mut self) {}

    fn verify(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The cost of a launch: of an empty kernel, and of an empty transfer.
pub fn launches(links: &Links) -> Result<Vec<Side<'_>>> {
    let link = links.ours();
    let traced = kernel("empty", |k| k.main(|_| {}))?;
    let mut bare = Prepared::new(&traced.kernel, &traced.args)?;
    let (nothing, peer) = (Tensor::<u64>::zeros(0), other(link));
    let exchange = if link.rank().index() == 0 { send(link, &nothing, peer) } else { recv(link, &nothing, peer) };
    let mut transfer = exchange.build()?;
    let protocol = if links.has_far() { "staged" } else { "packet" };
    let racer = Part::Racer { against: Limit::Plain, aim: Aim::None, protocol };
    Ok(vec![
        Side::limit("empty kernel", Limit::Plain, Empty(move || Ok(bare.run()?))),
        Side { name: "transfer of nothing".into(), part: racer, run: Box::new(Empty(move || Ok(transfer.run()?))) },
    ])
}
