# Sets keys, saves them in the background, and loads the saved set again.
set -euo pipefail
serve() { $1 redis-server --port 0 --unixsocket "$PWD/s" --dir "$PWD" --save '' --appendonly no > server.log 2>&1 & server=$!
    for i in $(seq 300); do redis-cli -s "$PWD/s" ping 2> ping.log | grep -q PONG && return; sleep 0.1; done; }
finish() { redis-cli -s "$PWD/s" shutdown nosave 2>> ping.log || true; wait $server || true; grep "^hanare: " server.log >&2 || true; }
ask() { redis-cli -s "$PWD/s" "$@"; }
trap finish EXIT
serve "$FAR"
python3 -c '
for i in range(30000):
    print(f"SET key{i} {i * 7919}{chr(120) * (i % 700)}")
    print(f"RPUSH list{i % 500} {i}")' | redis-cli -s "$PWD/s" > log
ask debug digest
ask bgsave > log
for i in $(seq 300); do ask info persistence | grep -q rdb_bgsave_in_progress:0 && break; sleep 0.1; done
ask info persistence | grep -o 'rdb_last_bgsave_status:ok'
ask shutdown nosave || true
wait $server || true
serve ""
ask debug digest
