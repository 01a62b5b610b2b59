# Runs a PostgreSQL server as the user nobody: initdb, pgbench, and the sums that pgbench keeps equal.
set -euo pipefail
bin=$(pg_config --bindir 2>/dev/null || ls -d /usr/lib/postgresql/*/bin | tail -1)
[ -x "$bin/initdb" ] || bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
as="setpriv --reuid=65534 --regid=65534 --clear-groups"
export HOME=$PWD
$as $FAR "$bin/initdb" -D data -U nobody --no-sync -A trust > initdb.log
cat >> data/postgresql.conf <<CONF
listen_addresses = ''
unix_socket_directories = '$PWD'
shared_buffers = 8MB
fsync = off
work_mem = 32MB
CONF
$as $FAR "$bin/postgres" -D data > server.log 2>&1 &
server=$!
trap 'kill $server 2> kill.log || tail -3 server.log >&2; code=0; wait $server || code=$?; grep "^hanare: " server.log >&2 && exit $code' EXIT
for i in $(seq 300); do "$bin/pg_isready" -q -h "$PWD" && break; sleep 0.1; done
ask() { $as "$bin/psql" -h "$PWD" -U nobody -d postgres -qAt -c "$1"; }
$as "$bin/pgbench" -h "$PWD" -U nobody -i -s 2 -q postgres 2> init.log
$as "$bin/pgbench" -h "$PWD" -U nobody -c 4 -j 2 -t 100 postgres > bench.log 2>&1
ask "select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches),
    (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history), count(*) from pgbench_history"
ask "select count(*), sum(aid), md5(string_agg(aid::text, ',' order by aid % 1009, aid)) from pgbench_accounts"
