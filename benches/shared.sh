#!/usr/bin/env bash
# Shared memory: `make bench-shared`.
#
# Measures faults, flushes, page transfers and memory barriers (`hanare bench dsm`). Compares LAPLACE on 2 ranks with the
# same over MPI, LU with the same on 2 threads, and LAPLACE's CPU time on 8 ranks with that on 1. Two programs that are
# compared run alternately, so that a slow minute affects both, and the least of RUNS (5) counts. Let nothing else run.
set -euo pipefail
cd "$(dirname "$0")/.."
. benches/common.sh
out="${CARGO_TARGET_DIR:-target}/workloads"
# Against the library that is measured, wherever the workloads were linked.
export LD_LIBRARY_PATH="${hanare%/*}"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
trap 'exit 130' INT TERM

# Prints run_s of one run: seconds COMMAND...
seconds() {
    "$@" 2>>"$place/said" | sed -n 's/.*"run_s":\([0-9.]*\).*/\1/p'
}

# Prints the CPU seconds of one run: cpu COMMAND...
cpu() {
    local TIMEFORMAT='%U %S'
    { time "$@" >"$place/out" 2>&1; } 2>&1 | awk '{ print $1 + $2 }'
}

# A line of the table, of two commands as lists of words: compare NAME BOUND seconds|cpu THIS OTHER
compare() {
    local ratio
    local -a this other
    read -ra this <<<"$4"
    read -ra other <<<"$5"
    rm -f "$place"/times.*
    for ((run = 0; run < runs; run++)); do
        "$3" "${this[@]}" >>"$place/times.this"
        "$3" "${other[@]}" >>"$place/times.other"
    done
    local -a least
    for side in this other; do least+=("$(sort -g "$place/times.$side" | head -n 1)"); done
    ratio="$(quotient "${least[@]}")"
    record "$1" "$ratio" x
    printf '%-74s %10s %10s %8s   %s\n' "$1, wanted $2" "${least[@]}" "$ratio" "$(verdict "$ratio" "$2")"
}

"$hanare" bench dsm --runs "$runs" --json "$place/dsm.json"
record "an update of a page of 4 KiB: messages / zero copy" "$(figure "$place/dsm.json" update_ratio)" x
record "a share of a page of 4 KiB: messages / zero copy" "$(figure "$place/dsm.json" share_ratio)" x
record "a read fault / trap and round trip of 4 KiB" "$(figure "$place/dsm.json" read_fault_floors)" x
record "flushing a page of 256 scattered dirty words / of one" "$(figure "$place/dsm.json" flush_ratio)" x
record "an empty barrier of 2 ranks, update / invalidate" "$(figure "$place/dsm.json" barrier_2_ratio)" x
echo
printf '%-74s %10s %10s %8s\n' "" this other ratio
launch="$hanare launch"
cc -O2 -std=c11 -o "$place/lu_threads" benches/lu_threads.c -pthread
compare "LU (2048, blocks of 32), 2 ranks / 2 threads" "<= 1.15" seconds "$launch -n 2 -- $out/lu --json" "$place/lu_threads 2"
if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
    mpicc -O2 -std=c11 -o "$place/laplace_mpi" benches/laplace_mpi.c
    mpi="mpirun -n 2 $place/laplace_mpi"
    [ "$(id -u)" != 0 ] || mpi="mpirun --allow-run-as-root -n 2 $place/laplace_mpi"
    for protocol in adaptive update invalidate; do
        compare "LAPLACE ($protocol), 2 ranks / the same over MPI" "<= 1.15" seconds \
            "$launch -n 2 --protocol $protocol -- $out/laplace --json" "$mpi"
    done
else
    echo "skipped: LAPLACE over MPI; install openmpi-bin and libopenmpi-dev"
fi
compare 'LAPLACE with all homes at rank 0, `--home migrate` / homes at the writers' "<= 3" seconds \
    "$launch -n 2 --home migrate -- $out/laplace --home one --json" "$launch -n 2 -- $out/laplace --json"
for protocol in adaptive update invalidate; do
    compare "LAPLACE ($protocol) on 8 ranks and 2 CPUs, CPU time / 1 rank" "<= 2" cpu \
        "$launch -n 8 --protocol $protocol -- $out/laplace" "$launch -n 1 -- $out/laplace"
done
