//! Text broken into lines that fit the terminal.
//!
//! Text between two backticks is a command to copy, and stays in one line. So do words that are longer than a
//! line.

use std::io::IsTerminal;

/// Where there is no terminal to ask, a line has so many columns.
pub const COLUMNS: usize = 80;
/// Longer lines are hard to read, however wide the terminal is.
const COLUMNS_MAX: usize = 100;
/// Below it nothing would fit.
const COLUMNS_MIN: usize = 40;

/// Gives the columns of standard output: those of its terminal, from 40 to 100, and 80 if it is none.
pub fn columns() -> usize {
    let out = std::io::stdout();
    if !out.is_terminal() {
        return COLUMNS;
    }
    let size = rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
    if size == 0 { COLUMNS } else { size.clamp(COLUMNS_MIN, COLUMNS_MAX) }
}

/// Breaks each line of `text` at spaces, so that none is longer than `columns`. The lines that follow are
/// indented as the first one, and by `hang` columns more. Spaces within a line stay as they are.
pub fn wrap(text: &str, columns: usize, hang: usize) -> String {
    text.split('\n').map(|line| wrap_line(line, columns, hang)).collect::<Vec<_>>().join("\n")
}

fn wrap_line(line: &str, columns: usize, hang: usize) -> String {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let (mut out, mut at, mut is_first) = (String::with_capacity(line.len()), 0, true);
    let mut rest = line;
    while !rest.trim_start_matches(' ').is_empty() {
        let spaces = rest.len() - rest.trim_start_matches(' ').len();
        let end = spaces + end_of_word(&rest[spaces..]);
        let word = &rest[spaces..end];
        if !is_first && at + spaces + width(word) > columns {
            out.push('\n');
            out.push_str(&" ".repeat(indent + hang));
            at = indent + hang;
        } else {
            out.push_str(&rest[..spaces]);
            at += spaces;
        }
        out.push_str(word);
        at += width(word);
        is_first = false;
        rest = &rest[end..];
    }
    out
}

/// Where the word ends with which a text begins: at a space that is not between backticks.
fn end_of_word(text: &str) -> usize {
    let mut is_command = false;
    for (at, c) in text.char_indices() {
        match c {
            '`' => is_command = !is_command && text[at + 1..].contains('`'),
            ' ' if !is_command => return at,
            _ => {}
        }
    }
    text.len()
}

/// Columns that a text takes: colours take none.
pub fn width(text: &str) -> usize {
    let (mut columns, mut is_escape) = (0, false);
    for c in text.chars() {
        match c {
            '\u{1b}' => is_escape = true,
            'm' if is_escape => is_escape = false,
            _ if is_escape => {}
            _ => columns += 1,
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces_and_hang() {
        assert_eq!(wrap("one two three four", 9, 2), "one two\n  three\n  four");
        assert_eq!(wrap("  one two", 7, 1), "  one\n   two");
        assert_eq!(wrap("a line\n\nanother", 80, 2), "a line\n\nanother");
    }

    #[test]
    fn spaces_of_columns_stay() {
        assert_eq!(wrap("pages     12  of 8 KB", 17, 10), "pages     12  of\n          8 KB");
    }

    #[test]
    fn commands_and_long_words_stay_whole() {
        assert_eq!(wrap("say `tercel serve --data x` now", 12, 0), "say\n`tercel serve --data x`\nnow");
        assert_eq!(wrap("a/path/longer/than/that fits", 8, 0), "a/path/longer/than/that\nfits");
        // One backtick alone is no command.
        assert_eq!(wrap("a `b c d", 4, 0), "a `b\nc d");
    }

    #[test]
    fn colours_take_no_columns() {
        assert_eq!(width("\u{1b}[1mdone\u{1b}[0m"), 4);
    }
}
