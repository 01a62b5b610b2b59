#!/usr/bin/env bash
# What it costs to check, to seal and to copy pages: `make bench-redundancy`.
#
# Each row compares two runs of `hanare bench paging` over TCP, taken in turn: with the feature and without it. Both have
# the same number of servers, so that the servers' threads take CPUs from the program on both sides. A row's figure is
# the median of RUNS (5) ratios of times. SIZE (512M) is the size of the far memory. Let nothing else run.
set -euo pipefail
cd "$(dirname "$0")/.."
SIZE="${SIZE:-512M}"
. benches/common.sh
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

# Prints the seconds of one run: seconds FLAGS...
seconds() {
    runs=1 paging "$folder/json" --link tcp "$@"
    figure "$folder/json" seconds
}

# Prints a row: row WHAT BOUND "FLAGS OF BOTH" "FLAGS WITHOUT" "FLAGS WITH"
row() {
    local both without with round ratio
    read -ra both <<<"$3"
    read -ra without <<<"$4"
    read -ra with <<<"$5"
    for ((round = 0; round < runs; round++)); do
        quotient "$(HANARE_DISABLE="${6:-}" seconds "${both[@]}" "${with[@]}")" \
            "$(HANARE_DISABLE="${7:-}" seconds "${both[@]}" "${without[@]}")"
        echo
    done | sort -n >"$folder/ratios"
    ratio="$(awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }' "$folder/ratios")"
    printf '%-52s %7s (%s to %s)   wanted %s: %s\n' "$1" "$ratio" "$(head -n 1 "$folder/ratios")" \
        "$(tail -n 1 "$folder/ratios")" "$2" "$(verdict "$ratio" "$2")"
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
