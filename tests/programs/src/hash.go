package main

import "fmt"

func main() {
	m := map[uint64][]int{}
	x := uint64(1)
	for i := 0; i < 200000; i++ {
		x = x*6364136223846793005 + 1442695040888963407
		m[x>>50] = append(m[x>>50], i)
	}
	fmt.Println(len(m), x)
}
