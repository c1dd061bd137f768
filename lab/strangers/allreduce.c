/* Collectives and messages over MPI: "check" compares results, "time BYTES COUNT" prints microseconds of a sum. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;

static void expect(int condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "wrong: %s\n", what);
        wrong = 1;
    }
}

static void check(int rank, int size)
{
    for (int count = 1; count <= 1 << 18; count *= 8) {
        double *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out);
        for (int i = 0; i < count; i++)
            in[i] = rank + i;
        MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            expect(out[i] == size * (double)i + size * (size - 1) / 2, "allreduce");
        int next = (rank + 1) % size, before = (rank + size - 1) % size;
        MPI_Sendrecv(in, count, MPI_DOUBLE, next, 7, out, count, MPI_DOUBLE, before, 7, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (int i = 0; i < count; i++)
            expect(out[i] == before + i, "ring");
        free(in);
        free(out);
    }
    long *window, one = 1;
    MPI_Win win;
    MPI_Win_allocate(sizeof *window, sizeof *window, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    *window = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, win);
    for (int i = 0; i < 100; i++)
        MPI_Accumulate(&one, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_SUM, win);
    MPI_Win_flush(0, win);
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        expect(*window == 100L * size, "one-sided sum");
    MPI_Win_free(&win);
}

static void measure(int rank, int bytes, int count)
{
    char *in = calloc(1, bytes), *out = calloc(1, bytes);
    double begin = 0;
    for (int i = -20; i < count; i++) {
        if (i == 0)
            begin = MPI_Wtime();
        MPI_Allreduce(in, out, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("%.1f us\n", (MPI_Wtime() - begin) * 1e6 / count);
    free(in);
    free(out);
}

int main(int argc, char **argv)
{
    int rank, size, any;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 3 && !strcmp(argv[1], "time"))
        measure(rank, atoi(argv[2]), atoi(argv[3]));
    else
        check(rank, size);
    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0 && argc < 3)
        puts(any ? "wrong" : "all right");
    MPI_Finalize();
    return any;
}
