#include "io/name_list.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace deltafin {

std::string_view NameList::operator[](size_t i) const {
  DF_CHECK(i < size());
  return std::string_view(bytes_).substr(begins_[i], begins_[i + 1] - begins_[i]);
}

void NameList::Reserve(size_t num_names, size_t num_bytes) {
  begins_.reserve(num_names + 1);
  bytes_.reserve(num_bytes);
}

void NameList::Add(std::string_view name) {
  bytes_ += name;
  DF_CHECK(bytes_.size() <= std::numeric_limits<uint32_t>::max());
  begins_.push_back(static_cast<uint32_t>(bytes_.size()));
}

std::vector<uint32_t> NameList::SortedOrder() const {
  std::vector<uint32_t> order(size());
  std::iota(order.begin(), order.end(), uint32_t{0});
  const auto less = [this](uint32_t a, uint32_t b) { return (*this)[a] < (*this)[b]; };
  if (!std::is_sorted(order.begin(), order.end(), less)) {
    std::sort(order.begin(), order.end(), less);
  }
  return order;
}

NameList NameList::InOrder(const std::vector<uint32_t>& order) const {
  NameList sorted;
  sorted.Reserve(size(), bytes_.size());
  for (const uint32_t i : order) sorted.Add((*this)[i]);
  return sorted;
}

std::optional<std::string_view> NameList::FindRepeated() const {
  for (size_t i = 1; i < size(); ++i) {
    if ((*this)[i] == (*this)[i - 1]) return (*this)[i];
  }
  return std::nullopt;
}

std::optional<size_t> NameList::Find(std::string_view name) const {
  size_t low = 0;
  size_t high = size();
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if ((*this)[middle] < name) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == size() || (*this)[low] != name) return std::nullopt;
  return low;
}

}  // namespace deltafin
