//! The C library's own functions, which the interposed functions call.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library. If a library between this one and the C library interposes the function, this is that
/// library's function.
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    const fn new(name: &'static CStr) -> Real {
        Real { name, found: AtomicPtr::new(null_mut()) }
    }

    /// Returns the address of the function, or `None` if no library after this one defines it.
    #[inline]
    pub(crate) fn get(&self) -> Option<*mut c_void> {
        let found = self.found.load(Ordering::Acquire);
        if found.is_null() { self.look_up() } else { Some(found) }
    }

    /// Returns the address of the function if it was looked up before, and otherwise `None`. Never looks the function
    /// up: in a forked child, a lookup could wait for a lock that no thread of the child will release.
    pub(crate) fn known(&self) -> Option<*mut c_void> {
        Some(self.found.load(Ordering::Acquire)).filter(|found| !found.is_null())
    }

    #[cold]
    fn look_up(&self) -> Option<*mut c_void> {
        let found = crate::lookups::next(self.name);
        self.found.store(found, Ordering::Release);
        (!found.is_null()).then_some(found)
    }
}

macro_rules! reals {
    ($($name:ident)*) => {
        $(
            #[allow(non_upper_case_globals)] // each static has its function's name
            pub(crate) static $name: Real = {
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => Real::new(name),
                    Err(_) => panic!("a name holds no zero"),
                }
            };
        )*

        /// Looks up all functions. Call it before the engine starts, because resolving a fault must not need a symbol
        /// lookup.
        pub(crate) fn resolve() {
            $( $name.look_up(); )*
        }
    };
}

reals! {
    read __read __read_chk pread pread64 __pread64 __pread_chk __pread64_chk readv preadv preadv64 preadv2 preadv64v2
    write __write pwrite pwrite64 __pwrite64 writev pwritev pwritev64 pwritev2 pwritev64v2
    recv __recv_chk recvfrom __recvfrom_chk recvmsg send sendto sendmsg getrandom getentropy
    open open64 __open __open64 openat openat64 __open_2 __open64_2 __openat_2 __openat64_2 process_vm_readv process_vm_writev creat creat64 opendir fopen fopen64
    stat stat64 lstat lstat64 fstat fstat64 fstatat fstatat64 statx
    __xstat __xstat64 __lxstat __lxstat64 __fxstat __fxstat64 __fxstatat __fxstatat64
    statfs __statfs statfs64 fstatfs fstatfs64 statvfs statvfs64
    access faccessat readlink __readlink_chk readlinkat __readlinkat_chk getcwd __getcwd_chk chdir
    unlink unlinkat remove rmdir mkdir mkdirat rename renameat renameat2 link linkat symlink symlinkat chmod fchmodat chown
    euidaccess eaccess eventfd_read
    truncate truncate64 utimensat mkstemp mkstemp64 mkdtemp
    bind connect __connect accept accept4 getsockname getpeername getsockopt setsockopt socketpair pipe __pipe pipe2
    vmsplice splice sendfile sendfile64 copy_file_range sendmmsg recvmmsg
    poll __poll __poll_chk ppoll select __select pselect epoll_ctl epoll_wait epoll_pwait
    nanosleep __nanosleep clock_nanosleep clock_gettime clock_getres
    wait __wait waitpid __waitpid wait3 wait4 waitid sigwait sigtimedwait sigsuspend __sigsuspend sigpending
    uname sysinfo times getrusage
    getitimer setitimer timer_settime timerfd_settime sched_getaffinity sched_setaffinity
    ptrace execve execvpe fexecve posix_spawn posix_spawnp
    fread __fread_chk fread_unlocked __fread_unlocked_chk fwrite fwrite_unlocked fputs fputs_unlocked puts setvbuf setbuf
    close fork pthread_create pthread_mutexattr_setrobust
    setuid setgid seteuid setegid setreuid setregid setresuid setresgid setgroups
    sigaction signal bsd_signal ssignal sysv_signal __sysv_signal sigset pthread_attr_setsigmask_np setcontext swapcontext
    __sigsetjmp siglongjmp longjmp _longjmp __longjmp_chk
    epoll_pwait2 timer_create timer_gettime timerfd_gettime signalfd
    system popen
    getresuid getresgid getgroups sched_getparam sched_setparam sched_setscheduler sched_rr_get_interval
    pthread_getname_np pthread_setname_np prctl adjtimex clock_adjtime
    getdents64 inotify_add_watch mkfifo mkfifoat mknod mknodat lchown fchownat utime utimes lutimes futimes futimesat
    futimens name_to_handle_at memfd_create pathconf chroot
    getxattr lgetxattr fgetxattr setxattr lsetxattr fsetxattr listxattr llistxattr flistxattr
    removexattr lremovexattr fremovexattr
    mq_open mq_unlink mq_send mq_timedsend mq_receive mq_timedreceive mq_getattr mq_setattr msgsnd msgrcv
    aio_read aio_read64 aio_write aio_write64 lio_listio lio_listio64
    sigaltstack ioctl fcntl fcntl64 syscall
}
