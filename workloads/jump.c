/* jump: calls an address in far memory, which is not executable. The call raises SIGSEGV at that address, and the
 * program's own handler runs. Without a handler, the same call ends the program. The shell's exit code is then 139. */
#include "check.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

static sigjmp_buf back;
static char *volatile place;
static volatile int heard;

static void hear(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
    heard = info->si_addr == place;
    siglongjmp(back, 1);
}

static void jump(void) {
    void (*nowhere)(void);
    char *at = place;
    memcpy(&nowhere, &at, sizeof nowhere);
    nowhere();
}

int main(void) {
    place = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(place != MAP_FAILED);
    memset(place, 0xc3, 4 * MIB);
    struct sigaction action = {.sa_sigaction = hear, .sa_flags = SA_SIGINFO};
    CALL(sigaction(SIGSEGV, &action, NULL) == 0);
    if (sigsetjmp(back, 1) == 0)
        jump();
    REQUIRE(heard, "the handler did not hear of the jump");
    puts("ok jump: heard");
    fflush(stdout);
    CALL(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
    jump();
    return 0;
}
