// The words of a sparse kernel: where they lie, and how a warp multiplies them.
//
// A *word* is an element that is not zero and the place of its operand. A *list* is what is summed up for one thread:
// words of one row of a matrix. A thread loads its part of four words of its warp's lists at once: a *quad*.
//
// There are two forms. In the first a thread has the words of its own list. It loads the operand of one word for all
// batch entries, and multiplies. In the second tensor cores multiply, which takes half as many instructions for 8 batch
// entries in 16 bits. One ldmatrix loads the operands of 32 words, one of each list: 8 terms of 8 batch entries per matrix,
// which is a factor of a product [8 lists, 8 terms] @ [8 terms, 8 entries]. The other factor has one element per row and
// column, the word's, and zeros. In step i of a quad the word of list r has column (r + 2 i) % 8. So a thread has in each
// quad one element of each of four lists, in one step, and the places of four words, in all steps.
#pragma once

#include "step.cuh"

namespace rnncc {

template <class E>
struct WordNumber {
  using type = uint16_t;
};
template <>
struct WordNumber<float> {
  using type = uint32_t;
};

// What a thread loads: places and elements by turns; or elements of four lists, then places of four steps.
template <class E, int ENTRIES>
struct Quad {
  static constexpr bool BY_TENSOR_CORES = sizeof(E) == 2 && ENTRIES == 8;
  static constexpr int PARTS = sizeof(E) / 2;  // of 16 bytes
  uint4 part[PARTS];

  RNNCC_DEVICE static uint32_t component(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }
  // Word i of the thread's own list.
  RNNCC_DEVICE float value(int i) const {
    if constexpr (sizeof(E) == 4)
      return __uint_as_float(component(part[i / 2], i % 2 * 2 + 1));
    else
      return to_float(E{uint16_t(component(part[0], i) >> 16)});
  }
  RNNCC_DEVICE uint32_t place(int i) const {
    if constexpr (sizeof(E) == 4)
      return component(part[i / 2], i % 2 * 2);
    else if constexpr (BY_TENSOR_CORES)
      return component(part[0], 2 + i / 2) >> i % 2 * 16 & 0xffff;
    else
      return component(part[0], i) & 0xffff;
  }
};

// The two numbers of a word, in shared memory.
template <class E>
struct Word {
  using Number = typename WordNumber<E>::type;
  Number *element, *place;
  RNNCC_DEVICE void set(E x, uint32_t to) const {
    if constexpr (sizeof(E) == 4)
      *element = __float_as_uint(x);
    else
      *element = x.bits;
    *place = Number(to);
  }
  RNNCC_DEVICE void swap(const Word& other) const {
    const Number x = *element, p = *place;
    *element = *other.element, *place = *other.place;
    *other.element = x, *other.place = p;
  }
};

// Word `slot` of a list, where the first quads of all LISTS threads begin at `words`. Part p of quad q of all threads
// lies side by side.
template <class E, int ENTRIES, int LISTS>
RNNCC_DEVICE Word<E> word_of(char* words, int list, int slot) {
  using Number = typename WordNumber<E>::type;
  const int i = slot % 4;
  const auto number = [&](int thread, int k) {
    constexpr int PER_PART = 16 / sizeof(Number);
    const int part = slot / 4 * Quad<E, ENTRIES>::PARTS + k / PER_PART;
    return reinterpret_cast<Number*>(words + (part * LISTS + thread) * 16) + k % PER_PART;
  };
  if constexpr (Quad<E, ENTRIES>::BY_TENSOR_CORES) {
    const int row = list % 8, column = (row + 2 * i) % 8;
    return {number(list / 32 * 32 + row * 4 + column / 2, list % 32 / 8), number(list / 8 * 8 + column, 4 + i)};
  } else {
    return {number(list, 2 * i + 1), number(list, 2 * i)};
  }
}

// Adds an element times its operand, which has all batch entries, to sums of four entries each.
template <class E, int ENTRIES>
RNNCC_DEVICE void add_term(float element, uint32_t operand, float (&sums)[ENTRIES / 4][4]) {
  if constexpr (sizeof(E) == 4) {
#pragma unroll
    for (int e = 0; e < ENTRIES / 4; ++e) {
      const float4 v = shared_at<const float4>(operand + e * 16);
      sums[e][0] = fmaf(element, v.x, sums[e][0]);
      sums[e][1] = fmaf(element, v.y, sums[e][1]);
      sums[e][2] = fmaf(element, v.z, sums[e][2]);
      sums[e][3] = fmaf(element, v.w, sums[e][3]);
    }
  } else {
    struct alignas(2 * ENTRIES) Term {
      uint32_t words[ENTRIES / 2];
    };
    const Term term = shared_at<const Term>(operand);
#pragma unroll
    for (int e = 0; e < ENTRIES; ++e)
      sums[e / 4][e % 4] = fmaf(element, to_float(E{uint16_t(term.words[e / 2] >> e % 2 * 16)}), sums[e / 4][e % 4]);
  }
}

// The sums of a warp's lists. A thread has those of its own list, of all entries. Where tensor cores multiply, thread
// 4 r + q has those of lists r, r + 8, r + 16 and r + 24, of entries 2 q and 2 q + 1.
template <class E, int ENTRIES>
class WordSums {
 public:
  // Adds the words of a quad times their operands, which begin at `operands`.
  RNNCC_DEVICE void add(const Quad<E, ENTRIES>& quad, uint32_t operands) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t operand = operands + quad.place(i) * (ENTRIES * int(sizeof(E)));
      if constexpr (Quad<E, ENTRIES>::BY_TENSOR_CORES) {
        const uint4 terms = load_transposed(operand), &all = quad.part[0];
        multiply_add<E>(sums_[0], element(all.x, i, 0), 0, 0, element(all.x, i, 1), terms.x, terms.y);
        multiply_add<E>(sums_[1], element(all.y, i, 0), 0, 0, element(all.y, i, 1), terms.z, terms.w);
      } else {
        add_term<E, ENTRIES>(quad.value(i), operand, sums_);
      }
    }
  }

  // Calls leave(list, pair of entries, sum of the first, sum of the second) for the thread's sums.
  template <class F>
  RNNCC_DEVICE void for_pairs(const F& leave) const {
    constexpr bool BY_TENSOR_CORES = Quad<E, ENTRIES>::BY_TENSOR_CORES;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < ENTRIES / 2; ++i) {
      const int list = BY_TENSOR_CORES ? int(threadIdx.x) - lane + lane / 4 + 8 * i : int(threadIdx.x);
      leave(list, BY_TENSOR_CORES ? lane % 4 : i, sums_[i / 2][i % 2 * 2], sums_[i / 2][i % 2 * 2 + 1]);
    }
  }

 private:
  // A thread's two elements of a factor in step i: its element in the lower or the upper half of `two`, beside a zero.
  // Both are zeros where it has no element in that step.
  RNNCC_DEVICE static uint32_t element(uint32_t two, int i, int half) {
    const int row = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const uint32_t selector = row % 2 == 0 ? 0x4410 : 0x1044;
    return __byte_perm(two, 0, (row + 2 * i) % 8 / 2 == q ? selector + half * (row % 2 == 0 ? 0x22 : 0x2200) : 0x4444);
  }

  float sums_[ENTRIES / 4][4] = {};
};

}  // namespace rnncc
