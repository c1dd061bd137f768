/* Table 1 of the SDR paper, call by call: two ends in one process. */
#include <bowline.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(cond)                                                                                                     \
  do {                                                                                                                 \
    if (!(cond)) {                                                                                                     \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #cond, bowline_error_message());                          \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)
#define OK(call) MUST((call) == BOWLINE_OK)
#define LENGTH ((size_t)640 << 10)
#define CHUNK ((size_t)64 << 10)
#define TURNS 2000000

struct end {
  bowline_sdr_ctx *ctx;
  bowline_sdr_qp *qp;
  bowline_sdr_mr *mr;
  unsigned char *data;
};

static struct end make(const char *address, uint32_t flags) {
  struct end end = {.ctx = bowline_sdr_context_create(address), .data = malloc(LENGTH)};
  MUST(end.ctx);
  bowline_sdr_qp_attr attr = {.max_message = LENGTH};
  MUST(end.qp = bowline_sdr_qp_create(end.ctx, &attr));
  MUST(end.mr = bowline_sdr_mr_reg(end.ctx, end.data, LENGTH, flags));
  return end;
}

static void destroy(struct end end) {
  bowline_sdr_mr_dereg(end.mr);
  free(end.data);
  bowline_sdr_qp_destroy(end.qp);
  bowline_sdr_context_destroy(end.ctx);
}

/* Waits until the first `chunks` chunks are there. */
static void await(bowline_sdr_rcv_handle *receive, size_t chunks) {
  const uint8_t *bitmap;
  size_t len, there = 0;
  for (long turn = 0; turn < TURNS && there < chunks; turn++) {
    OK(bowline_sdr_recv_bitmap_get(receive, &bitmap, &len));
    MUST(len == (LENGTH / CHUNK + 7) / 8);
    for (there = 0; there < chunks && bitmap[there / 8] >> there % 8 & 1;) there++;
  }
  MUST(there == chunks);
}

int main(void) {
  struct end a = make("127.9.4.1", BOWLINE_SDR_SEND), b = make("127.9.4.2", BOWLINE_SDR_RECV);
  static bowline_sdr_qp_info ours, theirs, odd;
  OK(bowline_sdr_qp_info_get(a.qp, &ours));
  OK(bowline_sdr_qp_info_get(b.qp, &theirs));
  MUST(bowline_sdr_qp_connect(a.qp, &odd) == BOWLINE_E_CALLER);
  OK(bowline_sdr_qp_connect(a.qp, &theirs));
  OK(bowline_sdr_qp_connect(b.qp, &ours));
  for (size_t i = 0; i < LENGTH; i++) a.data[i] = (unsigned char)(i * 7 + i / 251), b.data[i] = 0;

  /* One shot, with an immediate. */
  bowline_sdr_rcv_handle *receive;
  bowline_sdr_snd_handle *message;
  bowline_sdr_rcv_wr post = {.mr = b.mr, .length = LENGTH};
  OK(bowline_sdr_recv_post(b.qp, &post, &receive));
  uint32_t imm = 0;
  MUST(bowline_sdr_recv_imm_get(receive, &imm) == BOWLINE_E_TIMEOUT);
  bowline_sdr_snd_wr whole = {.mr = a.mr, .length = LENGTH, .has_imm = 1, .imm = 0xb0b};
  OK(bowline_sdr_send_post(a.qp, &whole, &message));
  await(receive, LENGTH / CHUNK);
  OK(bowline_sdr_recv_imm_get(receive, &imm));
  MUST(imm == 0xb0b);
  while (bowline_sdr_send_poll(message) == BOWLINE_E_TIMEOUT) continue;
  OK(bowline_sdr_send_poll(message));
  bowline_sdr_send_free(message);
  OK(bowline_sdr_recv_complete(receive));
  MUST(!memcmp(a.data, b.data, LENGTH));

  /* A stream: the last chunk comes first, and one twice. */
  memset(b.data, 0, LENGTH);
  OK(bowline_sdr_recv_post(b.qp, &post, &receive));
  bowline_sdr_start_wr start = {.length = LENGTH};
  OK(bowline_sdr_send_stream_start(a.qp, &start, &message));
  bowline_sdr_continue_wr piece = {.mr = a.mr, .mr_offset = 5 * CHUNK, .length = LENGTH - 5 * CHUNK, .offset = 5 * CHUNK};
  OK(bowline_sdr_send_stream_continue(message, &piece));
  piece = (bowline_sdr_continue_wr){.mr = a.mr, .length = 5 * CHUNK};
  OK(bowline_sdr_send_stream_continue(message, &piece));
  piece.length = CHUNK, piece.urgent = 1;
  OK(bowline_sdr_send_stream_continue(message, &piece));
  piece.mr_offset = LENGTH;
  MUST(bowline_sdr_send_stream_continue(message, &piece) == BOWLINE_E_CALLER);
  MUST(bowline_sdr_send_poll(message) == BOWLINE_E_TIMEOUT);
  OK(bowline_sdr_send_stream_end(message));
  await(receive, LENGTH / CHUNK);
  while (bowline_sdr_send_poll(message) == BOWLINE_E_TIMEOUT) continue;
  bowline_sdr_send_free(message);
  MUST(!memcmp(a.data, b.data, LENGTH));

  /* A receive that ends early: what comes afterwards lands nowhere. */
  OK(bowline_sdr_recv_complete(receive));
  OK(bowline_sdr_recv_post(b.qp, &post, &receive));
  OK(bowline_sdr_recv_complete(receive));
  memset(b.data, 9, LENGTH);
  OK(bowline_sdr_send_post(a.qp, &whole, &message));
  bowline_sdr_send_free(message);
  destroy(a);
  for (size_t i = 0; i < LENGTH; i++) MUST(b.data[i] == 9);
  destroy(b);
  printf("ok\n");
  return 0;
}
