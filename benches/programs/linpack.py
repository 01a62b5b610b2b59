"""linpack.py N: solves N linear equations by LAPACK, as Linpack does. Prints whether the residual is small."""

import sys

import numpy

size = int(sys.argv[1])
random = numpy.random.default_rng(6)
matrix = random.random((size, size)) - 0.5
right = matrix.sum(axis=1)
solution = numpy.linalg.solve(matrix, right)
print(size, bool(abs(matrix @ solution - right).max() < 1e-6), bool(abs(solution - 1).max() < 1e-4))
