#!/usr/bin/env bash
# What a greedy client, and strangers, cost the 15 other clients of a memory server: `make bench-servers`.
#
# Compares the median fault of the others with the greedy client, with strangers, without either, and of one client alone. RUNS (5) is the
# number of runs and CLIENTS (15) that of the other clients. Let nothing else run.
set -euo pipefail
cd "$(dirname "$0")/.."
. benches/common.sh
json="$(mktemp)"
trap 'rm -f "$json"' EXIT
trap 'exit 130' INT TERM

"$hanare" bench servers --json --runs "$runs" --clients "${CLIENTS:-15}" >"$json"
printf '%-44s %10s %10s\n' "median fault of a modest client (us)" p50 p99
for who in alone modest greedy strangers; do
    case $who in
    alone) name="one client alone" ;;
    modest) name="$(figure "$json" clients) clients" ;;
    greedy) name="$(figure "$json" clients) clients and a greedy one" ;;
    strangers) name="$(figure "$json" clients) clients and strangers" ;;
    esac
    printf '%-44s %10s %10s\n' "$name" "$(figure "$json" "fault_us_p50_$who")" "$(figure "$json" "fault_us_p99_$who")"
done
ratio="$(figure "$json" ratio_greedy)"
printf '%-44s %10s %10s   %s\n' "with the greedy one / without (wanted <= 2)" "$ratio" "" "$(verdict "$ratio" "<= 2")"
record "a greedy client: median fault of 15 others / without it" "$ratio" x
printf '%-44s %10s GB/s\n' "the greedy one, meanwhile" "$(figure "$json" greedy_gb_per_s)"
ratio="$(figure "$json" ratio_strangers)"
printf '%-44s %10s %10s   %s\n' "with strangers / without (wanted <= 1.5)" "$ratio" "" "$(verdict "$ratio" "<= 1.5")"
record "strangers who connect: median fault of 15 clients / without them" "$ratio" x
