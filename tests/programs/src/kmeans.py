import numpy as np
from sklearn.cluster import KMeans

r = np.random.default_rng(3)
points = np.concatenate([c + r.standard_normal((10000, 16)) for c in r.random((6, 16)) * 100])
found = KMeans(n_clusters=6, n_init=2, random_state=5).fit(points)
print(np.bincount(found.labels_).tolist(), f"{found.inertia_:.2f}")
