/* direct FOLDER [--kind KIND] [--mb MB] [--seconds S] [--block BYTES] [--threads T] [--seed SEED]
 *
 * The kernel pins pages of large arrays (MB megabytes, 64), and reads and writes the arrays through these pages. Two
 * other threads write and check the rest of the arrays, so that pages are evicted and fetched. KIND is one of these:
 *
 *   pread        O_DIRECT reads of a file                    write        O_DIRECT reads and writes
 *   uring        the same by io_uring, 8 at a time           uring-fixed  with registered buffers
 *   aio          the same by io_submit                       vmsplice     arrays given to a pipe
 *   vmwrite      a child that writes and reads the arrays by process_vm_writev and process_vm_readv
 *
 * The file is made in FOLDER, which must accept O_DIRECT, and has no name. Every block is compared with its
 * expected bytes. Written blocks are read back into memory that is not far. A block begins in the middle of a page.
 * The words around the block belong to the program, which writes them during the transfer. After S (2) seconds the
 * program prints `ok direct`, or the number of wrong blocks with exit code 1. Calls that are refused with EFAULT,
 * ENOMEM, EAGAIN or EBUSY are counted. The exit code is 77 if KIND or O_DIRECT is not available. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH_MAX = 8, THREADS_MAX = 16, THRASHERS = 2, FILE_BLOCKS = 64, FIXED_SLOTS = 8, SKIPPED = 77 };

/* Number of bytes of a block's first page that lie before the block. They belong to the program. */
static size_t lead = 512;

struct kind {
    const char *name;
    int writes, reads, depth;
};

static const struct kind kinds[] = {
    {"pread", 0, 1, 1},       {"write", 1, 1, 1}, {"uring", 1, 1, DEPTH_MAX},
    {"uring-fixed", 1, 1, DEPTH_MAX}, {"aio", 1, 1, DEPTH_MAX},   {"vmwrite", 1, 1, 1},
    {"vmsplice", 1, 0, 1},
};

static const struct kind *kind = &kinds[0];
static size_t block_bytes = 64 << 10, file_threads = 2, far_bytes = 64 * MIB;
static uint64_t seed = 1;
static double seconds = 2;
static int file = -1;
static struct timespec end;

/* Returns shared memory from the kernel, which is never far. */
static void *near_memory(size_t bytes) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CALL(start != MAP_FAILED);
    return start;
}

static int is(const char *name) {
    return strcmp(kind->name, name) == 0;
}

static int over(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec >= end.tv_nsec);
}

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 8;
}

/* A transfer of `thread`'s block `block`, with the bytes of `version`. It goes into `slot`, or out of `slot` if
 * `write` is set. */
struct transfer {
    size_t thread, block;
    uint64_t version, round;
    char *slot;
    int write, fixed;
};

struct worker {
    pthread_t handle;
    size_t number, slots;
    uint64_t state;
    char *area, *near;
    uint64_t versions[FILE_BLOCKS];
    struct transfer flying[DEPTH_MAX];
    char busy_block[FILE_BLOCKS], *busy_slot;
    size_t done, refused, partial, wrong_reads, wrong_writes;
    /* io_uring */
    int ring;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    aio_context_t aio;
    struct iocb iocbs[DEPTH_MAX];
    int to_child[2], from_child[2], pipe[2];
    long result; /* the result of a transfer that completed at once */
};

static size_t slot_bytes(void) {
    return block_bytes + PAGE;
}

static off_t file_offset(const struct transfer *t) {
    return (off_t)((t->thread * FILE_BLOCKS + t->block) * block_bytes);
}

static uint64_t expected(size_t thread, size_t block, uint64_t version, size_t i) {
    return word(seed + version, 1, (thread * FILE_BLOCKS + block) * (block_bytes / 8) + i);
}

static void fill_block(void *to, size_t thread, size_t block, uint64_t version) {
    for (size_t i = 0; i < block_bytes / 8; i++)
        ((uint64_t *)to)[i] = expected(thread, block, version, i);
}

/* Checks the first `bytes` bytes of a block. Prints the first wrong word, if there is one. */
static int holds(const void *found, size_t bytes, const struct transfer *t, const char *what) {
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t word = ((const volatile uint64_t *)found)[i], want = expected(t->thread, t->block, t->version, i);
        if (word != want) {
            fprintf(stderr, "%s: block %zu of thread %zu at %p: word %zu is %#llx, not %#llx\n", what, t->block,
                    t->thread, found, i, (unsigned long long)word, (unsigned long long)want);
            return 0;
        }
    }
    return 1;
}

/* Writes the words before and after a block, in the pages that the block shares with them. */
static void mark_around(struct transfer *t, uint64_t round) {
    t->round = round;
    for (size_t i = 0; i < lead / 8; i++)
        ((volatile uint64_t *)t->slot)[i] = word(seed, round, i);
    for (size_t i = 0; i < (PAGE - lead) / 8; i++)
        ((volatile uint64_t *)(t->slot + lead + block_bytes))[i] = word(seed, round, ~i);
}

static int around_holds(const struct transfer *t) {
    for (size_t i = 0; i < lead / 8; i++)
        if (((volatile uint64_t *)t->slot)[i] != word(seed, t->round, i))
            return 0;
    for (size_t i = 0; i < (PAGE - lead) / 8; i++)
        if (((volatile uint64_t *)(t->slot + lead + block_bytes))[i] != word(seed, t->round, ~i))
            return 0;
    return 1;
}

/* ---- io_uring and libaio, without their libraries ---- */

static void skip(const char *what) {
    printf("skipped: %s: %s\n", what, strerror(errno));
    exit(SKIPPED);
}

static void open_ring(struct worker *w) {
    struct io_uring_params p = {0};
    w->ring = (int)syscall(SYS_io_uring_setup, DEPTH_MAX, &p);
    if (w->ring < 0)
        skip("io_uring_setup");
    size_t sq_bytes = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t cq_bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    int prot = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    char *sq = mmap(NULL, sq_bytes, prot, flags, w->ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, cq_bytes, prot, flags, w->ring, IORING_OFF_CQ_RING);
    w->sqes = mmap(NULL, p.sq_entries * sizeof *w->sqes, prot, flags, w->ring, IORING_OFF_SQES);
    CALL(sq != MAP_FAILED && cq != MAP_FAILED && w->sqes != MAP_FAILED);
    w->sq_tail = (unsigned *)(sq + p.sq_off.tail);
    w->sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
    w->sq_array = (unsigned *)(sq + p.sq_off.array);
    w->cq_head = (unsigned *)(cq + p.cq_off.head);
    w->cq_tail = (unsigned *)(cq + p.cq_off.tail);
    w->cq_mask = (unsigned *)(cq + p.cq_off.ring_mask);
    w->cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
    if (!is("uring-fixed"))
        return;
    struct iovec *buffers = near_memory(FIXED_SLOTS * sizeof *buffers);
    for (size_t i = 0; i < FIXED_SLOTS; i++)
        buffers[i] = (struct iovec){w->area + i * slot_bytes() + lead, block_bytes};
    if (syscall(SYS_io_uring_register, w->ring, IORING_REGISTER_BUFFERS, buffers, FIXED_SLOTS) != 0) {
        if (errno != EFAULT && errno != ENOMEM)
            fail("registering buffers: %s", strerror(errno));
        printf("ok direct: uring-fixed: 0 blocks, registering was refused: %s\n", strerror(errno));
        exit(0);
    }
}

static long ring_submit(struct worker *w, const struct transfer *t, size_t nth) {
    unsigned tail = *w->sq_tail, at = tail & *w->sq_mask;
    struct io_uring_sqe *sqe = &w->sqes[at];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = is("uring-fixed") ? (t->write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED)
                                    : (t->write ? IORING_OP_WRITE : IORING_OP_READ);
    sqe->fd = file;
    sqe->addr = (uint64_t)(uintptr_t)(t->slot + lead);
    sqe->len = (unsigned)block_bytes;
    sqe->off = (uint64_t)file_offset(t);
    sqe->buf_index = (uint16_t)t->fixed;
    sqe->user_data = nth;
    w->sq_array[at] = at;
    atomic_store_explicit((_Atomic unsigned *)w->sq_tail, tail + 1, memory_order_release);
    long taken = syscall(SYS_io_uring_enter, w->ring, 1, 0, 0, NULL, 0);
    if (taken < 0)
        atomic_store_explicit((_Atomic unsigned *)w->sq_tail, tail, memory_order_release);
    return taken < 0 ? -errno : 0;
}

static size_t ring_wait(struct worker *w, long *result) {
    unsigned head = *w->cq_head;
    while (atomic_load_explicit((_Atomic unsigned *)w->cq_tail, memory_order_acquire) == head)
        if (syscall(SYS_io_uring_enter, w->ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0 && errno != EINTR)
            fail("io_uring_enter: %s", strerror(errno));
    struct io_uring_cqe *cqe = &w->cqes[head & *w->cq_mask];
    size_t nth = cqe->user_data;
    *result = cqe->res;
    atomic_store_explicit((_Atomic unsigned *)w->cq_head, head + 1, memory_order_release);
    return nth;
}

static long aio_submit(struct worker *w, const struct transfer *t, size_t nth) {
    struct iocb *iocb = &w->iocbs[nth];
    *iocb = (struct iocb){
        .aio_data = nth,
        .aio_lio_opcode = t->write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD,
        .aio_fildes = (uint32_t)file,
        .aio_buf = (uint64_t)(uintptr_t)(t->slot + lead),
        .aio_nbytes = block_bytes,
        .aio_offset = file_offset(t),
    };
    return syscall(SYS_io_submit, w->aio, 1, &iocb) == 1 ? 0 : -errno;
}

static size_t aio_wait(struct worker *w, long *result) {
    struct io_event event;
    long count;
    while ((count = syscall(SYS_io_getevents, w->aio, 1, 1, &event, NULL)) < 0 && errno == EINTR)
        ;
    REQUIRE(count == 1, "io_getevents: %s", strerror(errno));
    *result = event.res;
    return event.data;
}

/* ---- the child that writes and reads its parent's memory ---- */

struct order {
    struct transfer transfer;
    pid_t parent;
};

static long serve_order(const struct order *order, char *near) {
    struct iovec here = {near, block_bytes}, there = {order->transfer.slot + lead, block_bytes};
    const struct transfer *t = &order->transfer;
    if (!t->write)
        fill_block(near, t->thread, t->block, t->version);
    else
        memset(near, 0, block_bytes);
    long call = t->write ? SYS_process_vm_readv : SYS_process_vm_writev;
    long moved = syscall(call, order->parent, &here, 1, &there, 1, 0);
    if (moved < 0)
        return -errno;
    return t->write && !holds(near, (size_t)moved, t, "read by another process") ? -ENODATA : moved;
}

static void start_child(struct worker *w) {
    CALL(pipe(w->to_child) == 0 && pipe(w->from_child) == 0);
    pid_t child = fork();
    CALL(child >= 0);
    if (child > 0) {
        prctl(PR_SET_PTRACER, child);
        close(w->to_child[0]);
        close(w->from_child[1]);
        return;
    }
    close(w->to_child[1]);
    close(w->from_child[0]);
    struct order *order = near_memory(sizeof *order);
    long *result = near_memory(sizeof *result);
    char *near = near_memory(block_bytes);
    while (read(w->to_child[0], order, sizeof *order) == sizeof *order) {
        *result = serve_order(order, near);
        if (write(w->from_child[1], result, sizeof *result) != sizeof *result)
            break;
    }
    _exit(0);
}

static long by_child(struct worker *w, const struct transfer *t) {
    struct order order = {*t, getpid()};
    long result;
    CALL(write(w->to_child[1], &order, sizeof order) == sizeof order);
    CALL(read(w->from_child[0], &result, sizeof result) == sizeof result);
    return result;
}

/* ---- what every kind has in common ---- */

static long give_to_pipe(struct worker *w, const struct transfer *t) {
    struct iovec from = {t->slot + lead, block_bytes};
    long given = vmsplice(w->pipe[1], &from, 1, 0);
    if (given < 0)
        return -errno;
    if (draw(&w->state) % 4 == 0)
        usleep(500); /* the pages belong to the pipe during this pause */
    for (long taken = 0; taken < given;) {
        long count = read(w->pipe[0], w->near + taken, (size_t)(given - taken));
        CALL(count > 0);
        taken += count;
    }
    return given;
}

static long submit(struct worker *w, const struct transfer *t, size_t nth) {
    if (is("uring") || is("uring-fixed"))
        return ring_submit(w, t, nth);
    if (is("aio"))
        return aio_submit(w, t, nth);
    if (is("vmwrite"))
        w->result = by_child(w, t);
    else if (is("vmsplice"))
        w->result = give_to_pipe(w, t);
    else if (t->write)
        w->result = pwrite(file, t->slot + lead, block_bytes, file_offset(t));
    else
        w->result = pread(file, t->slot + lead, block_bytes, file_offset(t));
    if (w->result == -1)
        w->result = -errno;
    if (is("vmwrite") && w->result == -(errno = ENOSYS))
        skip("process_vm_writev");
    return 0;
}

static size_t await(struct worker *w, long *result) {
    if (is("uring") || is("uring-fixed"))
        return ring_wait(w, result);
    if (is("aio"))
        return aio_wait(w, result);
    *result = w->result;
    return 0;
}

static int is_refusal(long result) {
    return result == -EFAULT || result == -ENOMEM || result == -EAGAIN || result == -EBUSY;
}

/* Reads a written block back into near memory. Checks the first `bytes` bytes, which the call wrote. */
static int written_holds(struct worker *w, const struct transfer *t, size_t bytes) {
    if (is("vmwrite"))
        return 1; /* the child has checked them */
    if (!is("vmsplice"))
        CALL(pread(file, w->near, block_bytes, file_offset(t)) == (ssize_t)block_bytes);
    return holds(w->near, bytes, t, "written");
}

/* Writes a block of the file again from near memory. This repairs all earlier writes to it. */
static void write_near(struct worker *w, const struct transfer *t) {
    fill_block(w->near, t->thread, t->block, t->version);
    if (!is("vmwrite") && !is("vmsplice"))
        CALL(pwrite(file, w->near, block_bytes, file_offset(t)) == (ssize_t)block_bytes);
}

static void finish(struct worker *w, const struct transfer *t, long result) {
    size_t bytes = result > 0 ? (size_t)result : 0;
    w->busy_block[t->block] = 0;
    w->busy_slot[(size_t)(t->slot - w->area) / slot_bytes()] = 0;
    if (result < 0 && result != -ENODATA && !is_refusal(result))
        fail("%s of %p: %s", t->write ? "write" : "read", (void *)t->slot, strerror((int)-result));
    w->done += bytes == block_bytes;
    w->partial += bytes > 0 && bytes < block_bytes;
    w->refused += bytes == 0 && result != -ENODATA;
    int right = around_holds(t);
    if (!right)
        fprintf(stderr, "words beside block %zu at %p are wrong\n", t->block, (void *)t->slot);
    if (t->write)
        w->wrong_writes += !right || result == -ENODATA || !written_holds(w, t, bytes) ||
                           !holds(t->slot + lead, block_bytes, t, "after a write");
    else
        w->wrong_reads += !right || !holds(t->slot + lead, bytes, t, "read");
    w->versions[t->block] = t->version;
    if (t->write && (bytes < block_bytes || w->wrong_writes))
        write_near(w, t);
}

/* Begins transfer `nth` of a free block and slot. Returns 0 if the transfer was refused at once. */
static int begin(struct worker *w, size_t nth) {
    struct transfer *t = &w->flying[nth];
    size_t slot, block;
    do
        slot = draw(&w->state) % w->slots;
    while (w->busy_slot[slot]);
    do
        block = draw(&w->state) % FILE_BLOCKS;
    while (w->busy_block[block]);
    int write = kind->writes && (!kind->reads || draw(&w->state) % 2);
    *t = (struct transfer){.thread = w->number,
                           .block = block,
                           .version = w->versions[block] + (write || is("vmwrite")),
                           .slot = w->area + slot * slot_bytes(),
                           .write = write,
                           .fixed = (int)slot};
    w->busy_slot[slot] = w->busy_block[block] = 1;
    mark_around(t, w->done * 2);
    if (write)
        fill_block(t->slot + lead, t->thread, t->block, t->version);
    long refusal = submit(w, t, nth);
    if (refusal < 0) {
        finish(w, t, refusal);
        return 0;
    }
    mark_around(t, w->done * 2 + 1);
    return 1;
}

static void *work(void *argument) {
    struct worker *w = argument;
    size_t flying = 0;
    if (is("uring") || is("uring-fixed"))
        open_ring(w);
    if (is("aio") && syscall(SYS_io_setup, DEPTH_MAX, &w->aio) != 0)
        skip("io_setup");
    for (size_t nth = 0; nth < (size_t)kind->depth; nth++)
        flying += (size_t)begin(w, nth);
    while (flying > 0 || !over()) {
        long result;
        if (flying == 0) { /* all transfers were refused at once */
            flying += (size_t)begin(w, 0);
            continue;
        }
        size_t nth = await(w, &result);
        finish(w, &w->flying[nth], result);
        flying--;
        if (!over())
            flying += (size_t)begin(w, nth);
    }
    return NULL;
}

/* The state of a thread that writes and checks its share of the pages at random. */
struct thrasher {
    pthread_t handle;
    uint64_t *words, state;
    size_t pages, first;
    uint8_t *versions;
};

static void *thrash(void *argument) {
    struct thrasher *t = argument;
    while (!over()) {
        size_t page = draw(&t->state) % t->pages, per_page = PAGE / 8;
        volatile uint64_t *words = t->words + page * per_page;
        uint64_t number = t->first + page;
        for (size_t i = draw(&t->state) % 64; i < per_page; i += 64) {
            uint64_t want = t->versions[page] ? word(seed, t->versions[page], number * per_page + i) : 0;
            REQUIRE(words[i] == want, "page %llu at %p: word %zu is %#llx, not %#llx", (unsigned long long)number,
                    (const void *)words, i, (unsigned long long)words[i], (unsigned long long)want);
        }
        if (draw(&t->state) % 2)
            continue;
        t->versions[page] = t->versions[page] == 255 ? 1 : t->versions[page] + 1;
        for (size_t i = 0; i < per_page; i++)
            words[i] = word(seed, t->versions[page], number * per_page + i);
    }
    return NULL;
}

/* Makes a file without a name. Every block has version 0. */
static void make_file(const char *folder, struct worker *workers) {
    char path[4096];
    snprintf(path, sizeof path, "%s/direct-%d", folder, getpid());
    file = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT, 0600);
    if (file < 0 && errno == EINVAL)
        skip("O_DIRECT");
    CALL(file >= 0);
    CALL(unlink(path) == 0);
    for (size_t i = 0; i < file_threads; i++)
        for (size_t block = 0; block < FILE_BLOCKS; block++)
            write_near(&workers[i], &(struct transfer){.thread = i, .block = block});
    if (pread(file, workers[0].near + lead, 4096, 0) < 0)
        lead = PAGE; /* this disk needs a larger alignment */
}

static void read_arguments(int argc, char **argv, const char **folder) {
    for (int i = 1; i < argc; i++) {
        const char *value;
        if ((value = option(argv, &i, "--kind"))) {
            kind = NULL;
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
                kind = strcmp(kinds[k].name, value) == 0 ? &kinds[k] : kind;
            if (!kind)
                break;
        } else if ((value = option(argv, &i, "--mb")))
            far_bytes = parse_size(value) * MIB;
        else if ((value = option(argv, &i, "--block")))
            block_bytes = parse_size(value) / PAGE * PAGE;
        else if ((value = option(argv, &i, "--seconds")))
            seconds = strtod(value, NULL);
        else if ((value = option(argv, &i, "--threads")))
            file_threads = parse_size(value);
        else if ((value = option(argv, &i, "--seed")))
            seed = strtoull(value, NULL, 10);
        else
            *folder = argv[i];
    }
    if (kind && *folder && file_threads && file_threads <= THREADS_MAX && block_bytes &&
        far_bytes / 2 / file_threads >= 2 * DEPTH_MAX * slot_bytes())
        return;
    fprintf(stderr, "usage: direct FOLDER [--kind pread|write|uring|uring-fixed|aio|vmwrite|vmsplice] [--mb MB] "
                    "[--seconds S] [--block BYTES] [--threads T] [--seed SEED]\n");
    exit(2);
}

static void prepare(struct worker *workers, const char *folder) {
    for (size_t i = 0; i < file_threads; i++) {
        workers[i].near = near_memory(block_bytes + PAGE);
        if (is("vmwrite"))
            start_child(&workers[i]);
        if (is("vmsplice")) {
            CALL(pipe(workers[i].pipe) == 0);
            CALL(fcntl(workers[i].pipe[1], F_SETPIPE_SZ, (int)(block_bytes * 2)) > 0);
        }
    }
    make_file(folder, workers);
    size_t each = far_bytes / 2 / file_threads / slot_bytes();
    for (size_t i = 0; i < file_threads; i++) {
        struct worker *w = &workers[i];
        void *area;
        CALL((errno = posix_memalign(&area, PAGE, each * slot_bytes())) == 0);
        w->area = area;
        w->number = i;
        w->slots = is("uring-fixed") ? FIXED_SLOTS : each;
        w->busy_slot = near_memory(each);
        w->state = word(seed, 2, i);
    }
}

static void start(struct worker *workers, struct thrasher *thrashers) {
    size_t pages = far_bytes / 2 / THRASHERS / PAGE;
    for (size_t i = 0; i < THRASHERS; i++) {
        struct thrasher *t = &thrashers[i];
        CALL((t->words = calloc(pages, PAGE)) != NULL);
        t->pages = pages;
        t->first = i * pages;
        t->versions = near_memory(pages);
        t->state = word(seed, 3, i);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    uint64_t nanoseconds = (uint64_t)end.tv_nsec + (uint64_t)(seconds * 1e9);
    end.tv_sec += (time_t)(nanoseconds / 1000000000);
    end.tv_nsec = (long)(nanoseconds % 1000000000);
    for (size_t i = 0; i < THRASHERS; i++)
        CALL((errno = pthread_create(&thrashers[i].handle, NULL, thrash, &thrashers[i])) == 0);
    for (size_t i = 0; i < file_threads; i++)
        CALL((errno = pthread_create(&workers[i].handle, NULL, work, &workers[i])) == 0);
}

int main(int argc, char **argv) {
    const char *folder = NULL;
    read_arguments(argc, argv, &folder);
    struct worker *workers = near_memory(file_threads * sizeof *workers);
    struct thrasher thrashers[THRASHERS];
    prepare(workers, folder);
    start(workers, thrashers);
    size_t done = 0, refused = 0, partial = 0, reads = 0, writes = 0;
    for (size_t i = 0; i < file_threads; i++) {
        struct worker *w = &workers[i];
        CALL((errno = pthread_join(w->handle, NULL)) == 0);
        done += w->done, refused += w->refused, partial += w->partial;
        reads += w->wrong_reads, writes += w->wrong_writes;
        if (is("vmwrite"))
            close(w->to_child[1]);
    }
    for (size_t i = 0; i < THRASHERS; i++)
        CALL((errno = pthread_join(thrashers[i].handle, NULL)) == 0);
    while (wait(NULL) > 0)
        ;
    if (reads || writes)
        fail("direct: %s: %zu blocks read wrong, %zu written wrong, %zu transferred", kind->name, reads, writes, done);
    printf("ok direct: %s: %zu blocks, %zu in part, %zu refused\n", kind->name, done, partial, refused);
    return 0;
}
