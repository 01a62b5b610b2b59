"""polar.py THOUSANDS: joins, groups and sorts tables with Polars. Prints whole numbers."""

import sys

import numpy
import polars

random = numpy.random.default_rng(11)
rows = int(sys.argv[1]) * 1000
keys = rows // 8
sales = polars.DataFrame({"key": random.integers(0, keys, rows), "amount": random.integers(1, 1000, rows)})
items = polars.DataFrame({"key": random.permutation(keys), "kind": random.integers(0, 50, keys)})
joined = sales.join(items, on="key")
groups = joined.group_by("kind").agg(polars.col("amount").sum(), polars.len().alias("count")).sort("kind")
ordered = sales.sort("amount", "key")
print(len(joined), groups["amount"].head(6).to_list(), groups["count"].tail(6).to_list())
print(ordered["key"][:: rows // 8].to_list(), int(ordered["key"].sum()))
