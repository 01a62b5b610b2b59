// map THOUSANDS: fills a std::map in random order, looks its entries up and changes some. Each is a small block.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

static uint64_t draw(uint64_t &state) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

int main(int argc, char **argv) {
    const uint64_t count = argc > 1 ? strtoull(argv[1], nullptr, 10) * 1000 : 0;
    if (count == 0)
        return 2;
    std::map<uint64_t, std::string> entries;
    uint64_t state = 12, sum = 0;
    for (uint64_t n = 0; n < count; n++)
        entries[draw(state) % (4 * count)] = "entry number " + std::to_string(n) + " of the map";
    for (uint64_t n = 0; n < count / 2; n++) {
        auto found = entries.lower_bound(draw(state) % (4 * count));
        if (found == entries.end())
            continue;
        sum = (sum ^ found->first) * 0x100000001b3u + found->second.size();
        found->second += " changed";
    }
    for (const auto &[key, value] : entries)
        sum = (sum ^ key) * 0x100000001b3u + value.size();
    printf("map %zu %016llx\n", entries.size(), (unsigned long long)sum);
    return 0;
}
