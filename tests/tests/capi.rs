//! Tests the C interface that the DLM paper describes. The paper's example must compile with plain `cc` against an
//! installation by `make install`. It runs with the paper's `-f hostfile -n 2`, and must find its own arguments
//! unchanged.

use std::path::PathBuf;
use std::process::Command;

use hanare_tests::{Place, Served, built, status};

/// Installs Hanare into the directory, compiles the example against it, and returns the path of the program.
fn installed_example(place: &Place) -> PathBuf {
    let built = built();
    let prefix = place.path("prefix");
    let mut install = Command::new("make");
    install.args(["--silent", "install"]).current_dir(&built.root);
    install.arg(format!("PREFIX={}", prefix.display())).arg(format!("PROFILE={}", built.profile()));
    let done = install.env("CARGO_TARGET_DIR", &built.target).output().expect("make runs");
    assert!(done.status.success(), "make install: {done:?}");
    let mut flags = Command::new("pkg-config");
    flags.args(["--cflags", "--libs", "hanare"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = flags.output().expect("pkg-config runs");
    assert!(flags.status.success(), "{flags:?}");
    let program = place.path("example");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    cc.arg(built.root.join("workloads/dlm_example.c"));
    cc.args(String::from_utf8_lossy(&flags.stdout).split_whitespace());
    assert!(cc.status().expect("cc runs").success(), "cc could not compile the example");
    program
}

/// The program's own argument: a number of words of 4 bytes. The words take 16 MiB at first, and 32 MiB after the
/// realloc.
const WORDS: &str = "4M";
const SAID: &str = "ok dlm_example: 4194304 words\n";

#[test]
fn the_papers_example_runs_on_memory_servers_and_on_a_private_one() {
    let place = Place::new();
    let example = installed_example(&place);

    let (used, unused) = (Served::tcp(&place, "128M"), Served::tcp(&place, "128M"));
    let hosts = format!("here 8 // computes\n{} 128\n{} 128\n", used.address, unused.address);
    let hosts = place.file("hosts", hosts).display().to_string();
    let mut command = place.command(&example);
    let outcome = place.run(command.args(["-f", &hosts, WORDS, "-n", "2"]));
    outcome.assert_well("with a host file");
    assert_eq!(outcome.text(), SAID);
    // The program uses at least 32 MiB, of which 8 MiB are local.
    let seen = status(&used.address);
    assert!(seen.write_bytes >= 16 << 20 && seen.read_bytes >= 8 << 20, "{seen:?}");
    assert_eq!(status(&unused.address).write_bytes, 0, "-n 2 is the compute node and one server");

    let mut command = place.command(&example);
    let outcome = place.run(command.args(["--local", "8M", WORDS]).env("HANARE_BIN", built().hanare()));
    outcome.assert_well("with a private server");
    assert_eq!(outcome.text(), SAID);
    place.assert_nothing_left();

    // The installed library must find the command that was installed with it.
    let mut command = place.command(&example);
    command.env("PATH", "/usr/bin:/bin");
    let outcome = place.run(command.args(["--mode=sigsegv", "--local=8M", WORDS]));
    outcome.assert_well("with the installed command");
    assert_eq!(outcome.text(), SAID);

    let mut command = place.hanare(["run", "--local", "8M", "--"]);
    let outcome = place.run(command.arg(&example).arg(WORDS));
    outcome.assert_well("under hanare run");
    assert_eq!(outcome.text(), SAID);
    place.assert_nothing_left();

    refusals(&place, &example, &used.address);
}

/// Checks that each mistake ends the example with code 125 and one line, before the example's own work begins.
fn refusals(place: &Place, example: &PathBuf, server: &str) {
    let bad = place.file("bad", format!("here 8\n{server} lots\n")).display().to_string();
    let cases: [(&[&str], &str); 5] = [
        (&["-f", &bad, "-n", "2"], "bad:2"),
        (&["-f", "/no/such/file"], "/no/such/file"),
        (&["-n", "2"], "-f"),
        (&["--server", "127.0.0.1:1", "--local", "8M"], "127.0.0.1:1"),
        (&["--server", server, "--local", "4K"], "--local"),
    ];
    for (args, part) in cases {
        let outcome = place.run(place.command(example).args(args));
        outcome.assert_ended_by_us(125, part);
        assert_eq!(outcome.text(), "", "{args:?}");
    }
    place.assert_nothing_left();
}

#[test]
fn a_lost_server_ends_the_example_with_its_name() {
    let place = Place::new();
    let example = installed_example(&place);
    let server = Served::tcp(&place, "512M");
    let hosts = place.file("hosts", format!("here 4\n{} 512\n", server.address)).display().to_string();
    let mut command = place.command(&example);
    // The program runs long enough to be interrupted. It uses 512 MiB in all, with 4 MiB of local memory.
    let run = place.start(command.args(["-f", &hosts, "32M"]));
    hanare_tests::until("it pages", || status(&server.address).write_bytes > 16 << 20);
    let address = server.address.clone();
    server.kill();
    run.finish(std::time::Duration::from_secs(5)).assert_ended_by_us(120, &address);
}

#[test]
fn the_manual_and_the_completions_are_installed() {
    let place = Place::new();
    installed_example(&place);
    let prefix = place.path("prefix");
    let page = std::fs::read_to_string(prefix.join("share/man/man1/hanare-run.1")).expect("a page of the manual");
    for part in [".TH hanare-run 1", ".SH SYNOPSIS\nhanare run [OPTIONS] [PROGRAM]...", "\\-\\-local", ".SH EXAMPLES"] {
        assert!(page.contains(part), "{part:?} is not in {page}");
    }
    let script =
        "source \"$1\"; COMP_WORDS=(hanare ser); COMP_CWORD=1; _hanare hanare ser hanare; echo \"${COMPREPLY[@]}\"";
    let mut bash = place.command("bash");
    bash.args(["-c", script, "bash"]).arg(prefix.join("share/bash-completion/completions/hanare"));
    let outcome = place.run(&mut bash);
    assert!(outcome.code == Some(0) && outcome.text() == "serve\n", "{outcome:?}");
    for file in ["share/zsh/site-functions/_hanare", "share/fish/vendor_completions.d/hanare.fish"] {
        let text = std::fs::read_to_string(prefix.join(file)).expect("completions");
        assert!(text.contains("redundancy"), "{file}");
    }
}

/// Checks that the tutorials have the examples as they are, that these compile against an installation, and that nothing of
/// it is left after `make uninstall`.
#[test]
fn the_examples_compile_run_and_the_installation_can_be_removed() {
    let place = Place::new();
    installed_example(&place);
    let prefix = place.path("prefix");
    let root = &built().root;
    for (name, page) in [("far.c", "c-program"), ("shared.c", "shared-memory")] {
        let page = std::fs::read_to_string(root.join(format!("docs/tutorials/{page}.md"))).expect("a tutorial");
        let source = std::fs::read_to_string(root.join("examples").join(name)).expect("an example");
        let shown = &source[source.find("#include").expect("an include")..];
        assert!(page.contains(&format!("```c file={name}\n{shown}```\n")), "the tutorial has another {name}");
    }
    let path = format!("{}:/usr/bin:/bin", prefix.join("bin").display());
    for (name, package, sum) in [("far", "hanare", "35184367894528"), ("shared", "hanare-dsm", "549755289600")] {
        let script = format!(
            "cc -std=c11 -Wall -Wextra -Werror {0}/examples/{name}.c $(pkg-config --cflags --libs {package}) -o {1}",
            root.display(),
            place.path(name).display()
        );
        let mut cc = Command::new("sh");
        cc.args(["-ec", &script]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        assert!(cc.status().expect("sh runs").success(), "{script}");
        let mut command = match name {
            "far" => place.command(place.path(name)),
            _ => place.command(prefix.join("bin/hanare")),
        };
        match name {
            "far" => command.args(["--local", "16M"]),
            _ => command.args(["launch", "-n", "2", "--"]).arg(place.path(name)),
        };
        let outcome = place.run(command.env("PATH", &path));
        outcome.assert_well(name);
        assert_eq!(outcome.text(), format!("the sum is {sum}\n"));
    }
    let mut uninstall = Command::new("make");
    uninstall.args(["--silent", "uninstall"]).current_dir(root).arg(format!("PREFIX={}", prefix.display()));
    assert!(uninstall.env("CARGO_TARGET_DIR", &built().target).status().expect("make runs").success());
    let left = Command::new("find").arg(&prefix).args(["-type", "f"]).output().expect("find runs");
    assert_eq!(String::from_utf8_lossy(&left.stdout), "", "left behind");
    place.assert_nothing_left();
}
