//! Lines of text that fit a narrow terminal: they are broken between words, where the terminal would break within them.

use std::io::IsTerminal;

use ratatui::crossterm::terminal;

/// Smallest width, in columns, that text is fitted to. The terminal itself breaks lines below it.
const WIDTH_MIN: usize = 40;

/// Returns the width, in columns, to which text for a stream is fitted: that of its terminal, [`WIDTH_MIN`] at least. A
/// stream that is no terminal has no limit, nor has a terminal that does not say its width.
pub(crate) fn width(stream: &impl IsTerminal) -> usize {
    let size = if stream.is_terminal() { terminal::size().ok() } else { None };
    let columns = size.map_or(0, |(columns, _)| usize::from(columns));
    if columns > 0 { columns.max(WIDTH_MIN) } else { usize::MAX }
}

/// Breaks lines that are longer than `width` between words. The rest of such a line begins in column `indent`. A word that
/// is too long stays whole.
pub(crate) fn fitted(text: &str, width: usize, indent: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut count = 0;
        for (at, word) in line.split(' ').enumerate() {
            let chars = word.chars().count();
            if count + 1 + chars > width && count > indent && chars > 0 {
                out.truncate(out.trim_end_matches(' ').len());
                out += &format!("\n{:indent$}{word}", "");
                count = indent + chars;
            } else {
                let blank = if at > 0 { " " } else { "" };
                out += blank;
                out += word;
                count += blank.len() + chars;
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words_and_short_ones_stay() {
        let text = "label     one two three four\n  short   line\nlabel     an-endless-word-without-blanks and more\n";
        let narrow = "label     one two\n          three four\n  short   line\n\
                      label     an-endless-word-without-blanks\n          and more\n";
        assert_eq!(fitted(text, 20, 10), narrow);
        assert_eq!(fitted(text, usize::MAX, 10), text);
        assert_eq!(fitted("", 20, 10), "");
    }

    #[test]
    fn a_stream_that_is_no_terminal_has_no_limit() {
        let (reader, _) = std::io::pipe().expect("a pipe");
        assert_eq!(width(&std::os::fd::OwnedFd::from(reader)), usize::MAX);
    }
}
