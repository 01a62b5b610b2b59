#!/usr/bin/env bash
# Loading several pages at a time, as paper 4 (prepaging and clustering in Mach) measured it: `make bench-prefetch`.
#
#   benches/prepaging.sh [PREFETCHER...]      default: cluster and prepaging, if this build knows them
#
# Table 1: time to load and access a page, sequentially, for 1 to 64 pages a request. Table 2: the share of the requested
# pages that were loaded. Table 3: two programs at once with too little memory, which must not be slower than without
# prefetching. Prints medians of RUNS (5) runs. SIZE=256M makes tables 1 and 2 smaller. SIZE_MB (64) is the size of each
# program of table 3. LINKS="tcp direct" selects the links of table 1. Let nothing else run.
set -euo pipefail
cd "$(dirname "$0")/.."
. benches/common.sh
workloads_dir="$(realpath -m "${CARGO_TARGET_DIR:-target}")/workloads"
make --no-print-directory -s -C workloads OUT="$workloads_dir"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
megabytes="${SIZE_MB:-64}"
bound="<= 1.05"

known() {
    "$hanare" run --local 64M --memory 64M --prefetch "$1" -- true 2>"$dir/said" || {
        echo "left out: $(tail -n 1 "$dir/said")" >&2
        return 1
    }
}

# The prefetcher NAME when it loads PAGES at a time: way NAME PAGES
way() {
    if [ "$2" = 1 ]; then echo none; else echo "$1:pages=$2,gate=0"; fi
}

# The median of the lines of FILE: median FILE
median() {
    sort -g "$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

prefetchers=()
for name in "${@:-cluster prepaging}"; do
    for one in $name; do
        ! known "$(way "$one" 2)" || prefetchers+=("$one")
    done
done

echo "Table 1: time a page of 4K in us (medians of $runs), $size read sequentially, half of it local"
for link in ${LINKS:-tcp direct}; do
    printf '%-8s %-11s' link prefetcher
    printf ' %9s' 1 2 4 8 16 32 64
    printf '   pages a request\n'
    for name in "${prefetchers[@]}"; do
        printf '%-8s %-11s' "$link" "$name"
        for pages in 1 2 4 8 16 32 64; do
            paging "$dir/row.json" --link "$link" --pattern seq --page-size 4K --prefetch "$(way "$name" $pages)"
            printf ' %9s' "$(figure "$dir/row.json" us_per_touch)"
        done
        printf '\n'
    done
done

# Requests are counted on a link only, so there is one.
"$hanare" serve --memory $((4 * megabytes))M --unix "$dir/server" 2>"$dir/said" &
server=$!
trap 'kill "$server" 2>/dev/null; rm -rf "$dir"' EXIT
for ((n = 0; n < 500; n++)); do
    [ ! -S "$dir/server" ] || break
    sleep 0.01
done
echo
echo "Table 2: pages loaded of those asked for (half of ${megabytes}M local, three passes, pages of 4K, a Unix socket)"
line='%-26s %10s %12s %10s %12s %10s\n'
# shellcheck disable=SC2059 # the format is ours
printf "$line" prefetcher faults "asked" loaded "of asked, %" requests
for name in "${prefetchers[@]}"; do
    for pages in 1 2 4 8 16 32 64; do
        limited "$dir/row.json" --local $((megabytes / 2))M --server "$dir/server" --page-size 4K \
            --prefetch "$(way "$name" $pages)" -- "$workloads_dir/touch" "${megabytes}M" --passes 3 || {
            cat "$dir/row.json.said" >&2
            exit 1
        }
        faults=$(($(figure "$dir/row.json" faults_read) + $(figure "$dir/row.json" faults_write)))
        loaded="$(figure "$dir/row.json" pages_in)"
        # shellcheck disable=SC2059
        printf "$line" "$(way "$name" $pages)" "$faults" $((faults * pages)) "$loaded" \
            "$(awk -v a="$loaded" -v b=$((faults * pages)) 'BEGIN { if (b) printf "%.1f", a * 100 / b; else print "-" }')" \
            "$(figure "$dir/row.json" requests)"
    done
done

# Seconds until two programs that run at once have ended, each with PERCENT of its memory local: both PERCENT PREFETCH
both() {
    local local_megabytes=$((megabytes * $1 / 100)) began ended first code=0
    began="$(date +%s%N)"
    "$hanare" run --local "${local_megabytes}M" --prefetch "$2" -- "$workloads_dir/stencil" "$megabytes" >"$dir/first" 2>&1 &
    first=$!
    "$hanare" run --local "${local_megabytes}M" --prefetch "$2" -- "$workloads_dir/rbtree" "$megabytes" >"$dir/second" 2>&1 || code=$?
    wait "$first" || code=$?
    ended="$(date +%s%N)"
    [ "$code" = 0 ] || {
        cat "$dir/first" "$dir/second" >&2
        exit 1
    }
    awk -v ns=$((ended - began)) 'BEGIN { printf "%.3f\n", ns / 1e9 }'
}

echo
echo "Table 3: a stencil and a tree of ${megabytes}M at once, seconds until both have ended (medians of $runs)"
line='%-22s %8s %10s %10s %8s   %-8s %s\n'
# shellcheck disable=SC2059
printf "$line" prefetcher local none with ratio wanted ""
ways=()
for name in "${prefetchers[@]}"; do
    for pages in 2 8; do
        ways+=("$name:pages=$pages")
    done
done
for other in sequential streams auto; do
    ! known "$other" || ways+=("$other")
done
worst=0
for percent in 75 10; do
    rm -f "$dir"/took.*
    for ((n = 0; n < runs; n++)); do
        both "$percent" none >>"$dir/took.none"
        for way in "${ways[@]}"; do
            both "$percent" "$way" >>"$dir/took.$way"
        done
    done
    without="$(median "$dir/took.none")"
    for way in "${ways[@]}"; do
        with="$(median "$dir/took.$way")"
        ratio="$(quotient "$with" "$without")"
        # shellcheck disable=SC2059
        printf "$line" "$way" "$percent %" "$without" "$with" "$ratio" "$bound" "$(verdict "$ratio" "$bound")"
        worst="$(printf '%s\n' "$worst" "$ratio" | sort -g | tail -n 1)"
    done
done
record "two programs with too little memory, with / without prefetching (table 3 of paper 4)" "$worst" x
