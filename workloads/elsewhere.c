/* elsewhere WAY [SIZE]
 *
 * With WAY chroot, mounts or noproc, a process leaves its original environment and then forks. With chroot-child,
 * mounts-child or noproc-child, the process forks first, and the child leaves the environment. To leave it, the
 * process changes its root, mounts over /tmp and /dev in a mount namespace of its own, or unmounts /proc in such a
 * namespace. The child has the parent's SIZE (16M) of words, writes its own words and allocates more memory. Neither
 * process sees the other's writes. Prints `skip` if this user may not do that. */
#define _GNU_SOURCE
#include "check.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t count;
static uint64_t *array;

static void leave(const char *way) {
    char root[] = "/tmp/hXXXXXX";
    if (strncmp(way, "chroot", 6) == 0) {
        CALL(mkdtemp(root) && chdir(root) == 0 && rmdir(root) == 0);
        /* The folder is removed, so no name in it can be found. */
        if (chroot(".") != 0) {
            puts("skip");
            _Exit(0);
        }
        return;
    }
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        puts("skip");
        _Exit(0);
    }
    if (strncmp(way, "mounts", 6) == 0)
        CALL(mount("none", "/tmp", "tmpfs", 0, NULL) == 0 && mount("none", "/dev", "tmpfs", 0, NULL) == 0);
    else
        CALL(umount2("/proc", MNT_DETACH) == 0);
}

static void child(void) {
    check_words(array, count, 1, 0, "the parent's, in the child");
    fill_words(array, count, 2, 0);
    uint64_t *own = malloc(count * sizeof *own);
    CALL(own);
    fill_words(own, count, 3, 0);
    check_words(array, count, 2, 0, "the child's");
    check_words(own, count, 3, 0, "what the child allocated");
}

int main(int argc, char **argv) {
    REQUIRE(argc > 1, "usage: elsewhere WAY [SIZE]");
    const char *way = argv[1];
    int in_child = strstr(way, "-child") != NULL;
    count = (argc > 2 ? parse_size(argv[2]) : 16 * MIB) / sizeof *array;
    array = malloc(count * sizeof *array);
    CALL(array);
    fill_words(array, count, 1, 0);
    if (!in_child)
        leave(way);
    pid_t pid = fork();
    CALL(pid >= 0);
    if (pid == 0) {
        if (in_child)
            leave(way);
        child();
        if (fork() == 0) {
            check_words(array, count, 2, 0, "in the child's child");
            _Exit(0);
        }
        int status;
        REQUIRE(wait(&status) > 0 && status == 0, "the child's child ended with status %#x", status);
        _Exit(0);
    }
    int status;
    CALL(waitpid(pid, &status, 0) == pid);
    REQUIRE(status == 0, "the child ended with status %#x", status);
    check_words(array, count, 1, 0, "the parent's");
    printf("ok elsewhere: %s\n", way);
    return 0;
}
