/* zipf SOCKET KEYS BYTES REQUESTS: fills a memcached with values and requests them by Zipf's law (exponent 0.99), one
 * write in twenty. Every value that comes back is checked. */
#include "numbers.h"
#include <math.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define EXPONENT 0.99
#define BATCH 64 /* requests that are sent before the answers are read */
#define PATIENCE 3000 /* attempts to connect, 10 ms apart */

static FILE *in, *out;
static size_t keys, bytes;
static uint32_t *version; /* of each key's value */
static double *share;     /* share[k]: the part of the requests that goes to the keys up to k */
static char *wanted, *line;

static void join(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        fail("the path of the socket is too long");
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), attempt = 0;
    if (fd < 0)
        fail("there is no socket");
    while (connect(fd, (struct sockaddr *)&address, sizeof address)) {
        if (++attempt == PATIENCE)
            fail("the server cannot be reached");
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    in = fdopen(fd, "r");
    out = fdopen(dup(fd), "w");
    if (in == NULL || out == NULL)
        fail("there is no stream");
}

/* Makes the value of a key into `wanted`. */
static void make_value(uint32_t key) {
    uint64_t state = (uint64_t)key << 32 | version[key];
    for (size_t at = 0; at < bytes; at++)
        wanted[at] = (char)('a' + (at % 8 == 0 ? draw(&state) % 26 : (unsigned char)(wanted[at - 1] + at) % 26));
}

static void send_set(uint32_t key) {
    make_value(key);
    fprintf(out, "set k%u 0 0 %zu\r\n", key, bytes);
    fwrite(wanted, 1, bytes, out);
    fputs("\r\n", out);
}

static void expect(const char *start) {
    if (fgets(line, (int)bytes + 200, in) == NULL || strncmp(line, start, strlen(start)))
        fail("the server's answer is another one");
}

static void take_value(uint32_t key) {
    char start[64];
    snprintf(start, sizeof start, "VALUE k%u 0 %zu", key, bytes);
    expect(start);
    make_value(key);
    if (fread(line, 1, bytes, in) != bytes || memcmp(line, wanted, bytes))
        fail("a value is not the one that was stored");
    expect("\r\n");
    expect("END");
}

static void flush(void) {
    if (fflush(out))
        fail("the server does not take requests");
}

/* Stores all keys, a batch at a time. */
static void fill(void) {
    for (size_t key = 0; key < keys; key += BATCH) {
        size_t end = key + BATCH < keys ? key + BATCH : keys;
        for (size_t k = key; k < end; k++)
            send_set((uint32_t)k);
        flush();
        for (size_t k = key; k < end; k++)
            expect("STORED");
    }
}

/* Returns a key by Zipf's law. Frequent keys are spread over all keys. */
static uint32_t zipf(uint64_t *state) {
    double at = (double)(draw(state) >> 11) * 0x1p-53;
    size_t low = 0, high = keys - 1;
    while (low < high) {
        size_t half = (low + high) / 2;
        if (share[half] < at)
            low = half + 1;
        else
            high = half;
    }
    return (uint32_t)(low * 2654435761u % keys);
}

static void make_shares(void) {
    double sum = 0;
    for (size_t k = 0; k < keys; k++)
        share[k] = sum += pow((double)(k + 1), -EXPONENT);
    for (size_t k = 0; k < keys; k++)
        share[k] /= sum;
}

int main(int argc, char **argv) {
    keys = number(argc, argv, 2), bytes = number(argc, argv, 3);
    size_t requests = number(argc, argv, 4);
    version = array(keys, sizeof *version), share = array(keys, sizeof *share);
    wanted = array(bytes, 1), line = array(bytes + 200, 1);
    make_shares();
    join(argv[1]);
    fill();
    uint64_t state = 4, sum = 0;
    for (size_t done = 0; done < requests; done += BATCH) {
        uint32_t key[BATCH];
        for (size_t b = 0; b < BATCH; b++)
            key[b] = zipf(&state);
        size_t written = draw(&state) % BATCH, more = written + BATCH / 20;
        for (size_t b = 0; b < BATCH; b++) {
            sum = add(sum, key[b]);
            if (b >= written && b < more) {
                version[key[b]]++;
                send_set(key[b]);
            } else {
                fprintf(out, "get k%u\r\n", key[b]);
            }
        }
        flush();
        /* Answers come in the order of the requests. A key that was written later in the batch was read before. */
        for (size_t b = BATCH; b-- > 0;)
            if (b >= written && b < more)
                version[key[b]]--;
        for (size_t b = 0; b < BATCH; b++) {
            if (b >= written && b < more) {
                version[key[b]]++;
                expect("STORED");
            } else {
                take_value(key[b]);
            }
        }
    }
    printf("zipf %zu %016llx\n", requests, (unsigned long long)sum);
    return 0;
}
