// What the tests call: the operators of cuda/rows.cuh that move and copy units, compiled for the host.
#include "rows.cuh"

#include <utility>

using namespace rnncc;

namespace {

constexpr RowOperator OPERATORS[] = {RowOperator::roll, RowOperator::shift, RowOperator::per_head};
constexpr int STAGES = 6;  // operator * 2 + parts - 1

// Slots 0 and 1 are the operand and the target of one part, 2 and 3 those of two. Slot 4 holds what heads share.
struct Lists {
  SlotInfo slots[5] = {};
  int16_t stage_slots[5] = {0, 1, 2, 3, 4};
  StageInfo stages[STAGES] = {};
};

constexpr Lists lists() {
  Lists made;
  for (int slot = 0; slot < 4; ++slot) {
    made.slots[slot].width = 1;
    made.slots[slot].parts = int16_t(1 + slot / 2);
  }
  made.slots[4].width = 3;
  for (int number = 0; number < STAGES; ++number) {
    StageInfo& stage = made.stages[number];
    stage.row = OPERATORS[number / 2];
    stage.offset = 2;
    stage.first_operand = int16_t(stage.row == RowOperator::per_head ? 4 : 2 * (number % 2));
    stage.first_stored = int16_t(2 * (number % 2) + 1);
    stage.operands = 1;
  }
  return made;
}

constexpr Lists LISTS = lists();

struct Program {
  static constexpr const Lists& tables = LISTS;
};

struct Run {
  using Program = ::Program;
  struct {
    int64_t dims[4], heads;
  } plan;
  float* memory[5];
};

template <size_t... stages>
void run_stage(const Run& run, int wanted, std::index_sequence<stages...>) {
  float scratch[1];
  ((wanted == int(stages) ? row_operation<int(stages)>(run, 0, scratch) : void()), ...);
}

}  // namespace

extern "C" void move_units(float* to, float* from, int64_t width, int64_t heads, int64_t parts, int64_t shifts,
                           int64_t places) {
  const Run run = {{{0, width, places}, heads}, {from, to, from, to}};
  run_stage(run, int(2 * shifts + parts - 1), std::make_index_sequence<STAGES>());
}

extern "C" void copy_per_head(float* to, float* from, int64_t width, int64_t heads, int64_t parts, int64_t shared) {
  const Run run = {{{0, width, 0, shared}, heads}, {nullptr, to, nullptr, to, from}};
  run_stage(run, int(4 + parts - 1), std::make_index_sequence<STAGES>());
}
