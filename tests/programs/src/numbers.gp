print(factor(2^137 - 1));
m = matrix(120, 120, i, j, (i * 7919 + j * 104729) % 1009);
print(matdet(m) % 1000003);
v = vector(200000, i, (i * 7919) % 100003);
print(vecsort(v)[777], " ", vecsum(v), " ", #Set(v));
print(polroots(x^7 - 3*x + 1)[1]);
