import duckdb

c = duckdb.connect(":memory:")
c.execute("set threads=2")
c.execute("create table t as select range as i, (range * 7919) % 10007 as k, 'room ' || (range % 977) as s from range(600000)")
print(c.execute("select k % 20 as g, count(*), sum(i), max(s) from t group by g order by g").fetchall())
print(c.execute("select i, s from t order by s desc, k, i limit 5").fetchall())
