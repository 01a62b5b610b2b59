#!/usr/bin/env bash
# Allocation and freeing against malloc, on the program of DLM's paper on memory management: `make bench-heap`.
#
# Medians of RUNS (5); each round runs malloc and dlm_alloc one after the other, so that a slow minute hurts both. The
# tree fits into LOCAL (64M) whole at 100 %. Where times count nothing else may run.
set -euo pipefail
cd "$(dirname "$0")/.."
. benches/common.sh
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
make --no-print-directory -s -C workloads OUT="$target/workloads" \
    HANARE_LIBDIR="$(dirname "$(realpath "$hanare")")" "$target"/workloads/{rbtree,touch,blocks}
tree="$target/workloads/rbtree"
export HANARE_BIN="$hanare"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# The figure KEY in a line of JSON: told KEY LINE
told() {
    sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p" <<<"$2"
}

# The median of the numbers in FILE.
median() {
    sort -g "$1" | awk '{ at[NR] = $1 } END { print at[int((NR + 1) / 2)] }'
}

row="%-46s %10s %10s %8s   %-8s %s\n"
# A line of the table, named as in SPECIFICATION.md: compare NAME FIGURE REFERENCE BOUND
compare() {
    local ratio
    ratio="$(quotient "$2" "$3")"
    # shellcheck disable=SC2059 # the format is ours
    printf "$row" "$1" "$2" "$3" "$ratio" "$4" "$(verdict "$ratio" "$4")"
    record "$1" "$ratio" x
}

bytes="$(told far_bytes_peak "$("$tree" --local 64M --allocator dlm --json)")"
echo "500,000 inserts, 100 x (1,000 deletes, 1,000 inserts), release of all; $bytes bytes of far memory (medians of $runs)"
# shellcheck disable=SC2059
printf "$row" "" "dlm s" "malloc s" "ratio" "wanted" ""
for percent in 100 74 56; do
    local_bytes=$((bytes * percent / 100 / 4096 * 4096))
    [ "$percent" != 100 ] || local_bytes=$((64 << 20))
    rm -f "$dir"/dlm.* "$dir"/malloc.*
    for ((n = 0; n < runs; n++)); do
        plain="$("$tree" --allocator malloc --json)"
        far="$("$tree" --local "$local_bytes" --allocator dlm --json)"
        for key in alloc_s free_s total_s; do
            told "$key" "$plain" >>"$dir/malloc.$key"
            told "$key" "$far" >>"$dir/dlm.$key"
        done
    done
    bound="<= 3"
    [ "$percent" != 100 ] || bound="<= 1.05"
    [ "$percent" != 74 ] || bound="-"
    compare "allocating / malloc's time at $percent % local" "$(median "$dir/dlm.alloc_s")" "$(median "$dir/malloc.alloc_s")" "<= 1.0"
    compare "freeing / malloc's time at $percent % local" "$(median "$dir/dlm.free_s")" "$(median "$dir/malloc.free_s")" "<= 1.0"
    compare "the whole program / plain at $percent % local" "$(median "$dir/dlm.total_s")" "$(median "$dir/malloc.total_s")" "$bound"
done

away="$("$tree" --local 24M --allocator dlm --away --json)"
faults="$(told faults_in_release "$away")"
# shellcheck disable=SC2059
printf "$row" "faults in freeing $(told nodes "$away") far nodes" "$faults" "" "" "<= 0" "$(verdict "$faults" "<= 0")"
record "faults in freeing all nodes when they are far" "$faults"

echo
echo "Near memory of the pager and the heap for each 4 KiB of far memory, in bytes"
for what in "array auto touch 1G" "array 4K touch 1G" "blocks auto blocks many 2G" "tree auto rbtree --allocator dlm --scale 10"; do
    read -ra words <<<"$what"
    "$hanare" run --local 512M --page-size "${words[1]}" --stats-json "$dir/near.json" -- \
        "$target/workloads/${words[2]}" "${words[@]:3}" >"$dir/said"
    near="$(figure "$dir/near.json" near_bytes_per_far_page | cut -c1-5)"
    # shellcheck disable=SC2059
    printf "$row" "${words[0]} of $(figure "$dir/near.json" far_bytes_peak) bytes, page size ${words[1]}" \
        "$near" "" "" "<= 48" "$(verdict "$near" "<= 48")"
    record "near memory for each 4 KiB of far memory: ${words[0]}, page size ${words[1]}" "$near" bytes
done
