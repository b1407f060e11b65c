#include "store/testing/checkpoint_editor.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/check.h"
#include "io/file.h"

namespace deltafin {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{64} << 20;

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  DF_CHECK(out.good());
}

}  // namespace

EditableShard::EditableShard(std::string path) : path_(std::move(path)) {
  const std::string file = ReadWholeFile(RealFileSystem(), path_, kMaxBytes);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const size_t data = sizeof(header_bytes) + header_bytes;
  const Json header = ParseJson(file.substr(sizeof(header_bytes), header_bytes), path_);
  std::vector<std::pair<uint64_t, EditableTensor>> found;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = entry["data_offsets"][0].get<uint64_t>();
    const uint64_t end = entry["data_offsets"][1].get<uint64_t>();
    found.emplace_back(begin, EditableTensor{name, entry["dtype"].get<std::string>(),
                                             entry["shape"].get<std::vector<int64_t>>(),
                                             file.substr(data + begin, end - begin)});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [begin, tensor] : found) tensors_.push_back(std::move(tensor));
}

void EditableShard::Write() const {
  Json header = Json::object();
  std::string data;
  for (const EditableTensor& tensor : tensors_) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.dump();
  while (text.size() % 8 != 0) text += ' ';
  const uint64_t header_bytes = text.size();
  std::string head(sizeof(header_bytes), '\0');
  std::memcpy(head.data(), &header_bytes, sizeof(header_bytes));
  WriteFile(path_, head + text + data);
}

EditableTensor& EditableShard::Get(const std::string& name) {
  const auto it = std::find_if(tensors_.begin(), tensors_.end(),
                               [&](const EditableTensor& tensor) { return tensor.name == name; });
  DF_CHECK(it != tensors_.end());
  return *it;
}

void EditableShard::Remove(const std::string& name) {
  tensors_.erase(tensors_.begin() + (&Get(name) - tensors_.data()));
}

void EditJson(const std::string& path, const std::function<void(Json&)>& edit) {
  Json document = ParseJson(ReadWholeFile(RealFileSystem(), path, kMaxBytes), path);
  edit(document);
  WriteFile(path, document.dump(1));
}

}  // namespace deltafin
