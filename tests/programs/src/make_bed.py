"""make_bed.py SEED: prints 100,000 random intervals as BED."""
import random
import sys

r = random.Random(int(sys.argv[1]))
for _ in range(100000):
    at = r.randrange(10**8)
    print(f"c{r.randrange(4)}\t{at}\t{at + r.randrange(1, 400)}\tname{r.randrange(10**6)}")
