//! Inputs for a fuzz target on machines without a fuzzer: known inputs and mutations of them. They are the same in
//! every run.

use crate::random::Random;

/// Calls a target with the seeds and with mutations of them: `cases` calls, or as many as `TILEWIRE_CASES` says.
/// Returns the number of calls. Prints an input that makes the target panic.
pub fn mutations(seeds: &[Vec<u8>], cases: usize, mut target: impl FnMut(&[u8])) -> usize {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let cases = number("TILEWIRE_CASES").map_or(cases, |cases| cases as usize);
    let mut random = Random::new(number("TILEWIRE_SEED").unwrap_or(2026));
    for case in 0..cases {
        let mut data = seeds.get(case).cloned().unwrap_or_else(|| {
            let mut data = seeds[random.below(seeds.len())].clone();
            (0..1 + random.below(4)).for_each(|_| mutate(&mut data, seeds, &mut random));
            data
        });
        data.truncate(1 << 16);
        let shown = Shown(&data);
        target(&data);
        std::mem::forget(shown);
    }
    cases
}

fn mutate(data: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(data.len() + 1);
    let edge = [0, 1, 0x7f, 0x80, 0xff, random.next() as u8][random.below(6)];
    match random.below(7) {
        0 => data.insert(at, edge),
        1 if at < data.len() => _ = data.remove(at),
        2 => data.truncate(at),
        3 => data.extend_from_slice(&seeds[random.below(seeds.len())]),
        4 => data.extend_from_slice(&random.next().to_le_bytes()),
        5 if at < data.len() => data[at] ^= 1 << random.below(8),
        _ if at < data.len() => data[at] = edge,
        _ => data.push(edge),
    }
}

/// Prints an input if the target panics.
struct Shown<'d>(&'d [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        let hex: Vec<String> = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("the input was {}", hex.join(" "));
    }
}
