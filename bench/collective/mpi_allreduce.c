/* Times MPI_Allreduce: SIZE:ITERATIONS... as arguments, a line of JSON for each. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void measure(size_t bytes, int iterations, int rank, int ranks) {
  int count = (int)(bytes / sizeof(float));
  float *in = malloc(bytes), *out = malloc(bytes);
  double *times = malloc((size_t)iterations * sizeof *times), sum = 0, mean, p99;
  for (int i = 0; i < count; i++) in[i] = (float)(rank + 1), out[i] = 0;
  for (int i = 0; i < 5; i++) MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < iterations; i++) {
    double started = MPI_Wtime();
    MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    sum += times[i] = MPI_Wtime() - started;
  }
  qsort(times, (size_t)iterations, sizeof *times, by_value);
  sum /= iterations;
  MPI_Allreduce(&sum, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(&times[(iterations * 99 + 99) / 100 - 1], &p99, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  int right = out[0] == (float)(ranks * (ranks + 1) / 2) && out[count - 1] == out[0];
  if (rank == 0)
    printf("{\"bytes\": %zu, \"time_us\": %.3f, \"p99_us\": %.3f, \"right\": %s}\n", bytes, mean / ranks * 1e6, p99 * 1e6,
           right ? "true" : "false");
  free(in), free(out), free(times);
}

int main(int argc, char **argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 1; i < argc; i++) {
    size_t bytes;
    int iterations;
    if (sscanf(argv[i], "%zu:%d", &bytes, &iterations) == 2) measure(bytes, iterations, rank, ranks);
  }
  MPI_Finalize();
  return 0;
}
