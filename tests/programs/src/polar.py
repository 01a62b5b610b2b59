import polars as pl

n = 400000
t = pl.DataFrame({"i": range(n)}).with_columns(((pl.col("i") * 7919) % 10007).alias("k"), (pl.col("i") % 977).cast(pl.String).alias("s"))
print(t.group_by(pl.col("k") % 20).agg(pl.len(), pl.col("i").sum(), pl.col("s").max()).sort("k").rows())
print(t.sort(["s", "k", "i"], descending=[True, False, False]).head(5).rows())
