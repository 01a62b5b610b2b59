#!/usr/bin/env bash
# The floors of this machine, and the pager against them and against the wanted bounds: `make bench`.
# RUNS=3 shortens it (medians of 5 otherwise), SIZE=256M makes it smaller. Let nothing else run.
set -euo pipefail
cd "$(dirname "$0")/.."
. benches/common.sh
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

line="%-66s %9s %11s %9s %11s   %-8s %s\n"

# One line of the table, named as in SPECIFICATION.md: row NAME RATIO-KEY BOUND FLAGS...
row() {
    local name="$1" key="$2" bound="$3" json="$dir/row.json"
    shift 3
    paging "$json" "$@"
    local ratio
    ratio="$(figure "$json" "$key")"
    # shellcheck disable=SC2059 # the format is ours
    printf "$line" "$name" "$(figure "$json" gb_per_s)" "$(figure "$json" us_per_touch)" \
        "$(figure "$json" fault_us_p50)" "$ratio" "$bound" "$(verdict "$ratio" "$bound")"
    record "$name" "$ratio" x
}

echo "Floors (medians of $runs)"
"$hanare" bench floor --runs "$runs"

echo
echo "The pager, $size of which half is local (medians of $runs)"
# shellcheck disable=SC2059
printf "$line" "run" "GB/s" "us/touch" "fault us" "ratio" "wanted" ""
seq="--pattern seq --page-size 2M"
row "TCP, 2 MiB pages, sequential read / TCP stream" ratio_tcp_stream ">= 0.75" --link tcp $seq --access r
row "TCP, 2 MiB pages, sequential read-write / TCP stream" ratio_tcp_stream ">= 0.35" --link tcp $seq --access rw
row "same host, sequential read / TCP stream" ratio_tcp_stream ">= 1.0" --link direct $seq --access r
row "same host, sequential read-write / TCP stream" ratio_tcp_stream ">= 0.60" --link direct $seq --access rw
for link in tcp direct; do
    [ "$link" = tcp ] && where="TCP" || where="same host"
    random="--link $link --pattern rand --page-size 4K --access r"
    row "random 4 KiB reads, sigbus, $where: median fault / floors" ratio_fault_floor "<= 1.3" $random --mode sigbus
    row "random 4 KiB reads, thread, $where: median fault / floors" ratio_fault_floor "<= 1.9" $random --mode thread
done

echo
echo "The defaults against each page size set by hand, direct, read (medians of $runs, us/touch)"
sizes="4K 16K 64K 256K 1M 2M"
# shellcheck disable=SC2086
printf "%-8s %9s" pattern auto && printf " %9s" $sizes && printf "   %-10s %-8s\n" "auto/best" wanted
declare -A touches=([seq]=sequential [stride]=strided [rand]=random)
for pattern in seq stride rand; do
    paging "$dir/auto.json" --pattern "$pattern"
    auto="$(figure "$dir/auto.json" us_per_touch)"
    printf "%-8s %9s" "$pattern" "$auto"
    best=""
    for page_size in $sizes; do
        paging "$dir/by_hand.json" --pattern "$pattern" --page-size "$page_size"
        by_hand="$(figure "$dir/by_hand.json" us_per_touch)"
        printf " %9s" "$by_hand"
        best="$(printf '%s\n' $best "$by_hand" | sort -g | head -n 1)"
    done
    ratio="$(quotient "$auto" "$best")"
    printf "   %-10s %-8s %s\n" "$ratio" "<= 1.25" "$(verdict "$ratio" "<= 1.25")"
    record "the defaults / the best page size by hand, ${touches[$pattern]}" "$ratio" x
done
