//! Prints messages on stderr, each as one line that begins with "hanare: ".

use std::io::Write;

/// Number of characters kept from the beginning of a message that is too long, such as one that quotes a long value.
const HEAD_CHARS: usize = 600;
/// Number of characters kept from the end of such a message. The end says what to do.
const TAIL_CHARS: usize = 300;

/// Prints one message. Characters that would break the line become spaces. A closed stderr is ignored.
pub(crate) fn say(message: &str) {
    let line = format!("hanare: {}\n", one_line(message));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn one_line(message: &str) -> String {
    let count = message.chars().count();
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    if count <= HEAD_CHARS + TAIL_CHARS {
        return message.chars().map(plain).collect();
    }
    let head = message.chars().take(HEAD_CHARS).map(plain);
    head.chain(" ... ".chars()).chain(message.chars().skip(count - TAIL_CHARS).map(plain)).collect()
}

/// Turns clap's error message into one line: what happened (the first paragraph), the name of a similar flag if clap
/// knows one, and the help to read.
pub(crate) fn of_usage(rendered: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut command = "hanare".to_owned();
    for paragraph in rendered.split("\n\n") {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        let is_useful_tip = words.starts_with(&["tip:"]) && !words.starts_with(&["tip:", "to", "pass"]);
        if words.first() == Some(&"Usage:") {
            let is_name = |word: &&&str| word.starts_with(|c: char| c.is_ascii_lowercase());
            command = words[1..].iter().take_while(is_name).copied().collect::<Vec<_>>().join(" ");
        } else if parts.is_empty() || is_useful_tip {
            parts.push(words.join(" "));
        }
    }
    let what = parts.join("; ");
    format!("{}; see '{command} --help'", what.strip_prefix("error: ").unwrap_or(&what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_error_becomes_one_line_with_its_tip() {
        let rendered = "error: unexpected argument '--locl' found\n\n  tip: a similar argument exists: '--local'\n\n\
                        Usage: hanare run [OPTIONS] <PROGRAM>...\n\nFor more information, try '--help'.\n";
        assert_eq!(
            of_usage(rendered),
            "unexpected argument '--locl' found; tip: a similar argument exists: '--local'; see 'hanare run --help'"
        );
        let missing = "error: the following required arguments were not provided:\n  <PROGRAM>...\n\n  tip: to pass '-x' as a value, use \
                       '-- -x'\n\nUsage: hanare run <PROGRAM>...\n";
        assert_eq!(
            of_usage(missing),
            "the following required arguments were not provided: <PROGRAM>...; see 'hanare run --help'"
        );
    }

    #[test]
    fn control_characters_do_not_break_the_line() {
        assert_eq!(one_line("a\nb\x1b[1m\tc"), "a b [1m c");
    }

    #[test]
    fn a_quoted_value_of_any_length_leaves_the_beginning_and_the_advice() {
        let line = one_line(&format!("HANARE_LOCAL: '{}' is not a size; write 64M", "\u{e9}".repeat(100_000)));
        assert!(line.starts_with("HANARE_LOCAL: '") && line.ends_with("is not a size; write 64M"));
        assert_eq!(line.chars().count(), HEAD_CHARS + TAIL_CHARS + 5);
    }
}
