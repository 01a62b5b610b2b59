# Runs a MariaDB server with O_DIRECT and a small buffer pool: inserts rows, sums them, and makes CHECK TABLE.
set -euo pipefail
mkdir data; chown 65534:65534 data .
as="setpriv --reuid=65534 --regid=65534 --clear-groups"
common="--no-defaults --datadir=$PWD/data"
export HOME=$PWD
mariadb-install-db --no-defaults --datadir="$PWD/data" --user=nobody --skip-test-db > install.log 2>&1
$as $FAR mariadbd $common --socket="$PWD/s" --skip-networking --pid-file="$PWD/pid" --innodb-flush-method=O_DIRECT \
    --innodb-buffer-pool-size=16M --innodb-log-file-size=16M --skip-grant-tables --innodb-use-native-aio=1 \
    > server.log 2>&1 &
server=$!
trap 'kill $server 2> kill.log || tail -3 server.log >&2; code=0; wait $server || code=$?; grep "^hanare: " server.log >&2 && exit $code' EXIT
for i in $(seq 400); do
    mariadb-admin --no-defaults -S "$PWD/s" ping > ping.log 2>&1 && break
    kill -0 $server 2> kill.log || break # it was refused
    sleep 0.1
done
mariadb --no-defaults -S "$PWD/s" -N <<SQL
create database test;
use test;
create table t(i int primary key, k int, s varchar(200), key(k, s)) engine=innodb;
insert into t select seq, seq * 7919 % 10007, concat('room ', seq % 977, repeat('x', seq % 150)) from seq_1_to_60000;
select k % 10, count(*), sum(i), max(s) from t group by 1 order by 1;
update t set s = concat(s, 'y') where k % 3 = 0;
delete from t where k % 7 = 0;
select count(*), sum(i), sum(crc32(s)) from t;
check table t;
SQL
