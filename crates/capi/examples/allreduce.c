/* Sums a number over all ranks, by a blocking call and by one that overlaps with work of its own.
 *
 *   cc allreduce.c $(pkg-config --cflags --libs bowline) -o allreduce
 *   for r in 0 1; do RANK=$r WORLD_SIZE=2 BOWLINE_STORE=file:///tmp/meet ./allreduce & done; wait
 *
 * torchrun, mpirun and srun set rank and size themselves. */
#include <bowline.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT 100000

static void check(int status, const char *what) {
  if (status != BOWLINE_OK) {
    fprintf(stderr, "%s: %s (status %d, rank at fault %lld)\n", what, bowline_error_message(), status,
            (long long)bowline_error_rank());
    exit(1);
  }
}

int main(void) {
  bowline_comm *comm;
  check(bowline_comm_from_env(NULL, &comm), "communicator");
  uint32_t rank = bowline_comm_rank(comm), size = bowline_comm_size(comm);

  /* Memory of the program's own: nothing is copied. */
  float *data = malloc(COUNT * sizeof *data);
  for (size_t i = 0; i < COUNT; i++) data[i] = (float)(i % 100) * (float)(rank + 1);
  check(bowline_allreduce(comm, NULL, data, COUNT, BOWLINE_F32, BOWLINE_SUM, NULL), "allreduce");
  for (size_t i = 0; i < COUNT; i++)
    if (data[i] != (float)(i % 100) * (float)(size * (size + 1) / 2)) return fprintf(stderr, "wrong at %zu\n", i), 1;

  /* The same in the background, out of place. */
  int64_t mine[2] = {rank, 1}, all[2];
  bowline_work *work;
  check(bowline_allreduce(comm, mine, all, 2, BOWLINE_I64, BOWLINE_SUM, &work), "allreduce");
  check(bowline_work_wait(work), "wait");
  bowline_work_free(work);
  if (all[1] != size || mine[1] != 1) return fprintf(stderr, "wrong count of ranks\n"), 1;

  check(bowline_barrier(comm, NULL), "barrier");
  printf("rank %u of %u: ok\n", rank, size);
  bowline_comm_free(comm);
  free(data);
  return 0;
}
