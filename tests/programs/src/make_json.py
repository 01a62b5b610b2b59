"""make_json.py N: prints an array of N objects as JSON."""
import json
import random
import sys

r = random.Random(5)
print(json.dumps([
    {"kind": f"k{r.randrange(40)}", "value": r.randrange(1000), "name": "x" * r.randrange(60), "list": list(range(8))}
    for _ in range(int(sys.argv[1]))
]))
