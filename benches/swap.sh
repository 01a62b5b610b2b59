#!/usr/bin/env bash
# The kernel's swap to zram side by side with the pager, both with half of the memory: `make bench-swap`.
#
# benches/swap_touch runs in a memory cgroup of its own that may hold half of SIZE (1G); the rest goes to zram0. Then
# `hanare bench paging` makes the same accesses over the same-host link. RUNS=3 shortens it. Needs root, an unused zram
# device and a memory cgroup. If one is missing, says so and ends with 0. Everything is undone at the end, also after a
# failure.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
    echo "skipped: $1"
    exit 0
}

zram=/sys/block/zram0
[ "$(id -u)" = 0 ] || skip "swap on zram and a memory cgroup need root"
[ -d "$zram" ] && [ -b /dev/zram0 ] || skip "there is no zram device (modprobe zram)"
[ "$(cat $zram/initstate)" = 0 ] || skip "zram0 is in use already and is left alone"
for tool in mkswap swapon swapoff numfmt "${CC:-cc}"; do
    command -v "$tool" >/dev/null || skip "there is no command $tool"
done
. benches/common.sh
bytes="$(numfmt --from=iec "$size")"
half=$((bytes / 2))

dir="$(mktemp -d)"
group="" limit="" swapping="" zram_set="" child="" controller_enabled=""

undo() {
    set +e
    [ -n "$child" ] && kill "$child" 2>/dev/null && wait "$child" 2>/dev/null
    [ -n "$swapping" ] && swapoff /dev/zram0
    [ -n "$zram_set" ] && echo 1 >$zram/reset
    [ -n "$group" ] && [ -d "$group" ] && rmdir "$group"
    [ -n "$controller_enabled" ] && echo -memory >/sys/fs/cgroup/cgroup.subtree_control
    rm -rf "$dir"
}
trap undo EXIT
trap 'exit 130' INT TERM HUP

make_group() {
    local name="hanare-bench-$$"
    if [ -f /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
        group="/sys/fs/cgroup/memory/$name" limit=memory.limit_in_bytes
    elif grep -qsw memory /sys/fs/cgroup/cgroup.controllers; then
        group="/sys/fs/cgroup/$name" limit=memory.max
        if ! grep -qw memory /sys/fs/cgroup/cgroup.subtree_control; then
            echo +memory >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || { group="" && return 1; }
            controller_enabled=yes
        fi
    else
        return 1
    fi
    mkdir "$group" 2>/dev/null && echo "$half" 2>/dev/null >"$group/$limit"
}

make_group || skip "there is no memory cgroup that may be limited"
"${CC:-cc}" -O2 -Wall -o "$dir/swap_touch" benches/swap_touch.c
zram_set=yes
echo $((2 * bytes)) 2>/dev/null >$zram/disksize || { zram_set="" && skip "zram0 cannot be given a size"; }
mkswap /dev/zram0 >/dev/null
swapon -p 32767 /dev/zram0 2>/dev/null || skip "swap cannot be switched on here"
swapping=yes

# One run of the kernel's swap, its line of figures into FILE: swap FILE PATTERN ACCESS
swap() {
    local code
    # The shell enters the group and becomes the program, so that nothing else is counted.
    sh -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' sh "$group" \
        "$dir/swap_touch" "$bytes" "$2" "$3" 200000 $zram/mm_stat >"$1" &
    child=$!
    wait "$child" 2>/dev/null && code=0 || code=$?
    child=""
    return "$code"
}

# As swap, again where the kernel killed the program: it now and then finds no page to swap out and gives up.
swap_again() {
    local code=137 attempt
    for attempt in 1 2 3 4 5; do
        swap "$@" && return || code=$?
        [ "$code" = 137 ] || break
        echo "(the kernel killed run $attempt of $2 $3 for lack of memory; it is repeated)"
    done
    echo "swap_touch $2 $3 ended with $code" >&2
    return "$code"
}

# The median of a column of the lines of figures: median FILE AWK-EXPRESSION
median() {
    awk "{ print ($2) }" "$1" | sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

line="%-10s %14s %14s %14s %9s   %-8s %s\n"
# One line of the table: row WHAT PATTERN ACCESS BOUND FLAGS...
row() {
    local what="$1" pattern="$2" access="$3" bound="$4" theirs ours ratio unit
    shift 4
    : >"$dir/swap"
    for _ in $(seq "$runs"); do
        swap_again "$dir/one" "$pattern" "$access"
        cat "$dir/one" >>"$dir/swap"
    done
    paging "$dir/hanare.json" --link direct --pattern "$pattern" --access "$access" "$@"
    if [ "$pattern" = seq ]; then
        unit="GB/s"
        theirs="$(median "$dir/swap" '$2 * 4096 / $1 / 1e9')" ours="$(figure "$dir/hanare.json" gb_per_s)"
    else
        unit="us/touch"
        theirs="$(median "$dir/swap" '$1 * 1e6 / $2')" ours="$(figure "$dir/hanare.json" us_per_touch)"
    fi
    ratio="$(quotient "$ours" "$theirs")"
    # shellcheck disable=SC2059 # the format is ours
    printf "$line" "$pattern $access" "$theirs $unit" "$ours $unit" \
        "$(median "$dir/swap" '$4 > 0 ? $3 / $4 : 0') : 1" "$ratio" "$bound" "$(verdict "$ratio" "$bound")"
    record "kernel swap on zram, $what" "$ratio" x
}

echo "Swap to zram ($(sed 's/.*\[\(.*\)\].*/\1/' $zram/comp_algorithm)) and hanare over the same-host link," \
    "$size of which half is local (medians of $runs)"
# shellcheck disable=SC2059
printf "$line" "touches" "zram" "hanare" "compressed" "ratio" "wanted" ""
row "sequential read" seq r ">= 8"
row "sequential read-write" seq rw ">= 5"
row "random 4 KiB reads" rand r "<= 0.8" --mode sigbus
row "random 4 KiB read-writes" rand rw "<= 1.0" --mode sigbus
