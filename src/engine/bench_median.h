// The middle of measurements. Internal to engine/.
#pragma once

#include <algorithm>
#include <vector>

namespace deltafin {

// `values` is not empty. Of an even number: the mean of the two in the middle.
inline double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace deltafin
