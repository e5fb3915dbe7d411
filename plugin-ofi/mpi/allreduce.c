/* An allreduce of one double by libfabric (fi_collective(3)) beside that of MPI, for
 * ./scripts/bench shm. The same processes make both calls, in rounds that alternate, so whatever
 * changes on the machine meets both alike. Prints one JSON object.
 *
 * usage: allreduce CALLS ROUNDS CORE0 CORE1
 * Ranks of even number run on CORE0, the others on CORE1. A round has two turns: CALLS calls by
 * libfabric and as many by MPI, in the next round the other way around. The figure of a turn is the
 * median of its batches of calls. A turn has fewer calls where they would take longer than about
 * 50 ms, but at least 20: ranks that share a core may wait for each other's time slices.
 *
 * Link it with the libfabric of the MPI: both sides then use one copy of the provider.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

enum { BATCHES = 20, MOST_ROUNDS = 1000, LONGEST_NAME = 256 };
enum side { LIBFABRIC, MPI, SIDES };

/* The calls of a turn take about this long. */
static const double TURN_US = 5e4;

/* Longer than a join takes on busy processors. */
static const double PATIENCE_US = 60e6;

static int rank, ranks;

/* The objects of libfabric, in the order of their opening. */
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_eq *eq;
static struct fid_ep *ep;
static struct fid_av_set *set;
static struct fid_mc *group;

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec * 1e-3;
}

static void fail(const char *why, long result)
{
    fprintf(stderr, "allreduce: rank %d: %s: %s\n", rank, why,
            result < 0 ? fi_strerror((int)-result) : "it should not");
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void check(const char *what, long result)
{
    if (result) {
        fail(what, result);
    }
}

static void keep_to(int core)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores)) {
        fail("can not keep to its core", 0);
    }
}

static void open_endpoint(void)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints) {
        fail("fi_allocinfo", -FI_ENOMEM);
    }
    hints->caps = FI_MSG | FI_COLLECTIVE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    uint32_t version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
    check("fi_getinfo", fi_getinfo(version, NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);

    struct fi_av_attr of_av = {.type = FI_AV_TABLE, .count = (size_t)ranks};
    struct fi_cq_attr of_cq = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_NONE};
    struct fi_eq_attr of_eq = {.wait_obj = FI_WAIT_NONE};
    check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    check("fi_domain", fi_domain(fabric, info, &domain, NULL));
    check("fi_av_open", fi_av_open(domain, &of_av, &av, NULL));
    check("fi_cq_open", fi_cq_open(domain, &of_cq, &cq, NULL));
    check("fi_eq_open", fi_eq_open(fabric, &of_eq, &eq, NULL));
    check("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
    check("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
    check("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    check("fi_ep_bind", fi_ep_bind(ep, &eq->fid, 0));
    check("fi_enable", fi_enable(ep));
}

static void insert_all(void)
{
    char name[LONGEST_NAME] = {0};
    size_t length = sizeof name;
    check("fi_getname", fi_getname(&ep->fid, name, &length));
    char *names = malloc(length * (size_t)ranks);
    if (!names) {
        fail("malloc", -FI_ENOMEM);
    }
    MPI_Allgather(name, (int)length, MPI_BYTE, names, (int)length, MPI_BYTE, MPI_COMM_WORLD);
    if (fi_av_insert(av, names, (size_t)ranks, NULL, 0, NULL) != ranks) {
        fail("fi_av_insert", 0);
    }
    free(names);
}

/* Drives the endpoint; says whether an operation with that context is over. */
static int is_over(const void *context)
{
    struct fi_cq_entry entry;
    ssize_t count = fi_cq_read(cq, &entry, 1);
    if (count < 0 && count != -FI_EAGAIN) {
        fail("fi_cq_read", count);
    }
    if (count != 1) {
        /* As MPICH does while it waits. */
        sched_yield();
    }
    return count == 1 && entry.op_context == context;
}

/* A group of all ranks. */
static void join(void)
{
    struct fi_av_set_attr of_all = {.start_addr = 0, .end_addr = (fi_addr_t)ranks - 1, .stride = 1};
    fi_addr_t all;
    check("fi_av_set", fi_av_set(av, &of_all, &set, NULL));
    check("fi_av_set_addr", fi_av_set_addr(set, &all));
    check("fi_join_collective", fi_join_collective(ep, all, set, 0, &group, NULL));
    double until = now_us() + PATIENCE_US;
    for (;;) {
        struct fi_eq_entry entry;
        uint32_t event = 0;
        ssize_t size = fi_eq_read(eq, &event, &entry, sizeof entry, 0);
        if (size >= 0 && event == FI_JOIN_COMPLETE) {
            break;
        }
        if (size != -FI_EAGAIN || now_us() > until) {
            fail("no event of the join", size);
        }
        is_over(NULL);
    }
    /* Others may still need this rank's part in the join. */
    MPI_Request barrier;
    int passed = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &barrier);
    while (!passed) {
        is_over(NULL);
        MPI_Test(&barrier, &passed, MPI_STATUS_IGNORE);
    }
}

static void call(enum side side)
{
    double part = 1 + rank, sum = 0;
    if (side == MPI) {
        MPI_Allreduce(&part, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    } else {
        struct fi_context2 context;
        ssize_t result;
        do {
            result = fi_allreduce(ep, &part, 1, NULL, &sum, NULL, fi_mc_addr(group), FI_DOUBLE,
                                  FI_SUM, 0, &context);
        } while (result == -FI_EAGAIN && !is_over(NULL));
        check("fi_allreduce", result);
        while (!is_over(&context)) {
        }
    }
    if (sum != ranks * (ranks + 1) / 2.0) {
        fail("a wrong sum", 0);
    }
}

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* The median of the batches of a turn, for a call. */
static double turn(enum side side, long batch)
{
    double sample[BATCHES];
    MPI_Barrier(MPI_COMM_WORLD);
    /* Those that left the barrier first wait in it. */
    call(side);
    double start = now_us();
    for (int i = 0; i < BATCHES; i++) {
        for (long n = 0; n < batch; n++) {
            call(side);
        }
        double end = now_us();
        sample[i] = (end - start) / (double)batch;
        start = end;
    }
    return median(sample, BATCHES);
}

/* The calls of a batch: by those of a first turn, which warms up. */
static long fit_batch(long calls)
{
    double slowest = turn(LIBFABRIC, 1), other = turn(MPI, 1);
    if (other > slowest) {
        slowest = other;
    }
    if ((double)calls * slowest > TURN_US) {
        calls = (long)(TURN_US / slowest);
    }
    long batch = calls > BATCHES ? calls / BATCHES : 1;
    MPI_Bcast(&batch, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    turn(LIBFABRIC, batch);
    turn(MPI, batch);
    return batch;
}

static void measure(long calls, int rounds)
{
    static double figure[SIDES][MOST_ROUNDS], ratio[MOST_ROUNDS];
    long batch = fit_batch(calls);
    for (int round = 0; round < rounds; round++) {
        for (int part = 0; part < SIDES; part++) {
            enum side side = (round + part) % 2 ? MPI : LIBFABRIC;
            figure[side][round] = turn(side, batch);
        }
    }
    if (rank) {
        return;
    }
    printf("{\"rounds\": [");
    for (int round = 0; round < rounds; round++) {
        ratio[round] = figure[LIBFABRIC][round] / figure[MPI][round];
        printf("%s[%.3f, %.3f]", round ? ", " : "", figure[LIBFABRIC][round], figure[MPI][round]);
    }
    /* Sorted from here on. Each rank sends at least one message a call. */
    double ours = median(figure[LIBFABRIC], rounds), theirs = median(figure[MPI], rounds);
    printf("], \"median_us\": %.4f, \"theirs_median_us\": %.4f, \"ratio\": %.4f, "
           "\"min_us\": %.4f, \"theirs_min_us\": %.4f, \"messages\": %ld}\n",
           ours, theirs, median(ratio, rounds), figure[LIBFABRIC][0], figure[MPI][0],
           SIDES * batch * BATCHES * rounds * ranks);
}

static void close_all(void)
{
    fid_t open[] = {&group->fid, &set->fid, &ep->fid,     &eq->fid,
                    &cq->fid,    &av->fid,  &domain->fid, &fabric->fid};
    /* Nobody closes the group while another one is in its last call. */
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        check("fi_close", fi_close(open[i]));
    }
    fi_freeinfo(info);
}

int main(int argc, char **argv)
{
    if (MPI_Init(&argc, &argv)) {
        return 1;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long calls = argc == 5 ? atol(argv[1]) : 0, rounds = argc == 5 ? atol(argv[2]) : 0;
    if (ranks < 2 || calls < 1 || rounds < 1 || rounds > MOST_ROUNDS) {
        fail("two ranks or more with: CALLS ROUNDS CORE0 CORE1", 0);
    }
    keep_to(atoi(argv[3 + rank % 2]));
    open_endpoint();
    insert_all();
    join();
    measure(calls, (int)rounds);
    close_all();
    MPI_Finalize();
    return 0;
}
