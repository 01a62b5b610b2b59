"""temporaries.py KIB GIB: `b = a * 2.0` on arrays of KIB, until GIB bytes were written. Prints a sum."""

import sys

import numpy

size = int(sys.argv[1]) * 1024
a = numpy.arange(size // 8, dtype=float)
total = 0.0
for _ in range(int(float(sys.argv[2]) * (1 << 30)) // size):
    b = a * 2.0
    total += b[-1]
print(size, total)
