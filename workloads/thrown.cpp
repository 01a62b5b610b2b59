// Handlers of SIGSEGV and SIGBUS that throw an exception, natively and under `hanare run`. The program is compiled with
// -fnon-call-exceptions, as the compilers of Ada and D do.
#include "check.h"

#include <csignal>
#include <stdexcept>
#include <sys/mman.h>
#include <unistd.h>

namespace {

int signals[2];

void handler(int number) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    throw std::runtime_error(number == SIGSEGV ? "no memory" : "no file");
}

void access(volatile int *where, int which) {
    try {
        *where = 1;
    } catch (const std::runtime_error &error) {
        REQUIRE(strcmp(error.what(), which ? "no file" : "no memory") == 0, "%s", error.what());
        signals[which]++;
    }
}

} // namespace

int main() {
    const size_t count = 24 * MIB / sizeof(uint64_t);
    auto *words = static_cast<uint64_t *>(malloc(count * sizeof(uint64_t)));
    FILE *empty = tmpfile();
    CALL(words && empty);
    void *file = mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(empty), 0);
    void *closed = mmap(nullptr, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(file != MAP_FAILED && closed != MAP_FAILED);
    CALL(signal(SIGSEGV, handler) != SIG_ERR && signal(SIGBUS, handler) != SIG_ERR);
    fill_words(words, count, 7, 0);
    for (int round = 0; round < 20; round++) {
        access(static_cast<volatile int *>(closed), 0);
        access(static_cast<volatile int *>(file), 1);
        check_words(words, count, 7, 0, "after a caught signal");
    }
    printf("ok thrown: %d and %d caught\n", signals[0], signals[1]);
    return 0;
}
