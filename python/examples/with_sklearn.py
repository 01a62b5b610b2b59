"""A linear model of scikit-learn, trained on a far matrix, compared with one that is trained on a near matrix."""

import hanare
import numpy as np
from sklearn.linear_model import SGDRegressor

ROWS, COLUMNS = 40_000, 64

hanare.limit(local="16M")
random = np.random.default_rng(2)
matrix = random.standard_normal((ROWS, COLUMNS))
weights = random.standard_normal(COLUMNS)
target = matrix @ weights

far = hanare.array(matrix)
models = [SGDRegressor(max_iter=3, tol=None, random_state=0).fit(data, target) for data in (matrix, far)]

assert np.array_equal(models[0].coef_, models[1].coef_)
assert np.allclose(models[1].coef_, weights, atol=0.01)
assert hanare.stats().far_bytes > hanare.stats().local_bytes_budget
print(f"ok: {COLUMNS} weights from {far.nbytes >> 20} MiB, {hanare.stats().bytes_in >> 20} MiB came back")
