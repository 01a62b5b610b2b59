import hashlib
import threading
import zlib

results = {}


def work(n):
    data = bytes((i * n + i // 251) & 255 for i in range(65536)) * 100
    packed = zlib.compress(data, 3)
    results[n] = (hashlib.sha256(data).hexdigest(), zlib.decompress(packed) == data, zlib.crc32(packed))


threads = [threading.Thread(target=work, args=(n,)) for n in (3, 5, 7, 11)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(sorted(results.items()))
