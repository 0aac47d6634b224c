//! Findings about waiting ranks: their wording, and the text form sent to all ranks.

use super::super::abort::AbortCode;
use std::fmt;

/// A waiting rank in a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The rank.
    pub rank: usize,
    /// The ranks it waits for; empty if it waits for all others.
    pub peers: Vec<usize>,
    /// What it is doing: the operation and its source line.
    pub doing: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { rank, peers, doing } = self;
        write!(f, "rank {rank} waits for ")?;
        match &peers[..] {
            [] => f.write_str("all others")?,
            [peer] => write!(f, "rank {peer}")?,
            peers => {
                let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
                write!(f, "ranks {}", peers.join(", "))?;
            }
        }
        write!(f, " in {doing}")
    }
}

/// What was found. No launch on this transport can continue after it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// These ranks wait for each other.
    Deadlock(Vec<Waiting>),
    /// Two ranks launched different operations where the same one was expected.
    OtherOperation {
        /// The rank that found out, and its operation.
        here: (usize, String),
        /// The other rank, and its operation.
        there: (usize, String),
    },
    /// Two ranks disagree about one operation.
    Mismatch(Box<Difference>),
    /// A rank's kernel required something that does not hold.
    Required(Box<Unmet>),
}

/// A requirement of a kernel that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// The rank whose kernel found it.
    pub rank: usize,
    /// The rank, the offset, the number of bytes and the size that it is about, if it is about bytes.
    pub span: Option<[i64; 4]>,
    /// Its source line.
    pub at: String,
    /// The launch, with its source line.
    pub launch: String,
}

/// A disagreement between two ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// What they disagree about.
    pub what: String,
    /// The rank that found out: its value, and its operation.
    pub here: (usize, [String; 2]),
    /// The other rank: its value, and its operation.
    pub there: (usize, [String; 2]),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Deadlock(waiting) => deadlock(f, waiting),
            Verdict::OtherOperation { here: (rank, here), there: (peer, there) } => {
                other_operation(f, (rank, here), (peer, there))
            }
            Verdict::Mismatch(difference) => {
                let Difference { what, here: (rank, [mine, here]), there: (peer, [theirs, there]) } = &**difference;
                mismatch(f, what, (rank, mine, here), (peer, theirs, there))
            }
            Verdict::Required(unmet) => {
                let Unmet { rank, span, at, launch } = &**unmet;
                required(f, rank, *span, (at, launch))
            }
        }
    }
}

/// Writes the message for a requirement that does not hold.
pub(crate) fn required(
    f: &mut fmt::Formatter<'_>,
    rank: &dyn fmt::Display,
    span: Option<[i64; 4]>,
    (at, launch): (&str, &str),
) -> fmt::Result {
    write!(f, "rank {rank} ended {launch}: ")?;
    match span {
        Some([of, offset, bytes, size]) => {
            write!(f, "{bytes} bytes at offset {offset} do not lie inside the {size} bytes of rank {of}")?;
        }
        None => f.write_str("a requirement of its kernel does not hold")?,
    }
    write!(f, ", at {at}; nothing was written there; only a new rendezvous of all ranks recovers")
}

/// Writes the message for two ranks that disagree about one operation.
pub(crate) fn mismatch(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    (rank, mine, here): (&dyn fmt::Display, &str, &str),
    (peer, theirs, there): (&dyn fmt::Display, &str, &str),
) -> fmt::Result {
    write!(
        f,
        "the ranks differ in {what}: rank {rank} says {mine} in {here}, rank {peer} says {theirs} in {there}; make the same calls in the \
         same order on both"
    )
}

/// Writes the message for two different operations where the same one was expected.
pub(crate) fn other_operation(
    f: &mut fmt::Formatter<'_>,
    (rank, here): (&dyn fmt::Display, &str),
    (peer, there): (&dyn fmt::Display, &str),
) -> fmt::Result {
    write!(
        f,
        "rank {rank} launched {here}, and rank {peer} launched {there} in its place; launch the same operations in the same order on \
         both ranks; only a new rendezvous of all ranks recovers"
    )
}

/// Writes the message for a deadlock.
pub(crate) fn deadlock(f: &mut fmt::Formatter<'_>, waiting: &[Waiting]) -> fmt::Result {
    write!(f, "the ranks wait for each other:")?;
    waiting.iter().try_for_each(|waiting| write!(f, "\n  {waiting}"))?;
    write!(
        f,
        "\nmake the same calls in the same order on all ranks; if both ranks run a send and a recv, build both before running the \
         first, or use sendrecv; only a new rendezvous of all ranks recovers"
    )
}

impl Verdict {
    pub(in crate::transport) fn to_text(&self) -> String {
        let list = |waiting: &Waiting| {
            let peers: Vec<String> = waiting.peers.iter().map(ToString::to_string).collect();
            format!("{}\t{}\t{}", waiting.rank, peers.join(","), one_line(&waiting.doing))
        };
        match self {
            Verdict::Deadlock(all) => {
                let lines: Vec<String> = all.iter().map(list).collect();
                format!("deadlock\n{}", lines.join("\n"))
            }
            Verdict::OtherOperation { here, there } => {
                let [this, other] = [&here.1, &there.1].map(|text| one_line(text));
                format!("operation\n{}\t\t{this}\n{}\t\t{other}", here.0, there.0)
            }
            Verdict::Mismatch(difference) => {
                let Difference { what, here: (rank, mine), there: (peer, theirs) } = &**difference;
                let [mine, here, theirs, there] =
                    [&mine[0], &mine[1], &theirs[0], &theirs[1]].map(|text| one_line(text));
                format!("mismatch\t{}\n{rank}\t{mine}\t{here}\n{peer}\t{theirs}\t{there}", one_line(what))
            }
            Verdict::Required(unmet) => {
                let Unmet { rank, span, at, launch } = &**unmet;
                let numbers: Vec<String> = span.iter().flatten().map(ToString::to_string).collect();
                format!("required\n{rank}\t{}\t{}\t{}", numbers.join(","), one_line(at), one_line(launch))
            }
        }
    }

    pub(in crate::transport) fn from_text(text: &str) -> Option<Verdict> {
        let mut lines = text.lines();
        let kind = lines.next()?;
        if let Some(what) = kind.strip_prefix("mismatch\t") {
            let mut end = || {
                let mut parts = lines.next()?.splitn(3, '\t');
                Some((parts.next()?.parse().ok()?, [parts.next()?.to_string(), parts.next()?.to_string()]))
            };
            let difference = Difference { what: what.to_string(), here: end()?, there: end()? };
            return Some(Verdict::Mismatch(Box::new(difference)));
        }
        if kind == "required" {
            let mut parts = lines.next()?.splitn(4, '\t');
            let rank = parts.next()?.parse().ok()?;
            let numbers: Vec<i64> = parts.next()?.split(',').filter_map(|number| number.parse().ok()).collect();
            let (at, launch) = (parts.next()?.to_string(), parts.next()?.to_string());
            return Some(Verdict::Required(Box::new(Unmet { rank, span: numbers.try_into().ok(), at, launch })));
        }
        let mut waiting = lines.filter_map(|line| {
            let mut parts = line.splitn(3, '\t');
            let rank = parts.next()?.parse().ok()?;
            let peers = parts.next()?.split(',').filter_map(|peer| peer.parse().ok()).collect();
            Some(Waiting { rank, peers, doing: parts.next()?.to_string() })
        });
        match kind {
            "deadlock" => Some(Verdict::Deadlock(waiting.collect())),
            "operation" => {
                let mut end = || waiting.next().map(|it| (it.rank, it.doing));
                Some(Verdict::OtherOperation { here: end()?, there: end()? })
            }
            _ => None,
        }
    }

    /// The abort code that announces this verdict to the ranks.
    pub(super) fn code(&self) -> AbortCode {
        match self {
            Verdict::Deadlock(_) => AbortCode::Deadlocked,
            Verdict::OtherOperation { .. } | Verdict::Mismatch(_) => AbortCode::Mismatched,
            Verdict::Required(_) => AbortCode::Required,
        }
    }
}

/// Most bytes of a field in the text form. The largest number of fields, five, fits into a verdict's text together with
/// two ranks. A text cut anywhere else could not be decoded.
const FIELD: usize = 400;
/// Marks the end of a field that was cut.
const CUT: char = '…';

/// Encodes one field of the text form.
fn one_line(text: &str) -> String {
    let mut line = text.replace(['\n', '\t'], " ");
    if line.len() > FIELD {
        let mut len = FIELD - CUT.len_utf8();
        while !line.is_char_boundary(len) {
            len -= 1;
        }
        line.truncate(len);
        line.push(CUT);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_field_by_field() {
        // Most byte lengths end inside a character.
        let long = "ä€".repeat(500);
        let sides = |rank| (rank, [long.clone(), format!("x{long}")]);
        let difference = Difference { what: long.clone(), here: sides(1_000_000), there: sides(1_000_001) };
        let text = Verdict::Mismatch(Box::new(difference)).to_text();
        assert!(text.len() <= 8 * super::super::VERDICT, "{} bytes", text.len());
        let Some(Verdict::Mismatch(read)) = Verdict::from_text(&text) else { panic!("lost: {text}") };
        let Difference { what, here: (rank, [mine, here]), there: (peer, [theirs, there]) } = *read;
        assert_eq!((rank, peer), (1_000_000, 1_000_001));
        for (field, whole) in [(&what, &long), (&mine, &long), (&theirs, &long)] {
            let kept = field.strip_suffix(CUT).expect("it says that it is cut");
            assert!(whole.starts_with(kept) && (FIELD - 5..=FIELD).contains(&field.len()), "{field}");
        }
        assert!(here == there && here.starts_with("xä€"), "{here}");
        assert_eq!(one_line("a\tshort\ntext"), "a short text");
    }

    #[test]
    fn a_requirement_survives_its_text() {
        for span in [None, Some([2, -4, i64::MAX, 64])] {
            let unmet = Unmet { rank: 3, span, at: "src/own.rs:7:9".into(), launch: "an own\tkernel".into() };
            let text = Verdict::Required(Box::new(unmet.clone())).to_text();
            let Some(Verdict::Required(read)) = Verdict::from_text(&text) else { panic!("lost: {text}") };
            assert_eq!(*read, Unmet { launch: "an own kernel".into(), ..unmet });
        }
    }
}
