//! Compares the options of all ranks of a job before anything else. Ranks with different options would wait in calls
//! that never meet, until the deadline, or would take each other's data for wrong.

use anyhow::Result;
use std::io::{Write, stderr};
use std::process::ExitCode;
use tilewire::transport::{BootstrapError, World};

/// An option of the command line that must be the same on all ranks.
pub struct Word {
    option: &'static str,
    /// `None` if it was left out, which is significant.
    value: Option<String>,
    /// The text that is compared.
    kind: Option<String>,
}

impl Word {
    /// An option with its value, or its default if it is left out.
    pub fn new(option: &'static str, value: impl ToString) -> Word {
        Word::given(option, Some(value))
    }

    /// An option that may be left out.
    pub fn given(option: &'static str, value: Option<impl ToString>) -> Word {
        let value = value.map(|value| value.to_string());
        Word { option, kind: value.clone(), value }
    }

    /// Values of one kind may differ.
    pub fn of_kind(self, kind: impl ToString) -> Word {
        Word { kind: Some(kind.to_string()), ..self }
    }

    fn to_line(&self) -> String {
        let Word { option, value, kind } = self;
        let said = value.as_ref().map_or_else(|| format!("no {option}"), |value| format!("{option} {value}"));
        format!("{option}={}\t{said}", kind.as_deref().unwrap_or_default())
    }
}

/// The command line of this rank: the command, then its options.
struct Card(Vec<String>);

impl Card {
    fn own(words: &[&Word]) -> Card {
        let command = std::env::args_os().nth(1).unwrap_or_default().to_string_lossy().into_owned();
        Card(std::iter::once(command).chain(words.iter().map(|word| word.to_line())).collect())
    }

    fn to_bytes(&self) -> Vec<u8> {
        self.0.join("\n").into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Card {
        Card(String::from_utf8_lossy(bytes).lines().map(String::from).collect())
    }

    /// Empty if a rank has sent nothing.
    fn command(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().skip(1).map(String::as_str)
    }

    /// The first difference between two ranks, in the words of each.
    fn differ<'c>(&'c self, other: &'c Card) -> Option<[String; 2]> {
        let (own, others) = (self.command(), other.command());
        if own != others {
            return Some([own, others].map(|command| format!("runs `tilewire {command}`")));
        }
        fn parts(line: &str) -> (&str, &str) {
            line.split_once('\t').unwrap_or((line, line))
        }
        let pairs = self.words().zip(other.words()).map(|(own, others)| (parts(own), parts(others)));
        let mut differing = pairs.filter(|(own, others)| own.0 != others.0);
        differing.next().map(|(own, others)| [own.1, others.1].map(|said| format!("was started with `{said}`")))
    }
}

/// Reports if the ranks were started with different commands or options. Collective.
pub fn different(world: &World, words: &[&Word]) -> Result<Option<String>, BootstrapError> {
    let all = world.bootstrap().all_gather("cli/command", &Card::own(words).to_bytes(), world.deadline())?;
    let cards: Vec<Card> = all.iter().map(|bytes| Card::from_bytes(bytes)).collect();
    let found = cards.iter().enumerate().find_map(|(rank, card)| Some((rank, cards[0].differ(card)?)));
    Ok(found.map(|(rank, [first, other])| {
        format!("rank 0 {first}, and rank {rank} {other}: start the same command on all ranks")
    }))
}

/// Refuses a job whose ranks differ. Rank 0 reports how, and the others end quietly, since the launcher ends them when
/// rank 0 fails.
pub fn refuse_different(world: &World, words: &[&Word]) -> Result<Option<ExitCode>> {
    let Some(different) = different(world, words)? else { return Ok(None) };
    if world.rank().index() != 0 {
        return Ok(Some(ExitCode::SUCCESS));
    }
    _ = writeln!(stderr(), "tilewire: {different}");
    Ok(Some(ExitCode::from(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(words: &[&Word]) -> Card {
        Card(Card::from_bytes(&Card::own(words).to_bytes()).0)
    }

    #[test]
    fn the_first_word_that_differs_is_named_with_both_values() {
        let of = |seed: Option<u64>, way: &str| {
            let protocol = Word::new("--protocol", way).of_kind(way == "direct");
            card(&[&Word::new("--launches", 5), &Word::given("--seed", seed), &protocol])
        };
        let none: Option<[String; 2]> = None;
        assert_eq!(of(Some(3), "auto").differ(&of(Some(3), "packet")), none, "of one kind");
        let said = |seed: &str| format!("was started with `{seed}`");
        assert_eq!(of(Some(3), "auto").differ(&of(None, "auto")), Some(["--seed 3", "no --seed"].map(said)));
        let protocols = ["--protocol auto", "--protocol direct"].map(said);
        assert_eq!(of(None, "auto").differ(&of(None, "direct")), Some(protocols));
    }
}
