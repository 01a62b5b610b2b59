import hashlib

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

n = 500000
t = pa.table({"i": pa.array(range(n)), "s": pa.array([f"room {i % 977}" for i in range(n)])})
pq.write_table(t, "t.parquet", compression="zstd")
u = pq.read_table("t.parquet")
print(u.equals(t), pc.sum(u["i"]), u.group_by("s").aggregate([("i", "sum")]).sort_by("s").slice(5, 3).to_pylist())
print(hashlib.sha256(u.sort_by([("s", "descending"), ("i", "ascending")])["i"].combine_chunks().buffers()[1]).hexdigest())
