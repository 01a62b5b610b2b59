"""rows.py THOUSANDS: a table and an index of SQLite in memory, queries and changes. Prints sums."""

import sqlite3
import sys

rows = int(sys.argv[1]) * 1000
base = sqlite3.connect(":memory:")
base.execute("create table t (id integer primary key, key integer, text text)")
state = 13
fresh = []
for row in range(rows):
    state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
    fresh.append((row, (state >> 33) % rows, f"row {row} has the text {state:x} and some more of it"))
    if len(fresh) == 10000 or row == rows - 1:
        base.executemany("insert into t values (?, ?, ?)", fresh)
        fresh.clear()
base.execute("create index i on t (key)")
base.execute("update t set text = text || ' changed' where key % 7 = 3")
print(base.execute("select count(*), sum(key), sum(length(text)) from t").fetchone())
print(base.execute("select key, count(*) from t group by key order by 2 desc, 1 limit 5").fetchall())
print(base.execute("select sum(a.id % 9) from t a join t b on b.key = a.id % 1000").fetchone())
