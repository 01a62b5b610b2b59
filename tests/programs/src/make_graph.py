"""make_graph.py N: prints a graph of N nodes for dot."""
import random
import sys

r, n = random.Random(3), int(sys.argv[1])
print("digraph g {")
for i in range(1, n):
    print(f"n{r.randrange(i)} -> n{i};")
for _ in range(n // 5):
    a = r.randrange(n - 1)
    print(f"n{a} -> n{r.randrange(a + 1, n)};")
print("}")
