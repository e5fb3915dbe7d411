/* Latency and bandwidth between two ranks, for ./scripts/bench mpi, and collectives of any number
 * of ranks, for ./scripts/bench shm. Prints one JSON object.
 *
 * usage: bench lat|bw|alltoall|allreduce SIZE MESSAGES CORE0 CORE1
 *   lat   half the round trip: the clock is read around batches of round trips, and the median is
 *         that of the batches
 *   bw    one way, a window of messages under way, acknowledged by the window
 *   alltoall    one call, SIZE bytes from each rank to each: the median of batches of calls
 *   allreduce   one call, a sum of SIZE bytes of doubles: the median of batches of calls
 * Ranks of even number run on CORE0, the others on CORE1. A warm-up of a tenth of the messages
 * comes before the measurement. A collective is called MESSAGES times at most, and no longer than
 * about half a second: ranks that share a core may wait for each other's time slices.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TAG = 1, ACKNOWLEDGEMENT = 2, MOST_SAMPLES = 100000, LARGEST_WINDOW = 64 };
enum { MOST_BATCHES = 40, FEWEST_CALLS = 5, LARGEST = 1 << 30 };

/* A batch takes at least this long, so that reading the clock is no part of it. */
static const double SHORTEST_BATCH_US = 2.5;

/* The collectives of a burst take about this long. */
static const double COLLECTIVE_US = 5e5;

static int rank, ranks;

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec * 1e-3;
}

static int fail(const char *why)
{
    fprintf(stderr, "bench: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}

static void keep_to(int core)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores)) {
        fail("can not keep to its core");
    }
}

static void round_trips(char *buffer, int size, long count)
{
    for (long i = 0; i < count; i++) {
        if (rank == 0) {
            MPI_Send(buffer, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
            MPI_Recv(buffer, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buffer, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        }
    }
}

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void latency(char *buffer, int size, long messages)
{
    long warm_up = messages / 10 + 1;
    double began = now_us();
    round_trips(buffer, size, warm_up);
    double each_us = (now_us() - began) / warm_up;

    long batch = each_us < SHORTEST_BATCH_US ? (long)(SHORTEST_BATCH_US / each_us) + 1 : 1;
    MPI_Bcast(&batch, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    long batches = messages / batch + 1;
    if (batches > MOST_SAMPLES) {
        batches = MOST_SAMPLES;
    }
    double *sample = malloc(batches * sizeof *sample);
    if (!sample) {
        fail("no memory");
    }
    double start = now_us(), total = -start;
    for (long i = 0; i < batches; i++) {
        round_trips(buffer, size, batch);
        double end = now_us();
        sample[i] = (end - start) / (2 * batch);
        start = end;
    }
    total += start;
    qsort(sample, batches, sizeof *sample, by_value);
    if (rank == 0) {
        printf("{\"median_us\": %.4f, \"mean_us\": %.4f, \"min_us\": %.4f, \"messages\": %ld}\n",
               sample[batches / 2], total / (2 * batches * batch), sample[0], batches * batch);
    }
    free(sample);
}

static void windows(char *buffer, size_t size, int window, long count)
{
    MPI_Request request[LARGEST_WINDOW];
    char acknowledgement = 0;
    for (long i = 0; i < count; i++) {
        for (int m = 0; m < window; m++) {
            char *place = buffer + m * size;
            if (rank == 0) {
                MPI_Isend(place, (int)size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &request[m]);
            } else {
                MPI_Irecv(place, (int)size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &request[m]);
            }
        }
        MPI_Waitall(window, request, MPI_STATUSES_IGNORE);
        if (rank == 0) {
            MPI_Recv(&acknowledgement, 1, MPI_BYTE, 1, ACKNOWLEDGEMENT, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Send(&acknowledgement, 1, MPI_BYTE, 0, ACKNOWLEDGEMENT, MPI_COMM_WORLD);
        }
    }
}

static void bandwidth(char *buffer, size_t size, int window, long messages)
{
    long count = messages / window + 1;
    windows(buffer, size, window, count / 10 + 1);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now_us();
    windows(buffer, size, window, count);
    double took_us = now_us() - start;
    if (rank == 0) {
        printf("{\"megabytes_per_s\": %.3f, \"messages\": %ld}\n",
               (double)size * window * count / took_us, count * window);
    }
}

static int between_two(int is_latency, long size, long messages)
{
    /* As ferro's own bench: fewer messages at once where they would fill the cache. */
    int window = 1;
    if (!is_latency) {
        long fit = (4L << 20) / (size ? size : 1);
        window = fit > LARGEST_WINDOW ? LARGEST_WINDOW : fit < 4 ? 4 : (int)fit;
    }
    size_t bytes = (size_t)size * window, page = (size_t)sysconf(_SC_PAGESIZE);
    char *buffer = aligned_alloc(page, (bytes / page + 1) * page);
    if (!buffer) {
        return fail("no memory");
    }
    memset(buffer, 1 + rank, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    if (is_latency) {
        latency(buffer, (int)size, messages);
    } else {
        bandwidth(buffer, (size_t)size, window, messages);
    }
    free(buffer);
    return 0;
}

enum bench { LATENCY, BANDWIDTH, ALLTOALL, ALLREDUCE, BENCHES };
static const char *const NAMES[BENCHES] = {"lat", "bw", "alltoall", "allreduce"};

static void calls(enum bench bench, const char *from, char *into, int size, long count)
{
    for (long i = 0; i < count; i++) {
        if (bench == ALLTOALL) {
            MPI_Alltoall(from, size, MPI_BYTE, into, size, MPI_BYTE, MPI_COMM_WORLD);
        } else {
            MPI_Allreduce(from, into, size / (int)sizeof(double), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        }
    }
}

/* The bytes that arrived show that the call did its work. */
static int is_right(enum bench bench, const char *into, int size)
{
    if (bench == ALLTOALL) {
        for (int from = 0; from < ranks; from++) {
            const char *part = into + (size_t)from * size;
            if (part[0] != (char)(1 + from) || part[size - 1] != (char)(1 + from)) {
                return 0;
            }
        }
        return 1;
    }
    const double *sums = (const double *)into;
    double sum = ranks * (ranks + 1) / 2.0;
    return sums[0] == sum && sums[size / sizeof(double) - 1] == sum;
}

static void collective(enum bench bench, const char *from, char *into, int size, long most)
{
    /* The first call connects the ranks, and says nothing about the others. */
    calls(bench, from, into, size, 1);
    if (!is_right(bench, into, size)) {
        fail("a collective gave something else than it should");
    }
    double began = now_us();
    calls(bench, from, into, size, FEWEST_CALLS);
    double each_us = (now_us() - began) / FEWEST_CALLS;

    long fit = (long)(COLLECTIVE_US / (each_us > 0.1 ? each_us : 0.1)), count = fit < most ? fit : most;
    if (count < FEWEST_CALLS) {
        count = FEWEST_CALLS;
    }
    MPI_Bcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    calls(bench, from, into, size, count / 10);

    int batches = count < MOST_BATCHES ? (int)count : MOST_BATCHES;
    long batch = count / batches;
    double sample[MOST_BATCHES], start = now_us(), total = -start;
    for (int i = 0; i < batches; i++) {
        calls(bench, from, into, size, batch);
        double end = now_us();
        sample[i] = (end - start) / batch;
        start = end;
    }
    total += start;
    qsort(sample, batches, sizeof *sample, by_value);
    /* Each rank sends at least one message a call, whatever the algorithm. */
    long made = batch * batches;
    if (rank == 0) {
        printf("{\"median_us\": %.4f, \"mean_us\": %.4f, \"min_us\": %.4f, \"messages\": %ld}\n",
               sample[batches / 2], total / made, sample[0], made * ranks);
    }
}

/* Buffers of bytes that say which rank they are of, or of doubles that do. */
static int collectives(enum bench bench, long size, long most)
{
    size_t bytes = (size_t)size * (bench == ALLTOALL ? ranks : 1);
    char *from = malloc(bytes), *into = calloc(1, bytes);
    if (!from || !into) {
        return fail("no memory");
    }
    memset(from, 1 + rank, bytes);
    if (bench == ALLREDUCE) {
        for (size_t i = 0; i < bytes / sizeof(double); i++) {
            ((double *)from)[i] = 1 + rank;
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    collective(bench, from, into, (int)size, most);
    free(from);
    free(into);
    return 0;
}

int main(int argc, char **argv)
{
    if (MPI_Init(&argc, &argv)) {
        return 1;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 6 || ranks < 2) {
        return fail("two ranks or more with: lat|bw|alltoall|allreduce SIZE MESSAGES CORE0 CORE1");
    }
    int bench = 0;
    while (bench < BENCHES && strcmp(argv[1], NAMES[bench])) {
        bench++;
    }
    long size = atol(argv[2]), messages = atol(argv[3]);
    if (bench == BENCHES || size < 0 || size > LARGEST || messages < 1) {
        return fail("a word or a number makes no sense");
    }
    keep_to(atoi(argv[4 + rank % 2]));
    if (bench == ALLTOALL || bench == ALLREDUCE) {
        if (size == 0 || size > LARGEST / ranks || size % (long)sizeof(double)) {
            return fail("a collective wants a multiple of 8 bytes, and not too many");
        }
        collectives(bench, size, messages);
    } else if (ranks != 2) {
        return fail("lat and bw are between two ranks");
    } else {
        between_two(bench == LATENCY, size, messages);
    }
    MPI_Finalize();
    return 0;
}
