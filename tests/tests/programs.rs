//! Tests the purpose of Hanare: unmodified programs of the distribution use far more memory than their budget, and
//! print byte for byte the same as without Hanare.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use hanare_tests::{
    Figures, Outcome, Place, Served, built, figures, installed, is_full, python_with, python_with_numpy,
    system_calls_work_on_far_pages,
};

/// Runs `program args` without Hanare, and under `hanare run` with `flags` and `stdin`. Asserts that output and exit
/// code are the same and that standard error is empty. At least `paged_bytes` bytes must be written back and fetched.
fn same_as_native<S: AsRef<OsStr>>(
    place: &Place,
    flags: &[&str],
    program: &OsStr,
    args: &[S],
    stdin: Option<&Path>,
    paged_bytes: u64,
) -> Outcome {
    let with_stdin = |mut command: Command| {
        if let Some(path) = stdin {
            command.stdin(File::open(path).expect("standard input"));
        }
        command
    };
    let mut native = place.command(program);
    native.args(args);
    let native = place.run(&mut with_stdin(native));
    assert_eq!((native.code, native.stderr.as_str()), (Some(0), ""), "natively: {native:?}");
    let json = place.path("json");
    let mut far = place.hanare(["run", "--stats-json"]);
    far.arg(&json).args(flags).arg("--").arg(program).args(args);
    let far = place.run(&mut with_stdin(far));
    let what = format!("{} {flags:?}", program.display());
    far.assert_well(&what);
    assert!(far.stdout == native.stdout, "{what}: the output differs: {far:?}, natively {native:?}");
    let seen = figures(&json);
    seen.assert_paged(paged_bytes, &what);
    println!("{what}: {} MiB out, {} MiB in", seen.number("bytes_out") >> 20, seen.number("bytes_in") >> 20);
    place.assert_nothing_left();
    far
}

/// Writes a text of at least `bytes` bytes, with lines of words in random order, and returns its path.
fn text(place: &Place, bytes: usize) -> std::path::PathBuf {
    let path = place.path("text");
    let mut file = std::io::BufWriter::new(File::create(&path).expect("a file"));
    let (mut written, mut state) = (0, 88_172_645_463_325_252_u64);
    while written < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let line = format!("{:x} the room apart {:o} is {} on the left\n", state >> 9, state & 0xff_ffff, state % 977);
        file.write_all(line.as_bytes()).expect("written");
        written += line.len();
    }
    file.flush().expect("written");
    path
}

#[test]
fn gnu_sort() {
    if !system_calls_work_on_far_pages() {
        return;
    }
    let place = Place::new();
    let text = text(&place, 30_000_000);
    let args = ["-S".as_ref(), "64M".as_ref(), text.as_os_str()];
    let sorted = same_as_native(&place, &["--local", "16M"], "sort".as_ref(), &args, None, 64 << 20);
    assert!(sorted.stdout.len() >= 30_000_000);
}

#[test]
fn gnu_sort_over_several_servers() {
    if !system_calls_work_on_far_pages() {
        return;
    }
    let place = Place::new();
    let text = text(&place, 8_000_000);
    let servers = [Served::tcp(&place, "64M"), Served::unix(&place, "64M", "s"), Served::tcp(&place, "64M")];
    let mut flags = vec!["--local", "8M"];
    flags.extend(servers.iter().flat_map(|server| ["--server", server.address.as_str()]));
    let args = ["-S", "24M"];
    same_as_native(&place, &flags, "sort".as_ref(), &args, Some(&text), 8 << 20);
    for server in &servers {
        let seen = hanare_tests::status(&server.address);
        assert!(seen.write_bytes > 1 << 20 && seen.read_bytes > 1 << 20, "{}: {seen:?}", server.address);
    }
}

#[test]
fn numpy() {
    let Some(python) = python_with_numpy() else { return };
    if !system_calls_work_on_far_pages() {
        return;
    }
    let place = Place::new();
    let script = "\
import numpy as n
r = n.random.default_rng(1)
a = r.integers(0, 1 << 60, 1 << 21)
a.sort()
print(int((a * n.arange(1 << 21)).sum()), a[::300000].tolist())
m, k = r.random((900, 900)), r.random((900, 900))
p = m @ k
print(repr(p.sum()), repr(p[7, 11]), repr(n.linalg.norm(p - p.T)))
";
    let script = place.file("arrays.py", script);
    same_as_native(&place, &["--local", "12M"], &python, &[&script], None, 16 << 20);
    let server = Served::tcp(&place, "256M");
    let flags = ["--local", "12M", "--server", server.address.as_str()];
    same_as_native(&place, &flags, &python, &[&script], None, 16 << 20);
}

#[test]
fn growth_in_cpp() {
    // The only system call that the workload makes on far pages is mremap, so it runs in every mode.
    for mode in ["auto", "sigbus", "sigsegv"] {
        let place = Place::new();
        let vector = built().workload("vector");
        if mode == "sigbus" && !hanare_tests::mode_works(mode) {
            continue;
        }
        let flags = ["--local", "8M", "--mode", mode];
        same_as_native(&place, &flags, vector.as_os_str(), &["24M"], None, 16 << 20);
    }
}

#[test]
fn xz_there_and_back() {
    if !system_calls_work_on_far_pages() {
        return;
    }
    // The text is short, because each of the two threads of `-9` uses 670 MB sparsely: it hashes every byte to a random
    // page.
    let place = Place::new();
    let text = text(&place, 1_000_000);
    let args = ["-9", "-T2", "--block-size=512KiB", "-c"];
    let packed = same_as_native(&place, &["--local", "16M"], "xz".as_ref(), &args, Some(&text), 1 << 20);
    let packed = place.file("packed", packed.stdout);
    let mut unpack = place.hanare(["run", "--local", "8M", "--", "xz", "-d", "-c", "-T2"]);
    let unpacked = place.run(unpack.stdin(File::open(packed).expect("the packed text")));
    unpacked.assert_well("xz -d");
    assert!(unpacked.stdout == std::fs::read(text).expect("the text"), "the text does not come back: {unpacked:?}");
}

#[test]
fn sqlite_in_memory() {
    if !system_calls_work_on_far_pages() {
        return;
    }
    // SQLite gets its page cache as one large block. Its other allocations are small, and small blocks are not far.
    let sql = "\
create table t as with recursive c(i) as (select 1 union all select i + 1 from c where i < 200000)
  select i, i * 7919 % 200003 as k, hex(i * 31) || '-----------------------------------' as s from c;
create index x on t(k);
select sum(k), count(distinct s), max(s) from t where k % 3 = 0;
delete from t where i % 4 = 1;
select count(*), sum(i) from t;
select k, s from t order by s limit 5;
pragma integrity_check;
";
    let place = Place::new();
    let args = ["-pagecache", "4360", "12000", ":memory:", sql];
    let said = same_as_native(&place, &["--local", "8M"], "sqlite3".as_ref(), &args, None, 16 << 20);
    assert!(said.text().ends_with("\nok\n"), "{said:?}");
}

/// Runs a program that checks itself, with a quarter of its far memory local. Asserts that it succeeds and pages.
fn checks_itself(far: &str, program: &[&str], paged_bytes: u64) -> (Outcome, Figures) {
    let place = Place::new();
    let json = place.path("json");
    let mut command = place.hanare(["run", "--local", "25%", "--far", far, "--stats-json"]);
    let outcome = place.run(command.arg(&json).arg("--").args(program));
    let what = format!("{program:?}, --far {far}");
    outcome.assert_well(&what);
    let seen = figures(&json);
    seen.assert_paged(paged_bytes, &what);
    place.assert_nothing_left();
    (outcome, seen)
}

/// Runs two stress-ng processes at the same time. They traverse their memory in about thirty ways and check its
/// contents.
#[test]
fn stress_ng_verifies() {
    if !installed("stress-ng", "stress-ng") || !system_calls_work_on_far_pages() {
        return;
    }
    let (size, time) = if is_full() { ("256M", "240") } else { ("48M", "4") };
    for far in ["large", "all"] {
        let program =
            ["stress-ng", "-q", "--vm", "2", "--vm-bytes", size, "--vm-method", "all", "--verify", "-t", time];
        let (_, seen) = checks_itself(far, &program, 64 << 20);
        assert!(seen.number("processes") >= 3, "each stressor pages by itself");
    }
}

#[test]
fn memtester_finds_no_fault() {
    if !installed("memtester", "memtester") || !system_calls_work_on_far_pages() {
        return;
    }
    let size = if is_full() { "64M" } else { "2M" };
    let place = Place::new();
    let json = place.path("json");
    // memtester traverses both halves of its memory word by word, many times. That would take minutes with base pages,
    // so this test uses larger pages. It locks its memory, which stays local unless pages are sealed.
    let mut command = place.hanare(["run", "--local", "25%", "--page-size", "64K", "--seal", "on", "--stats-json"]);
    let outcome = place.run(command.arg(&json).args(["--", "memtester", size, "1"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!outcome.text().contains("FAILURE") && outcome.text().trim_end().ends_with("Done."), "{outcome:?}");
    figures(&json).assert_paged(64 << 20, "memtester");
    place.assert_nothing_left();
}

/// Returns a C source with the given number of functions, each with a separate type.
fn source(functions: usize) -> String {
    let function = |n: usize| {
        format!(
            "struct s{n} {{ int a; double b; struct s{n} *next; char name[{}]; }};\n\
             static int f{n}(struct s{n} *s, int n) {{\n    int sum = {n};\n    for (int k = 0; k < n; k++) {{\n        \
             if (s->a % {} == k % 3) sum += s->name[k % sizeof s->name] * {};\n        \
             else {{ sum ^= (int)(s->b * k); s = s->next ? s->next : s; }}\n    }}\n    return sum;\n}}\n\
             int g{n}(void *p) {{ return f{n}(p, {}) + f{}(p, {}); }}\n",
            n % 31 + 1,
            n % 7 + 2,
            n % 101 + 3,
            n % 13,
            n.saturating_sub(1),
            n % 5,
        )
    };
    (0..functions).map(function).collect()
}

#[test]
fn gcc_compiles_to_the_same_object() {
    if !installed("gcc", "gcc") || !system_calls_work_on_far_pages() {
        return;
    }
    let place = Place::new();
    place.file("big.c", source(if is_full() { 6000 } else { 300 }));
    let compile = ["-O1", "-c", "big.c", "-o"];
    place.run(place.command("gcc").args(compile).arg("native.o")).assert_well("gcc natively");
    let native = std::fs::read(place.path("native.o")).expect("an object");
    for far in ["large", "all"] {
        let json = place.path("json");
        let mut command = place.hanare(["run", "--local", "25%", "--far", far, "--stats-json"]);
        command.arg(&json).args(["--", "gcc"]).args(compile).arg("far.o");
        place.run(&mut command).assert_well(far);
        assert!(std::fs::read(place.path("far.o")).expect("an object") == native, "--far {far}: another object");
        figures(&json).assert_paged(8 << 20, far);
        std::fs::remove_file(place.path("far.o")).expect("it is there");
    }
    place.assert_nothing_left();
}

/// Runs one of this project's Python scripts natively, and with a quarter of its far memory local, for `--far large`
/// and `--far all`.
fn python_says_the_same(module: &str, script: &str, size: &str, paged_bytes: u64) {
    let Some(python) = python_with(module) else { return };
    if !system_calls_work_on_far_pages() {
        return;
    }
    for far in ["large", "all"] {
        let place = Place::new();
        let script = place.file("script.py", script);
        let args = [script.as_os_str(), size.as_ref()];
        same_as_native(&place, &["--local", "25%", "--far", far], &python, &args, None, paged_bytes);
    }
}

#[test]
fn scikit_learn_finds_the_clusters() {
    let script = "\
import sys
import numpy as n
from sklearn.cluster import KMeans
r = n.random.default_rng(3)
each = int(sys.argv[1])
centres = r.random((6, 24)) * 100
points = n.concatenate([c + r.standard_normal((each, 24)) for c in centres])
found = KMeans(n_clusters=6, n_init=2, random_state=5).fit(points)
off = n.linalg.norm(found.cluster_centers_[:, None] - centres[None], axis=2).min(axis=1)
assert off.max() < 1, off
print(round(found.inertia_, 3), found.labels_[::each // 3].tolist())
";
    python_says_the_same("sklearn", script, if is_full() { "200000" } else { "10000" }, 16 << 20);
}

/// Runs the C Clustering Library. It uses the same kind of distance matrices as the clustering programs of the papers.
#[test]
fn biopython_finds_the_tree() {
    let script = "\
import hashlib, sys
import numpy as n
from Bio import Cluster
rows = int(sys.argv[1])
r = n.random.default_rng(4)
data = r.random((rows, 12)) + n.repeat(n.arange(4), rows // 4)[:, None] * 10
for method in 'ms':
    tree = Cluster.treecluster(data=data, method=method, dist='e')
    groups = n.array(tree.cut(4)).reshape(4, -1)
    assert all(len(set(g.tolist())) == 1 for g in groups) and len(set(groups[:, 0].tolist())) == 4
    nodes = repr([(tree[i].left, tree[i].right, tree[i].distance) for i in range(len(tree))])
    print(method, hashlib.md5(nodes.encode()).hexdigest())
matrix = Cluster.distancematrix(data, dist='e')
print(repr(sum(float(row.sum()) for row in matrix)))
";
    python_says_the_same("Bio", script, if is_full() { "4000" } else { "800" }, 2 << 20);
}

#[test]
fn the_report_is_on_stderr_and_nothing_of_ours_on_stdout() {
    let place = Place::new();
    let mut command = place.hanare(["run", "--local", "8M", "--report", "--"]);
    let outcome = place.run(command.arg(built().workload("touch")).arg("32M"));
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "ok touch: 33554432 bytes, 1 passes, sequential\n"));
    for part in ["hanare: report for ", "touch: exit code 0", "faults", "prefetch", "peak"] {
        assert!(outcome.stderr.contains(part), "{part:?} is not in {outcome:?}");
    }
}

#[test]
fn the_figures_of_a_killed_program_are_those_of_its_end() {
    let place = Place::new();
    let json = place.path("json");
    let mut command = place.hanare(["run", "--local", "8M", "--stats-json"]);
    let outcome = place.run(command.arg(&json).arg("--").arg(built().workload("touch")).args(["24M", "--killed"]));
    assert_eq!(outcome.code, Some(128 + 9), "{outcome:?}");
    figures(&json).assert_paged(15 << 20, "a program that is killed");
}
