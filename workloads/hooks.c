/* hooks: a library beside it sets handlers of fault signals and SIGSYS, and masks, by functions that it looks up behind
 * its own definitions. The handlers must be called for what is sent, and for nothing else. Old handlers must read back
 * right. `hooks_defined` is the same program, linked also with a library that defines `sigaction` itself. */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

int hooks_action(int way, int number, const struct sigaction *new, struct sigaction *old);
void (*hooks_signal(int way, int number, void (*handler)(int)))(int);
int hooks_mask(int way, int how, const sigset_t *new, sigset_t *old);

#define WORDS (32 * MIB / sizeof(uint64_t))

static uint64_t *words;
static volatile sig_atomic_t handled;

static void handle(int number, siginfo_t *info, void *context) {
    (void)context;
    REQUIRE(info->si_code <= 0, "signal %d has code %d", number, info->si_code);
    handled++;
}

static void handle_plain(int number) {
    (void)number;
    handled++;
}

/* Accesses all pages, by the program and by the kernel. */
static void use_far(void) {
    int ends[2];
    char copy[64];
    CALL(pipe(ends) == 0);
    for (size_t i = 0; i < WORDS; i += PAGE / sizeof *words) {
        check_words(words + i, 1, 1, i, "under another handler");
        if (i % (MIB / sizeof *words) == 0) {
            CALL(write(ends[1], words + WORDS - 8 - i, sizeof copy) == sizeof copy);
            CALL(read(ends[0], copy, sizeof copy) == sizeof copy);
            REQUIRE(memcmp(copy, words + WORDS - 8 - i, sizeof copy) == 0, "other bytes were written");
        }
    }
    close(ends[0]), close(ends[1]);
}

static void by(int way, int number) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO}, none = {.sa_handler = SIG_DFL}, old;
    handled = 0;
    CALL(hooks_action(way, number, &action, &old) == 0);
    REQUIRE(old.sa_handler == SIG_DFL, "way %d: there was another handler", way);
    use_far();
    CALL(raise(number) == 0);
    CALL(hooks_action(way, number, NULL, &old) == 0);
    REQUIRE(handled == 1 && old.sa_sigaction == handle, "way %d: %d signals %d were handled", way, (int)handled, number);
    CALL(hooks_signal(way, number, handle_plain) != SIG_ERR);
    use_far();
    CALL(raise(number) == 0);
    REQUIRE(handled == 2, "way %d: %d signals %d were handled", way, (int)handled, number);
    sigset_t all, before, now;
    sigfillset(&all);
    CALL(hooks_mask(way, SIG_SETMASK, &all, &before) == 0);
    use_far();
    CALL(raise(number) == 0);
    CALL(hooks_mask(way, SIG_SETMASK, &before, &now) == 0);
    REQUIRE(handled == 3 && sigismember(&now, number) == 1, "way %d: signal %d is not blocked", way, number);
    CALL(hooks_action(way, number, &none, &old) == 0);
    REQUIRE(old.sa_handler == handle_plain, "way %d: another handler is told", way);
    use_far();
}

int main(void) {
    static const int tested[] = {SIGSYS, SIGBUS, SIGSEGV, SIGUSR2};
    words = malloc(WORDS * sizeof *words);
    CALL(words != NULL);
    fill_words(words, WORDS, 1, 0);
    for (int way = 0; way < 4; way++)
        for (int i = 0; i < 4; i++)
            by(way, tested[i]);
    struct sigaction action = {.sa_handler = handle_plain};
    CALL(sigaction(SIGUSR2, &action, NULL) == 0);
    CALL(raise(SIGUSR2) == 0);
    REQUIRE(handled == 4, "the program's own handler was not called");
#ifdef DEFINES
    int hooks_passed(void);
    REQUIRE(hooks_passed() > 0, "the other definition was not called");
    puts("ok hooks_defined: all");
#else
    puts("ok hooks: all");
#endif
    return 0;
}
