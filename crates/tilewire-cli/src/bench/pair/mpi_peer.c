/* The Open MPI side of `tilewire bench sendrecv`: two ranks that do what rank 0's standard input says, one line at a time.
 *
 *   check PATTERN BYTES          moves two messages and compares every word
 *   PATTERN BYTES STEPS          times STEPS steps after a few that warm up
 *   PATTERN: stream | pingpong | both
 *
 * The answer is "ok NANOSECONDS PROBE PROBE" (of all steps; of a cache line, one way, before and after) or "wrong REASON".
 * Arguments: a FIFO from rank 0 to rank 1, and a file of one page that both map. Between commands rank 0 sleeps in a read of its
 * standard input and rank 1 in one of the FIFO: outside MPI, whose waits would burn the cores that others are measured on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct word { _Atomic uint64_t value; char alone[120]; };
struct shared { struct word ready, done, ping, pong; };

static struct shared *shared;
static int rank;
static uint64_t turns, pings, number;
static uint64_t *source, *target;
static size_t words, capacity;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void publish(struct word *word, uint64_t value) {
    atomic_store_explicit(&word->value, value, memory_order_release);
}

static void await(struct word *word, uint64_t value) {
    while (atomic_load_explicit(&word->value, memory_order_acquire) < value) {}
}

/* Rank k runs on the k-th core that is allowed, as the ranks it is compared with do. */
static void pin(void) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    int skip = rank % CPU_COUNT(&allowed);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || skip-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nanoseconds a cache line takes one way, the median of 9 times 20 round trips; what rank 1 returns means nothing. */
static double probe(void) {
    double ns[9];
    for (int time = 0; time < 9; time++) {
        double start = now();
        for (int k = 0; k < 20; k++) {
            pings++;
            if (rank == 0) {
                publish(&shared->ping, pings);
                await(&shared->pong, pings);
            } else {
                await(&shared->ping, pings);
                publish(&shared->pong, pings);
            }
        }
        ns[time] = (now() - start) / 40;
    }
    qsort(ns, 9, sizeof *ns, by_size);
    return ns[4];
}

static uint64_t word_of(int from, size_t k) { return (k + 1) * 0x9E3779B97F4A7C15u ^ (uint64_t)from; }

static void size_to(size_t bytes) {
    words = bytes < 8 ? 1 : (bytes + 7) / 8;
    if (words <= capacity) return;
    free(source);
    free(target);
    capacity = words;
    if (posix_memalign((void **)&source, 4096, words * 8) || posix_memalign((void **)&target, 4096, words * 8)) abort();
    memset(source, 1, words * 8);
    memset(target, 1, words * 8);
}

static int expected(void) { return target[0] == number && target[words - 1] == number; }

static void send_one(void) {
    source[0] = source[words - 1] = number;
    MPI_Send(source, (int)words, MPI_UINT64_T, 1 - rank, 0, MPI_COMM_WORLD);
}

static int receive_one(void) {
    MPI_Recv(target, (int)words, MPI_UINT64_T, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return expected();
}

/* Runs steps; whether every message was the one expected. */
static int run(const char *pattern, uint64_t steps) {
    int right = 1;
    for (uint64_t k = 0; k < steps; k++) {
        number++;
        if (pattern[0] == 's') {
            if (rank == 0) send_one();
            else right &= receive_one();
        } else if (pattern[0] == 'p') {
            if (rank == 0) send_one();
            right &= receive_one();
            if (rank == 1) send_one();
        } else {
            source[0] = source[words - 1] = number;
            MPI_Sendrecv(source, (int)words, MPI_UINT64_T, 1 - rank, 0, target, (int)words, MPI_UINT64_T, 1 - rank, 0,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            right &= expected();
        }
    }
    return right;
}

/* Both ranks have come, and neither is early by more than a cache line's way. */
static void meet(void) {
    turns++;
    if (rank == 1) publish(&shared->ready, turns);
    else await(&shared->ready, turns);
}

static void left(void) {
    if (rank == 1) publish(&shared->done, turns);
    else await(&shared->done, turns);
}

static int check(const char *pattern) {
    for (size_t k = 0; k < words; k++) source[k] = word_of(rank, k), target[k] = UINT64_MAX;
    meet();
    int right = run(pattern, 2);
    for (size_t k = 1; k + 1 < words; k++)
        if (pattern[0] != 's' || rank == 1) right &= target[k] == word_of(1 - rank, k);
    left();
    return right;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 3) return 2;
    pin();
    int page = open(argv[2], O_RDWR);
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
    FILE *commands = rank == 0 ? stdin : fopen(argv[1], "r"), *forward = rank == 0 ? fopen(argv[1], "w") : NULL;
    if (shared == MAP_FAILED || !commands || (rank == 0 && !forward)) MPI_Abort(MPI_COMM_WORLD, 3);
    char line[256], pattern[16];
    while (fgets(line, sizeof line, commands)) {
        if (forward) {
            fputs(line, forward);
            fflush(forward);
        }
        size_t bytes;
        unsigned long long steps;
        double took = 0, before = 0, after = 0;
        int right;
        if (sscanf(line, "check %15s %zu", pattern, &bytes) == 2) {
            size_to(bytes);
            right = check(pattern);
        } else if (sscanf(line, "%15s %zu %llu", pattern, &bytes, &steps) == 3) {
            size_to(bytes);
            meet();
            before = probe();
            /* As the others do: not where no cache keeps a message. */
            right = bytes < (32u << 20) ? run(pattern, 3) : 1;
            meet();
            double start = now();
            right &= run(pattern, steps);
            left();
            took = now() - start;
            after = probe();
        } else {
            right = 0;
        }
        int all = 0;
        MPI_Allreduce(&right, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
        if (rank == 0) {
            if (all) printf("ok %.1f %.2f %.2f\n", took, before, after);
            else printf("wrong message, or a command that is none: %s", line);
            fflush(stdout);
        }
    }
    if (forward) fclose(forward);
    MPI_Finalize();
    return 0;
}
