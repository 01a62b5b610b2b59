"""boosting.py THOUSANDS: gradient boosting of histograms over 40 features. Prints its first predictions."""

import sys

import numpy
from sklearn.ensemble import HistGradientBoostingRegressor

random = numpy.random.default_rng(9)
rows = int(sys.argv[1]) * 1000
features = random.random((rows, 40))
wanted = features[:, 0] * 3 + numpy.sin(features[:, 1] * 9) + features[:, 2] * features[:, 3]
model = HistGradientBoostingRegressor(max_iter=6, early_stopping=False, random_state=1).fit(features, wanted)
print(rows, [f"{value:.4f}" for value in model.predict(features[:8])])
