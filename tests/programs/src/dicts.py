x, d = 1, {}
for i in range(60000):
    x = (x * 1103515245 + 12345) & 0x7FFFFFFF
    d.setdefault(x >> 8, []).append((i, str(x)))
print(len(d), sum(len(v) * k % 7 for k, v in d.items()), sorted(d)[100])
