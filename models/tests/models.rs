//! Runs the models one after another. If there are arguments, runs only the models whose paths contain one of them.

use std::process::ExitCode;
use std::time::Instant;

use hanare_models::{Model, models};

/// Runs a model in a separate thread, because a failed model leaves the state of loom behind in its thread.
fn holds(model: Model) -> bool {
    let start = Instant::now();
    let result = std::thread::spawn(move || model.check()).join();
    let seconds = start.elapsed().as_secs_f64();
    match &result {
        Ok(count) => println!("test {} ... ok  {count} interleavings, {seconds:.1} s", model.name),
        Err(_) => println!("test {} ... FAILED  {seconds:.1} s", model.name),
    }
    result.is_ok()
}

fn main() -> ExitCode {
    let parts: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |model: &Model| parts.is_empty() || parts.iter().any(|part| model.name.contains(part));
    let wanted: Vec<Model> = models().into_iter().filter(is_wanted).collect();
    let held = wanted.iter().filter(|model| holds(**model)).count();
    println!("{held} of {} models hold", wanted.len());
    if held == wanted.len() && held > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
