// Many names in one piece of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deltafin {

// At most 4 GiB of names in all.
class NameList {
 public:
  size_t size() const { return begins_.size() - 1; }
  // i < size(). Valid until the next Add.
  std::string_view operator[](size_t i) const;

  void Reserve(size_t num_names, size_t num_bytes);
  void Add(std::string_view name);

  // The positions of the names in the order of their bytes.
  std::vector<uint32_t> SortedOrder() const;
  // The copy in that order.
  NameList InOrder(const std::vector<uint32_t>& order) const;
  // A name that stands twice. REQUIRES: sorted.
  std::optional<std::string_view> FindRepeated() const;
  // REQUIRES: sorted.
  std::optional<size_t> Find(std::string_view name) const;

 private:
  std::string bytes_;
  std::vector<uint32_t> begins_ = {0};  // size() + 1 places in bytes_
};

}  // namespace deltafin
