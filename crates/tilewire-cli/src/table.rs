//! Tables for people, at most [`WIDTH`] characters wide: content that does not fit goes to JSON and CSV, or to a second
//! line.
#![forbid(unsafe_code)]

use std::fmt;

/// Characters of a line.
pub const WIDTH: usize = 100;
/// Spaces between columns.
const GAP: usize = 2;

/// Cells in columns, and titles above some of the rows. A column that no row fills is left out. If the table is too
/// wide, columns of words become narrower, and their cells continue on the next line.
pub struct Table<const N: usize> {
    head: [String; N],
    is_words: [bool; N],
    lines: Vec<Line<N>>,
}

enum Line<const N: usize> {
    Row([String; N]),
    Title(String),
}

impl<const N: usize> Table<N> {
    /// Columns with these names. Those in `words` are left-aligned, figures are right-aligned.
    pub fn new(head: [&str; N], words: &[usize]) -> Table<N> {
        let is_words = std::array::from_fn(|column| words.contains(&column));
        Table { head: head.map(String::from), is_words, lines: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [String; N]) {
        self.lines.push(Line::Row(cells));
    }

    /// Adds a line above the rows that follow.
    pub fn title(&mut self, text: String) {
        self.lines.push(Line::Title(text));
    }

    fn rows(&self) -> impl Iterator<Item = &[String; N]> {
        self.lines.iter().filter_map(|line| match line {
            Line::Row(cells) => Some(cells),
            Line::Title(_) => None,
        })
    }

    /// The width of every column; 0 if it is left out.
    fn widths(&self) -> [usize; N] {
        let most = |column: usize, width: fn(&str) -> usize| {
            let cells = self.rows().chain([&self.head]).map(|cells| width(&cells[column]));
            cells.max().unwrap_or(0)
        };
        let is_empty = |column: usize| self.rows().all(|cells| matches!(cells[column].as_str(), "" | "-"));
        let mut widths: [usize; N] = std::array::from_fn(|column| match is_empty(column) {
            true => 0,
            false => most(column, |cell| cell.chars().count()),
        });
        let least =
            |column: usize| most(column, |cell| cell.split(' ').map(|word| word.chars().count()).max().unwrap_or(0));
        while widths.iter().filter(|&&width| width > 0).map(|width| width + GAP).sum::<usize>() > WIDTH + GAP {
            let narrowable = (0..N).filter(|&column| self.is_words[column] && widths[column] > least(column));
            let Some(widest) = narrowable.max_by_key(|&column| widths[column]) else { break };
            widths[widest] -= 1;
        }
        widths
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let row = |f: &mut fmt::Formatter<'_>, cells: &[String; N]| {
            let shown: Vec<(usize, Vec<String>)> = (0..N)
                .filter(|&column| widths[column] > 0)
                .map(|column| (column, wrapped(&cells[column], widths[column])))
                .collect();
            for k in 0..shown.iter().map(|(_, parts)| parts.len()).max().unwrap_or(0) {
                let mut line = String::new();
                for &(column, ref parts) in &shown {
                    let (part, width) = (parts.get(k).map_or("", String::as_str), widths[column]);
                    line += &match self.is_words[column] {
                        true => format!("{part:<width$}{:GAP$}", ""),
                        false => format!("{part:>width$}{:GAP$}", ""),
                    };
                }
                writeln!(f, "{}", line.trim_end())?;
            }
            Ok(())
        };
        row(f, &self.head)?;
        for line in &self.lines {
            match line {
                Line::Row(cells) => row(f, cells)?,
                Line::Title(text) => writeln!(f, "\n{text}")?,
            }
        }
        Ok(())
    }
}

/// A text in lines of at most this width; a longer word has its own line.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    if text.chars().count() <= width {
        return vec![text.to_string()];
    }
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

/// A text after a prefix; if both do not fit a line, the text continues below itself.
pub fn hanging(start: &str, text: &str) -> String {
    let indent = start.chars().count();
    let lines = wrapped(text, WIDTH.saturating_sub(indent));
    format!("{start}{}", lines.join(&format!("\n{:indent$}", "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        let mut table = Table::new(["name", "bytes", "best MPI", "limit"], &[0, 3]);
        table.row(["copy", "64KiB", "-", "memcpy"].map(String::from));
        table.title("without a size".into());
        table.row(["empty launch", "-", "", ""].map(String::from));
        assert_eq!(
            table.to_string(),
            "name          bytes  limit\ncopy          64KiB  memcpy\n\nwithout a size\nempty launch      -\n"
        );
    }

    #[test]
    fn words_go_on_in_the_next_line_where_a_table_is_too_wide() {
        let mut table = Table::new(["a", "b", "c"], &[0, 2]);
        let words = "word ".repeat(12).trim_end().to_string();
        table.row([words.clone(), "12.5".into(), words]);
        let text = table.to_string();
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.len() == 3 && widths.iter().all(|&width| width <= WIDTH), "{text}");
        assert_eq!((text.matches("word").count(), text.matches("12.5").count()), (24, 1), "{text}");
    }

    #[test]
    fn a_text_hangs_below_its_start() {
        assert_eq!(hanging("ok  ", "short"), "ok  short");
        let text = hanging("ok  ", &"word ".repeat(30));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 2 && lines[1].starts_with("    word") && lines[0].len() <= WIDTH, "{text}");
    }
}
