import sqlite3

c = sqlite3.connect(":memory:")
c.execute("create table t(i integer primary key, k int, s text)")
c.executemany("insert into t values(?,?,?)", ((i, i * 7919 % 10007, f"room {i % 977}" * 3) for i in range(150000)))
c.execute("create index x on t(k, s)")
print(c.execute("select k % 20, count(*), sum(i), max(s) from t group by 1 order by 1").fetchall())
print(c.execute("pragma integrity_check").fetchall())
