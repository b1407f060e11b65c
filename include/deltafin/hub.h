// Brings a model from the hub (Hugging Face or a mirror): whole, or as far as it is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deltafin/error.h"

namespace deltafin {

class RangeSource;

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::string repo = "moonshotai/Kimi-K3";
  std::string revision;           // "": what the folder has, else the pinned one
  std::string path;               // in place of "/REPO/resolve/REVISION"
  std::string token;              // "": none. Only ever sent to the endpoint itself
  std::string ca_bundle;          // file of certificates; "": the system's
  bool offline = false;           // every request is refused
  int jobs = 8;                   // connections
  uint64_t bytes_per_second = 0;  // 0: no limit
  // A request that fails is tried again, first after about this, then after twice as much ...
  double retry_seconds = 1;
  double max_retry_seconds = 60;
  // ... until nothing has come for so long.
  double patience_seconds = 900;
  // A connection that brings nothing for so long is given up.
  double stall_seconds = 30;
  // Asked about once a second: true while nobody wants to wait for ranges any more. They then fail
  // with Error(kCancelled). Called by a thread of the hub's; must not throw.
  std::function<bool()> cancelled = nullptr;
};

// The revision that is fetched when nothing else is said.
inline constexpr const char* kPinnedRevision = "c5d1dd4c428bd1ce8b88c5044f3b6ccde9e3b721";

enum class SetupMode : uint8_t {
  kAuto,    // all if the disk has room for it, else kStream
  kFull,    // every byte of every shard
  kStream,  // the spine; experts come when they are needed
};

struct SetupProgress {
  uint64_t done_bytes = 0;      // of this run
  uint64_t total_bytes = 0;     // that this run has to fetch
  uint64_t local_bytes = 0;     // of the shards on disk, by now
  uint64_t shard_bytes = 0;     // of all shards
  double bytes_per_second = 0;  // of late
  double seconds_left = 0;      // 0: not known
  double seconds = 0;           // since the start
  std::string phase;            // "asking the hub", "fetching", "verifying", "disk full"
  std::string shard;            // that is being fetched
  int layer = -1;               // of it; -1: outside the layers
  std::string notice;           // for a person, once; mostly empty
};

struct SetupOptions {
  HubOptions hub;
  std::string dir;
  std::vector<std::string> also;  // more folders for shards
  SetupMode mode = SetupMode::kAuto;
  // Only these layers' shards, with what all layers need; empty: all.
  std::vector<std::pair<int, int>> layers;
  // Only these experts (layer, expert) besides what is there; used by `warm`.
  std::vector<std::pair<int, int>> experts;
  bool only_experts = false;  // kStream: fetch `experts` and no spine
  bool dry_run = false;
  // Compare the SHA-256 of each shard that becomes complete.
  bool verify = true;
  // What the disk of a folder has left; null: what the system says.
  std::function<uint64_t(const std::string&)> free_disk_bytes;
  // Asked before bytes are fetched, with the report so far; false: nothing is fetched.
  std::function<bool(const struct SetupReport&)> confirm;
  // Called a few times a second by the calling thread; false stops with Error(kCancelled), and the
  // next run goes on from there.
  std::function<bool(const SetupProgress&)> on_progress;
};

struct SetupReport {
  std::string dir;
  std::string source;    // where from
  std::string revision;  // the commit
  SetupMode mode = SetupMode::kFull;
  int num_shards = 0;
  int complete_shards = 0;
  uint64_t total_bytes = 0;    // of all shards
  uint64_t local_bytes = 0;    // of them, on disk
  uint64_t wanted_bytes = 0;   // that this run has, or had, to fetch
  uint64_t missing_bytes = 0;  // for a full install
  uint64_t free_bytes = 0;     // of the disks, without the margin
  uint64_t margin_bytes = 0;   // left free
  uint64_t lacking_bytes = 0;  // that would have to be freed for a full install
  uint64_t fetched_bytes = 0;  // by this run
  double seconds = 0;
  double bytes_per_second = 0;  // measured
};

// Fetches what is missing, as far as `mode` and `layers` say. May be stopped and repeated at any
// time, by whatever means. Throws Error: see error.h.
SetupReport RunSetup(const SetupOptions& options);

struct VerifyOptions {
  HubOptions hub;
  std::string dir;
  std::vector<std::string> also;
  enum class Depth : uint8_t {
    kQuick,   // sizes, headers, presence
    kRanges,  // and the checksum of every range
    kFull,    // and the SHA-256 of every complete shard
  } depth = Depth::kRanges;
  bool repair = false;                                    // fetch what is bad
  std::function<bool(const SetupProgress&)> on_progress;  // as SetupOptions
};

struct VerifyReport {
  int num_shards = 0;
  int complete_shards = 0;
  int hashed_shards = 0;  // whose SHA-256 was compared
  uint64_t checked_bytes = 0;
  uint64_t local_bytes = 0;
  uint64_t total_bytes = 0;
  uint64_t bad_bytes = 0;
  uint64_t repaired_bytes = 0;
  bool repaired = false;  // what was bad was fetched; missing shards of no known source are left
  std::vector<std::string> problems;  // what is wrong, one sentence each
};

// Looks for damage; what is missing is not damage. Throws Error when it cannot look.
VerifyReport RunVerify(const VerifyOptions& options);

struct CleanOptions {
  std::string dir;
  std::vector<std::string> also;
  uint64_t keep_bytes = 0;  // of experts
  bool dry_run = false;
};

struct CleanReport {
  uint64_t local_bytes = 0;  // of experts, before
  uint64_t freed_bytes = 0;
  int64_t freed_experts = 0;
};

// Frees cached experts, the least used first, until at most `keep_bytes` of them are left. Throws
// Error(kIo) while another process uses the folder.
CleanReport RunClean(const CleanOptions& options);

// What fetches the missing parts of a model folder that setup has made: for
// EngineOptions::source. Null when the folder is not from setup, or when nothing may be fetched
// (offline). Connects when it is first needed.
std::shared_ptr<RangeSource> MakeHubSource(const HubOptions& options, const std::string& dir);

}  // namespace deltafin
