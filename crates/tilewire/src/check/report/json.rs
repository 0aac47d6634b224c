//! Reports for programs: one object, keys in a fixed order.

use super::fault::{Event, Fault};
use super::{Certainty, Report};
use crate::ir::SourceLine;
use std::fmt::Write;

impl Report {
    /// The report as JSON: `schema`, `verdict` (`clean` or `faults`), `certainty` (`decided` or `sampled`), `ranks`,
    /// `launches`, `schedules`, `seed` (sampled only) and `faults`, each with its `kind`, its text, its `events` and
    /// its `prefix`.
    pub fn to_json(&self) -> String {
        let mut out = String::from("{\"schema\":\"tilewire-check-1\"");
        let verdict = if self.is_clean() { "clean" } else { "faults" };
        let certainty = if self.is_decided() { "decided" } else { "sampled" };
        _ = write!(out, ",\"verdict\":\"{verdict}\",\"certainty\":\"{certainty}\"");
        _ = write!(out, ",\"ranks\":{},\"launches\":{}", self.ranks, self.launches);
        _ = write!(out, ",\"schedules\":{}", self.schedules);
        if let Certainty::Sampled { why, seed, exhausted } = &self.certainty {
            _ = write!(out, ",\"seed\":{seed},\"exhausted\":{exhausted},\"why\":{}", text(why));
        }
        let faults = self.faults.iter().map(|found| {
            let events = list(found.fault.events().into_iter().map(event));
            let prefix = list(found.prefix.iter().map(|moment| {
                let from = moment.from.map_or("null".to_string(), |from| from.to_string());
                format!("{{\"event\":{},\"deed\":{},\"from\":{from}}}", event(&moment.event), text(&moment.deed))
            }));
            format!(
                "{{\"kind\":\"{}\",\"text\":{},\"times\":{},\"one_copy\":{},\"events\":{events},{}\"prefix\":{prefix}}}",
                found.fault.kind(),
                text(&found.fault.to_string()),
                found.times,
                found.with_one_copy,
                place(&found.fault),
            )
        });
        _ = write!(out, ",\"faults\":{}}}", list(faults));
        out
    }
}

fn place(fault: &Fault) -> String {
    match fault {
        Fault::Race { memory, bytes, .. }
        | Fault::Promised { memory, bytes, .. }
        | Fault::Unwritten { memory, bytes, .. } => {
            format!("\"memory\":{},\"bytes\":[{},{}],", text(memory), bytes.start, bytes.end)
        }
        _ => String::new(),
    }
}

fn event(event: &Event) -> String {
    let number = |n: Option<u32>| n.map_or("null".to_string(), |n| n.to_string());
    let word = |word: Option<&str>| word.map_or("null".to_string(), text);
    let line = |at: &Option<SourceLine>| match at {
        Some(at) => format!("{{\"file\":{},\"line\":{}}}", text(at.file), at.line),
        None => "null".to_string(),
    };
    format!(
        "{{\"rank\":{},\"launch\":{},\"block\":{},\"role\":{},\"copy\":{},\"party\":{},\"at\":{},\"role_at\":{},\"op\":{}}}",
        event.rank,
        event.launch,
        number(event.block),
        word(event.role.as_deref()),
        number(event.copy),
        word(event.party),
        line(&event.at),
        line(&event.role_at),
        text(&event.op),
    )
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// A JSON string.
fn text(s: &str) -> String {
    let mut out = String::from("\"");
    for c in s.chars() {
        match c {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            c if u32::from(c) < 32 => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out + "\""
}
