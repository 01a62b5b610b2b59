#!/usr/bin/env bash
# Shared memory: `make bench-shared`.
#
# What faults, flushes, page transfers and memory barriers cost (`hanare bench dsm`); LAPLACE on 2 ranks against the same
# over MPI, and LU against the same on 2 threads; LAPLACE's CPU time on 8 ranks against 1. Of each time the least of RUNS (5)
# counts. Let nothing else run.
set -euo pipefail
cd "$(dirname "$0")/.."
. benches/common.sh
out="${CARGO_TARGET_DIR:-target}/workloads"
# Against the library that is measured, wherever the workloads were linked.
export LD_LIBRARY_PATH="${hanare%/*}"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
trap 'exit 130' INT TERM

# Prints the least run_s of RUNS runs: least COMMAND...
least() {
    for ((run = 0; run < runs; run++)); do "$@" 2>>"$place/said"; done |
        sed -n 's/.*"run_s":\([0-9.]*\).*/\1/p' | sort -g | head -n 1
}

# Prints the least CPU seconds of RUNS runs: cpu COMMAND...
cpu() {
    local TIMEFORMAT='%U %S'
    for ((run = 0; run < runs; run++)); do { time "$@" >"$place/out" 2>&1; } 2>&1; done |
        awk '{ print $1 + $2 }' | sort -g | head -n 1
}

# line NAME FIGURE OTHER BOUND
line() {
    local ratio
    ratio="$(quotient "$2" "$3")"
    printf '%-52s %10s %10s %8s   %s\n' "$1" "$2" "$3" "$ratio" "$(verdict "$ratio" "$4")"
}

"$hanare" bench dsm --runs "$runs" --json "$place/dsm.json"
echo
printf '%-52s %10s %10s %8s\n' "" this other ratio
cc -O2 -std=c11 -o "$place/lu_threads" benches/lu_threads.c -pthread
threads="$(least "$place/lu_threads" 2)"
line "LU 2048, 2 ranks / 2 threads (s, wanted <= 1.15)" \
    "$(least "$hanare" launch -n 2 -- "$out/lu" --json)" "$threads" "<= 1.15"
if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
    mpicc -O2 -std=c11 -o "$place/laplace_mpi" benches/laplace_mpi.c
    root=()
    [ "$(id -u)" != 0 ] || root=(--allow-run-as-root)
    mpi="$(least mpirun "${root[@]}" -n 2 "$place/laplace_mpi")"
    for protocol in invalidate update adaptive; do
        line "LAPLACE, $protocol, 2 ranks / MPI (s, wanted <= 1.15)" \
            "$(least "$hanare" launch -n 2 --protocol "$protocol" -- "$out/laplace" --json)" "$mpi" "<= 1.15"
    done
else
    echo "skipped: LAPLACE over MPI; install openmpi-bin and libopenmpi-dev"
fi
line "LAPLACE, homes at rank 0 that move / at the writers" \
    "$(least "$hanare" launch -n 2 --home migrate -- "$out/laplace" --home one --json)" \
    "$(least "$hanare" launch -n 2 -- "$out/laplace" --json)" "<= 3"
one="$(cpu "$hanare" launch -n 1 -- "$out/laplace")"
for protocol in invalidate update adaptive; do
    line "LAPLACE, $protocol, CPU of 8 ranks / 1 (s, wanted <= 2)" \
        "$(cpu "$hanare" launch -n 8 --protocol "$protocol" -- "$out/laplace")" "$one" "<= 2"
done
