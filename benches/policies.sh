#!/usr/bin/env bash
# Replacement policies on the small workloads with 25, 50 and 75 % of their memory local: `make bench-policies`.
#
#   benches/policies.sh [POLICY...]      default: those below that this build knows
#
# Prints medians of RUNS (3) runs; for misses, one run is enough. WORKLOADS="stencil is" selects workloads. SIZE_MB (64)
# and PERCENTS="25 50 75" set the sizes. A run takes at most LIMIT (60) seconds. OUT=FILE receives everything as JSON.
# The workloads check their own results. Let nothing else run where times count.
set -euo pipefail
cd "$(dirname "$0")/.."
RUNS="${RUNS:-3}"
. benches/common.sh
workloads_dir="$(realpath -m "${CARGO_TARGET_DIR:-target}")/workloads"
make --no-print-directory -s -C workloads OUT="$workloads_dir"
dir="$(mktemp -d)"
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

read -ra workloads <<<"${WORKLOADS:-$(make --no-print-directory -s -C workloads kernels)}"
read -ra percents <<<"${PERCENTS:-25 50 75}"
megabytes="${SIZE_MB:-64}"
policies=("$@")
if [ $# = 0 ]; then
    policies=(simple swap-in-history swap-in-history:depth=0 nru-swaps lru lirs s3-fifo w-tinylfu auto)
fi

# A run of WORKLOAD under the flags; its figures into $dir/run.json: run WORKLOAD FLAGS...
run() {
    local workload="$1"
    shift
    limited "$dir/run.json" --page-size 64K --prefetch none "$@" -- "$workloads_dir/$workload" "$megabytes" || {
        echo "$workload with $*:" >&2
        cat "$dir/run.json.said" >&2
        exit 1
    }
}

known=()
for policy in "${policies[@]}"; do
    if "$hanare" run --local 64M --memory 64M --policy "$policy" -- true 2>"$dir/said"; then
        known+=("$policy")
    elif [ $# = 0 ]; then
        echo "left out: $(tail -n 1 "$dir/said")" >&2
    else
        cat "$dir/said" >&2
        exit 1
    fi
done

printf 'workload\tpercent\tpolicy\tmisses\tpages_in\tbytes_out\tseconds\n' >"$dir/runs"
for workload in "${workloads[@]}"; do
    # With room for everything: what it allocates.
    run "$workload" --local $((2 * megabytes + 64))M
    bytes="$(figure "$dir/run.json" far_bytes_peak)"
    for percent in "${percents[@]}"; do
        local_bytes=$((bytes * percent / 100 / 65536 * 65536))
        # Runs go around all policies, so that a slow minute hurts all alike.
        for ((n = 0; n < runs; n++)); do
            for policy in "${known[@]}"; do
                [ ! -t 2 ] || printf '%-70s\r' "$workload $percent % $policy ($((n + 1)) of $runs)" >&2
                run "$workload" --policy "$policy" --local "$local_bytes"
                printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$workload" "$percent" "$policy" \
                    $(($(figure "$dir/run.json" faults_read) + $(figure "$dir/run.json" faults_write))) \
                    "$(figure "$dir/run.json" pages_in)" "$(figure "$dir/run.json" bytes_out)" \
                    "$(figure "$dir/run.json" elapsed_s)" >>"$dir/runs"
            done
        done
    done
done
benches/policies_table "$dir/runs" ${OUT:+"$OUT"}
