//! Checks that the fields of a hook's context that identify a value match their definition, in every algorithm and
//! protocol.

use super::collectives::Asked;
use crate::run;
use tilewire::collective::Rounds;
use tilewire::link::{AnyTransport, Tensors, Window};
use tilewire::transport::{RankError, World};
use tilewire::{Algorithm, Primitive};
use tilewire_testkit::fields::{self, Collective, Form};

/// Number of forms on a device, where each is a kernel to assemble on every rank.
const DEVICE_SAMPLE: usize = 40;

/// Runs hooks that record their fields, in every requested collective. All ranks call it.
pub fn fields(world: &World, link: &AnyTransport, asked: Asked<'_>) -> Result<(), RankError> {
    for (k, form) in forms(world.size(), asked).iter().enumerate() {
        compare(world, link, form)?;
        // A rank that takes no part in a form must not launch the next one while others still load theirs: on a shared
        // GPU a waiting kernel blocks their loads.
        world.bootstrap().barrier(&format!("verify/fields/{k}"), world.deadline())?;
    }
    Ok(())
}

/// The forms for a world of `ranks` ranks. All ranks get the same list.
fn forms(ranks: usize, asked: Asked<'_>) -> Vec<Form> {
    let layouts = [(None, None), (Some(2), Some(Rounds::Blocks)), (Some(1), Some(Rounds::Legs))];
    let fits = |form: &Form| {
        let pair = matches!(form.collective, Collective::Send | Collective::Sendrecv);
        // Packets hold a message as a whole.
        let small = form.primitive != Some(Primitive::Packet) || form.len < Form::LONGEST;
        // A one-shot all-reduce goes in packets, which far peers do not take.
        let in_packets = (form.collective, form.algorithm) == (Collective::AllReduce, Some(Algorithm::OneShot));
        let taken = !(in_packets && asked.has_far(ranks));
        (ranks > 1 || !pair) && small && taken && is_asked(form.collective, asked.only)
    };
    let lay = |(k, form): (usize, Form)| match form.primitive {
        None => form,
        Some(_) => Form { blocks: layouts[k % 3].0, rounds: layouts[k % 3].1, ..form },
    };
    let all: Vec<Form> = fields::all(&[None], &[None]).into_iter().filter(fits).enumerate().map(lay).collect();
    let every = if asked.device.is_some() { all.len().div_ceil(DEVICE_SAMPLE).max(1) } else { 1 };
    all.into_iter().skip(asked.seed as usize % every).step_by(every).collect()
}

/// True if a collective is among the named ones; always true if none is named.
fn is_asked(collective: Collective, only: &[run::Collective]) -> bool {
    let named = match collective {
        Collective::Send | Collective::Sendrecv => run::Collective::Sendrecv,
        Collective::AllToAll => run::Collective::AllToAll,
        Collective::AllGather => run::Collective::AllGather,
        Collective::Broadcast => run::Collective::Broadcast,
        Collective::Gather => run::Collective::Gather,
        Collective::Scatter => run::Collective::Scatter,
        Collective::ReduceScatter => run::Collective::ReduceScatter,
        Collective::AllReduce => run::Collective::AllReduce,
    };
    only.is_empty() || only.contains(&named)
}

fn compare(world: &World, link: &AnyTransport, form: &Form) -> Result<(), RankError> {
    let (me, ranks) = (world.rank().index(), world.size());
    let (sent, received) = form.collective.chunks(me, ranks);
    let direct = form.primitive == Some(Primitive::Direct);
    // A reduction reads its peers' inputs, everything else writes its peers' outputs. All ranks have equal windows.
    let reads = direct && form.collective.reduces();
    let chunks = if reads { sent } else { form.collective.chunks(ranks - 1, ranks).1 };
    let window = direct.then(|| Window::<i64>::allocate(link, chunks * form.len)).transpose()?;
    let tensor = |in_window: bool, chunks: usize| match &window {
        Some(window) if in_window => Ok(window.tensor().clone()),
        _ => link.zeros::<i64>(chunks * form.len),
    };
    let (inp, out) = (tensor(reads, sent)?, tensor(!reads, received)?);
    form.part(link, (&out, &inp), window.as_ref(), true).map_err(|error| format!("{form}: {error}"))?;
    match form.fault(me, ranks, &out.try_to_vec()?) {
        Some(fault) => Err(format!("fields of a hook: {fault}").into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_collective_has_forms_and_those_that_are_named_have_no_others() {
        let asked = Asked::QUICK;
        let all = forms(3, asked);
        assert!(Collective::ALL.iter().all(|collective| all.iter().any(|form| form.collective == *collective)));
        let only = [run::Collective::AllReduce];
        let some = forms(3, Asked { only: &only, ..asked });
        assert!(!some.is_empty() && some.iter().all(|form| form.collective == Collective::AllReduce));
    }
}
