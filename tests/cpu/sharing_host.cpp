// The rule by which threads divide a loop: an LSTM's, and that of a matrix state.
#include "rnncc/cpu/sharing.h"

using namespace rnncc;

extern "C" {

// Sets how many threads the loop has, and in how many groups. It makes its streams of so many inputs; 0: they are given.
void divided(int64_t steps, int64_t batch, int64_t units, int64_t inputs, int64_t* threads, int64_t* groups) {
  const int64_t dims[] = {units, 1};
  const MatrixInfo matrix = {0, 0, 0, 0, 1, 1, false};
  const ProductInfo product = {0, 0, 0, 0, 4, 1, false, false};
  const int16_t names[] = {0, 0, 0, 0};
  SlotInfo slot = {};
  StageInfo stage = {};
  stage.barrier = true;
  stage.products = 1;
  Program<float> program = {};
  program.slots = &slot;
  program.matrices = &matrix;
  program.products = &product;
  program.product_matrices = names;
  program.stages = &stage;
  program.product_count = program.stage_count = 1;
  const rnncc_tensor weight = {};
  Call call = {};
  call.steps = steps;
  call.batch = batch;
  call.heads = 1;
  call.table[WEIGHTS] = &weight;
  ListedProduct<float> listed = {};
  Run<float> run = {program, call};
  run.dims = dims;
  run.listed = &listed;
  rnncc_stream_product streams = {};
  streams.product.rows = steps * batch;
  streams.product.inputs = inputs;
  streams.product.outputs = 4 * units;
  if (inputs) run.streams.given = &streams;
  const Sharing sharing = choose_sharing(run);
  *threads = sharing.threads;
  *groups = sharing.groups;
}

// The same for a loop whose only stage works on the elements of a matrix: so many heads of rows x columns.
void divided_by_heads(int64_t steps, int64_t batch, int64_t heads, int64_t rows, int64_t columns, int64_t* threads,
                      int64_t* groups) {
  const int64_t dims[] = {heads * rows * columns, heads * rows, heads * columns};
  SlotInfo slot = {};
  StageInfo stage = {};
  stage.barrier = true;
  stage.row = RowOperator::elements;
  stage.matrix_rows = 1;
  stage.matrix_columns = 2;
  Program<float> program = {};
  program.slots = &slot;
  program.stages = &stage;
  program.stage_count = 1;
  Call call = {};
  call.steps = steps;
  call.batch = batch;
  call.heads = heads;
  Run<float> run = {program, call};
  run.dims = dims;
  const Sharing sharing = choose_sharing(run);
  *threads = sharing.threads;
  *groups = sharing.groups;
}
}
