//! Plans exchanges: every route with its tensors, its tiles and its protocol, checked against the transport.

use super::algorithm::Algorithm;
use super::config::{Config, Primitive};
use super::decide::Way;
use super::error::RunError;
use super::facts::WorldFacts;
use super::hooks::Hooks;
use super::itinerary::{Itinerary, Leg, LegWindow, Legs, Pass, Work};
use super::pattern::{Part, Pattern, Round, Route};
use super::request::Request;
use super::rounds::Rounds;
use super::settle::Message;
use super::two_level::{self, Levels, Passing, Question, TwoLevel};
use super::windows::{UsedWindows, WindowOf};
use crate::hook::MisuseKind;
use crate::ir::{SourceLine, Type};
use crate::link::Transport;
use crate::tensor::{AnyTensor, Axis, Memory};
use crate::transport::layout::Side;
use crate::transport::{LinkKind, Protocol, Rank, TransferError};
use crate::vm::{Kept, Traffic};
use std::cell::OnceCell;

/// Plans an exchange.
pub(super) fn plan(request: &Request<'_, '_>, pattern: Pattern) -> Result<Itinerary, RunError> {
    let link = request.link();
    let facts = WorldFacts::of(link);
    // The output identifies the window, if this rank has an output.
    let has_output = !matches!(pattern, Pattern::Pair { from: None, .. });
    let of_output = request.windows.iter().find(|window| has_output && window.own.is(request.out.memory()));
    let window = of_output.or(request.windows.last());
    let (config, layout) = (request.config, request.layout(&facts));
    let planner = Planner { request, pattern, link, window, layout, facts, config, levels: None };
    let (planner, why) = planner.in_levels()?;
    let mut legs = planner.legs()?;
    let faults = planner.faults(&legs);
    let kept = planner.keep(&mut legs);
    let staged = legs.all().any(|leg| matches!(leg.protocol, Protocol::Staged { .. }));
    let sent = legs.rounds.iter().filter(|[send, _]| send.is_some()).count();
    let passed: usize = legs.passes.iter().map(|pass| pass.to.len()).sum();
    let len = legs.all().next().map_or(0, |leg| leg.tiling.len());
    let traffic = Traffic {
        chunks: sent + passed + usize::from(legs.own.is_some()),
        staged_output: staged.then(|| request.out.memory().covered()),
        stages: staged,
        kept,
        ..Traffic::default()
    };
    let along = if request.axes[1] == Axis::Cols { ", along columns" } else { "" };
    let faults = [faults, expanded(request, legs.all().any(|leg| leg.out.is_some()))].concat();
    let windows = UsedWindows { of: [window.cloned(), None], along, spare_output: false };
    let base = Itinerary::of(request, facts, len, Work::Legs(legs));
    let algorithm = if planner.levels.is_some() { Algorithm::TwoLevel } else { base.algorithm };
    Ok(Itinerary { algorithm, windows, why, faults, traffic, ..base })
}

struct Planner<'p, 'h, 'l> {
    request: &'p Request<'h, 'l>,
    pattern: Pattern,
    link: &'l dyn Transport,
    /// The window that `direct` writes.
    window: Option<&'p WindowOf>,
    layout: Rounds,
    facts: WorldFacts,
    /// The user's settings, with those that two levels decide.
    config: Config,
    /// `None` for one level.
    levels: Option<Box<TwoLevel>>,
}

impl<'p, 'h> Planner<'p, 'h, '_> {
    fn hooks(&self) -> &'p Hooks<'h> {
        &self.request.hooks
    }

    /// Decides between one level and two, and says why.
    fn in_levels(self) -> Result<(Self, Option<String>), RunError> {
        // Refuses a root that does not exist.
        let flat = self.pattern.routes(self.link.rank(), self.facts.ranks)?;
        if !self.facts.has_far && self.config.algorithm != Some(Algorithm::TwoLevel) {
            return Ok((self, None));
        }
        let output = flat.own.or(flat.rounds.first().and_then(|round| round.receive)).map_or(Part::All, |it| it.output);
        let route = |peer| Route { side: Side::Receive, peer, input: Part::Absent, output, lands: output };
        let way = |peer: Option<Rank>, config| {
            let route = route(peer.unwrap_or(self.link.rank()));
            let len = self.positions(&route)?;
            Ok(self.message(&route, len, config).settle(self.link, &self.facts)?.0)
        };
        let Planner { pattern, link, config, .. } = self;
        let has_windows = self.window.is_some();
        match (Question { pattern, link, config, has_windows, way: &way }).answer()? {
            Levels::One(why) => Ok((self, why.map(|why| format!("one-shot: {why}")))),
            Levels::Two(two) => {
                let why = format!("two-level: {}, each chunk crosses once per other domain", two.domains.describe());
                Ok((Planner { config: two.config, window: None, levels: Some(two), ..self }, Some(why)))
            }
        }
    }

    /// The legs, checked against the transport.
    fn legs(&self) -> Result<Legs, RunError> {
        let Request { inp, out, .. } = self.request;
        let (me, ranks) = (self.link.rank(), self.facts.ranks);
        let (own, rounds, passes) = match &self.levels {
            Some(two) => {
                let routes = two_level::routes(self.pattern, &two.domains, (me, ranks), two.lanes);
                (routes.own, routes.rounds, routes.passes)
            }
            None => {
                let routes = self.pattern.routes(me, ranks)?;
                (routes.own, routes.rounds, Vec::new())
            }
        };
        if let Some(refused) = self.request.refused_algorithm() {
            return Err(refused.into());
        }
        if let Pattern::Pair { to: Some(_), from: Some(_) } = self.pattern
            && inp.memory().overlaps(out.memory())
        {
            return Err(over_the_input(inp.memory()).into());
        }
        let leg = |route: Option<Route>| route.map(|route| self.leg(route)).transpose();
        let round = |round: &Round| Ok([leg(round.send)?, leg(round.receive)?]);
        let rounds = rounds.iter().map(round).collect::<Result<Vec<_>, RunError>>()?;
        let own = leg(own)?.filter(|own| !self.in_place(own));
        let passes = passes.into_iter().map(|pass| self.pass(pass)).collect::<Result<Vec<_>, RunError>>()?;
        let legs = Legs { own, rounds, passes };
        if self.pattern.is_collective() {
            check_overlap(&legs)?;
        }
        Ok(legs)
    }

    /// True if a rank's own chunk is already where it belongs.
    fn in_place(&self, own: &Leg) -> bool {
        let same = |inp: &AnyTensor, out: &AnyTensor| inp.memory().is(out.memory()) && inp.ty() == out.ty();
        let there = own.inp.as_ref().zip(own.out.as_ref()).is_some_and(|(inp, out)| same(inp, out));
        there && self.hooks().is_copy()
    }

    /// Number of positions in the chunk that is sent.
    fn sent(&self) -> usize {
        let shape = self.hooks().output_shape.as_ref().map(|shape| shape.rows * shape.cols);
        shape.or(self.request.send_len).unwrap_or(self.request.inp.len())
    }

    /// Number of positions in the chunk that a route moves.
    fn positions(&self, route: &Route) -> Result<usize, TransferError> {
        match (self.pattern, route.side) {
            (Pattern::Pair { .. }, Side::Send) => Ok(self.sent()),
            // Only the root has an output. Before the first launch, its chunk length is compared with that of the other
            // ranks.
            (Pattern::Gather { root }, _) if root != self.link.rank() => Ok(self.sent()),
            _ => Ok(self.output(route.output)?.as_ref().map_or(0, AnyTensor::len)),
        }
    }

    /// True if a route goes from this rank to itself.
    fn is_own(&self, route: &Route) -> bool {
        route.peer == self.link.rank() && self.pattern.is_collective()
    }

    /// The message of `len` positions that travels on a route.
    fn message(&self, route: &Route, len: usize, config: Config) -> Message<'_> {
        let (hooks, peer, is_own) = (self.hooks(), route.peer, self.is_own(route));
        let ring = config.algorithm == Some(Algorithm::Ring) && !is_own;
        let rounds = if self.pattern.is_collective() { self.facts.ranks } else { 1 };
        Message {
            config,
            peer: (!is_own).then_some(peer),
            types: hooks.types,
            len,
            last_per: hooks.stored_per(self.link.is_dense()),
            shape: hooks.tiled_shape(),
            at_once: if self.layout == Rounds::Legs { 2 * rounds } else { rounds },
            only: ring.then_some((Primitive::Staged, "a ring passes on what lies in staging: use staged")),
            consumed: !hooks.stores(),
            window_bytes: self.window_of(route).map(|window| window.reached(route, self.window_range(route, len))),
        }
    }

    /// Chunks on their way through this rank's domain.
    fn pass(&self, passing: Passing) -> Result<Pass, RunError> {
        let Passing { chunks, from, to, lane } = passing;
        let chunks = chunks.into_iter().map(|chunk| self.leg(chunk)).collect::<Result<Vec<_>, RunError>>()?;
        let near = self.link.link(from.or(to.first().copied()).unwrap_or(self.link.rank()));
        let blocks = chunks.first().map_or(0, |leg| leg.tiling.blocks());
        let first_block = near.max_blocks - (lane + 1) * blocks;
        Ok(Pass { chunks, from, to, near, first_block })
    }

    fn leg(&self, route: Route) -> Result<Leg, RunError> {
        let (inp, ranks) = (&self.request.inp, self.facts.ranks);
        let (Route { side, peer, .. }, is_own) = (route, self.is_own(&route));
        let len = self.positions(&route)?;
        let pitch = self.pitch(&route);
        let message = self.message(&route, len, self.config);
        let (way, tiling) = message.settle(self.link, &self.facts).map_err(|error| match (error, self.window) {
            (RunError::Transfer(TransferError::TooLarge { protocol: Protocol::Direct { .. }, .. }), Some(window)) => {
                window.too_short(&route, self.window_range(&route, len)).into()
            }
            (error, _) => error,
        })?;
        self.check_direct(&way, side)?;
        let (inp, out) = (route.input.of("the input", inp, self.request.axes[0], ranks)?, self.output(route.output)?);
        let window = self.window.filter(|_| matches!(way.protocol, Protocol::Direct { .. }) && !is_own);
        let window = window.filter(|_| side == Side::Send).map(|window| {
            let (first, bytes) = self.window_range(&route, len);
            if first + bytes > window.bytes_of(peer) && self.pattern.is_collective() {
                return Err(window.too_short(&route, (first, bytes)));
            }
            // A transfer uses the window from its start, whatever the window's length.
            if let Some(region) = window.posted.clone().filter(|region| region.bytes(peer).is_some()) {
                let in_place = inp.as_ref().is_some_and(|inp| self.posts_in_place(peer, inp, bytes));
                return Ok(LegWindow::Posted { region, first, bytes, in_place, source: OnceCell::new() });
            }
            let bytes = if self.pattern.is_collective() { bytes } else { window.bytes_of(peer) };
            Ok(LegWindow::Mapped(window.part_of(peer, first, bytes)))
        });
        let window = window.transpose()?;
        // Copies of a role share the tiles. Without copies, fewer tiles are better.
        let tiling = if is_own && self.facts.copies == 1 { tiling.bands(way.granule) } else { tiling };
        Ok(Leg {
            peer,
            side,
            inp,
            out,
            tiling,
            protocol: way.protocol,
            link: way.link,
            pitch: pitch.filter(|_| window.is_some()),
            window,
            keeps: None,
        })
    }

    /// The window that `direct` writes on a route. None if its two ranks are far from each other, and neither map each
    /// other's windows nor reach them by posts: both see that, since ranks map each other or do not, and posts reach a
    /// window from everywhere or from nowhere.
    fn window_of(&self, route: &Route) -> Option<&'p WindowOf> {
        let is_far = route.peer.index() < self.facts.ranks && self.link.link(route.peer).kind == LinkKind::Fabric;
        // A post is one run of bytes, so it cannot write some columns of every row.
        let is_one_run = self.pitch(route).is_none();
        let is_posted = |window: &WindowOf| is_one_run && window.posted_bytes_of(route.peer).is_some();
        let window = self.window.filter(|window| window.only.is_none_or(|side| side == route.side));
        window.filter(|window| !is_far || window.is_mapped(route.peer) || is_posted(window))
    }

    /// True if a chunk travels as it lies in the input, so that posts can read it there. Loads of a bool normalise it,
    /// and posts do not. Lent memory is never registered: its owner has it back while the registration still stands.
    fn posts_in_place(&self, peer: Rank, inp: &AnyTensor, bytes: usize) -> bool {
        let hooks = self.hooks();
        let is_plain = hooks.is_copy() && hooks.input_shape.is_none() && hooks.output_shape.is_none();
        let is_same = hooks.types == [inp.ty()] && inp.ty() != Type::Bool && inp.memory().bytes() == bytes;
        is_plain && is_same && !inp.memory().is_lent() && self.link.reads_in_place(peer, inp.memory())
    }

    /// Lets the first sending leg also store the rank's own chunk, if that is faster. This applies only to a CPU, where
    /// one thread runs the legs one after another. It also applies only to plain copies, since hooks may produce a
    /// different value for every peer.
    fn keep(&self, legs: &mut Legs) -> Option<Kept> {
        let (own, leg) = (legs.own.as_ref()?, legs.rounds.first()?[0].as_ref()?);
        let (kept, sent) = (own.inp.as_ref()?.memory(), leg.inp.as_ref()?.memory());
        let copies = self.hooks().is_copy() && self.hooks().tiled_shape().is_none();
        let is_direct = matches!(leg.protocol, Protocol::Direct { .. }) && !self.facts.on_gpu();
        let how = if kept.is(sent) { Kept::Same } else { Kept::Other };
        let alike = own.tiling.len() == leg.tiling.len();
        // Separate blocks or rounds may run on separate threads, and a link that is not memory takes time to report
        // that it is ready.
        let alone = leg.tiling.blocks() == 1 && self.layout == Rounds::Roles;
        let is_memory = self.link.link(leg.peer).kind == LinkKind::Shm;
        let pays = self.request.keeps || how.pays(sent.covered());
        if !(copies && is_direct && is_memory && alike && alone && pays) {
            return None;
        }
        let own = legs.own.take();
        if let [Some(leg), _] = &mut legs.rounds[0] {
            leg.keeps = own.map(Box::new);
        }
        Some(how)
    }

    /// The faults of this call: lengths that do not match each other.
    fn faults(&self, legs: &Legs) -> Vec<(SourceLine, MisuseKind)> {
        let (hooks, mut faults) = (self.hooks(), Vec::new());
        let mut check = |what, is, must| {
            if is != must {
                faults.push((hooks.at.clone(), MisuseKind::Length { what, is, must }));
            }
        };
        let what = if self.pattern.is_collective() {
            "the input's chunk for one rank (without a produce hook input and output are equally long: one of the two is wrong)"
        } else {
            "the input of a send without produce hook"
        };
        for leg in legs.all().filter(|leg| leg.side == Side::Send && hooks.copies) {
            check(what, leg.inp.as_ref().map_or(0, AnyTensor::len), leg.tiling.len());
        }
        let first = legs.all().next().filter(|_| self.pattern.is_collective());
        let must = first.map_or_else(|| self.sent(), |leg| leg.tiling.len());
        check("send_len beside a shape or an output", self.request.send_len.unwrap_or(must), must);
        faults
    }

    /// This part of the output.
    fn output(&self, part: Part) -> Result<Option<AnyTensor>, TransferError> {
        part.of("the output", &self.request.out, self.request.axes[1], self.facts.ranks)
    }

    /// Distance between the rows of a chunk in the receiver's output, in bytes, if there are gaps between them. All
    /// ranks have outputs of the same rows and columns.
    fn pitch(&self, route: &Route) -> Option<usize> {
        let (grid, axis) = (self.request.out.grid(), self.request.axes[1]);
        let in_columns = matches!(route.lands, Part::Chunk(_)) && grid.rows > 1 && axis == Axis::Cols;
        (in_columns && self.facts.ranks > 1).then(|| grid.cols * self.hooks().types[0].size())
    }

    /// The first byte, and the number of bytes up to the last one, that a route writes in the receiver's window.
    fn window_range(&self, route: &Route, len: usize) -> (usize, usize) {
        let bytes = len * self.hooks().types[0].size();
        match (route.lands, self.pitch(route)) {
            (Part::Chunk(k), Some(pitch)) => {
                let (width, rows) = (pitch / self.facts.ranks, self.request.out.grid().rows);
                (k * width, (rows - 1) * pitch + width)
            }
            (Part::Chunk(k), None) => (k * bytes, bytes),
            _ => (0, bytes),
        }
    }

    /// Refuses payloads and outputs that `direct` cannot handle with this window.
    fn check_direct(&self, way: &Way, side: Side) -> Result<(), TransferError> {
        let (protocol @ Protocol::Direct { .. }, Some(window)) = (way.protocol, self.window) else {
            return Ok(());
        };
        let unable = |why| Err(TransferError::Unable { protocol, why });
        if self.hooks().types != [window.ty] {
            return unable("it stores one value of the window's type: use staged or packet for others");
        }
        if matches!(self.pattern, Pattern::Gather { .. }) && self.request.axes[1] == Axis::Cols {
            return unable("only the root knows the rows of its output: gather along rows, or use staged");
        }
        if side == Side::Receive && !window.own.is(self.request.out.memory()) {
            return unable("the output is not this rank's part of the window: give window.tensor() as output");
        }
        Ok(())
    }
}

impl WindowOf {
    fn too_short(&self, route: &Route, (first, bytes): (usize, usize)) -> TransferError {
        let (rank, has) = match route.side {
            Side::Send => (route.peer, self.bytes_of(route.peer)),
            Side::Receive => {
                let own = self.peers.iter().position(|window| window.as_ref().is_some_and(|it| it.is(&self.own)));
                (own.map_or(route.peer, |own| Rank::new(own as u32)), self.own.bytes())
            }
        };
        TransferError::WindowTooShort { rank, bytes: has, needed: first + bytes }
    }

    /// Number of bytes that may be written, counted from where the route lands in the window.
    fn reached(&self, route: &Route, (first, _): (usize, usize)) -> usize {
        let all = match route.side {
            Side::Send => self.bytes_of(route.peer),
            Side::Receive => self.own.bytes(),
        };
        all.saturating_sub(first)
    }
}

/// Memory that is read must not be written, neither by arriving data nor by the rank's own chunk.
fn check_overlap(legs: &Legs) -> Result<(), TransferError> {
    let own = legs.own.iter();
    let sends = legs.rounds.iter().filter_map(|[send, _]| send.as_ref());
    let passed = legs.passes.iter().flat_map(|pass| &pass.chunks);
    let receives = legs.rounds.iter().filter_map(|[_, receive]| receive.as_ref()).chain(passed);
    let read: Vec<&Memory> =
        sends.chain(own.clone()).filter_map(|leg| leg.inp.as_ref().map(AnyTensor::memory)).collect();
    for out in receives.chain(own).filter_map(|leg| leg.out.as_ref()) {
        if let Some(memory) = read.iter().find(|memory| memory.overlaps(out.memory())) {
            return Err(over_the_input(memory));
        }
    }
    Ok(())
}

/// The fault of an output whose rows are all the same elements, if the kernel writes it.
pub(super) fn expanded(request: &Request<'_, '_>, is_written: bool) -> Vec<(SourceLine, MisuseKind)> {
    let grid = request.out.grid();
    let fault = (request.hooks.at.clone(), MisuseKind::Expanded { rows: grid.rows });
    if is_written && grid.is_expanded() { vec![fault] } else { Vec::new() }
}

/// The error for an output that overlaps this part of the input.
pub(super) fn over_the_input(memory: &Memory) -> TransferError {
    TransferError::Overlap { what: "the input".to_string(), bytes: memory.bytes() }
}
