// How CTAs share the work of a loop without products.
#pragma once

#include <algorithm>

#include "../../core/tables.h"

namespace rnncc {

constexpr int MOST_SCAN_CTAS = 16;

inline int64_t scan_shared_bytes(const ScanForm& form, int64_t ctas) {
  return std::max<int64_t>(form.least_shared_bytes, form.shared_bytes + (ctas > 1 ? ctas : 0) * form.peer_bytes);
}

// Whether the vectorised form has too few lanes for a GPU. rnncc/stages/schedule/scan.py has the same rule.
inline bool is_tall(const ScanForm& vectorised, int64_t channels, int64_t sms) {
  return channels < 32 * vectorised.vector * sms;
}

// How many CTAs share the steps of the same channels, in a launch of `clusters` clusters. The number doubles until each
// SM has two CTAs, as long as half as many CTAs would need more than one tile each for all steps.
// rnncc/stages/schedule/scan.py has the same rule.
inline int64_t scan_ctas(const ScanForm& form, int64_t clusters, int64_t steps, int64_t most, int64_t sms) {
  int64_t ctas = 1;
  while (2 * ctas <= most && ctas * clusters < 2 * sms && ctas * form.steps < steps) ctas *= 2;
  return ctas;
}

// Whether a kernel is of use. Some are of use only where `least_ctas` CTAs or more share steps, and where so many CTAs
// of all clusters run at once, two per SM. rnncc/stages/schedule/scan.py has the same rule.
inline bool is_of_use(const ScanForm& form, int64_t clusters, int64_t ctas, int64_t sms) {
  return form.least_ctas == 1 || (ctas >= form.least_ctas && form.least_ctas * clusters <= 2 * sms);
}

}  // namespace rnncc
