# memcached.sh ARGUMENTS: stores values by the text protocol and reads them back.
set -euo pipefail
$FAR memcached -s "$PWD/s" -a 0777 -m 40 -t 2 "$@" > server.log 2>&1 &
server=$!
trap 'kill $server 2> kill.log || tail -3 server.log >&2; code=0; wait $server || code=$?; grep "^hanare: " server.log >&2 && exit $code' EXIT
for i in $(seq 200); do [ -S s ] && break; kill -0 $server || { wait $server; exit $?; }; sleep 0.1; done
python3 - "$PWD/s" <<'PY'
import hashlib, socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
s.connect(sys.argv[1])
f = s.makefile("rwb")
value = lambda i: hashlib.sha256(b"%d" % i).hexdigest().encode() * (1 + i % 20)
for i in range(20000):
    f.write(b"set k%d 0 0 %d noreply\r\n%s\r\n" % (i, len(value(i)), value(i)))
f.flush()
wrong = missing = 0
for i in range(0, 20000, 3):
    f.write(b"get k%d\r\n" % i)
    f.flush()
    if f.readline() == b"END\r\n":
        missing += 1
        continue
    wrong += f.readline().rstrip() != value(i)
    f.readline()
print("wrong", wrong, "missing", missing)
PY
