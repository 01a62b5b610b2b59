#!/usr/bin/env bash
# Runs benchmarks, keeps their figures in benches/results.tsv and writes them into SPECIFICATION.md: `make results`.
#
#   benches/results.sh [BENCH...]      default: all of run swap servers redundancy heap shared policies prepaging cluster
#
# Figures of other benchmarks stay as they are. Let nothing else run. All benchmarks together take about an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
kept=benches/results.tsv
fresh="$(mktemp)"
trap 'rm -f "$fresh" "$kept.new"' EXIT
trap 'exit 130' INT TERM

machine() {
    local cpu memory kernel
    cpu="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
    memory="$(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
    kernel="$(uname -r | cut -d. -f1,2)"
    echo "$(nproc) x ${cpu:-$(uname -m)}, $memory, Linux $kernel"
}

[ $# != 0 ] || set -- run swap servers redundancy heap shared policies prepaging cluster
for bench in "$@"; do
    [ -x "benches/$bench.sh" ] || {
        echo "there is no benches/$bench.sh; one of: run swap servers redundancy heap shared policies prepaging cluster" >&2
        exit 2
    }
done
for bench in "$@"; do
    echo "== $bench =="
    RESULTS="$fresh" "benches/$bench.sh"
done

[ -s "$fresh" ] || {
    echo "nothing was measured" >&2
    exit 1
}
# The new figures replace the old ones of the same name.
awk -F '\t' -v OFS='\t' -v date="$(date -u +%F)" -v machine="$(machine)" '
    NR == FNR { now[$1] = $2; next }
    FNR == 1 || !($1 in now)
    END { for (what in now) print what, now[what], date, machine }
' "$fresh" "$kept" >"$kept.new"
{ head -n 1 "$kept.new" && tail -n +2 "$kept.new" | LC_ALL=C sort; } >"$fresh"
cp "$fresh" "$kept"
scripts/specification
