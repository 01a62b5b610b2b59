"""sort.py MILLIONS: sorts random numbers of 64 bits with numpy, three times. Prints checksums of the orders."""

import sys

import numpy

numbers = numpy.random.default_rng(8).integers(0, 1 << 62, int(sys.argv[1]) * 1_000_000)
for factor in (1, 5, 9):
    in_order = numbers * factor
    total = int(in_order.sum())
    in_order.sort()
    check = int(in_order[:: 7].dot(numpy.arange(len(in_order[:: 7]))))
    print(len(in_order), check, bool((in_order[1:] >= in_order[:-1]).all()), int(in_order.sum()) - total)
