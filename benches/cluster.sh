#!/usr/bin/env bash
# How the time and memory of `hanare simulate cluster` grow with the machine: Table 2's mix of processes, a quarter of a
# process a processor and, in the end, the 10 to 16 of the paper; 20 quanta of 100,000 clocks, method 3. Fails if 4,096 processors with
# 1,024 processes take more than 60 s or 2 GiB under any of the schedulers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
target=${CARGO_TARGET_DIR:-target}
hanare=$target/release/hanare
config=$(mktemp)
trap 'rm -f "$config"' EXIT

machine() { # network, processes
    local n=$2
    printf '[cells]\nnetworks = ["%s"]\nreplacements = ["kind"]\nremote_costs = [100]\nseeds = 1\n' "$1"
    printf '[scheduling]\nquanta_max = 20\n'
    local group
    for group in "4 $((n / 5)) 30" "4 $((n / 5)) 80" "8 $((n - n / 5 * 3 - n / 10)) 30" "8 $((n / 10)) 80" "16 $((n / 5)) 30"; do
        set -- $group
        [ "$2" -eq 0 ] ||
            printf '[[process]]\nprocessors = %s\ncount = %s\nprivate_pages = %s\nshared_pages = 80\n' "$1" "$2" "$3"
    done
}

over=0
printf "%10s %10s %10s %10s %10s %10s %10s\n" processors processes scheduler rate% "CPU s" s MiB
for size in "16 4" "64 16" "256 64" "1024 256" "4096 1024" "4096 2560"; do
    read -r processors processes <<<"$size"
    case $processors in 16) network=4x4 ;; 64) network=4x16 ;; 256) network=16x16 ;; 1024) network=4x16x16 ;; *) network=16x16x16 ;; esac
    machine "$network" "$processes" >"$config"
    for scheduler in algo0 algo4 settle; do
        /usr/bin/env python3 - "$hanare" "$config" "$processors" "$processes" "$scheduler" <<'PY' || over=1
import json, os, resource, subprocess, sys, time
hanare, config, processors, processes, scheduler = sys.argv[1:]
began = time.monotonic()
run = subprocess.run([hanare, "simulate", "cluster", config, "--scheduler", scheduler, "--json", "-"],
                     check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
wall = time.monotonic() - began
used = resource.getrusage(resource.RUSAGE_CHILDREN)
rate = json.loads(run.stdout)["cells"][0]["effective_rate_percent_mean"]
print(f"{processors:>10} {processes:>10} {scheduler:>10} {rate:>10.2f} {used.ru_utime + used.ru_stime:>10.2f} {wall:>10.2f} {used.ru_maxrss / 1024:>10.0f}")
if (processors, processes, scheduler) == ("4096", "1024", "algo0") and "RESULTS" in os.environ:
    with open(os.environ["RESULTS"], "a") as file:
        file.write(f"4,096 processors, 1,024 processes, 20 quanta: time\t{wall:.3g} s\n")
        file.write(f"4,096 processors, 1,024 processes, 20 quanta: memory\t{used.ru_maxrss / 1024:.3g} MiB\n")
sys.exit((processors, processes) == ("4096", "1024") and (wall > 60 or used.ru_maxrss > 2 << 20))
PY
    done
done
if [ "$over" -ne 0 ]; then
    echo "4096 processors, 1024 processes: more than 60 s or 2 GiB, see above" >&2
    exit 1
fi
echo "4096 processors, 1024 processes: within 60 s and 2 GiB"
