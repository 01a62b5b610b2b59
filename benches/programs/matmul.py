"""matmul.py N: the product of two matrices of N x N. Prints sums of whole numbers, which are exact."""

import sys

import numpy

size = int(sys.argv[1])
random = numpy.random.default_rng(7)
left = random.integers(0, 100, (size, size)).astype(float)
right = random.integers(0, 100, (size, size)).astype(float)
product = left @ right
print(size, int(product.sum()), int(product.diagonal().sum()), product[1, ::size // 8].astype(int).tolist())
