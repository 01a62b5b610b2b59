//! Tests the typical work of redis. It forks a child that saves a snapshot of its memory, while clients write to the
//! parent. The saved dataset must be the dataset at the fork, word for word.

use std::path::Path;

use hanare_tests::{Place, Running, figures, installed, is_full, patience, system_calls_work_on_far_pages, until};

fn server(place: &Place, under: Option<&[&str]>, socket: &Path) -> Running {
    let mut command = match under {
        Some(flags) => {
            let mut command = place.hanare(["run"]);
            command.args(flags).args(["--", "redis-server"]);
            command
        }
        None => place.command("redis-server"),
    };
    command.args(["--port", "0", "--save", "", "--dbfilename", "saved.rdb", "--enable-debug-command", "yes"]);
    // Warnings about the machine's settings go to a file, because they do not matter to this test.
    command.args(["--logfile", "log", "--unixsocket"]).arg(socket);
    place.start(&mut command)
}

fn say(place: &Place, socket: &Path, words: &[&str]) -> String {
    let outcome = place.run(place.command("redis-cli").arg("-s").arg(socket).args(words));
    assert_eq!(outcome.code, Some(0), "{words:?}: {outcome:?}");
    outcome.text().trim_end().to_owned()
}

fn starts(place: &Place, socket: &Path, server: &mut Running) {
    until("redis answers", || {
        assert!(server.runs(), "redis ended: {}", server.said_so_far());
        place.run(place.command("redis-cli").arg("-s").arg(socket).arg("ping")).text().starts_with("PONG")
    });
}

fn write(place: &Place, socket: &Path, keys: &str, tests: &str) {
    let mut command = place.command("redis-benchmark");
    command.arg("-s").arg(socket).args(["-q", "--csv", "-c", "8", "-P", "4", "-d", "512", "-r", keys, "-n", keys]);
    let outcome = place.run(command.args(["-t", tests]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.text().lines().count(), 1 + tests.split(',').count(), "a line for each test: {outcome:?}");
}

/// Runs redis with `--far all` or with the default setting. With `--far all`, the values of redis are far. With the
/// default, only its large tables are far.
fn saves_while_it_is_written_to(far: &str, paged_bytes: u64) {
    let place = Place::new();
    let (socket, json) = (place.path("s"), place.path("json"));
    let keys = if is_full() { "300000" } else { "15000" };
    let flags = ["--local", "25%", "--far", far, "--stats-json", json.to_str().expect("a path of ours")];
    let mut redis = server(&place, Some(&flags), &socket);
    starts(&place, &socket, &mut redis);

    write(&place, &socket, keys, "set,get,lpush,lpop,hset");
    say(&place, &socket, &["debug", "populate", keys, "key", "700"]);
    say(&place, &socket, &["set", "marker", "before"]);
    let before = say(&place, &socket, &["debug", "digest"]);
    assert!(say(&place, &socket, &["bgsave"]).starts_with("Background saving started"));
    write(&place, &socket, keys, "set,lpush,hset");
    say(&place, &socket, &["set", "marker", "after"]);
    until("it has saved", || say(&place, &socket, &["info", "persistence"]).contains("rdb_bgsave_in_progress:0"));
    assert!(say(&place, &socket, &["info", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    assert_eq!(say(&place, &socket, &["get", "marker"]), "after");
    assert_ne!(say(&place, &socket, &["debug", "digest"]), before, "it was written to");
    // The shutdown closes redis-cli's connection without an answer, so the result is not checked.
    place.run(place.command("redis-cli").arg("-s").arg(&socket).args(["shutdown", "nosave"]));
    redis.finish(patience()).assert_well(&format!("redis-server, --far {far}"));
    let seen = figures(&json);
    seen.assert_paged(paged_bytes, &format!("redis-server, --far {far}"));
    assert!(seen.number("forks") == 1 && seen.number("processes") == 2, "the child that saves pages");

    let checked = place.run(place.command("redis-check-rdb").arg("saved.rdb"));
    assert!(checked.code == Some(0) && checked.text().contains("RDB looks OK!"), "{checked:?}");
    let mut native = server(&place, None, &socket);
    starts(&place, &socket, &mut native);
    assert_eq!(say(&place, &socket, &["get", "marker"]), "before");
    assert_eq!(say(&place, &socket, &["debug", "digest"]), before, "another dataset was saved");
    drop(native);
    place.assert_nothing_left();
}

#[test]
fn redis_saves_while_it_is_written_to() {
    let there = installed("redis-server", "redis-server") && installed("redis-benchmark", "redis-tools");
    if !there || !system_calls_work_on_far_pages() {
        return;
    }
    saves_while_it_is_written_to("all", 32 << 20);
    saves_while_it_is_written_to("large", 16 << 10);
}
