# Functions that the benchmark scripts share: running `hanare bench paging`, reading its JSON, comparing with a bound.

hanare="${HANARE:-${CARGO_TARGET_DIR:-target}/release/hanare}"
runs="${RUNS:-5}"
size="${SIZE:-1G}"
[ -x "$hanare" ] || {
    echo "there is no $hanare; run 'make' first, or set HANARE" >&2
    exit 1
}

# Prints the figure KEY of the JSON in FILE, '-' for one that is absent: figure FILE KEY
figure() {
    sed -n "s/^ *\"$2\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$1" | sed 's/^null$/-/'
}

# Measures into FILE: paging FILE FLAGS...
paging() {
    local file="$1"
    shift
    "$hanare" bench paging --json --runs "$runs" --size "$size" "$@" >"$file"
}

# Prints A / B.
quotient() {
    awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0) printf "%.3f", a / b; else print "-" }'
}

# Whether FIGURE keeps to BOUND, which is ">= X" or "<= X": verdict FIGURE BOUND
verdict() {
    awk -v figure="$1" -v bound="$2" 'BEGIN {
        split(bound, part, " ")
        if (bound == "-") print ""
        else if (figure !~ /^[0-9.]+$/) print "not measured"
        else if (part[1] == ">=" ? figure >= part[2] : figure <= part[2]) print "meets"
        else print "falls short"
    }'
}

# Adds a figure to the file RESULTS, for the row WHAT of SPECIFICATION.md: record WHAT FIGURE UNIT
record() {
    [ -n "${RESULTS:-}" ] && [[ "$2" =~ ^[0-9.]+$ ]] || return 0
    printf '%s\t%.3g %s\n' "$1" "$2" "${3:-}" | sed 's/ $//' >>"$RESULTS"
}

# Runs `hanare run`, with its figures in FILE and its output in FILE.said: limited FILE FLAGS...
# A bad policy may keep a workload from ending. So a run is ended after LIMIT (60) seconds, and a line says that its
# figures are those up to then.
limited() {
    local file="$1" code=0
    shift
    timeout --foreground "${LIMIT:-60}" "$hanare" run --stats-json "$file" "$@" >"$file.said" 2>&1 || code=$?
    [ "$code" != 124 ] || echo "ended after ${LIMIT:-60} s, figures are those until then: $*" >&2
    [ "$code" = 0 ] || [ "$code" = 124 ]
}
