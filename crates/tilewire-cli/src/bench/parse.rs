//! The words after `tilewire bench`.

use super::ranks::{COLLECTIVES, CollectivePlan, Kind, PairPlan, check_pair_key};
use super::{Bench, Size, Subject, gpu, kernels};
use crate::args::Words;
use crate::verify::Engine;

/// The largest size `bench kernels` takes: its buffers are up to five times as large, and indices are 32 bits wide.
const LARGEST: Size = Size(4 << 30);
/// The largest message of ranks: there are some twelve of them, and six more for every MPI.
const LARGEST_MESSAGE: Size = Size(512 << 20);
/// The most ranks that share this machine's cores.
const MOST_RANKS: usize = 16;

/// Reads what to measure, and where reports go.
pub fn parse(mut words: Words) -> Result<Bench, String> {
    let subject = words.next();
    let collective =
        COLLECTIVES.into_iter().find(|name| subject.as_ref().is_some_and(|word| word.replace('-', "_") == *name));
    match (subject.as_deref(), collective) {
        (Some("kernels"), _) => kernels(words),
        (Some("sendrecv"), _) => sendrecv(words),
        (Some("all"), _) => all(words),
        (_, Some(name)) => collectives(words, name),
        (Some(word), _) => {
            let all = COLLECTIVES.join(", ");
            Err(format!("bench: unknown subject '{word}'; there are: kernels, sendrecv, {all}, all"))
        }
        (None, _) => Err("bench: say what to measure: kernels, sendrecv, a collective, or all".into()),
    }
}

/// Where reports go.
#[derive(Default)]
struct Outputs {
    json: Option<String>,
    plot: Option<String>,
}

impl Outputs {
    fn of(self, subject: Subject) -> Bench {
        Bench { subject, json: self.json, plot: self.plot }
    }

    /// Takes a word that is about them; what is not is an error.
    fn take(&mut self, word: &str, words: &mut Words, plots: bool) -> Result<(), String> {
        match word {
            "--json" => self.json = Some(words.value("--json")?),
            "--plot" if plots => self.plot = Some(words.value("--plot")?),
            _ => return Err(format!("bench: unknown word '{word}'")),
        }
        Ok(())
    }
}

fn kernels(mut words: Words) -> Result<Bench, String> {
    let (mut sizes, mut cases, mut quick, mut outputs) = (None, Vec::new(), false, Outputs::default());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--sizes" => sizes = Some(sizes_of(&words.value("--sizes")?, LARGEST)?),
            "--cases" => cases = cases_of(&words.value("--cases")?, kernels::check_key)?,
            "--quick" => quick = true,
            word => outputs.take(word, &mut words, false)?,
        }
    }
    Ok(outputs.of(Subject::Kernels { sizes, cases, quick }))
}

fn all(mut words: Words) -> Result<Bench, String> {
    let (mut quick, mut outputs) = (false, Outputs::default());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => quick = true,
            word => outputs.take(word, &mut words, true)?,
        }
    }
    Ok(outputs.of(Subject::All { quick }))
}

fn collectives(words: Words, name: &'static str) -> Result<Bench, String> {
    let (mut words, on_gpu) = on_gpu(words);
    if on_gpu {
        gpu::check_key(name).map_err(|why| format!("bench: {name} is not measured on a GPU: {why}"))?;
        return on_a_gpu(words, vec![name.to_string()]);
    }
    let (mut plan, mut outputs) = (CollectivePlan::of(&[name]), Outputs::default());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--ranks" => {
                let text = words.value("--ranks")?;
                let ranks = text.parse().ok().filter(|ranks| (2..=MOST_RANKS).contains(ranks));
                plan.ranks =
                    ranks.ok_or_else(|| format!("bench: '{text}' is no number of ranks from 2 to {MOST_RANKS}"))?;
            }
            "--engine" => _ = Engine::parse(&words.value("--engine")?).map_err(|why| format!("bench: {why}"))?,
            "--sizes" => plan.sizes = Some(sizes_of(&words.value("--sizes")?, LARGEST_MESSAGE)?),
            "--quick" => plan.quick = true,
            word => outputs.take(word, &mut words, true)?,
        }
    }
    Ok(outputs.of(Subject::Collectives(plan)))
}

fn sendrecv(words: Words) -> Result<Bench, String> {
    let (mut words, on_gpu) = on_gpu(words);
    if on_gpu {
        return on_a_gpu(words, Vec::new());
    }
    let (mut plan, mut outputs) = (PairPlan::default(), Outputs::default());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--engine" => _ = Engine::parse(&words.value("--engine")?).map_err(|why| format!("bench: {why}"))?,
            "--sizes" => plan.sizes = Some(sizes_of(&words.value("--sizes")?, LARGEST_MESSAGE)?),
            "--cases" => plan.cases = cases_of(&words.value("--cases")?, check_pair_key)?,
            "--world" => plan.world = Some(Kind::parse(&words.value("--world")?)?),
            "--quick" => plan.quick = true,
            word => outputs.take(word, &mut words, true)?,
        }
    }
    Ok(outputs.of(Subject::Sendrecv(plan)))
}

/// Whether the words ask for a GPU.
fn on_gpu(words: Words) -> (Words, bool) {
    let all: Vec<String> = words.rest();
    let on_gpu =
        all.windows(2).any(|pair| pair == ["--engine", "cuda"]) || all.iter().any(|word| word == "--engine=cuda");
    (Words::of(all), on_gpu)
}

fn on_a_gpu(mut words: Words, cases: Vec<String>) -> Result<Bench, String> {
    let (mut plan, mut outputs) = (gpu::Plan { cases, ..gpu::Plan::default() }, Outputs::default());
    let number = |text: &str| text.trim().parse().map_err(|_| format!("bench: '{text}' is no number"));
    while let Some(word) = words.next() {
        match word.as_str() {
            "--engine" => _ = words.value("--engine")?,
            "--sizes" => plan.sizes = Some(sizes_of(&words.value("--sizes")?, LARGEST_MESSAGE)?),
            "--cases" => plan.cases = cases_of(&words.value("--cases")?, gpu::check_key)?,
            "--blocks" => {
                plan.blocks = Some(words.value("--blocks")?.split(',').map(number).collect::<Result<_, _>>()?);
            }
            "--slot" => plan.config.slot_bytes = Some(Size::parse(&words.value("--slot")?)?.0),
            "--warps" => plan.config.warps = Some(number(&words.value("--warps")?)? as u32),
            "--quick" => plan.quick = true,
            word => outputs.take(word, &mut words, true)?,
        }
    }
    Ok(outputs.of(Subject::Gpu(plan)))
}

fn sizes_of(list: &str, largest: Size) -> Result<Vec<Size>, String> {
    let sizes = Size::parse_list(list)?;
    match sizes.iter().find(|&&size| size == Size(0) || size > largest) {
        Some(size) => Err(format!("bench: a size of {size} is not between 1B and {largest}")),
        None => Ok(sizes),
    }
}

fn cases_of(list: &str, check_key: fn(&str) -> Result<(), String>) -> Result<Vec<String>, String> {
    list.split(',').map(|key| check_key(key.trim()).map(|()| key.trim().to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Bench, String> {
        super::parse(Words::of(line.split_whitespace().map(String::from).collect()))
    }

    fn bench(subject: Subject) -> Bench {
        Bench { subject, json: None, plot: None }
    }

    #[test]
    fn subjects_and_options_are_read() {
        let kernels = |sizes, cases| Subject::Kernels { sizes, cases, quick: false };
        assert_eq!(parse("kernels"), Ok(bench(kernels(None, vec![]))));
        let cases = vec!["copy".to_string(), "one".to_string()];
        assert_eq!(parse("kernels --cases copy,one"), Ok(bench(kernels(None, cases))));
        let sizes = Some(vec![Size(64 << 10), Size(1 << 20)]);
        let full = Ok(Bench { json: Some("out.json".into()), ..bench(kernels(sizes, vec![])) });
        assert_eq!(parse("kernels --sizes 64KiB,1MiB --json out.json"), full);
        assert_eq!(parse("kernels --json=out.json --sizes=64KiB,1MiB"), full);
        let plan =
            CollectivePlan { ranks: 4, sizes: Some(vec![Size(8)]), quick: true, ..CollectivePlan::of(&["all_reduce"]) };
        let collective = Bench { plot: Some("x.svg".into()), ..bench(Subject::Collectives(plan)) };
        assert_eq!(parse("all_reduce --ranks 4 --sizes 8B --quick --plot x.svg"), Ok(collective));
        assert_eq!(parse("all-gather --quick"), parse("all_gather --quick"));
        assert_eq!(parse("all --quick"), Ok(bench(Subject::All { quick: true })));
        assert_eq!(parse("sendrecv --plot=x.svg").map(|bench| bench.plot), Ok(Some("x.svg".into())));
        for name in ["all_to_all", "all_reduce"] {
            let plan = gpu::Plan { cases: vec![name.to_string()], quick: true, ..gpu::Plan::default() };
            let on_gpu = Bench { plot: Some("x.svg".into()), ..bench(Subject::Gpu(plan)) };
            assert_eq!(parse(&format!("{name} --engine cuda --quick --plot x.svg")), Ok(on_gpu));
        }
        let on_gpu = Bench { plot: Some("x.svg".into()), ..bench(Subject::Gpu(gpu::Plan::default())) };
        assert_eq!(parse("sendrecv --plot=x.svg --engine=cuda"), Ok(on_gpu));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (line, reason) in [
            ("", "say what to measure"),
            ("everything", "unknown subject 'everything'"),
            ("kernels fast", "unknown word 'fast'"),
            ("kernels --plot x.svg", "unknown word '--plot'"),
            ("kernels --sizes", "--sizes needs a value"),
            ("kernels --cases copy,fly", "there is no case 'fly'"),
            ("kernels --sizes 64KB", "'KB' is no unit"),
            ("kernels --sizes 0", "not between"),
            ("kernels --sizes 5GiB", "not between"),
            ("sendrecv --cases copy", "there is no case 'copy'"),
            ("sendrecv --sizes 1GiB", "not between"),
            ("sendrecv --world moon", "'moon' is no world"),
            ("sendrecv fast", "unknown word 'fast'"),
            ("all_reduce --ranks 1", "'1' is no number of ranks from 2 to 16"),
            ("all_gather --world threads", "unknown word '--world'"),
            ("all_gather --engine cuda", "all_gather is not measured on a GPU"),
            ("all --sizes 8", "unknown word '--sizes'"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
