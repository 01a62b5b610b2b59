/* Usage: checker MIB ROUNDS [FILE]. Each round fills MIB mebibytes with a pattern, and checks it in the opposite order.
 * With ROUNDS 0, it makes rounds for half a minute. After the first round it creates FILE, if given. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
    size_t words = (size_t)atol(argv[1]) << 17;
    long rounds = atol(argv[2]);
    volatile uint64_t *data = malloc(words * 8);
    time_t end = time(0) + 30;
    if (!data)
        return 3;
    for (long round = 0; rounds ? round < rounds : time(0) < end; round++) {
        uint64_t key = 0x9e3779b97f4a7c15u * (uint64_t)(round + 1);
        for (size_t i = 0; i < words; i += 64)
            data[i] = key ^ i;
        for (size_t i = 0; i < words; i += 64) {
            size_t at = words - 64 - i;
            if (data[at] != (key ^ at)) {
                printf("wrong word at %zu: %llx\n", at, (unsigned long long)data[at]);
                return 1;
            }
        }
        if (round == 0 && argc > 3)
            fclose(fopen(argv[3], "w"));
    }
    puts("ok");
    return 0;
}
