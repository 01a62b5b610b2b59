"""make_sat.py VARIABLES RATIO SEED: prints a random 3-SAT problem."""
import random
import sys

n, m, r = int(sys.argv[1]), int(int(sys.argv[1]) * float(sys.argv[2])), random.Random(int(sys.argv[3]))
print(f"p cnf {n} {m}")
for _ in range(m):
    print(*[v * r.choice((1, -1)) for v in r.sample(range(1, n + 1), 3)], 0)
