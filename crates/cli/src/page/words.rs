//! The sentences of the page, and its numbers as text. No number that is not finite becomes text.

use hanare_settings::{format_size, human_size};

use crate::fit::{Prediction, within};
use crate::outside;
use crate::report::Figures;

/// Exit code of a run that a lost memory server has ended.
const EXIT_LOST: u8 = 120;
/// Exit code of a run that full memory servers have ended.
const EXIT_FULL: u8 = 121;
/// Share of the run's time from which waits are worth more local memory.
const WAITS_MUCH: f64 = 0.1;
/// Share of the run's time below which less local memory may do.
const WAITS_LITTLE: f64 = 0.02;
const MIB: u64 = 1 << 20;
/// Number of characters that a text from outside keeps.
const OUTSIDE_CHARS: usize = 2000;

/// Returns what was asked and what came out: two sentences.
pub(crate) fn summary(figures: &Figures) -> String {
    let end = match (figures.exit_code, figures.signal) {
        (_, Some(signal)) => format!(" (killed by signal {signal})"),
        (Some(code), None) if code != 0 => format!(" (exit code {code})"),
        _ => String::new(),
    };
    let time = seconds(figures.elapsed_s);
    let ran = match figures.exit_code {
        Some(_) => format!("Your program{end} ran {time}"),
        None => format!("Your program has run {time} so far"),
    };
    if !had_far_memory(figures) {
        return format!("{ran}. None of its memory became far.");
    }
    let (local, far) = (human_size(figures.local_bytes_budget), human_size(figures.far_bytes_peak));
    format!("{ran} with {local} of local memory for {far} of far memory. {}", waits(figures))
}

fn had_far_memory(figures: &Figures) -> bool {
    figures.processes > 0 && figures.far_bytes_peak > 0
}

fn waits(figures: &Figures) -> String {
    match share(figures.waits_s(), figures.elapsed_s) {
        _ if figures.waits_s() <= 0.0 => "It never waited for a page.".to_owned(),
        Some(share) if share > 1.0 => {
            format!("Its threads waited for pages {} in all.", seconds(figures.waits_s()))
        }
        Some(share) if share >= 0.01 => format!("It waited for pages {} of its time.", percent(share)),
        _ => "It waited for pages less than 1 % of its time.".to_owned(),
    }
}

/// Returns the next thing to try for Python programs whose lines are mostly unknown.
pub(crate) fn python_step(mode: &str, unknown_s: f64, waits_s: f64) -> Option<&'static str> {
    (mode != "thread" && unknown_s > 0.0 && unknown_s * 2.0 > waits_s)
        .then_some("`--mode thread` would show the lines of Python at which it waits.")
}

/// Returns the next thing to try. Words in backticks are flags. `memory_bytes` is the memory of the machine, and `fit` has
/// what other sizes of local memory would bring, if that is known.
pub(crate) fn next_step(figures: &Figures, memory_bytes: Option<u64>, fit: Option<&Prediction>) -> String {
    let share = share(figures.waits_s(), figures.elapsed_s).unwrap_or(0.0);
    let far = figures.far_bytes_peak;
    match figures.exit_code {
        _ if figures.killed_for_memory => {
            let had = match (figures.private_bytes_peak, figures.local_bytes_peak) {
                // Without far memory, nobody has measured it.
                (0, 0) => String::new(),
                (near, local) => {
                    format!(" {} of it were near, and {} were local.", human_size(near), human_size(local))
                }
            };
            format!(
                "The kernel ended a process for want of memory, most likely this program.{had} `--local` does not bound \
                 near memory. Try less local memory, or a smaller `--near`."
            )
        }
        _ if !had_far_memory(figures) => {
            "Its allocations may be small: try `--far all`. That needs thread mode or the call filter: `hanare doctor` says how to get \
             them.".to_owned()
        }
        Some(EXIT_LOST) => "If a memory server was lost, the last line on standard error names it. Try \
             `--redundancy mirror` with two servers, or `--on-loss wait`."
            .to_owned(),
        Some(EXIT_FULL) => {
            "If the servers were full, the last line on standard error says so. Try another `--server`, \
             or a larger `--memory`."
                .to_owned()
        }
        _ if share >= WAITS_MUCH && figures.local_bytes_budget < far => more_memory(figures, memory_bytes, fit),
        _ if figures.prefetch_accuracy.is_some_and(|accuracy| accuracy < 0.5)
            && figures.prefetch_wasted > figures.pages_in / 10 =>
        {
            "Most prefetched pages left without an access: try `--prefetch none`.".to_owned()
        }
        _ if share < WAITS_LITTLE && figures.local_bytes_peak >= 2 * MIB => {
            let half = (figures.local_bytes_peak / 2).next_multiple_of(MIB);
            format!("Less local memory may do: try `--local {}`.", format_size(half))
        }
        _ => "A larger `--local` shortens the waits, a smaller one frees memory for others.".to_owned(),
    }
}

/// Returns the advice to give more local memory: what is predicted to suffice. Without a prediction it is half of far
/// memory, or all of it where half would be less than twice the present budget.
fn more_memory(figures: &Figures, memory_bytes: Option<u64>, fit: Option<&Prediction>) -> String {
    let (far, budget) = (figures.far_bytes_peak, figures.local_bytes_budget);
    let (bytes, what) = if budget < far / 4 { (far / 2, "half") } else { (far, "all") };
    let bytes = bytes.checked_next_multiple_of(MIB).unwrap_or(bytes);
    let most = memory_bytes.map_or(u64::MAX, within);
    if let Some((bytes, run_time_s)) = fit.and_then(Prediction::first_ask).filter(|(bytes, _)| *bytes <= most) {
        return format!(
            "With {} of local memory it would take about {}: try `--local {}`.",
            human_size(bytes),
            seconds(run_time_s),
            format_size(bytes)
        );
    }
    if bytes <= most {
        return format!("Try `--local {}`, which is {what} of its far memory.", format_size(bytes));
    }
    let most = most / MIB * MIB;
    if most < budget.saturating_add(budget / 4) {
        return "This machine has little more memory to give. `hanare simulate policies` compares policies for a program."
            .to_owned();
    }
    let row = fit.and_then(|fit| fit.largest_within(memory_bytes));
    match row.filter(|row| row.local_bytes > budget) {
        Some(row) => format!(
            "This machine can give about {}. With {} it would take about {}: try `--local {}`.",
            human_size(most),
            human_size(row.local_bytes),
            seconds(row.run_time_s),
            format_size(row.local_bytes)
        ),
        None => format!("Try `--local {}`, about what this machine can give.", format_size(most)),
    }
}

/// Returns `part / whole`. `None` if that is no finite number.
pub(crate) fn share(part: f64, whole: f64) -> Option<f64> {
    Some(part / whole).filter(|share| share.is_finite())
}

/// Returns a share as percent.
pub(crate) fn percent(share: f64) -> String {
    match finite(share) * 100.0 {
        part if part >= 9.95 => format!("{part:.0} %"),
        part => format!("{part:.1} %"),
    }
}

/// Returns a time as text, in two units from two minutes on.
pub(crate) fn seconds(seconds: f64) -> String {
    let seconds = finite(seconds).max(0.0);
    let pair = |first: f64, one: &str, second: f64, two: &str| match second.floor() {
        0.0 => format!("{:.0} {one}", first.floor()),
        second => format!("{:.0} {one} {second:.0} {two}", first.floor()),
    };
    match seconds {
        86400.0.. => pair(seconds / 86400.0, "d", seconds % 86400.0 / 3600.0, "h"),
        3600.0.. => pair(seconds / 3600.0, "h", seconds % 3600.0 / 60.0, "min"),
        120.0.. => pair(seconds / 60.0, "min", seconds % 60.0, "s"),
        9.95.. => format!("{seconds:.0} s"),
        0.995.. if seconds.fract() != 0.0 => format!("{seconds:.1} s"),
        0.995.. => format!("{seconds:.0} s"),
        0.000_999_5.. => format!("{:.0} ms", seconds * 1e3),
        0.000_000_999_5.. => format!("{:.0} µs", seconds * 1e6),
        0.0 => "0 s".to_owned(),
        _ => format!("{:.0} ns", seconds * 1e9),
    }
}

/// Returns a moment of the run as text.
pub(crate) fn moment(time_s: f64) -> String {
    if time_s < 120.0 { format!("{:.1} s", finite(time_s)) } else { seconds(time_s) }
}

/// Returns a short time with one decimal place, in the largest unit in which it is at least 1.
pub(crate) fn micros(us: f64) -> String {
    match finite(us) {
        us if us >= 1e6 => format!("{:.1} s", us / 1e6),
        us if us >= 1e3 => format!("{:.1} ms", us / 1e3),
        us => format!("{us:.1} µs"),
    }
}

/// Returns a short time as [`micros`] does, rounded up: an upper bound.
pub(crate) fn micros_up(us: f64) -> String {
    let unit = match finite(us) {
        us if us >= 1e6 => 1e6,
        us if us >= 1e3 => 1e3,
        _ => 1.0,
    };
    micros((finite(us) / unit * 10.0).ceil() / 10.0 * unit)
}

/// Returns a whole number with commas between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number in few characters.
pub(crate) fn short(number: f64) -> String {
    let number = finite(number);
    let (scaled, unit) = match number {
        1e12.. => (number / 1e12, " T"),
        1e9.. => (number / 1e9, " G"),
        1e6.. => (number / 1e6, " M"),
        1e4.. => (number / 1e3, " k"),
        _ => (number, ""),
    };
    let places = if scaled.fract().abs() < 1e-9 || scaled >= 100.0 { 0 } else { 1 };
    format!("{scaled:.places$}{unit}")
}

/// Returns a size of a number of bytes that need not be whole.
pub(crate) fn bytes(bytes: f64) -> String {
    // Casts from float to integer saturate.
    human_size(finite(bytes).max(0.0).round() as u64)
}

/// Returns a text from outside, such as a program's name, safe to show and of bounded length.
pub(crate) fn outside(text: &str) -> String {
    let mut safe = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == OUTSIDE_CHARS {
            safe.push('…');
            break;
        }
        outside::push(&mut safe, c);
    }
    safe
}

/// Keeps numbers and their units on one line.
pub(crate) fn unbroken(text: &str) -> String {
    let mut before = ' ';
    let keep = |c| {
        let follows_a_number = c == ' ' && before.is_ascii_digit();
        before = c;
        if follows_a_number { '\u{a0}' } else { c }
    };
    text.chars().map(keep).collect()
}

/// Returns a number of at most 16 digits. 0 in place of one that is not finite.
fn finite(number: f64) -> f64 {
    const MOST: f64 = 1e15;
    if number.is_finite() { number.clamp(-MOST, MOST) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::End;
    use hanare::counters::add;
    use hanare::stats::Stats;
    use proptest::prelude::*;
    use std::time::Duration;

    fn figures(end: Option<End>, elapsed_s: f64, fill: impl FnOnce(&Stats)) -> Figures {
        let stats = Stats::attach(None, None).unwrap();
        fill(&stats);
        Figures::new("sort".to_owned(), &stats.snapshot(), end.as_ref(), Duration::from_secs_f64(elapsed_s))
    }

    /// A run of 74 s with 256 MiB of local memory, 1.25 GiB of far memory and these waits.
    fn run(end: Option<End>, waits_s: u64) -> Figures {
        figures(end, 74.0, |stats| {
            add(&stats.processes, 1);
            add(&stats.far_bytes_peak, 5 << 28);
            add(&stats.budget_bytes, 256 << 20);
            add(&stats.local_bytes_peak, 256 << 20);
            add(&stats.swap_ns, waits_s * 1_000_000_000);
            add(&stats.pages_in, 1000);
        })
    }

    #[test]
    fn the_summary_says_what_was_asked_and_what_came_out() {
        let asked = "74 s with 256 MiB of local memory for 1.2 GiB of far memory.";
        for (figures, ran, waited) in [
            (run(Some(End::Exited(0)), 23), "Your program ran", "It waited for pages 31 % of its time."),
            (run(Some(End::Exited(3)), 0), "Your program (exit code 3) ran", "It never waited for a page."),
            (
                run(Some(End::Signalled { number: 9, core: false }), 186),
                "Your program (killed by signal 9) ran",
                "Its threads waited for pages 3 min 6 s in all.",
            ),
        ] {
            assert_eq!(summary(&figures), format!("{ran} {asked} {waited}"));
        }
        let running = summary(&run(None, 0));
        assert!(running.starts_with("Your program has run 74 s so far with 256 MiB"), "{running}");
        let near = summary(&figures(Some(End::Exited(0)), 0.0, |_| {}));
        assert_eq!(near, "Your program ran 0 s. None of its memory became far.");
    }

    #[test]
    fn the_next_step_fits_what_came_out() {
        let end = || Some(End::Exited(0));
        let killed = || Some(End::OutOfMemory);
        let machine = Some(24 << 30);
        for (figures, memory, part) in [
            (figures(end(), 1.0, |_| {}), machine, "try `--far all`"),
            (run(Some(End::Exited(120)), 70), machine, "`--redundancy mirror`"),
            (run(Some(End::Exited(121)), 0), machine, "larger `--memory`"),
            (run(end(), 23), machine, "Try `--local 640M`, which is half"),
            (run(end(), 23), Some(720 << 20), "Try `--local 540M`, about what"),
            (run(end(), 23), Some(512 << 20), "Try `--local 384M`, about what"),
            (run(end(), 23), Some(400 << 20), "little more memory"),
            (run(killed(), 23), machine, "for want of memory"),
            (run(None, 23), None, "Try `--local 640M`"),
            (run(end(), 0), machine, "try `--local 128M`"),
            (run(end(), 4), machine, "A larger `--local` shortens"),
        ] {
            let step = next_step(&figures, memory, None);
            assert!(step.contains(part), "{part} is not in {step}");
        }
        let mut wide = run(end(), 23);
        wide.local_bytes_budget = 1 << 30;
        assert!(next_step(&wide, machine, None).contains("Try `--local 1280M`, which is all"));
        let mut wasteful = run(end(), 4);
        (wasteful.prefetch_accuracy, wasteful.prefetch_wasted) = (Some(0.1), 900);
        assert!(next_step(&wasteful, machine, None).contains("`--prefetch none`"));
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [0.0, 4e-8, 3e-6, 0.0123, 0.999, 4.25, 5.0, 9.96, 74.0, 125.0, 120.0, 3600.0, 12_240.0, 267_840.0]
                .map(seconds),
            [
                "0 s",
                "40 ns",
                "3 µs",
                "12 ms",
                "1.0 s",
                "4.2 s",
                "5 s",
                "10 s",
                "74 s",
                "2 min 5 s",
                "2 min",
                "1 h",
                "3 h 24 min",
                "3 d 2 h"
            ]
        );
        assert_eq!(
            [0.5, 33.51, 1000.0, 100_663.3, 1_073_741.8].map(micros_up),
            ["0.5 µs", "33.6 µs", "1.0 ms", "100.7 ms", "1.1 s"]
        );
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0, 0.25, 7.0, 9999.5, 12_345.0, 250_000.0, 3e6].map(short),
            ["0", "0.2", "7", "10000", "12.3 k", "250 k", "3 M"]
        );
        assert_eq!([0.0, 0.012, 0.31, 1.0].map(percent), ["0.0 %", "1.2 %", "31 %", "100 %"]);
    }

    #[test]
    fn texts_from_outside_have_no_character_that_breaks_a_page() {
        assert_eq!(
            outside("sort\u{1b}[1m\u{202e}gpj\0\u{ffff}é\n"),
            "sort\\u{1b}[1m\\u{202e}gpj\\u{0}\\u{ffff}é\\u{a}"
        );
        assert_eq!(outside(&"x".repeat(9999)).chars().count(), OUTSIDE_CHARS + 1);
    }

    #[test]
    fn a_number_stays_with_its_unit() {
        assert_eq!(unbroken("ran 74 s with 1.5 GiB."), "ran 74\u{a0}s with 1.5\u{a0}GiB.");
    }

    proptest! {
        #[test]
        fn no_number_becomes_nan(number: f64, count: u64) {
            for text in [seconds(number), micros(number), micros_up(number), short(number), percent(number), bytes(number)] {
                prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{number}: {text}");
            }
            let mut run = run(None, 7);
            (run.elapsed_s, run.swap_s, run.local_bytes_budget, run.far_bytes_peak) = (number, number, count, count);
            for text in [summary(&run), next_step(&run, Some(count), None)] {
                prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{number} {count}: {text}");
            }
        }
    }
}
