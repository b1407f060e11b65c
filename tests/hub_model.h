// A small model for the tests of the hub, and what they share.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "deltafin/hub.h"
#include "small_model.h"

namespace deltafin {

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Impatient: the faults of the tests are over soon.
inline HubOptions QuickHubOptions(const std::string& endpoint) {
  HubOptions options;
  options.endpoint = endpoint;
  options.jobs = 4;
  options.retry_seconds = 0.002;
  options.max_retry_seconds = 0.05;
  options.patience_seconds = 60;
  options.stall_seconds = 0.3;
  return options;
}

// Name of shard number n, from 1.
inline std::string ShardName(const std::string& root, int n) {
  const std::string begin = "model-0000" + std::to_string(n) + "-of-";
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    std::string name = entry.path().filename().string();
    if (name.starts_with(begin)) return name;
  }
  return "";
}

// Piece by piece: shards may be large, most of it holes.
inline bool SameBytes(const std::string& path, const std::string& other) {
  constexpr std::streamsize kPiece = 1 << 20;
  std::ifstream files[] = {std::ifstream(path, std::ios::binary),
                           std::ifstream(other, std::ios::binary)};
  std::vector<char> pieces[] = {std::vector<char>(kPiece), std::vector<char>(kPiece)};
  while (files[0] && files[1]) {
    for (int i = 0; i < 2; ++i) files[i].read(pieces[i].data(), kPiece);
    if (files[0].gcount() != files[1].gcount() || pieces[0] != pieces[1]) return false;
  }
  return files[0].eof() && files[1].eof();
}

// Names of the shards that differ, or are absent, in `dir`.
inline std::string DifferingShards(const std::string& root, const std::string& dir) {
  std::string differing;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    std::string name = entry.path().filename().string();
    if (!name.ends_with(".safetensors")) continue;
    if (!SameBytes(root + "/" + name, dir + "/" + name)) differing += name + " ";
  }
  return differing;
}

}  // namespace deltafin
