rand("seed", 5);
a = reshape(mod((1:360000) * 7919, 1009), 600, 600);
b = sort(a(:)); c = a * a';
s = struct(); for i = 1:3000, s.(sprintf("k%d", i)) = zeros(1, 100) + i; end
printf("%d %.0f %.6f %d\n", b(1000), sum(c(:)), norm(a, 1), s.k77(5));
