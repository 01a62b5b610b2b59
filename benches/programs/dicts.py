"""dicts.py THOUSANDS: a dict of lists, built, read in random order and changed. Prints sums."""

import sys

count = int(sys.argv[1]) * 1000
lists = {key: [key, key + 1] for key in range(count)}
state = total = 0
for _ in range(count // 2):
    state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    found = lists[state % count]
    found.append(state & 7)
    total += found[0] + len(found)
print(len(lists), total, sum(sum(found[2:]) for found in lists.values()))
