/* uring WHAT [MB [OTHER_MB]]
 *
 * Asks an io_uring for operations on an array of MB (8) megabytes. WHAT is one of these:
 *
 *   send   zero-copy sends of the array, through a TCP connection to itself. The receiver does not read yet, so the kernel
 *          goes on reading the array's pages. The program does not touch the array, and reads OTHER_MB (48) megabytes of
 *          other memory, so that the array's pages leave. Then the receiver gets the array
 *   drop   madvise with DONTNEED. The array must then read as zeroes
 *
 * Prints `ok uring`, or says which word was wrong. The exit code is 77 if the kernel or Hanare refuses the operation. */
#define _GNU_SOURCE
#include "check.h"

#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PIECE = 128 << 10, ENTRIES = 64, SKIPPED = 77 };

static int ring;
static unsigned *tail, *mask, *slots, *head, *done, *done_mask;
static struct io_uring_sqe *requests;
static struct io_uring_cqe *answers;
static int notices_due, notices;

static int skip(const char *what, int error) {
    printf("skipped: %s: %s\n", what, strerror(error));
    return SKIPPED;
}

static char *map_ring(size_t bytes, off_t part) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, part);
    CALL(start != MAP_FAILED);
    return start;
}

static void map_rings(const struct io_uring_params *params) {
    char *sent = map_ring(params->sq_off.array + params->sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *received = map_ring(params->cq_off.cqes + params->cq_entries * sizeof *answers, IORING_OFF_CQ_RING);
    requests = (struct io_uring_sqe *)map_ring(params->sq_entries * sizeof *requests, IORING_OFF_SQES);
    tail = (unsigned *)(sent + params->sq_off.tail);
    mask = (unsigned *)(sent + params->sq_off.ring_mask);
    slots = (unsigned *)(sent + params->sq_off.array);
    head = (unsigned *)(received + params->cq_off.head);
    done = (unsigned *)(received + params->cq_off.tail);
    done_mask = (unsigned *)(received + params->cq_off.ring_mask);
    answers = (struct io_uring_cqe *)(received + params->cq_off.cqes);
}

/* Takes the answers that have come. Returns the result of a send, or -ENODATA if there is none. */
static int take_answers(void) {
    int result = -ENODATA;
    while (*head != __atomic_load_n(done, __ATOMIC_ACQUIRE)) {
        const struct io_uring_cqe *answer = &answers[*head & *done_mask];
        if (answer->flags & IORING_CQE_F_NOTIF)
            notices++;
        else
            result = answer->res;
        notices_due += answer->flags & IORING_CQE_F_MORE ? 1 : 0;
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    }
    return result;
}

/* Connects two sockets. The sender's buffer is as large as the system allows, and the receiver's is small. */
static void connect_sockets(int *from, int *to) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int small = 16 << 10, large = 64 << 20, listener = socket(AF_INET, SOCK_STREAM, 0);
    *from = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CALL(listener >= 0 && *from >= 0);
    CALL(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    CALL(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    CALL(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    if (setsockopt(*from, SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof large) != 0)
        CALL(setsockopt(*from, SOL_SOCKET, SO_SNDBUF, &large, sizeof large) == 0);
    CALL(connect(*from, (struct sockaddr *)&address, sizeof address) == 0 || errno == EINPROGRESS);
    *to = accept(listener, NULL, NULL);
    CALL(*to >= 0 && close(listener) == 0);
}

static void receive(int from, size_t bytes) {
    static uint64_t words[512];
    for (size_t first = 0; first < bytes / 8; first += 512) {
        for (size_t come = 0; come < sizeof words;) {
            ssize_t more = recv(from, (char *)words + come, sizeof words - come, 0);
            CALL(more > 0);
            come += (size_t)more;
        }
        check_words(words, 512, 1, first, "received");
    }
}

/* Waits for the answer to the only request. */
static int answer_to(struct io_uring_sqe request) {
    unsigned at = *tail & *mask;
    requests[at] = request;
    slots[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    for (unsigned submit = 1;;) {
        long submitted = syscall(SYS_io_uring_enter, ring, submit, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        CALL(submitted >= 0 || errno == EINTR);
        submit -= submitted > 0 ? (unsigned)submitted : 0;
        int result = take_answers();
        if (result != -ENODATA)
            return result;
    }
}

static int send_all(uint64_t *array, size_t bytes, uint64_t *other, size_t others) {
    int from, to;
    connect_sockets(&from, &to);
    size_t sent = 0;
    while (sent < bytes) {
        /* After a send in part, less than a piece is left at the end. */
        size_t left = bytes - sent, piece = left < PIECE ? left : PIECE;
        /* The page must be present: in some modes the kernel cannot wait for it. */
        check_words(&array[sent / 8], piece / 8, 1, sent / 8, "before it is sent");
        struct io_uring_sqe request = {
            .opcode = IORING_OP_SEND_ZC, .fd = from, .addr = (uintptr_t)array + sent, .len = (unsigned)piece};
        int result = answer_to(request);
        if (result < 0 && sent == 0)
            return skip("a zero-copy send", -result);
        if (result == -EAGAIN || result == -EFAULT)
            break; /* The system allows no more in flight, or a page has left already. */
        REQUIRE(result > 0, "a send: %s", strerror(-result));
        sent += (size_t)result;
        if (result % PAGE != 0)
            break;
    }
    REQUIRE(sent > 0, "nothing was sent");
    for (int turn = 0; turn < 2; turn++)
        check_words(other, others / 8, 2, 0, "other memory");
    receive(to, sent / PAGE * PAGE);
    for (int turn = 0; notices < notices_due && turn < 1000; turn++) {
        take_answers();
        usleep(1000);
    }
    check_words(array, bytes / 8, 1, 0, "afterwards");
    return 0;
}

static int drop_all(uint64_t *array, size_t bytes) {
    struct io_uring_sqe request = {.opcode = IORING_OP_MADVISE,
                                   .addr = (uintptr_t)array,
                                   .len = (unsigned)bytes,
                                   .fadvise_advice = MADV_DONTNEED};
    int result = answer_to(request);
    if (result < 0)
        return skip("madvise", -result);
    for (size_t at = 0; at < bytes / 8; at++)
        REQUIRE(array[at] == 0, "word %zu is not zero", at);
    return 0;
}

int main(int argc, char **argv) {
    REQUIRE(argc > 1, "usage: uring WHAT [MB [OTHER_MB]]");
    size_t bytes = (argc > 2 ? strtoul(argv[2], NULL, 10) : 8) * MIB;
    size_t others = (argc > 3 ? strtoul(argv[3], NULL, 10) : 48) * MIB;
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &params);
    if (ring < 0)
        return skip("io_uring", errno);
    map_rings(&params);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    uint64_t *array = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    uint64_t *other = mmap(NULL, others, PROT_READ | PROT_WRITE, flags, -1, 0);
    CALL(array != MAP_FAILED && other != MAP_FAILED);
    fill_words(array, bytes / 8, 1, 0);
    fill_words(other, others / 8, 2, 0);
    int code = strcmp(argv[1], "send") == 0 ? send_all(array, bytes, other, others) : drop_all(array, bytes);
    if (code)
        return code;
    puts("ok uring");
    return 0;
}
