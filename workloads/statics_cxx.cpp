// statics_cxx: static objects that constructors fill before main, in the program and in a library it is linked with.
#include "check.h"
#include <array>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" void library_check(size_t words);

namespace {

struct Table {
    std::array<uint64_t, 3 * MIB> words;
    Table() {
        for (size_t i = 0; i < words.size(); i++)
            words[i] = word(6, 0, i);
    }
    ~Table() {
        check_words(words.data(), words.size(), 6, 0, "in a destructor, after main");
        std::fputs("destroyed\n", stdout);
    }
};

Table table;
std::string names[20000];
std::vector<uint64_t> vector(MIB, 7);

} // namespace

int main() {
    check_words(table.words.data(), table.words.size(), 6, 0, "what a constructor wrote");
    for (size_t i = 0; i < 20000; i++)
        names[i] = "the name of number " + std::to_string(i);
    library_check(2 * MIB);
    for (size_t i = 0; i < 20000; i++)
        REQUIRE(names[i] == "the name of number " + std::to_string(i), "string %zu is '%s'", i, names[i].c_str());
    for (uint64_t value : vector)
        REQUIRE(value == 7, "a vector's word is %llu", (unsigned long long)value);
    try {
        throw std::runtime_error(names[19999]);
    } catch (const std::exception &error) {
        REQUIRE(names[19999] == error.what(), "caught '%s'", error.what());
    }
    std::cout << "ok statics_cxx: " << table.words.size() << " words" << std::endl;
    return 0;
}
