// What a cell's host side says of its loops, and the functions that run them on a GPU. These are the same for every cell
// and most of the host side, so they are compiled once for all cells (templates/cuda/loops_host.cpp.j2).
#pragma once

#include "../core/tables.h"

namespace rnncc {

// How the threads of a CTA divide a head's matrix: HeadShape in by_head/memory.cuh. `name`: how the names of its kernels
// end.
struct HeadTile {
  int lanes, columns, rows;
  const char* name;
};

// The kernels that give each head of a batch entry to a CTA, from the smallest tile on. `matrices`: for each slot, whether
// it is a matrix.
struct HeadForm {
  const bool* matrices;
  const HeadTile* tiles;
  int count;
};

// A program. `scans`: its kernels, where the loop is a scan or a walk, else null. `by_head`: those whose CTAs have a head,
// if it has any. `has_single`: whether there is a kernel for a single step. `name`: what the names of its kernels begin
// with.
struct LoopOnDevice {
  const Tables& tables;
  const LoopInfo& info;
  const ScanForms* scans;
  const HeadForm* by_head;
  bool has_single;
  const char* name;
};

// Runs the `count` directions of a layer.
void run_on_device(const LoopOnDevice& loop, const rnncc_forward_call* calls, int32_t count, int32_t device);
void run_on_device(const LoopOnDevice& loop, const rnncc_backward_call* calls, int32_t count, int32_t device);

// Whether a program that has a kernel for a single step runs the one that is asked for.
bool takes_single(const Tables& tables, const rnncc_single_question& asked);

}  // namespace rnncc
