"""sort.py MILLIONS: sorts random numbers of 64 bits with numpy. Prints a checksum of the order."""

import sys

import numpy

numbers = numpy.random.default_rng(8).integers(0, 1 << 60, int(sys.argv[1]) * 1_000_000)
in_order = numpy.sort(numbers)
check = sum(int((part * numpy.arange(len(part))).sum()) for part in numpy.array_split(in_order, 64))
print(len(in_order), check, bool((in_order[1:] >= in_order[:-1]).all()), int(numbers.sum() - in_order.sum()))
