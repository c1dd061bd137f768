/* Every collective, split, errors. Started as each of three ranks. */
#include <bowline.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MUST(cond)                                                                                                     \
  do {                                                                                                                 \
    if (!(cond)) {                                                                                                     \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #cond, bowline_error_message());                          \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)
#define OK(call) MUST((call) == BOWLINE_OK)

static void errors(bowline_comm *comm) {
  float x[4] = {0};
  MUST(bowline_allreduce(comm, NULL, x, 4, 99, BOWLINE_SUM, NULL) == BOWLINE_E_CALLER);
  MUST(strstr(bowline_error_message(), "data type 99"));
  MUST(bowline_error_rank() == -1);
  MUST(bowline_allreduce(NULL, NULL, x, 4, BOWLINE_F32, BOWLINE_SUM, NULL) == BOWLINE_E_CALLER);
  MUST(bowline_broadcast(comm, x, 4, BOWLINE_F32, 17, NULL) == BOWLINE_E_CALLER);
  MUST(bowline_allreduce(comm, x, x + 1, 3, BOWLINE_F32, BOWLINE_SUM, NULL) == BOWLINE_E_CALLER);
  MUST(bowline_comm_in_store("ftp://nowhere", "j", 0, 2, NULL, &comm) == BOWLINE_E_CALLER);
  bowline_comm_options odd = {.timeout_s = -1};
  MUST(bowline_comm_from_env(&odd, &comm) == BOWLINE_E_CALLER);
  odd = (bowline_comm_options){.transport = 7};
  MUST(bowline_comm_from_env(&odd, &comm) == BOWLINE_E_CALLER);
  odd = (bowline_comm_options){.transport = BOWLINE_XP, .max_loss = 1.5};
  MUST(bowline_comm_from_env(&odd, &comm) == BOWLINE_E_CALLER);
  bowline_work_free(NULL);
  bowline_comm_free(NULL);
}

static void operations(bowline_comm *comm) {
  uint32_t me = bowline_comm_rank(comm), n = bowline_comm_size(comm);
  MUST(n == 3);
  int32_t mine[3], all[9], two[2] = {(int32_t)me, 1};
  for (int i = 0; i < 3; i++) mine[i] = 10 * (int32_t)me + i;
  OK(bowline_reduce_scatter(comm, mine, two, 1, BOWLINE_I32, BOWLINE_MAX, NULL));
  MUST(two[0] == 20 + (int32_t)me && two[1] == 1);
  OK(bowline_allgather(comm, mine, all, 3, BOWLINE_I32, NULL));
  for (int i = 0; i < 9; i++) MUST(all[i] == 10 * (i / 3) + i % 3);
  OK(bowline_all_to_all(comm, mine, all, 1, BOWLINE_I32, NULL));
  for (int i = 0; i < 3; i++) MUST(all[i] == 10 * i + (int32_t)me);
  /* Rank r sends r elements to each, but all have one for themselves. */
  size_t send[3] = {me, me, me}, recv[3] = {0, 1, 2};
  send[me] = recv[me] = 1;
  int32_t out[9] = {5, 5, 5, 5, 5, 5, 5, 5, 5};
  OK(bowline_all_to_all_counts(comm, out, send, all, recv, BOWLINE_I32, NULL));
  double root = me == 1 ? 2.5 : 0;
  OK(bowline_broadcast(comm, &root, 1, BOWLINE_F64, 1, NULL));
  MUST(root == 2.5);
  uint64_t product = me + 1, result = 0;
  OK(bowline_reduce(comm, &product, me == 2 ? &result : NULL, 1, BOWLINE_U64, BOWLINE_PRODUCT, 2, NULL));
  MUST(result == (me == 2 ? 6u : 0u));
  OK(bowline_gather(comm, mine, me == 0 ? all : NULL, 3, BOWLINE_I32, 0, NULL));
  for (int i = 0; me == 0 && i < 9; i++) MUST(all[i] == 10 * (i / 3) + i % 3);
  OK(bowline_scatter(comm, me == 2 ? mine : NULL, two, 1, BOWLINE_I32, 2, NULL));
  MUST(two[0] == 20 + (int32_t)me);
  /* A ring of messages: all send first. */
  bowline_work *works[2];
  OK(bowline_send(comm, mine, 3, BOWLINE_I32, (me + 1) % n, &works[0]));
  OK(bowline_recv(comm, all, 3, BOWLINE_I32, (me + n - 1) % n, &works[1]));
  while (bowline_work_wait_for(works[1], 0) == BOWLINE_E_TIMEOUT) continue;
  OK(bowline_work_wait_for(works[1], 0));
  MUST(all[2] == 10 * (int32_t)((me + n - 1) % n) + 2);
  bowline_work_free(works[0]);
  bowline_work_free(works[1]);
}

static void reports(bowline_comm *comm) {
  enum { COUNT = 50000 };
  static float data[COUNT];
  /* The first operation is only measured: it has no deadline. */
  int bounded = 0;
  for (int turn = 0; turn < 4; turn++) {
    for (int i = 0; i < COUNT; i++) data[i] = 1;
    bowline_work *work;
    bowline_report report;
    static bowline_missing missing[4096];
    OK(bowline_allreduce(comm, NULL, data, COUNT, BOWLINE_F32, BOWLINE_AVERAGE, &work));
    OK(bowline_work_report(work, &report));
    OK(bowline_work_missing(work, missing, 4096));
    MUST(report.expected_bytes >= sizeof(data) && report.missing_bytes <= report.expected_bytes / 100);
    MUST(report.elapsed_ns > 0);
    MUST(turn > 0 || report.deadline_ns == 0);
    MUST(!report.is_cut);
    bounded += report.deadline_ns > 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < report.ranges; i++) bytes += missing[i].end - missing[i].start;
    MUST(bytes == report.missing_bytes);
    MUST(report.ranges > 0 || fabsf(data[COUNT - 1] - 1) < 1e-5f);
    MUST(bowline_work_report(work, NULL) == BOWLINE_E_CALLER);
    bowline_work_free(work);
  }
  MUST(bounded > 0);
}

int main(int argc, char **argv) {
  bowline_comm_options options = {.timeout_s = 30, .setup_timeout_s = 30};
  bowline_comm *comm, *part;
  OK(bowline_comm_from_env(&options, &comm));
  uint32_t me = bowline_comm_rank(comm);
  if (argc > 2) {
    /* Over XP, but nothing may be missing. */
    bowline_comm_free(comm);
    options.transport = BOWLINE_XP, options.deadline_s = 5;
    OK(bowline_comm_in_store(argv[2], "xp", me, 3, &options, &comm));
    operations(comm);
    bowline_comm_free(comm);
    /* Something may be missing now, and reports say what. */
    options.deadline_s = BOWLINE_ADAPTIVE, options.max_loss = 0.01, options.recovery = BOWLINE_RECOVERY_ALWAYS;
    OK(bowline_comm_in_store(argv[2], "bounded", me, 3, &options, &comm));
    reports(comm);
    bowline_comm_free(comm);
    options = (bowline_comm_options){.timeout_s = 30, .setup_timeout_s = 30, .transport = BOWLINE_SR_NACK};
    OK(bowline_comm_in_store(argv[2], "sr", me, 3, &options, &comm));
    operations(comm);
    bowline_comm_free(comm);
    /* Broadcasts by multicast: three ranks are enough for it. */
    options = (bowline_comm_options){.timeout_s = 30, .setup_timeout_s = 30, .multicast = 1};
    OK(bowline_comm_in_store(argv[2], "multicast", me, 3, &options, &comm));
    operations(comm);
    bowline_comm_free(comm);
    return 0;
  }
  if (argc > 1 && !strcmp(argv[1], "killed")) {
    /* The last rank dies in the middle of things. The others hear who it was, and may free their memory. */
    size_t count = 1 << 20, bytes = count * sizeof(float);
    float *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(data != MAP_FAILED);
    OK(bowline_barrier(comm, NULL));
    if (me == 2) {
      /* Not before the others know that their messages of the barrier have arrived. */
      usleep(300000);
      _Exit(0);
    }
    int status = bowline_allreduce(comm, NULL, data, count, BOWLINE_F32, BOWLINE_SUM, NULL);
    MUST(status == BOWLINE_E_PATH || status == BOWLINE_E_PEER);
    MUST(bowline_error_rank() == 2);
    /* Whoever touched it now, a retransmission for one, would kill the program. */
    MUST(munmap(data, bytes) == 0);
    sleep(1);
    bowline_comm_free(comm);
    return 0;
  }
  errors(comm);
  operations(comm);
  OK(bowline_comm_split(comm, me == 0 ? -1 : 4, 100 - me, &part));
  MUST((part == NULL) == (me == 0));
  if (part) {
    MUST(bowline_comm_size(part) == 2 && bowline_comm_rank(part) == 2 - me);
    float mean = (float)me;
    OK(bowline_allreduce(part, NULL, &mean, 1, BOWLINE_F32, BOWLINE_AVERAGE, NULL));
    MUST(fabsf(mean - 1.5f) < 1e-6f);
  }
  bowline_comm_free(part);
  OK(bowline_comm_duplicate(comm, &part));
  operations(part);
  bowline_comm_free(part);
  bowline_comm_free(comm);
  printf("ok\n");
  return 0;
}
