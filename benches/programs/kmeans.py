"""kmeans.py THOUSANDS: K-means over random clusters. Prints the sizes of the clusters."""

import sys

import numpy
from sklearn.cluster import KMeans

random = numpy.random.default_rng(3)
each = int(sys.argv[1]) * 1000 // 6
centres = random.random((6, 24)) * 100
points = numpy.concatenate([centre + random.standard_normal((each, 24)) for centre in centres])
found = KMeans(n_clusters=6, n_init=2, random_state=5).fit(points)
print(sorted(numpy.bincount(found.labels_).tolist()), f"{found.inertia_:.5g}")
