"""make_c.py FUNCTIONS: prints a C file with many structures and functions, for a compiler to work on."""

import sys

for i in range(int(sys.argv[1])):
    print(
        f"struct s{i} {{ int a; double b; struct s{i} *next; char name[{i % 31 + 1}]; }};"
        f"int f{i}(struct s{i} *s, int n) {{ int sum = {i}; for (int k = 0; k < n; k++) {{ if (s->a % 5 == k % 3)"
        f" sum += s->name[k % sizeof s->name]; else {{ sum ^= (int)(s->b * k); s = s->next; }} }} return sum; }}"
    )
