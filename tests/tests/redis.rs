//! Tests the typical work of redis. It forks a child that saves a snapshot of its memory, while clients write to the
//! parent. The saved dataset must be the dataset at the fork, word for word. And redis must go on, with its dataset, when
//! one of the memory servers that keep its pages in two copies is killed.

use std::path::Path;

use hanare_tests::{
    Place, Running, Served, figures, installed, is_full, patience, status, system_calls_work_on_far_pages, until,
};

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

/// Starts clients that write and read another database of redis than the first one.
fn clients(place: &Place, socket: &Path, requests: &str) -> Running {
    let mut command = place.command("redis-benchmark");
    command.arg("-s").arg(socket).args(["--dbnum", "1", "-q", "--csv", "-c", "8", "-P", "4", "-d", "512"]);
    place.start(command.args(["-r", "10000", "-n", requests, "-t", "set,get,hset"]))
}

#[test]
fn redis_goes_on_when_a_server_of_its_memory_is_killed() {
    let there = installed("redis-server", "redis-server") && installed("redis-benchmark", "redis-tools");
    if !there || !system_calls_work_on_far_pages() {
        return;
    }
    let place = Place::new();
    let mut servers: Vec<Served> = (0..3).map(|_| Served::tcp(&place, "1G")).collect();
    let (socket, json) = (place.path("s"), place.path("json"));
    let mut flags = vec!["--local", "25%", "--far", "all", "--redundancy", "mirror", "--allow-same-host"];
    flags.extend(["--stats-json", json.to_str().expect("a path of ours")]);
    servers.iter().for_each(|server| flags.extend(["--server", &server.address]));
    let mut redis = server(&place, Some(&flags), &socket);
    starts(&place, &socket, &mut redis);
    let (keys, requests) = if is_full() { ("400000", "400000") } else { ("15000", "15000") };
    say(&place, &socket, &["debug", "populate", keys, "key", "700"]);
    let before = say(&place, &socket, &["debug", "digest"]);

    let mut clients = clients(&place, &socket, requests);
    let written = |server: &Served| status(&server.address).write_bytes;
    let earlier: Vec<u64> = servers.iter().map(written).collect();
    until("the clients make redis page", || {
        servers.iter().zip(&earlier).all(|(server, earlier)| written(server) > earlier + (256 << 10)) || !clients.runs()
    });
    assert!(clients.runs(), "the server is killed in the middle: {}", clients.said_so_far());
    servers.remove(1).kill();
    let outcome = clients.finish(patience());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let lines = outcome.text().lines().filter(|line| line.starts_with('"')).count();
    assert!(lines == 4 && !outcome.text().contains("rror"), "a line for each test, and no error: {outcome:?}");
    until("every page has two copies again", || {
        assert!(redis.runs(), "redis ended: {}", redis.said_so_far());
        redis.said_so_far().contains("every page has all its parts again")
    });
    say(&place, &socket, &["-n", "1", "flushdb"]);
    assert_eq!(say(&place, &socket, &["debug", "digest"]), before, "the dataset has changed");
    place.run(place.command("redis-cli").arg("-s").arg(&socket).args(["shutdown", "nosave"]));
    let outcome = redis.finish(patience());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let seen = figures(&json);
    // On a loaded machine, a server that has no CPU for a second counts as lost, too.
    assert!(seen.number("servers_lost") >= 1 && seen.number("parts_behind_bytes") == 0, "{outcome:?}");
    assert!(seen.number("parts_rebuilt_bytes") > 0, "{outcome:?}");
    println!("{} MiB rebuilt", seen.number("parts_rebuilt_bytes") >> 20);
    place.assert_nothing_left();
}
