#!/usr/bin/env bash
# The cost of pseudo reference bits, as in figures 1, 3 and 4 of paper 1: `make bench-bits`.
#
#   benches/bits.sh [POLICY...]      default: U-NRU at the paper's intervals, compared with simple, which keeps no bits
#
# Prints medians of RUNS (3) runs. A run takes at most LIMIT (60) seconds. WORKLOAD=fft selects another program than the
# stencil. SIZE_MB (64) is its size. PERCENTS="25 50 75" are the shares of local memory. Let nothing else run.
set -euo pipefail
cd "$(dirname "$0")/.."
RUNS="${RUNS:-3}"
. benches/common.sh
workloads_dir="$(realpath -m "${CARGO_TARGET_DIR:-target}")/workloads"
make --no-print-directory -s -C workloads OUT="$workloads_dir"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
workload="${WORKLOAD:-stencil}"
megabytes="${SIZE_MB:-64}"
policies=("$@")
if [ $# = 0 ]; then
    policies=(simple nru-timer:ms=100 nru-timer:ms=500 nru-timer:ms=1000 nru-swaps:swaps=10 nru-swaps:swaps=50 nru-swaps:swaps=100)
fi

# The median of figure KEY of this row's runs: median KEY
median() {
    local n
    for ((n = 0; n < runs; n++)); do
        figure "$dir/run.$n" "$1"
    done | sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

line='%-22s %8s %8s %8s %9s %9s %8s %9s %9s %9s\n'
for percent in ${PERCENTS:-25 50 75}; do
    echo "$workload of ${megabytes}M with $percent % local: seconds (medians of $runs)"
    # shellcheck disable=SC2059 # the format is ours
    printf "$line" policy elapsed calc swap "set bit" "clear bit" evicting misses "bit faults" "ms a miss"
    for policy in "${policies[@]}"; do
        rm -f "$dir"/run.*
        for ((n = 0; n < runs; n++)); do
            limited "$dir/run.$n" --page-size 64K --prefetch none --policy "$policy" \
                --local $((megabytes * 1024 * percent / 100 / 64 * 64))K -- "$workloads_dir/$workload" "$megabytes" || {
                if grep -q "is called\|has no parameter" "$dir/run.$n.said"; then
                    echo "left out: $(tail -n 1 "$dir/run.$n.said")" >&2
                    continue 2
                fi
                cat "$dir/run.$n.said" >&2
                exit 1
            }
        done
        misses=$(($(median faults_read) + $(median faults_write)))
        # Touches of pages taken out of view, and first writes: the traps that only bits need.
        bits=$(($(median faults_rescued) + $(median faults_first_write)))
        # shellcheck disable=SC2059
        printf "$line" "$policy" "$(printf %.3f "$(median elapsed_s)")" "$(printf %.3f "$(median calc_s)")" \
            "$(printf %.3f "$(median swap_s)")" "$(printf %.4f "$(median set_bit_s)")" \
            "$(printf %.4f "$(median clear_bit_s)")" "$(printf %.3f "$(median evict_s)")" "$misses" "$bits" \
            "$(awk -v s="$(median elapsed_s)" -v n="$misses" 'BEGIN { if (n) printf "%.3f", s * 1000 / n; else print "-" }')"
    done
    echo
done
