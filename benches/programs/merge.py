"""merge.py THOUSANDS: joins two tables with pandas and groups the result. Prints whole numbers."""

import sys

import numpy
import pandas

random = numpy.random.default_rng(10)
rows = int(sys.argv[1]) * 1000
keys = rows // 4
sales = pandas.DataFrame({"key": random.integers(0, keys, rows), "amount": random.integers(1, 1000, rows)})
items = pandas.DataFrame({"key": random.permutation(keys), "kind": random.integers(0, 50, keys)})
joined = sales.merge(items, on="key")
groups = joined.groupby("kind")["amount"].agg(["sum", "count"])
print(len(joined), int(joined["amount"].sum()), groups["sum"].head(6).tolist(), groups["count"].tail(6).tolist())
