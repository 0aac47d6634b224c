//! Our own sides over a network.

use super::Kind;
use super::pairs::Entrant;
use crate::bench::ranks::collectives::work::{Data, ELEMENT, ROOT, Step, Steps, Work};
use crate::bench::ranks::links::Links;
use crate::bench::ranks::sendrecv::messages::{Pattern, Payload};
use crate::bench::ranks::sendrecv::ours::Race;
use crate::bench::ranks::side::{Aim, Limit, Part, Side};
use crate::bench::ranks::words::Words;
use anyhow::{Result, ensure};
use tilewire::collective::PreparedExchange;
use tilewire::link::{Transport, Window};
use tilewire::tensor::Element;
use tilewire::{Primitive, Tensor, all_reduce, all_to_all};

/// Transfers between two ranks. Collective.
pub fn messages<'l>(links: &'l Links, kind: Kind, bytes: usize) -> Result<Vec<(Entrant, Side<'l>)>> {
    let (link, len) = (links.ours(), bytes.div_ceil(8).max(1));
    let private = Payload { source: Tensor::zeros(len), target: Tensor::zeros(len) };
    let window = Window::<u64>::allocate(link, len)?;
    let race = |name, primitive| Race { name, primitive, against: Limit::Plain, aim: Aim::None, deadline: true };
    let (pattern, races) = match kind {
        Kind::PingPong => (Pattern::PingPong, vec![race("default", None)]),
        _ => {
            ensure_posted(&window)?;
            let races = [("direct", Primitive::Direct), ("staged", Primitive::Staged)];
            (Pattern::Stream, races.map(|(name, primitive)| race(name, Some(primitive))).into())
        }
    };
    let side = |race: Race| Ok((Entrant::Ours(race.name), race.over(link, pattern, &private, &window)?));
    races.into_iter().map(side).collect()
}

/// A collective by default, and into windows if it only moves. Collective.
pub fn collective<'l>(links: &'l Links, work: Work, bytes: usize) -> Result<Vec<(Entrant, Side<'l>)>> {
    let (link, ranks, chunk) = (links.ours(), links.shm.world_size(), (bytes / ELEMENT).max(1));
    let (inputs, outputs) = work.chunks(ROOT, ranks);
    let (inp, out) = (Tensor::<f32>::zeros(inputs * chunk), Tensor::<f32>::zeros(outputs * chunk));
    let window = Window::<f32>::allocate(link, outputs * chunk)?;
    // Only collectives with a root use them, which are not measured here.
    let words = Words::allocate(&links.shm)?;
    let side = |name: &'static str, out: &Tensor<f32>, launch: PreparedExchange<'l>| {
        let data = Data::new(work, &links.shm, chunk, &inp, out);
        let part = Part::Racer { against: Limit::Plain, aim: Aim::None, protocol: name };
        let run = Box::new(Steps::new(Launch(launch), data, &words));
        (Entrant::Ours(name), Side { name: name.into(), part, run })
    };
    if work == Work::AllReduce {
        return Ok(vec![side("default", &out, all_reduce(link, &out, &inp).build()?)]);
    }
    ensure_posted(&window)?;
    let into = window.tensor();
    let direct = all_to_all(link, into, &inp).primitive(Primitive::Direct).window(&window).build()?;
    let staged = all_to_all(link, &out, &inp).build()?;
    Ok(vec![side("default", &out, staged), side("direct", into, direct)])
}

/// Fails if posts do not write this window. `direct` would be staged, and its figures would be those of `staged`.
fn ensure_posted<T: Element>(window: &Window<T>) -> Result<()> {
    ensure!(window.posted().is_some(), "the network does not post to windows, so direct cannot be measured");
    Ok(())
}

struct Launch<'l>(PreparedExchange<'l>);

impl Step for Launch<'_> {
    fn step(&mut self, _number: u64) -> Result<()> {
        Ok(self.0.run()?)
    }
}
