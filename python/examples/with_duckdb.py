"""A query of DuckDB over far arrays, which it reads where they are, compared with NumPy's own result."""

import duckdb
import hanare
import numpy as np

ROWS = 1_500_000

hanare.limit(local="16M")
random = np.random.default_rng(3)
key, amount = random.integers(0, 50, ROWS), random.integers(0, 1000, ROWS)

far = {"key": hanare.array(key), "amount": hanare.array(amount)}
rows = duckdb.sql("SELECT key, SUM(amount) FROM far WHERE amount >= 500 GROUP BY key ORDER BY key").fetchall()

expected = np.bincount(key, weights=np.where(amount >= 500, amount, 0))
assert rows == [(nth, int(total)) for nth, total in enumerate(expected)]
assert hanare.stats().far_bytes > hanare.stats().local_bytes_budget
print(f"ok: {len(rows)} groups of {ROWS} rows, {hanare.stats().bytes_in >> 20} MiB came back")
