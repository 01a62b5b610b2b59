package main

// #include <stdlib.h>
// #include <string.h>
// static int filled(size_t n) { char *p = malloc(n); memset(p, 7, n); int v = p[n / 2]; free(p); return v; }
import "C"
import "fmt"

func main() {
	m := map[uint64][]int{}
	x := uint64(1)
	for i := 0; i < 200000; i++ {
		x = x*6364136223846793005 + 1442695040888963407
		m[x>>50] = append(m[x>>50], i)
	}
	fmt.Println(len(m), x, C.filled(30000000))
}
