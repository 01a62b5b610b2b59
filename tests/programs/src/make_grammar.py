"""make_grammar.py N: prints a grammar of N rules for bison."""
import sys

n = int(sys.argv[1])
print("%define lr.type ielr\n%token " + " ".join(f"T{i}" for i in range(n)) + "\n%%\nstart: " +
      " | ".join(f"r{i}" for i in range(n)) + ";")
for i in range(n):
    print(f"r{i}: T{i} r{(i * 7 + 1) % n} | T{(i + 1) % n} T{i} | T{i};")
