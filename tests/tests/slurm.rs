//! Tests the job script of `hanare slurm` on a Slurm cluster of this machine. The program must get the memory of the other
//! nodes, its exit code must become the job's, and nothing may be left, however the job ends.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use hanare_tests::{Ended, Place, Slurm, built, figures, installed, processes_of, until};
use rustix::process::{Pid, Signal, kill_process};

/// Memory that a server of a job with `--mem 256M` lends, in bytes: all but a sixteenth and 64M.
const LENT: u64 = (256 - 16 - 64) << 20;

/// Returns the script that `hanare slurm` prints for three nodes of 256M.
fn printed(place: &Place, flags: &[&str], program: &[&str]) -> String {
    let mut command = place.hanare(["slurm", "--nodes", "3", "--mem", "256M"]);
    let outcome = place.run(command.args(flags).arg("--").args(program));
    outcome.assert_well("hanare slurm");
    outcome.text()
}

/// Replaces a line of a script, as its user would.
fn edited(script: &str, from: &str, to: &str) -> String {
    assert_eq!(script.matches(from).count(), 1, "{from} is in\n{script}");
    script.replace(from, to)
}

/// Writes the script with servers that listen on the loopback only.
fn job(place: &Place, flags: &[&str], program: &[&str]) -> PathBuf {
    place.file("job.sh", edited(&printed(place, flags, program), "listen=0.0.0.0\n", "listen=127.0.0.1\n"))
}

fn output(place: &Place, job: &str) -> String {
    std::fs::read_to_string(place.path(&format!("slurm-{job}.out"))).expect("the job's output")
}

/// Returns the folders of jobs, each with a key.
fn folders(place: &Place) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place.path("")).expect("the test's folder").map(|entry| entry.expect("an entry"));
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".hanare-")).map(|it| it.path()).collect()
}

/// Asserts that no process of a job runs, and that its folder is gone, and with it its key.
fn assert_nothing_left(place: &Place) {
    until("no process is left", || processes_of(place, "/hanare").is_empty());
    assert_eq!(folders(place), Vec::<PathBuf>::new());
    place.assert_nothing_left();
}

fn ended(state: &str, code: &str) -> Ended {
    Ended { state: state.to_owned(), code: code.to_owned() }
}

fn touch() -> String {
    built().workload("touch").display().to_string()
}

#[test]
fn the_script_has_no_faults_that_shellcheck_knows() {
    if !installed("shellcheck", "shellcheck") {
        return;
    }
    let place = Place::new();
    let words = ["sh", "-c", "it's \"$HOME\" `x` \\ !\n*", "", "~"];
    for flags in [&[][..], &["--redundancy", "mirror", "--cpus", "2", "--time", "1-0", "--partition", "all"]] {
        let script = place.file("job.sh", printed(&place, flags, &words));
        let outcome = place.run(Command::new("shellcheck").arg(script));
        assert!(outcome.code == Some(0) && outcome.stdout.is_empty(), "{outcome:?}");
    }
}

#[test]
fn a_program_has_the_memory_of_the_other_nodes_and_its_exit_code_is_the_jobs() {
    let place = Place::new();
    let Some(slurm) = Slurm::start(&place) else { return };
    let json = place.path("json");
    let line = "\"$0\" 32M --passes 2 && printf '%s|' \"$@\"";
    let script =
        job(&place, &["--local", "8M"], &["sh", "-c", line, &touch(), "it's", "a  \"b\"", "$HOME *", "", "\\"]);
    let text = std::fs::read_to_string(&script).expect("the script");
    let flags = format!("--report --stats-json {}", json.display());
    std::fs::write(&script, edited(&text, "--report)", &format!("{flags})"))).expect("the script");
    let number = slurm.submit(&script, &[]);
    let end = slurm.ended(&number);
    let said = output(&place, &number);
    assert_eq!(end, ended("COMPLETED", "0:0"), "{said}");
    assert!(said.contains("ok touch: 33554432 bytes"), "{said}");
    assert!(said.contains("it's|a  \"b\"|$HOME *||\\|"), "{said}");
    assert!(said.contains("hanare: report for sh"), "{said}");
    figures(&json).assert_paged(24 << 20, "in a job");
    assert_nothing_left(&place);

    let number = slurm.submit(&job(&place, &[], &["sh", "-c", "echo I fail; exit 3"]), &[]);
    assert_eq!(slurm.ended(&number), ended("FAILED", "3:0"));
    assert!(output(&place, &number).starts_with("I fail\n"));
    assert_nothing_left(&place);

    // A server that cannot listen says why, in the job's output.
    let script = edited(&printed(&place, &[], &["true"]), "listen=0.0.0.0\n", "listen=203.0.113.1\n");
    let number = slurm.submit(&place.file("job.sh", script), &[]);
    assert_eq!(slurm.ended(&number), ended("FAILED", "125:0"));
    let said = output(&place, &number);
    assert!(said.starts_with("the memory server on n1 did not start\nn1: "), "{said}");
    assert!(said.contains("\nn1: hanare: cannot listen on 203.0.113.1:0"), "{said}");
    assert_nothing_left(&place);
}

/// Waits until both servers of a job hold pages, and returns the job's folder.
fn until_pages_are_lent(place: &Place) -> PathBuf {
    let mut found = None;
    until("both servers hold pages", || {
        let folder =
            folders(place).pop().filter(|folder| ["n1", "n2"].iter().all(|node| holds_pages(place, folder, node)));
        found = folder;
        found.is_some()
    });
    found.expect("the loop ends with it")
}

/// Whether the server of a node is there and holds pages of a session.
fn holds_pages(place: &Place, folder: &Path, node: &str) -> bool {
    let said = std::fs::read_to_string(folder.join(node)).unwrap_or_default();
    let Some(port) = said.lines().find_map(|line| line.strip_prefix("hanare: serving ")?.rsplit(':').next()) else {
        return false;
    };
    let key = folder.join("key");
    let mut command = place.hanare(["status", &format!("127.0.0.1:{port}"), "--json", "--key"]);
    let told = command.arg(&key).output().expect("hanare status");
    let Ok(sheet) = serde_json::from_slice::<serde_json::Value>(&told.stdout) else { return false };
    assert_eq!(sheet["memory_limit_bytes"].as_u64(), Some(LENT), "{sheet}");
    sheet["sessions"][0]["bytes"].as_u64() > Some(0)
}

#[test]
fn a_job_that_is_cancelled_or_told_to_end_leaves_nothing() {
    let place = Place::new();
    let Some(slurm) = Slurm::start(&place) else { return };
    let script = job(&place, &["--local", "4M"], &[&touch(), "16M", "--passes", "1000000"]);
    let asks: [&[&str]; 2] = [&[], &["--batch", "--signal=TERM"]];
    for flags in asks {
        let number = slurm.submit(&script, &[]);
        let folder = until_pages_are_lent(&place);
        let mode = |path: &Path| std::fs::metadata(path).expect("the folder is there").permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("key"))), (0o700, 0o600));
        place.run(slurm.command("scancel").args(flags).arg(&number)).assert_well("scancel");
        let end = slurm.ended(&number);
        let said = output(&place, &number);
        if flags.is_empty() {
            assert_eq!(end.state, "CANCELLED", "{said}");
        } else {
            // The program ended first, by the signal.
            assert_eq!(end, ended("FAILED", "143:0"), "{said}");
            assert!(!said.contains("lost"), "{said}");
        }
        assert_nothing_left(&place);
    }
}

#[test]
fn a_job_with_redundancy_outlives_the_server_of_a_node() {
    let place = Place::new();
    let Some(slurm) = Slurm::start(&place) else { return };
    // The program goes on until the server is gone.
    let line = "while \"$0\" 16M --passes 5 && ! [ -e gone ]; do :; done";
    let script = job(&place, &["--local", "4M", "--redundancy", "mirror"], &["sh", "-c", line, &touch()]);
    // The nodes of this cluster are one host.
    let number = slurm.submit(&script, &["--export=ALL,HANARE_ALLOW_SAME_HOST=on"]);
    until_pages_are_lent(&place);
    let is_server = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|it| it == "hanare\n");
    let server = processes_of(&place, "serve").into_iter().find(is_server).expect("a server");
    kill_process(Pid::from_raw(server).expect("a process"), Signal::KILL).expect("a server of this test's");
    place.file("gone", "");
    let end = slurm.ended(&number);
    let said = output(&place, &number);
    assert_eq!(end, ended("COMPLETED", "0:0"), "{said}");
    assert!(said.contains("ok touch: 16777216 bytes"), "{said}");
    assert!(said.contains("lost") && said.contains("task 0: Killed"), "{said}");
    assert_nothing_left(&place);
}
