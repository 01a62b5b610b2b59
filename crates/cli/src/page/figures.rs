//! The table of all figures: each with its value in words and what it says.

use maud::{Markup, html};
use serde_json::Value;

use super::words;
use crate::report::Figures;

/// The meaning of each figure, by its name in the JSON.
const SENTENCES: [(&str, &str); 62] = [
    ("elapsed_s", "Time from the start of the program to its end."),
    ("calc_s", "That time without the waits of threads. 0 if the waits add up to more."),
    ("swap_s", "Time that threads waited for pages, added up."),
    ("set_bit_s", "Time that threads waited for present pages: a first write, or a reference that was sampled."),
    ("clear_bit_s", "Time spent unmapping pages for reference sampling."),
    ("evict_s", "Time spent choosing and evicting pages. Part of it lies within the waits."),
    ("faults", "Faults of all kinds that follow."),
    ("faults_read", "Read accesses to pages that were evicted."),
    ("faults_write", "Write accesses to pages that were evicted."),
    ("faults_first_write", "First writes to pages that were clean."),
    ("faults_zero", "First accesses to pages. Such a page is filled with zeroes."),
    ("faults_rescued", "Minor faults: the page's bytes were still in a frame."),
    ("faults_waited", "Faults on pages that were in transit already."),
    ("faults_hidden", "Accesses to pages that were unmapped for reference sampling. They are not among the faults."),
    ("pages_hidden", "Pages unmapped for reference sampling."),
    ("pages_held_back", "Evictions given up because a transfer of the kernel used the page."),
    ("fault_us_p50", "Half of the faults took no longer."),
    ("fault_us_p90", "Nine in ten faults took no longer."),
    ("fault_us_p99", "99 in 100 faults took no longer."),
    (
        "fault_us_max",
        "Every fault took less. This is the upper edge of the slowest bucket, not a time that was measured.",
    ),
    ("requests", "Requests to memory servers. A private server's pages are copied without requests."),
    ("pages_in", "Pages fetched."),
    ("bytes_in", "Bytes fetched."),
    ("pages_out", "Pages written back."),
    ("bytes_out", "Bytes written back."),
    ("pages_dropped_clean", "Pages evicted without a write-back, because their bytes were already stored."),
    ("pages_discarded", "Pages that the program freed."),
    ("prefetch_pages", "Pages fetched ahead of an access."),
    ("prefetch_bytes", "Bytes fetched ahead of an access."),
    ("prefetch_used", "Prefetched pages that were then accessed."),
    ("prefetch_wasted", "Prefetched pages that were evicted without an access."),
    ("prefetch_accuracy", "Share of the prefetched pages with a known fate that were accessed."),
    ("local_bytes_peak", "Most far memory that was in local memory at a time."),
    ("local_bytes_budget", "The budget for far memory in local memory: the largest, if a slowdown was held."),
    ("slowdown_asked", "The slowdown that the run was to hold. None if it had a size of local memory instead."),
    ("slowdown_held", "The run time divided by the run time without waits, as the controller counted them."),
    ("held_bytes", "The budget at the end, if a slowdown was held."),
    ("far_bytes", "Far memory that was allocated at the end."),
    ("far_bytes_peak", "Most far memory that was allocated at a time."),
    ("private_bytes_peak", "Most private memory that is not far: the program's near memory and Hanare's own."),
    ("near_bytes", "Hanare's own tables at the end. 0 for runs with less than 16 MiB of far memory."),
    ("near_bytes_per_far_page", "Hanare's own tables for each 4 KiB of far memory at its peak."),
    ("allocations_refused", "Allocations that failed because the servers had no room."),
    ("servers_lost", "Losses of memory servers that the run survived. Each process counts its own."),
    ("parts_behind_bytes", "Bytes of pages that lacked a part at the end. An upper bound."),
    ("parts_rebuilt_bytes", "Bytes of missing parts that were rebuilt."),
    ("degraded_s", "Time in which pages lacked parts."),
    ("pages_small", "Base pages in use at the end, if the page size is automatic."),
    ("pages_large", "Huge pages in use at the end, if the page size is automatic."),
    ("promotions", "Changes from base pages to huge pages."),
    ("demotions", "Changes from huge pages to base pages."),
    ("processes", "Processes that had far memory. A process counts again after it executes another program."),
    ("forks", "Processes that were forked with pages away."),
    ("mode", "How accesses to absent pages were trapped."),
    ("policy", "The replacement policy."),
    ("prefetch", "The prefetcher."),
    ("page_size_bytes", "The page size. None if it is automatic."),
    ("program", "The program's name."),
    ("exit_code", "The exit code of the run. None while the program runs."),
    ("signal", "The signal that ended the program."),
    ("killed_for_memory", "Whether that was SIGKILL while the kernel ended a process for want of memory."),
    ("hanare_version", "The version of Hanare."),
];

/// Returns the table. The element `data` of each row has the very value of the JSON.
pub(crate) fn table(figures: &Figures) -> Markup {
    let values = serde_json::to_value(figures).unwrap_or_default();
    html! {
        div.wide {
            table.figures {
                thead { tr { th scope="col" { "figure" } th scope="col" { "value" } th scope="col" { "what it says" } } }
                tbody {
                    @for (name, sentence) in SENTENCES {
                        @let value = &values[name];
                        tr {
                            th scope="row" { code { (name) } }
                            td { data value=(exact(value)) { (in_words(name, value)) } }
                            td { (sentence) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns a value as the JSON has it.
fn exact(value: &Value) -> String {
    match value {
        Value::String(text) => words::outside(text),
        other => other.to_string(),
    }
}

/// Returns the value of the figure `name` with its unit in words.
fn in_words(name: &str, value: &Value) -> String {
    match (value, value.as_u64(), value.as_f64()) {
        (Value::Null, ..) => "none".to_owned(),
        (Value::String(text), ..) => words::outside(text),
        (_, Some(count), _) if name.contains("bytes") => words::bytes(count as f64),
        (_, Some(count), _) => words::grouped(count),
        (_, _, Some(number)) if name == "fault_us_max" && number > 0.0 => format!("below {}", words::micros_up(number)),
        (_, _, Some(number)) if name.contains("_us") => words::micros(number),
        (_, _, Some(number)) if name.ends_with("_s") => words::seconds(number),
        (_, _, Some(number)) if name == "prefetch_accuracy" => words::percent(number),
        (_, _, Some(number)) if name.contains("bytes") => format!("{number:.1} B"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::End;
    use hanare::counters::add;
    use hanare::stats::Stats;
    use std::time::Duration;

    #[test]
    fn every_figure_has_a_sentence_and_a_value() {
        let stats = Stats::attach(None, None).unwrap();
        add(&stats.bytes_in, 3 << 19);
        add(&stats.pages_in, 1_234_567);
        add(&stats.swap_ns, 1_500_000_000);
        stats.fault_took((1 << 30) - 1);
        let end = Some(End::Exited(0));
        let figures = Figures::new("<b>".to_owned(), &stats.snapshot(), end.as_ref(), Duration::from_secs(3));
        let json = serde_json::to_value(&figures).unwrap();
        let names: Vec<&str> = SENTENCES.iter().map(|(name, _)| *name).collect();
        for name in json.as_object().unwrap().keys().filter(|name| *name != "choices") {
            assert!(names.contains(&name.as_str()), "{name} has no sentence");
        }
        assert_eq!(json.as_object().unwrap().len(), names.len() + 1);
        let table = table(&figures).into_string();
        for part in [
            "<data value=\"1572864\">1.5 MiB<",
            "<data value=\"1234567\">1,234,567<",
            "<data value=\"1.5\">1.5 s<",
            ">below 1.1 s<",
            "<data value=\"null\">none<",
            "&lt;b&gt;",
        ] {
            assert!(table.contains(part), "{part} is not in {table}");
        }
    }
}
