// How long tests with random input take.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <vector>

namespace deltafin {

// So many rounds, or DELTAFIN_ROUNDS percent of them, but at least one: more at night, fewer where
// an emulator runs the program.
inline int Rounds(int usual) {
  const char* const percent = std::getenv("DELTAFIN_ROUNDS");
  return percent == nullptr ? usual : std::max(1, usual * std::atoi(percent) / 100);
}

// The first of these cases, for so many rounds as there are of them; never more than all.
template <class T>
std::vector<T> SomeOf(std::initializer_list<T> cases) {
  std::vector<T> some(cases);
  some.resize(std::min(some.size(), static_cast<size_t>(Rounds(static_cast<int>(some.size())))));
  return some;
}

}  // namespace deltafin
