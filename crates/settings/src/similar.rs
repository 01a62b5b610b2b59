//! Finds the known word that a mistyped one most likely stands for.

/// Longest word for which a similar one is looked for, in bytes.
const LEN_MAX: usize = 64;

/// Returns the known word that is most like `word`. `None` if none differs in few letters only: one letter in words of
/// up to five letters, two in longer ones. Two neighbouring letters that change places count as one.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LEN_MAX {
        return None;
    }
    let most = if word.chars().count() <= 5 { 1 } else { 2 };
    let with_distance = known.into_iter().map(|other| (distance(word, other), other));
    with_distance
        .filter(|(distance, _)| (1..=most).contains(distance))
        .min_by_key(|(distance, _)| *distance)
        .map(|near| near.1)
}

/// Returns how many letters must be inserted, removed, replaced or exchanged with their neighbour to make `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // The rows for the last two prefixes of `a`, and the one for the present prefix.
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before_last[j - 2] + 1);
            }
            row.push(least);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KNOWN: [&str; 5] = ["lru", "lirs", "thread", "streams", "HANARE_LOCAL"];

    #[test]
    fn a_slip_of_the_keys_is_understood() {
        for (word, near) in [
            ("lur", Some("lru")),
            ("lr", Some("lru")),
            ("threads", Some("thread")),
            ("stream", Some("streams")),
            ("HANARE_LOCALL", Some("HANARE_LOCAL")),
            ("HANARE_LCAOL", Some("HANARE_LOCAL")),
            ("best", None),
            ("lru", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, KNOWN), near, "{word}");
        }
    }

    proptest! {
        #[test]
        fn no_word_panics_and_a_known_one_has_no_distance(word in ".{0,80}") {
            let _ = nearest(&word, KNOWN);
            prop_assert_eq!(distance(&word, &word), 0);
            prop_assert_eq!(distance(&word, ""), word.chars().count());
        }
    }
}
