# The network that the servers listen on, by this address; 0.0.0.0 is all networks. Only clients with the key are served.
listen=0.0.0.0

# Prints the address by which Slurm reaches a node. For a faster network, print the node's address there instead.
address() {
    scontrol show node --oneliner "$1" | sed 's/.* NodeAddr=\([^ ]*\).*/\1/'
}

# A folder that all nodes see and only you can enter: the key of this job, and what the servers say.
folder=$(mktemp -d "$SLURM_SUBMIT_DIR/.hanare-$SLURM_JOB_ID-XXXXXX")

# However the job ends, this ends the servers and removes the folder. First it prints what the servers had to report.
servers=()
others=()
end() {
    trap '' TERM
    for node in "${others[@]}"; do
        sed "/^hanare: serving /d; s/^/$node: /" "$folder/$node" >&2 || true
    done
    kill "${servers[@]}" 2>/dev/null || true
    wait "${servers[@]}" || true
    rm -rf "$folder"
}
trap end EXIT
trap 'exit 143' TERM

list=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
mapfile -t nodes <<<"$list"
"$hanare" key new "$folder/key" >/dev/null

# Each other node lends what Slurm gives this job there, less a sixteenth and 64M for the server itself.
lend=$((SLURM_MEM_PER_NODE - SLURM_MEM_PER_NODE / 16 - 64))M
for node in "${nodes[@]:1}"; do
    # The file must be there before the server's step is, because it is read below.
    : >"$folder/$node"
    srun --nodes=1 --ntasks=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --nodelist="$node" \
        "$hanare" serve --memory "$lend" --listen "$listen:0" --key "$folder/key" 2>"$folder/$node" &
    servers+=($!)
    others+=("$node")
done

# Each server chooses a free port and prints it. All have two minutes.
flags=(--key "$folder/key")
for i in "${!servers[@]}"; do
    node=${others[i]} port=
    while ((SECONDS < 120)); do
        port=$(sed -n 's/^hanare: serving .*:\([0-9]*\)$/\1/p' "$folder/$node")
        if [[ -n $port ]] || ! kill -0 "${servers[i]}" 2>/dev/null; then
            break
        fi
        sleep 0.2
    done
    if [[ -z $port ]]; then
        echo "the memory server on $node did not start" >&2
        exit 125
    fi
    at=$(address "$node")
    flags+=(--server "$at:$port")
done

# The program runs in the background, because bash handles a signal only when it waits for nothing else. SIGTERM comes
# before the time limit (--signal above), or by 'scancel --batch --signal=TERM JOB', and goes on to the program.
"$hanare" run "${flags[@]}" "${run_flags[@]}" -- "${program[@]}" &
run=$!
pass_on() {
    passed=true
    kill "$run" 2>/dev/null || true
}
trap pass_on TERM
outcome() {
    local code
    while passed=false code=0; do
        wait "$run" || code=$?
        $passed || return "$code"
    done
}
# The job's exit code is the program's.
outcome
