"""duck.py THOUSANDS: groups and sorts a table with DuckDB, in memory. Prints whole numbers."""

import sys

import duckdb

rows = int(sys.argv[1]) * 1000
base = duckdb.connect(config={"threads": 2, "temp_directory": ""})
base.execute(
    f"create table t as select hash(i) % {rows // 4} as key, hash(i + 7) % 1000 as amount, i from range({rows}) r(i)"
)
groups = base.execute("select key, sum(amount) as total from t group by key order by total desc, key limit 5")
print([(int(key), int(total)) for key, total in groups.fetchall()])
ordered = "select row_number() over (order by amount, key, i) as place, i from t"
print([int(value) for value in base.execute(f"select sum(place * (i % 7)), max(place) from ({ordered})").fetchone()])
