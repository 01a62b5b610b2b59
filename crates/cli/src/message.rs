//! Prints messages on stderr, each as one line that begins with "hanare: ".

use std::io::Write;

use crate::outside;

/// Number of characters kept from the beginning of a message that is too long, such as one that quotes a long value.
const HEAD_CHARS: usize = 600;
/// Number of characters kept from the end of such a message. The end says what to do.
const TAIL_CHARS: usize = 300;

/// Prints one message as one line. A closed stderr is ignored.
pub(crate) fn say(message: &str) {
    let line = format!("hanare: {}\n", one_line(message));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Returns a message as one line of bounded length. Line breaks and tabs become spaces. Other characters that a terminal
/// would obey are written as their numbers.
pub(crate) fn one_line(message: &str) -> String {
    let count = message.chars().count();
    let (head, tail) = if count <= HEAD_CHARS + TAIL_CHARS { (count, 0) } else { (HEAD_CHARS, TAIL_CHARS) };
    let mut line = String::new();
    let mut add = |c: char| outside::push(&mut line, if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c });
    message.chars().take(head).for_each(&mut add);
    if tail > 0 {
        " ... ".chars().chain(message.chars().skip(count - tail)).for_each(&mut add);
    }
    line
}

/// Turns clap's error message into one line: what happened (the first paragraph), the name of a similar flag if clap
/// knows one, and the help of `command` to read.
pub(crate) fn of_usage(rendered: &str, command: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for paragraph in rendered.split("\n\n") {
        if parts.is_empty() {
            parts.push(paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
            continue;
        }
        let tips =
            paragraph.lines().map(str::trim).filter(|line| line.starts_with("tip:") && !line.contains("to pass '"));
        parts.extend(tips.map(str::to_owned));
    }
    let what = parts.join("; ");
    format!("{}; see '{command} --help'", plain(what.strip_prefix("error: ").unwrap_or(&what)))
}

/// Returns clap's message on a number in words that need no knowledge of Rust.
fn plain(what: &str) -> String {
    let whole = what
        .replace(": invalid digit found in string", ": give a whole number")
        .replace(": cannot parse integer from empty string", ": give a whole number")
        .replace(": number too large to fit in target type", ": the number is too large");
    let Some((head, range)) = whole.rsplit_once(" is not in ") else { return whole };
    let Some((before, _)) = head.rsplit_once(": ") else { return whole };
    match range.split_once("..=").map(|(least, most)| (least, most.parse::<u64>())) {
        Some((least, Ok(most))) if most < u64::from(u32::MAX) => format!("{before}: give {least} to {most}"),
        Some((least, Ok(_))) => format!("{before}: give {least} or more"),
        _ => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_error_becomes_one_line_with_its_tip() {
        let rendered = "error: unexpected argument '--locl' found\n\n  tip: a similar argument exists: '--local'\n  tip: to pass \
                        '--locl' as a value, use '-- --locl'\n\nUsage: hanare run [OPTIONS] <PROGRAM>...\n\nFor more \
                        information, try '--help'.\n";
        assert_eq!(
            of_usage(rendered, "hanare run"),
            "unexpected argument '--locl' found; tip: a similar argument exists: '--local'; see 'hanare run --help'"
        );
        let missing = "error: the following required arguments were not provided:\n  <PROGRAM>...\n\n  tip: to pass '-x' as a value, use \
                       '-- -x'\n\nUsage: hanare run <PROGRAM>...\n";
        assert_eq!(
            of_usage(missing, "hanare run"),
            "the following required arguments were not provided: <PROGRAM>...; see 'hanare run --help'"
        );
    }

    #[test]
    fn numbers_out_of_range_are_told_in_plain_words() {
        for (rendered, line) in [
            ("'0' for '--ranks <N>': 0 is not in 1..=4294967295", "'0' for '--ranks <N>': give 1 or more"),
            ("'0' for '--ranks <N>': 0 is not in 1..=18446744073709551615", "'0' for '--ranks <N>': give 1 or more"),
            ("'300' for '--ranks <N>': 300 is not in 1..=256", "'300' for '--ranks <N>': give 1 to 256"),
            ("'x' for '-n <N>': invalid digit found in string", "'x' for '-n <N>': give a whole number"),
            ("'a is not in b' for '--local <S>': no", "'a is not in b' for '--local <S>': no"),
        ] {
            let rendered = format!("error: invalid value {rendered}\n\nFor more information, try '--help'.\n");
            assert_eq!(of_usage(&rendered, "hanare place"), format!("invalid value {line}; see 'hanare place --help'"));
        }
    }

    #[test]
    fn control_characters_do_not_break_the_line() {
        assert_eq!(one_line("a\nb\x1b[1m\tc\u{9b}\u{202e}d"), "a b\\u{1b}[1m c\\u{9b}\\u{202e}d");
    }

    #[test]
    fn a_quoted_value_of_any_length_leaves_the_beginning_and_the_advice() {
        let line = one_line(&format!("HANARE_LOCAL: '{}' is not a size; write 64M", "\u{e9}".repeat(100_000)));
        assert!(line.starts_with("HANARE_LOCAL: '") && line.ends_with("is not a size; write 64M"));
        assert_eq!(line.chars().count(), HEAD_CHARS + TAIL_CHARS + 5);
    }
}
