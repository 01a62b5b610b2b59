//! `hanare doctor` on this machine, whatever it allows.

mod common;

use common::Place;

#[test]
fn it_names_the_mode_and_agrees_with_itself() {
    let place = Place::with_library();
    let text = place.run(place.hanare().arg("doctor"));
    let json = place.run(place.hanare().args(["doctor", "--json"]));
    assert_eq!((text.code, json.code), (Some(0), Some(0)), "{text:?} {json:?}");
    assert_eq!((text.stderr.as_str(), json.stderr.as_str()), ("", ""));
    let findings: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let chosen = findings["mode_chosen"].as_str().unwrap();
    assert!(text.stdout.contains(&format!("a run will use  {chosen}")), "{text:?}");
    let modes = findings["modes"].as_array().unwrap();
    assert!(modes.iter().any(|mode| mode["mode"] == chosen && mode["works"] == true), "{findings}");
    assert_eq!(modes.len(), 3);
}

#[test]
fn without_userfaultfd_only_sigsegv_is_left() {
    let place = Place::with_library();
    let outcome = place.run(place.hanare().args(["doctor", "--json"]).env("HANARE_DISABLE", "userfaultfd"));
    let findings: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((outcome.code, &findings["mode_chosen"]), (Some(0), &"sigsegv".into()), "{findings}");
    assert_eq!(findings["userfaultfd_access"], "none");
}

#[test]
fn it_fails_when_no_run_could_work() {
    let place = Place::with_library();
    let no_mode =
        place.run(place.hanare().arg("doctor").env("HANARE_DISABLE", "userfaultfd").env("HANARE_MODE", "thread"));
    assert_eq!(no_mode.code, Some(125));
    assert!(no_mode.stdout.contains("a run will not work") && no_mode.stdout.contains("problem"), "{no_mode:?}");

    let no_library = place.run(place.hanare().args(["doctor", "--json"]).env("HANARE_LIB", "/no/such/lib"));
    let findings: serde_json::Value = serde_json::from_str(&no_library.stdout).unwrap();
    assert_eq!(no_library.code, Some(125));
    assert!(findings["mode_chosen"].is_null() && findings["problems"][0].as_str().unwrap().contains("HANARE_LIB"));

    let narrow = format!("ulimit -v 4000000; exec {} doctor", env!("CARGO_BIN_EXE_hanare"));
    let mut command = std::process::Command::new("sh");
    let no_space = place.run(command.args(["-c", &narrow]).env("HANARE_LIB", place.path("")));
    assert_eq!(no_space.code, Some(125), "{no_space:?}");
    assert!(no_space.stdout.contains("ulimit -v"), "{no_space:?}");
}

#[test]
fn help_goes_to_stdout_and_teaches() {
    let place = Place::new();
    for args in [&["--help"][..], &["run", "--help"], &["serve", "--help"], &["doctor", "--help"], &["help", "run"]] {
        let outcome = place.run(place.hanare().args(args));
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{args:?}");
        assert!(outcome.stdout.contains("hanare"), "{args:?}");
    }
    for command in ["run", "torture"] {
        assert!(place.run(place.hanare().args([command, "--help"])).stdout.contains("Examples:"), "{command}");
    }
    assert!(!place.run(place.hanare().arg("--help")).stdout.contains("torture-program"));
    for command in ["run", "launch"] {
        assert!(
            place.run(place.hanare().args([command, "--policy", "help"])).stdout.contains("w-tinylfu"),
            "{command}"
        );
    }
    assert_eq!(place.run(place.hanare().arg("--version")).code, Some(0));
}
