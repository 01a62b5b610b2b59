#!/usr/bin/env bash
# What it costs to check, to seal and to copy pages: `make bench-redundancy`.
#
# Each row compares two runs of `hanare bench paging` over TCP, taken in turn: with the feature and without it. Both have
# the same number of servers, so that the servers' threads take CPUs from the program on both sides. A row's figure is
# the median of RUNS (5) ratios of times. SIZE (512M) is the size of the far memory. Let nothing else run.
#
# Beside it stands the median ratio of the CPU time of the whole machine, and the share of its CPUs that was busy with the
# feature. Where the share is near 1, program and servers contend for the CPUs, and the CPU time bounds the row.
set -euo pipefail
cd "$(dirname "$0")/.."
SIZE="${SIZE:-512M}"
. benches/common.sh
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

# Prints the time that all CPUs were busy and idle since the start of the machine, in ticks.
ticks() {
    awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 + $9, $5 + $6 }' /proc/stat
}

# Prints the seconds of one run, the busy ticks and the idle ticks: one_run FLAGS...
one_run() {
    local busy idle
    read -r busy idle < <(ticks)
    runs=1 paging "$folder/json" --link tcp "$@"
    echo "$(figure "$folder/json" seconds) $(ticks) $busy $idle" | awk '{ print $1, $2 - $4, $3 - $5 }'
}

# Prints the median of column N of the ratios: median N
median() {
    sort -n -k "$1,$1" "$folder/ratios" | awk -v n="$1" '{ all[NR] = $n } END { print all[int((NR + 1) / 2)] }'
}

# Prints a row: row WHAT BOUND "FLAGS OF BOTH" "FLAGS WITHOUT" "FLAGS WITH"
row() {
    local both without with round ratio
    read -ra both <<<"$3"
    read -ra without <<<"$4"
    read -ra with <<<"$5"
    for ((round = 0; round < runs; round++)); do
        echo "$(HANARE_DISABLE="${6:-}" one_run "${both[@]}" "${with[@]}")" \
            "$(HANARE_DISABLE="${7:-}" one_run "${both[@]}" "${without[@]}")"
    done | awk '{ printf "%.3f %.2f %.2f\n", $1 / $4, $2 / $5, $2 / ($2 + $3) }' | sort -n >"$folder/ratios"
    ratio="$(median 1)"
    printf '%-50s %6s (%s to %s)   wanted %s: %s; CPU time %s, %s busy\n' "$1" "$ratio" \
        "$(head -n 1 "$folder/ratios" | cut -d ' ' -f 1)" "$(tail -n 1 "$folder/ratios" | cut -d ' ' -f 1)" "$2" \
        "$(verdict "$ratio" "$2")" "$(median 2)" "$(median 3)"
    record "$1" "$ratio" x
}

seq="--pattern seq"
seq_rw="--pattern seq --access rw"
rand="--pattern rand --page-size 4K"
row "checked pages / unchecked, sequential read" "<= 1.03" "$seq --seal off" "" "" "" checks
row "checked pages / unchecked, random 4 KiB" "<= 1.03" "$rand --seal off" "" "" "" checks
row "sealed pages / checked, sequential read" "<= 1.25" "$seq" "--seal off" "--seal on"
row "sealed pages / checked, random 4 KiB" "<= 1.10" "$rand" "--seal off" "--seal on"
for scheme in mirror:1.05:1.35 parity:2+1:1.1:1.6; do
    name="${scheme%:*:*}"
    bounds="${scheme#"$name":}"
    for pattern in "sequential read:$seq:${bounds%:*}" "random 4 KiB:$rand:${bounds%:*}" \
        "sequential read-write:$seq_rw:${bounds#*:}"; do
        IFS=: read -r what flags bound <<<"$pattern"
        row "$name / no redundancy, $what" "<= $bound" "$flags --servers 3" "" "--redundancy $name"
    done
done
