/* A rank that is killed, or stopped for a while, in a given phase of a program on shared memory.
 *
 *   hanare launch -n 3 -- phases PHASE VICTIM kill|stop [SECONDS]
 *
 * PHASE is start, meet, barrier, lock, wait, transfer or shutdown. The victim is killed or stopped a little after the
 * phase begins. Another rank arrives late, so that the phase lasts. A stopped rank continues after SECONDS, and the
 * job continues, too. */
#include <dsm.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAGE_INTS 1024
#define PAGES 64

static const char *phase;
static int is_victim, is_late, to_agent;

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&time, &time))
        ;
}

/* Starts a child that waits for a byte from this process. 300 ms after the byte, the child stops or kills this
 * process. */
static void start_agent(int stops, int seconds) {
    int pipes[2];
    if (pipe(pipes))
        exit(3);
    pid_t victim = getpid();
    if (fork() == 0) {
        char byte;
        close(pipes[1]);
        if (read(pipes[0], &byte, 1) == 1) {
            sleep_ms(300);
            kill(victim, stops ? SIGSTOP : SIGKILL);
            if (stops) {
                sleep_ms(seconds * 1000L);
                kill(victim, SIGCONT);
            }
        }
        _exit(0);
    }
    close(pipes[0]);
    to_agent = pipes[1];
}

/* Begins the phase in this rank. The victim's time starts, and a late rank sleeps first. */
static void begin(const char *which) {
    if (strcmp(which, phase))
        return;
    if (is_victim && write(to_agent, "x", 1) != 1)
        exit(3);
    if (is_late)
        sleep_ms(1500);
}

static void transfer(int *pages, int rank, int ranks) {
    for (int round = 1; round <= 200; round++) {
        for (int page = rank; page < PAGES; page += ranks)
            pages[page * PAGE_INTS + rank] = round;
        dsm_barrier();
        for (int page = 0; page < PAGES; page++)
            if (pages[page * PAGE_INTS + page % ranks] != round) {
                fprintf(stderr, "phases: page %d is wrong in round %d\n", page, round);
                exit(1);
            }
        dsm_barrier();
        if (!strcmp(phase, "transfer"))
            sleep_ms(5);
    }
}

int main(int argc, char *argv[]) {
    if (argc < 4)
        return 2;
    phase = argv[1];
    int victim = atoi(argv[2]), rank = atoi(getenv("HANARE_RANK"));
    is_victim = rank == victim;
    is_late = rank == (victim ? victim - 1 : 2);
    if (!strcmp(phase, "wait"))
        is_late = 0;
    if (is_victim)
        start_agent(!strcmp(argv[3], "stop"), argc > 4 ? atoi(argv[4]) : 8);
    begin("start");
    if (is_victim && !strcmp(phase, "start"))
        sleep_ms(600);
    begin("meet");
    dsm_startup(&argc, &argv);
    int ranks = dsm_size();
    /* The home of each page is another rank than the rank that writes it. */
    int *pages = dsm_alloc(PAGES * 4096, dsm_cyclic(4096 * 2));
    begin("barrier");
    dsm_barrier();
    if (!strcmp(phase, "lock") && is_victim) {
        dsm_lock(1);
        begin("lock");
        sleep_ms(1000);
        dsm_unlock(1);
    }
    if (!strcmp(phase, "wait") && rank == (victim + 1) % ranks) {
        dsm_lock(1);
        sleep_ms(1500);
        dsm_unlock(1);
    }
    sleep_ms(100);
    begin("wait");
    dsm_lock(1);
    pages[PAGE_INTS - 1]++;
    dsm_unlock(1);
    begin("transfer");
    transfer(pages, rank, ranks);
    if (pages[PAGE_INTS - 1] != ranks)
        return 1;
    begin("shutdown");
    dsm_shutdown();
    if (rank == 0)
        puts("ok phases");
    return 0;
}
