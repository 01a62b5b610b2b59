import hashlib

import numpy as np

r = np.random.default_rng(5)
a = r.integers(0, 1 << 40, 1500000)
m = r.integers(0, 100, (600, 600)).astype(float)
f = np.fft.rfft(np.sort(a).astype(float))
print(hashlib.sha256(np.sort(a).tobytes()).hexdigest(), (m @ m).sum(), len(np.unique(a)), f"{abs(f[1]):.6e}")
print(a[a % 3 == 0].sum(), np.argsort(a)[12345], np.cumsum(a)[-1])
