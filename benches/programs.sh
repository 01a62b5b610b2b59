#!/usr/bin/env bash
# Real programs with a quarter of their far memory local, against themselves without Hanare, and what --far large and
# --far all make of each. Medians of 3 runs in seconds. Wants a machine at rest.
set -euo pipefail
cd "$(dirname "$0")/.."
. benches/common.sh
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
python=$target/venv/bin/python
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

cat > "$place/kmeans.py" <<'PY'
import numpy as n
from sklearn.cluster import KMeans
r = n.random.default_rng(3)
points = n.concatenate([c + r.standard_normal((20000, 24)) for c in r.random((6, 24)) * 100])
print(KMeans(n_clusters=6, n_init=2, random_state=5).fit(points).inertia_ > 0)
PY
cat > "$place/tree.py" <<'PY'
import numpy as n
from Bio import Cluster
data = n.random.default_rng(4).random((2000, 12))
print(len(Cluster.treecluster(data=data, method='m', dist='e')))
PY
cat > "$place/forks.sh" <<'SH'
for ((i = 0; i < 1000; i++)); do x=$(echo $i); done
SH
cat > "$place/execs.sh" <<'SH'
for ((i = 0; i < 1000; i++)); do /bin/true; done
SH
python3 - > "$place/big.c" <<'PY'
for i in range(800):
    print(f"struct s{i} {{ int a; double b; struct s{i} *next; char name[{i % 31 + 1}]; }};"
          f"int f{i}(struct s{i} *s, int n) {{ int sum = {i}; for (int k = 0; k < n; k++) {{ if (s->a % 5 == k % 3)"
          f" sum += s->name[k % sizeof s->name]; else {{ sum ^= (int)(s->b * k); s = s->next; }} }} return sum; }}")
PY
seq 300000 | sed 's/$/ the room apart/' > "$place/text"

measure() {
    local name=$1
    shift
    python3 - "$hanare" "$name" "$place" "$@" <<'PY'
import json, statistics, subprocess, sys, time
hanare, name, place, *program = sys.argv[1:]
def run(before):
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([*before, *program], check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return statistics.median(times)
plain = run([])
print(f"| {name} | {plain:.2f} |", end="")
for far in ("large", "all"):
    took = run([hanare, "run", "--local", "25%", "--far", far, "--stats-json", place + "/json", "--"])
    seen = json.load(open(place + "/json"))
    mib = lambda what: f"{seen[what] / (1 << 20):.0f}"
    print(f" {took:.2f} ({took / plain:.2f} x) | {mib('far_bytes_peak')} | {mib('bytes_out')}, {mib('bytes_in')} |", end="")
print(flush=True)
PY
}

echo "| program | plain | large | far MiB | MiB out, in | all | far MiB | MiB out, in |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- |"
measure "gcc -O1, 800 functions" gcc -O1 -c "$place/big.c" -o "$place/big.o"
measure "KMeans, 120,000 points" "$python" "$place/kmeans.py"
measure "Bio.Cluster, 2,000 rows" "$python" "$place/tree.py"
measure "sort, 7 MB" sort -S 16M -r "$place/text"
measure "xz -6, 7 MB" xz -6 -T1 -k -c "$place/text"
measure "bash, 1,000 forks" bash "$place/forks.sh"
measure "bash, 1,000 programs" bash "$place/execs.sh"
