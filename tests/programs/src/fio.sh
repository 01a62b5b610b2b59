# fio.sh ENGINE: threads write blocks past the page cache, read them back and verify them.
set -euo pipefail
$FAR fio --name=t --thread --numjobs=2 --direct=1 --ioengine="$1" --verify=crc32c --bs=256k --iodepth=16 --size=12M \
    --rw=randwrite --do_verify=1 --verify_fatal=0 --directory="$PWD" --loops=2 --minimal > log 2> errors || code=$?
cat errors >&2
echo "bad blocks: $(grep -c 'verify: bad' log errors | cut -d: -f2 | paste -sd+ | bc)"
exit "${code:-0}"
