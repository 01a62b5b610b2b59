// vector [SIZE]
//
// Growth as programs do it: std::vector by push_back, a vector of strings, realloc in uneven steps, mremap. SIZE (64M)
// is what each of them grows to; every element is checked.
#include "check.h"
#include <string>
#include <sys/mman.h>
#include <vector>

static void by_push_back(size_t size) {
    std::vector<uint64_t> values;
    for (size_t i = 0; i < size / sizeof(uint64_t); i++)
        values.push_back(word(1, 0, i));
    check_words(values.data(), values.size(), 1, 0, "push_back");
    values.resize(values.size() / 3);
    values.shrink_to_fit();
    check_words(values.data(), values.size(), 1, 0, "shrink_to_fit");
    values.insert(values.begin() + 1000, values.size(), 7);
    REQUIRE(values[999] == word(1, 0, 999) && values[1000] == 7, "insert: around element 1000");
    REQUIRE(values.back() == word(1, 0, values.size() / 2 - 1), "insert: the last element");
}

static void by_strings(size_t size) {
    std::vector<std::string> lines;
    std::string all;
    for (size_t bytes = 0; bytes < size / 4; bytes += lines.back().size()) {
        lines.push_back(std::to_string(word(2, 0, lines.size())) + std::string(lines.size() % 50, 'x'));
        all += lines.back();
    }
    size_t at = 0;
    for (size_t i = 0; i < lines.size(); i++) {
        REQUIRE(all.compare(at, lines[i].size(), lines[i]) == 0, "strings: line %zu at byte %zu", i, at);
        at += lines[i].size();
    }
}

static void by_realloc(size_t size) {
    uint64_t *values = nullptr;
    size_t count = 0, most = size / sizeof(uint64_t);
    while (count < most) {
        size_t more = count + count / 2 + 1237;
        more = more < most ? more : most;
        values = static_cast<uint64_t *>(realloc(values, more * sizeof(uint64_t)));
        CALL(values != nullptr);
        check_words(values, count < 512 ? count : 512, 3, 0, "realloc, front");
        fill_words(values + count, more - count, 3, count);
        count = more;
    }
    check_words(values, count, 3, 0, "realloc, grown");
    for (; count > 1000; count /= 3) {
        values = static_cast<uint64_t *>(realloc(values, count * sizeof(uint64_t)));
        CALL(values != nullptr);
        check_words(values, count, 3, 0, "realloc, shrunk");
    }
    free(values);
}

static void by_mremap(size_t size) {
    size_t len = MIB;
    void *start = mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(start != MAP_FAILED);
    fill_words(static_cast<uint64_t *>(start), len / 8, 4, 0);
    while (len < size) {
        // Something in the way now and then, so that growing has to move.
        void *fence = mmap(nullptr, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CALL(fence != MAP_FAILED);
        size_t more = len + len / 2 / PAGE * PAGE;
        start = mremap(start, len, more, MREMAP_MAYMOVE);
        CALL(start != MAP_FAILED);
        check_zero(static_cast<char *>(start) + len, PAGE, "mremap, the new part");
        fill_words(static_cast<uint64_t *>(start) + len / 8, (more - len) / 8, 4, len / 8);
        CALL(munmap(fence, MIB) == 0);
        len = more;
    }
    check_words(static_cast<uint64_t *>(start), len / 8, 4, 0, "mremap");
    CALL(munmap(start, len) == 0);
}

int main(int argc, char **argv) {
    size_t size = argc > 1 ? parse_size(argv[1]) : 64 * MIB;
    if (size < 4 * MIB)
        size = 4 * MIB;
    by_push_back(size);
    by_strings(size);
    by_realloc(size);
    by_mremap(size);
    printf("ok vector: push_back, strings, realloc and mremap to %zu bytes\n", size);
    return 0;
}
