// A small model for the tests of the hub, and what they share.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "deltafin/hub.h"
#include "deltafin/synth.h"
#include "store/testing/temp_dir.h"

namespace deltafin {

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Made once for the process: three layers of k3-nano's widths.
inline const std::string& SmallHubModel() {
  static const TempDir dir;
  static const std::string path = [] {
    SynthOptions options;
    options.dir = dir / "model";
    options.like = SynthLike::kNano;
    options.layers = 4;
    options.experts = 16;
    options.vocab = 512;
    options.threads = 1;
    WriteSynth(options);
    return options.dir;
  }();
  return path;
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
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin)) return name;
  }
  return "";
}

// Names of the shards that differ, or are absent, in `dir`.
inline std::string DifferingShards(const std::string& root, const std::string& dir) {
  std::string differing;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".safetensors")) continue;
    if (ReadText(root + "/" + name) != ReadText(dir + "/" + name)) differing += name + " ";
  }
  return differing;
}

}  // namespace deltafin
