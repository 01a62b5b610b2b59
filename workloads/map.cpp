// map COUNT
//
// Fills a std::map with COUNT entries of two small blocks each, changes and erases some, and checks all of them. The
// program has small blocks only. Prints the largest amount of private memory that it saw itself have, in KiB. Memory
// that it shares with a server of this host is not private.
#include "check.h"
#include <map>
#include <string>

static std::string text(uint64_t key, uint64_t round) {
    return "the value of " + std::to_string(key) + " in round " + std::to_string(word(3, round, key));
}

// Returns the resident private memory of this process, in KiB.
static long resident(void) {
    char line[256];
    long found = 0;
    FILE *status = fopen("/proc/self/status", "r");
    CALL(status != NULL);
    while (fgets(line, sizeof line, status) != NULL)
        sscanf(line, "RssAnon: %ld", &found);
    fclose(status);
    return found;
}

int main(int argc, char *argv[]) {
    if (argc != 2) {
        fputs("usage: map COUNT\n", stderr);
        return 2;
    }
    uint64_t count = strtoull(argv[1], NULL, 10);
    std::map<uint64_t, std::string> map;
    for (uint64_t n = 0; n < count; n++)
        map[word(5, 0, n)] = text(n, 0);
    long peak = resident();
    for (uint64_t n = 0; n < count; n += 3)
        map[word(5, 0, n)] = text(n, 1);
    for (uint64_t n = 1; n < count; n += 7)
        map.erase(word(5, 0, n));
    for (uint64_t n = 0; n < count; n++) {
        auto found = map.find(word(5, 0, n));
        bool is_erased = n % 7 == 1;
        REQUIRE((found == map.end()) == is_erased, "entry %llu", (unsigned long long)n);
        REQUIRE(is_erased || found->second == text(n, n % 3 == 0), "the value of entry %llu", (unsigned long long)n);
    }
    peak = resident() > peak ? resident() : peak;
    printf("ok map, %ld KiB\n", peak);
    return 0;
}
