//! Makes texts from outside safe to show: names of programs and files, arguments, and what other machines say.
//!
//! A terminal obeys control characters, and marks of direction change how a line reads. All that the command writes to
//! stderr, to text reports and to pages comes through here.

/// Appends a character to a text. A control character, a mark of direction, or a number without a character is written as
/// its number, such as `\u{1b}`.
pub(crate) fn push(text: &mut String, c: char) {
    let is_mark = matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let is_no_character = c as u32 & 0xfffe == 0xfffe;
    if c.is_control() || is_mark || is_no_character {
        text.extend(c.escape_unicode());
    } else {
        text.push(c);
    }
}

/// Returns a text from outside with each unsafe character as its number.
pub(crate) fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    text.chars().for_each(|c| push(&mut safe, c));
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_characters_become_their_numbers_and_others_stay() {
        assert_eq!(safe("sort\u{1b}[1m\u{202e}gpj\0\u{ffff}é\n"), "sort\\u{1b}[1m\\u{202e}gpj\\u{0}\\u{ffff}é\\u{a}");
        assert_eq!(safe("a\u{9b}31m\u{7f}\u{fffd} ~"), "a\\u{9b}31m\\u{7f}\u{fffd} ~");
    }
}
