"""cluster.py ROWS: hierarchical clustering with Biopython. Prints the number of nodes."""

import sys

import numpy
from Bio import Cluster

data = numpy.random.default_rng(4).random((int(sys.argv[1]), 12))
tree = Cluster.treecluster(data=data, method="m", dist="e")
print(len(tree), f"{tree[-1].distance:.9g}")
