# Serves the text file to curl.
set -euo pipefail
cat > conf <<CONF
server.document-root = "$COMMON"
server.bind = "$PWD/s"
server.modules += ("mod_deflate")
deflate.mimetypes = ("application/octet-stream")
deflate.allowed-encodings = ("gzip")
CONF
$FAR lighttpd -D -f conf > server.log 2>&1 &
server=$!
trap 'kill $server 2> kill.log || tail -3 server.log >&2; code=0; wait $server || code=$?; grep "^hanare: " server.log >&2 && exit $code' EXIT
for i in $(seq 200); do [ -S s ] && break; kill -0 $server || { wait $server; exit $?; }; sleep 0.1; done
for i in $(seq 8); do
    curl -sS --compressed --unix-socket s http://room/text | cksum &
done > sums
wait $(jobs -p | grep -v "^$server$")
cat sums
