"""make_lp.py N: prints an assignment problem of N to N for lp_solve."""
import random
import sys

n, r = int(sys.argv[1]), random.Random(2)
print("min: " + " + ".join(f"{r.randrange(1, 1000)} x{i}_{j}" for i in range(n) for j in range(n)) + ";")
for i in range(n):
    print(" + ".join(f"x{i}_{j}" for j in range(n)) + " = 1;")
    print(" + ".join(f"x{j}_{i}" for j in range(n)) + " = 1;")
