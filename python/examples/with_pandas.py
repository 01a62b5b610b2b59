"""A data frame whose columns are in far memory: grouped sums, compared with NumPy's own."""

import hanare
import numpy as np
import pandas as pd

ROWS = 1_000_000

hanare.limit(local="16M")
random = np.random.default_rng(1)
keys, values = random.integers(0, 100, ROWS), random.random(ROWS)

# Pandas keeps each column in the far array that it is given.
frame = pd.DataFrame({"key": hanare.array(keys), "value": hanare.array(values)}, copy=False)
assert hanare.is_far(frame["value"].to_numpy())

# Results of the block are far, too.
with hanare.far():
    frame["square"] = frame["value"] ** 2
    sums = frame.groupby("key")["square"].sum()

expected = np.bincount(keys, weights=values**2)
assert np.allclose(sums.to_numpy(), expected)
assert hanare.stats().far_bytes > hanare.stats().local_bytes_budget
print(f"ok: {len(sums)} groups of {ROWS} rows, {hanare.stats().bytes_in >> 20} MiB came back")
