// The order of a warp's lists, for test_order.py.
#include "rnncc/cuda/device.h"
#include "rnncc/cuda/fused/families/sparse_order.cuh"

namespace {

// words[lane][bank]: how many words of a list there are in each bank. order[slot][lane]: the bank of a lane's word.
struct Call {
  const int* words;
  int* order;
  int slots;
};

template <int BANKS>
void order_lists(const void* parameter) {
  const Call& call = *static_cast<const Call*>(parameter);
  const int lane = threadIdx.x;
  rnncc::WordOrder<BANKS> order;
  int own = 0;
  for (int bank = 0; bank < BANKS; ++bank)
    for (int i = 0; i < call.words[lane * BANKS + bank]; ++i, ++own) order.add(bank);
  order.begin(call.slots);
  for (int i = own; !__all_sync(~0u, i >= call.slots); ++i) order.pad(i < call.slots);
  for (int slot = 0; slot < call.slots; ++slot) call.order[slot * 32 + lane] = order.next();
}

}  // namespace

extern "C" int order(int banks, int slots, const int* words, int* order) {
  const Call call = {words, order, slots};
  const auto kernel = banks == 4 ? order_lists<4> : banks == 8 ? order_lists<8> : order_lists<16>;
  try {
    emulated::launch({1, 1, 1, 32, 16, 1}, kernel, &call);
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}
