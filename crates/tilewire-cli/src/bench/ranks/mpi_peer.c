/* The MPI side of `tilewire bench`: ranks that do what they are told, one line at a time.
 *
 *   check WORK BYTES          does it twice and compares every word
 *   WORK BYTES WARM STEPS     times STEPS steps after WARM that warm up
 *   WORK of two ranks: stream | pingpong | both                                       of messages of so many bytes
 *        of all ranks: all_to_all | transposing | all_gather | reduce_scatter         of chunks of so many bytes, of floats
 *                      | all_reduce                                                   of a tensor of so many bytes
 *                      | broadcast | gather | scatter                                 of chunks, the root is rank 0
 *
 * The answer is "ok NANOSECONDS PROBE PROBE" (of all steps; of a cache line, one way, before and after) or "wrong REASON".
 * Arguments: the path of FIFOs to the ranks (a rank's number is appended; what rank 0 reads it forwards to the others), and a file that
 * all map. Between commands ranks sleep in a read of their FIFO: outside MPI, whose waits would burn the cores that others are
 * measured on. What is moved, and how it is checked, is as in `sendrecv/messages.rs` and `collectives/work.rs`. */
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
#include <unistd.h>

enum { MOST_RANKS = 64 };

struct word { _Atomic uint64_t value; char alone[120]; };
/* Then `ready` and `done` of every rank (of rank 0, that a probe is over), and what each `has`. */
struct shared { struct word ping, pong, ranks[]; };

static struct shared *shared;
static int rank, ranks, crowded;
static uint64_t turns, pings, probes, number;
/* What is sent and received, and what is transposed before it is sent; of messages words, of collectives floats. */
static void *source, *target, *packed;
static size_t words, chunk, capacity;
static int counts[MOST_RANKS];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void publish(struct word *word, uint64_t value) {
    atomic_store_explicit(&word->value, value, memory_order_release);
}

static void await(struct word *word, uint64_t value) {
    while (atomic_load_explicit(&word->value, memory_order_acquire) < value)
        if (crowded) sched_yield();
}

/* Rank k runs on the k-th core that is allowed, as the ranks it is compared with do. */
static void pin(void) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    crowded = ranks > CPU_COUNT(&allowed);
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

/* Nanoseconds a cache line takes one way between ranks 0 and 1, the median of 9 times 20 round trips; what another rank than 0 returns
 * means nothing. */
static double probe(void) {
    double ns[9];
    probes++;
    /* The others sleep: the two may be on their cores. */
    if (rank > 1) {
        while (atomic_load_explicit(&shared->ranks[0].value, memory_order_acquire) < probes) usleep(50);
        return 0;
    }
    for (int time = 0; time < 9; time++) {
        double start = now();
        for (int k = 0; k < 20; k++) {
            pings++;
            if (rank == 0) {
                publish(&shared->ping, pings);
                while (atomic_load_explicit(&shared->pong.value, memory_order_acquire) < pings) {}
            } else {
                while (atomic_load_explicit(&shared->ping.value, memory_order_acquire) < pings) {}
                publish(&shared->pong, pings);
            }
        }
        ns[time] = (now() - start) / 40;
    }
    if (rank == 0) publish(&shared->ranks[0], probes);
    qsort(ns, 9, sizeof *ns, by_size);
    return ns[4];
}

static void size_to(size_t bytes) {
    words = bytes < 8 ? 1 : (bytes + 7) / 8;
    chunk = bytes / 4;
    if (words <= capacity) return;
    void **all[] = {&source, &target, &packed};
    capacity = words;
    for (int k = 0; k < 3; k++) {
        free(*all[k]);
        if (posix_memalign(all[k], 4096, words * 8 * ranks)) abort();
        memset(*all[k], 1, words * 8 * ranks);
    }
}

/* ---- messages between two ranks ---- */

static uint64_t word_of(int from, size_t k) { return (k + 1) * 0x9E3779B97F4A7C15u ^ (uint64_t)from; }

static void stamp_message(void) {
    uint64_t *out = source;
    out[0] = out[words - 1] = number;
}

static int expected_message(void) {
    uint64_t *inp = target;
    return inp[0] == number && inp[words - 1] == number;
}

static void send_one(void) {
    stamp_message();
    MPI_Send(source, (int)words, MPI_UINT64_T, 1 - rank, 0, MPI_COMM_WORLD);
}

static int receive_one(void) {
    MPI_Recv(target, (int)words, MPI_UINT64_T, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return expected_message();
}

static int stream(void) {
    if (rank == 1) return receive_one();
    send_one();
    return 1;
}

static int pingpong(void) {
    if (rank == 0) send_one();
    int right = receive_one();
    if (rank == 1) send_one();
    return right;
}

static int both(void) {
    stamp_message();
    MPI_Sendrecv(source, (int)words, MPI_UINT64_T, 1 - rank, 0, target, (int)words, MPI_UINT64_T, 1 - rank, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    return expected_message();
}

/* ---- collectives ---- */

/* Small whole numbers, so that sums are exact in any order. */
static float value_of(int from, size_t k) { return (float)((k * 7 + (size_t)from * 13) % 251); }

static float stamp_of(void) { return (float)(number % 4096); }

/* The first and the last element of every chunk are the number of the step. */
static void stamp(size_t chunks) {
    float *inp = source;
    for (size_t p = 0; p < chunks; p++) inp[p * chunk] = inp[(p + 1) * chunk - 1] = stamp_of();
}

static int expected(size_t chunks, int summed) {
    const float *out = target;
    float must = stamp_of() * (summed ? ranks : 1);
    int right = 1;
    for (size_t p = 0; p < chunks; p++) right &= out[p * chunk] == must && out[(p + 1) * chunk - 1] == must;
    return right;
}

static int all_to_all(void) {
    stamp(ranks);
    MPI_Alltoall(source, (int)chunk, MPI_FLOAT, target, (int)chunk, MPI_FLOAT, MPI_COMM_WORLD);
    return expected(ranks, 0);
}

/* Rows of a chunk: a power of two, about as many as columns. */
static size_t rows_of(size_t elements) {
    size_t rows = 1;
    while (rows * rows * 4 <= elements) rows *= 2;
    while (elements % rows) rows /= 2;
    return rows;
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define VECTORS
#endif
#endif
#ifdef VECTORS
typedef float eight __attribute__((vector_size(32), aligned(4)));
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

/* Transposes 8 by 8 elements: pairs, then quarters, then halves of the rows change places. */
static inline void square(float *to, size_t to_row, const float *from, size_t from_row) {
    eight a[8], b[8];
    for (int k = 0; k < 8; k++) a[k] = *(const eight *)(from + k * from_row);
    for (int k = 0; k < 8; k += 2) {
        b[k] = PICK(a[k], a[k + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        b[k + 1] = PICK(a[k], a[k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    for (int k = 0; k < 8; k += 4)
        for (int j = k; j < k + 2; j++) {
            a[j] = PICK(b[j], b[j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            a[j + 2] = PICK(b[j], b[j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int k = 0; k < 4; k++) {
        *(eight *)(to + k * to_row) = PICK(a[k], a[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(eight *)(to + (k + 4) * to_row) = PICK(a[k], a[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
#endif

/* `to` has a row for every column of `from`. In blocks that a cache holds, whole lines of the result at a time. */
static void transpose(float *to, const float *from, size_t rows, size_t cols) {
#ifdef VECTORS
    if (rows % 64 == 0 && cols % 64 == 0) {
        for (size_t i = 0; i < rows; i += 64)
            for (size_t j = 0; j < cols; j += 8)
                for (size_t k = i; k < i + 64; k += 8) square(to + j * rows + k, rows, from + k * cols + j, cols);
        return;
    }
#endif
    for (size_t j = 0; j < cols; j++)
        for (size_t i = 0; i < rows; i++) to[j * rows + i] = from[i * cols + j];
}

static int transposing(void) {
    stamp(ranks);
    size_t rows = rows_of(chunk);
    for (int p = 0; p < ranks; p++)
        transpose((float *)packed + p * chunk, (const float *)source + p * chunk, rows, chunk / rows);
    MPI_Alltoall(packed, (int)chunk, MPI_FLOAT, target, (int)chunk, MPI_FLOAT, MPI_COMM_WORLD);
    return expected(ranks, 0);
}

static int all_gather(void) {
    stamp(1);
    MPI_Allgather(source, (int)chunk, MPI_FLOAT, target, (int)chunk, MPI_FLOAT, MPI_COMM_WORLD);
    return expected(ranks, 0);
}

/* Not MPI_Reduce_scatter_block, which is several times slower in Open MPI. */
static int reduce_scatter(void) {
    stamp(ranks);
    for (int p = 0; p < ranks; p++) counts[p] = (int)chunk;
    MPI_Reduce_scatter(source, target, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return expected(1, 1);
}

static int all_reduce(void) {
    stamp(1);
    MPI_Allreduce(source, target, (int)chunk, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return expected(1, 1);
}

/* The root does here what it does with ours: of a broadcast, which has one buffer, it copies nothing; its own chunk of a
 * gather and of a scatter it does copy (they are not in place). */
static int broadcast(void) {
    if (rank == 0) stamp(1);
    MPI_Bcast(rank == 0 ? source : target, (int)chunk, MPI_FLOAT, 0, MPI_COMM_WORLD);
    return rank == 0 || expected(1, 0);
}

static int gather(void) {
    stamp(1);
    MPI_Gather(source, (int)chunk, MPI_FLOAT, target, (int)chunk, MPI_FLOAT, 0, MPI_COMM_WORLD);
    return rank != 0 || expected(ranks, 0);
}

static int scatter(void) {
    if (rank == 0) stamp(ranks);
    MPI_Scatter(source, (int)chunk, MPI_FLOAT, target, (int)chunk, MPI_FLOAT, 0, MPI_COMM_WORLD);
    return expected(1, 0);
}

/* ---- what there is, and doing it ---- */

/* What element k of output chunk p must be, if it is neither the first nor the last. */
static float must_all_to_all(size_t p, size_t k) { return value_of(p, rank * chunk + k); }

static float must_transposing(size_t p, size_t k) {
    size_t rows = rows_of(chunk), cols = chunk / rows;
    return must_all_to_all(p, k % rows * cols + k / rows);
}

static float must_all_gather(size_t p, size_t k) { return value_of(p, k); }

static float must_all_reduce(size_t p, size_t k) {
    float sum = 0;
    for (int q = 0; q < ranks; q++) sum += value_of(q, p * chunk + k);
    return sum;
}

static float must_reduce_scatter(size_t p, size_t k) { return must_all_reduce(p + rank, k); }

static float must_broadcast(size_t p, size_t k) { return value_of(0, p * chunk + k); }

static float must_scatter(size_t p, size_t k) { return value_of(0, (p + rank) * chunk + k); }

/* Chunks of what this rank receives. */
static int of_all(void) { return ranks; }
static int one(void) { return 1; }
static int but_root(void) { return rank != 0; }
static int at_root(void) { return rank == 0 ? ranks : 0; }

/* Who sends to ranks that send it nothing: it could run ahead of them. */
enum ahead { NOBODY, ROOT, OTHERS };

struct work {
    const char *name;
    int (*step)(void);
    float (*must)(size_t p, size_t k);
    int (*chunks)(void);
    enum ahead ahead;
};

static const struct work WORKS[] = {
    {"stream", stream, NULL, NULL, NOBODY},
    {"pingpong", pingpong, NULL, NULL, NOBODY},
    {"both", both, NULL, NULL, NOBODY},
    {"all_to_all", all_to_all, must_all_to_all, of_all, NOBODY},
    {"transposing", transposing, must_transposing, of_all, NOBODY},
    {"all_gather", all_gather, must_all_gather, of_all, NOBODY},
    {"reduce_scatter", reduce_scatter, must_reduce_scatter, one, NOBODY},
    {"all_reduce", all_reduce, must_all_reduce, one, NOBODY},
    {"broadcast", broadcast, must_broadcast, but_root, ROOT},
    {"gather", gather, must_all_gather, at_root, OTHERS},
    {"scatter", scatter, must_scatter, one, ROOT},
};
enum { MESSAGES = 3, ALL = sizeof WORKS / sizeof *WORKS };

static int find(const char *name) {
    for (int k = ranks == 2 ? 0 : MESSAGES; k < ALL; k++)
        if (!strcmp(name, WORKS[k].name)) return k;
    return -1;
}

/* A step is over when all have what it sent, as in `collectives/work.rs` and by the same means: a root that broadcasts
 * would be ahead of the others by as many steps as MPI's buffers hold, and the figure would be how often it can send. */
static void keep_pace(enum ahead ahead) {
    struct word *has = &shared->ranks[2 * ranks];
    publish(&has[rank], number);
    if (ahead == ROOT && rank == 0) for (int p = 1; p < ranks; p++) await(&has[p], number);
    if (ahead == OTHERS && rank > 0) await(&has[0], number);
}

/* Runs steps; whether all that arrived was expected. */
static int run(int work, uint64_t steps) {
    int right = 1;
    for (uint64_t k = 0; k < steps; k++) {
        number++;
        right &= WORKS[work].step();
        if (WORKS[work].ahead != NOBODY) keep_pace(WORKS[work].ahead);
    }
    return right;
}

/* All ranks have come, and none is early by more than a cache line's way. */
static void meet(void) {
    turns++;
    if (rank > 0) publish(&shared->ranks[2 * rank], turns);
    else for (int p = 1; p < ranks; p++) await(&shared->ranks[2 * p], turns);
}

static void left(void) {
    if (rank > 0) publish(&shared->ranks[2 * rank + 1], turns);
    else for (int p = 1; p < ranks; p++) await(&shared->ranks[2 * p + 1], turns);
}

static int check_messages(int work) {
    uint64_t *out = source, *inp = target;
    for (size_t k = 0; k < words; k++) out[k] = word_of(rank, k), inp[k] = UINT64_MAX;
    meet();
    int right = run(work, 2);
    for (size_t k = 1; k + 1 < words; k++)
        if (work > 0 || rank == 1) right &= inp[k] == word_of(1 - rank, k);
    left();
    return right;
}

static int check_collective(int work) {
    float *inp = source, *out = target;
    for (size_t k = 0; k < chunk * ranks; k++) inp[k] = value_of(rank, k), out[k] = -1;
    meet();
    int right = run(work, 2);
    size_t chunks = WORKS[work].chunks();
    for (size_t p = 0; p < chunks; p++)
        for (size_t k = 1; k + 1 < chunk; k++) right &= out[p * chunk + k] == WORKS[work].must(p, k);
    left();
    return right;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3 || ranks > MOST_RANKS) return 2;
    pin();
    int page = open(argv[2], O_RDWR);
    shared = mmap(NULL, (3 * ranks + 2) * sizeof(struct word), PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
    FILE *commands = NULL, *forward[MOST_RANKS] = {0};
    /* In order: opening a FIFO waits for its other end. */
    for (int p = 0; p < ranks; p++) {
        char path[4096];
        snprintf(path, sizeof path, "%s%d", argv[1], p);
        if (rank == 0 && p > 0) forward[p] = fopen(path, "w");
        if (rank == p) commands = fopen(path, "r");
        if (shared == MAP_FAILED || (rank == 0 && p > 0 && !forward[p]) || (rank == p && !commands)) MPI_Abort(MPI_COMM_WORLD, 3);
    }
    char line[256], name[32];
    while (fgets(line, sizeof line, commands)) {
        for (int p = 1; p < ranks && rank == 0; p++) {
            fputs(line, forward[p]);
            fflush(forward[p]);
        }
        size_t bytes;
        unsigned long long warm, steps;
        double took = 0, before = 0, after = 0;
        int right = 0, work;
        if (sscanf(line, "check %31s %zu", name, &bytes) == 2 && (work = find(name)) >= 0) {
            size_to(bytes);
            right = work < MESSAGES ? check_messages(work) : check_collective(work);
        } else if (sscanf(line, "%31s %zu %llu %llu", name, &bytes, &warm, &steps) == 4 && (work = find(name)) >= 0) {
            size_to(bytes);
            meet();
            before = probe();
            right = run(work, warm);
            meet();
            double start = now();
            right &= run(work, steps);
            left();
            took = now() - start;
            after = probe();
        }
        int all = 0;
        MPI_Allreduce(&right, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
        if (rank == 0) {
            if (all) printf("ok %.1f %.2f %.2f\n", took, before, after);
            else printf("wrong message, or a command that is none: %s", line);
            fflush(stdout);
        }
    }
    for (int p = 1; p < ranks && rank == 0; p++) fclose(forward[p]);
    MPI_Finalize();
    return 0;
}
