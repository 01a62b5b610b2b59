set.seed(5)
n <- 400000
d <- data.frame(x = rnorm(n), y = sample(1000, n, TRUE), g = sample(letters, n, TRUE))
d$z <- 3 * d$x + d$y / 100 + rnorm(n)
print(signif(coef(lm(z ~ x + y, d)), 6))
print(head(aggregate(y ~ g, d, sum), 3))
s <- d[order(d$y, d$x), ]
print(signif(s$x[1000:1002], 6))
print(signif(sum(crossprod(matrix(rnorm(250000), 500))), 6))
