import numpy as np
import pandas as pd

r = np.random.default_rng(5)
n = 300000
a = pd.DataFrame({"k": r.integers(0, 5000, n), "v": r.integers(0, 1000, n), "s": r.integers(0, 99, n).astype(str)})
b = pd.DataFrame({"k": np.arange(5000), "w": r.integers(0, 50, 5000)})
j = a.merge(b, on="k")
g = j.groupby("s").agg({"v": "sum", "w": "max", "k": "nunique"}).sort_index()
print(g.to_csv(), j.sort_values(["v", "k", "w"]).iloc[1000:1003].v.tolist())
