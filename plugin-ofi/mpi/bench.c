/* Latency and bandwidth between two ranks, for ./scripts/bench mpi. Prints one JSON object.
 *
 * usage: bench lat|bw SIZE MESSAGES CORE0 CORE1
 *   lat   half the round trip: the clock is read around batches of round trips, and the median is that of the batches
 *   bw    one way, a window of messages under way, acknowledged by the window
 * Each rank keeps to its core. Before what counts comes a tenth as many messages that do not.
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

/* A batch takes at least this long, so that reading the clock is no part of it. */
static const double SHORTEST_BATCH_US = 2.5;

static int rank;

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

int main(int argc, char **argv)
{
    int ranks;
    if (MPI_Init(&argc, &argv)) {
        return 1;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 6 || ranks != 2) {
        return fail("two ranks with: lat|bw SIZE MESSAGES CORE0 CORE1");
    }
    int is_latency = strcmp(argv[1], "lat") == 0;
    long size = atol(argv[2]), messages = atol(argv[3]);
    if ((!is_latency && strcmp(argv[1], "bw")) || size < 0 || size > 1 << 30 || messages < 1) {
        return fail("a word or a number makes no sense");
    }
    keep_to(atoi(argv[4 + rank]));
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
    MPI_Finalize();
    return 0;
}
