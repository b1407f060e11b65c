// Changes a copy of a small checkpoint tensor by tensor, for tests of what must be refused.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "deltafin/json.h"

namespace deltafin {

struct EditableTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// A whole shard in memory, in the order of its bytes. Written without gaps.
class EditableShard {
 public:
  explicit EditableShard(std::string path);  // reads it
  void Write() const;

  std::vector<EditableTensor>& tensors() { return tensors_; }
  // Fails the process when there is no such tensor.
  EditableTensor& Get(const std::string& name);
  void Remove(const std::string& name);

 private:
  std::string path_;
  std::vector<EditableTensor> tensors_;
};

// Reads a JSON file, lets `edit` change it and writes it back.
void EditJson(const std::string& path, const std::function<void(Json&)>& edit);

}  // namespace deltafin
