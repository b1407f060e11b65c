#include "io/read_choice.h"

#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/format.h"
#include "deltafin/json.h"
#include "io/atomic_file.h"
#include "io/write_file.h"

namespace deltafin {
namespace {

constexpr uint64_t kMaxFileBytes = 1 << 20;
// Below this the page cache has the model after a moment, whatever way reads it.
constexpr uint64_t kSmallBytes = uint64_t{1} << 30;
// A quick round: enough to fill every candidate's depth.
constexpr uint64_t kSpanBytes = 4 << 20;
constexpr int kSpans = 16;

// What tells disks apart: the file system's number, which survives a restart and another name of
// the device. The kernel's version counts too, as it decides how well each way works.
std::string DiskName(const std::string& dir) {
  struct statvfs status = {};
  if (::statvfs(dir.c_str(), &status) != 0) return "";
  return format("{:x}-{}", status.f_fsid, status.f_blocks);
}

std::string KernelName() {
  utsname name = {};
  return ::uname(&name) == 0 ? format("{} {}", name.sysname, name.release) : "";
}

std::string MemoryPath(const std::string& dir) { return JoinPath(dir, ".deltafin/device.json"); }

// The entries of device.json; none when it cannot be used.
Json ReadDisks(const std::string& dir) {
  try {
    const std::string path = MemoryPath(dir);
    const Json file = ParseJson(ReadWholeFile(RealFileSystem(), path, kMaxFileBytes), path);
    if (file.is_object() && file.value("version", Json()) == 1) {
      Json disks = file.value("disks", Json());
      if (disks.is_array()) return disks;
    }
  } catch (const std::exception&) {
  }
  return Json::array();
}

std::optional<int64_t> IntegerIn(const Json& entry, const char* name, int64_t min, int64_t max) {
  const auto value = entry.find(name);
  if (value == entry.end() || !value->is_number_integer()) return std::nullopt;
  const int64_t number = value->get<int64_t>();
  return min <= number && number <= max ? std::optional(number) : std::nullopt;
}

bool IsOf(const Json& entry, const std::string& disk) {
  return entry.is_object() && entry.value("disk", Json()) == disk;
}

std::optional<ReadChoice> ParseEntry(const Json& entry) {
  ReadChoice choice;
  choice.source = "remembered";
  bool engine_known = false;
  for (const ReadEngine engine : {ReadEngine::kThreads, ReadEngine::kIoUring}) {
    if (entry.value("engine", Json()) != EngineName(engine)) continue;
    choice.options.engine = engine;
    engine_known = true;
  }
  bool mode_known = false;
  for (const ReadMode mode : {ReadMode::kBuffered, ReadMode::kDirect}) {
    if (entry.value("mode", Json()) != ModeName(mode)) continue;
    choice.options.mode = mode;
    mode_known = true;
  }
  const auto depth = IntegerIn(entry, "depth", 1, 1024);
  const auto split = IntegerIn(entry, "split_bytes", kReadAlignment, int64_t{1} << 30);
  const auto rate = IntegerIn(entry, "bytes_per_second", 1, int64_t{1} << 50);
  if (!engine_known || !mode_known || !depth || !split || !rate) return std::nullopt;
  choice.options.depth = static_cast<int>(*depth);
  choice.options.split_bytes = static_cast<uint64_t>(*split);
  choice.bytes_per_second = static_cast<double>(*rate);
  return choice;
}

std::optional<ReadChoice> Remembered(const Json& disks, const std::string& disk) {
  for (const Json& entry : disks) {
    if (!IsOf(entry, disk) || entry.value("kernel", Json()) != KernelName()) continue;
    std::optional<ReadChoice> choice = ParseEntry(entry);
    if (!choice) return std::nullopt;
    try {
      MakeReadQueue(choice->options);  // io_uring may be forbidden here and now
      return choice;
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

void Remember(const std::string& dir, const Json& disks, const std::string& disk,
              const ReadChoice& choice) {
  Json kept = Json::array();
  for (const Json& entry : disks) {
    if (entry.is_object() && !IsOf(entry, disk)) kept.push_back(entry);
  }
  kept.push_back({{"disk", disk},
                  {"kernel", KernelName()},
                  {"engine", EngineName(choice.options.engine)},
                  {"mode", ModeName(choice.options.mode)},
                  {"depth", choice.options.depth},
                  {"split_bytes", choice.options.split_bytes},
                  {"bytes_per_second", static_cast<int64_t>(choice.bytes_per_second)}});
  try {
    MakeFolders(JoinPath(dir, ".deltafin"));
    WriteFileAtomically(MemoryPath(dir), Json{{"version", 1}, {"disks", kept}}.dump(2) + "\n");
  } catch (const Error&) {
    // Not remembered: it is measured again next time.
  }
}

}  // namespace

std::string EngineName(ReadEngine engine) {
  return engine == ReadEngine::kIoUring ? "io_uring" : "threads";
}

std::string ModeName(ReadMode mode) { return mode == ReadMode::kDirect ? "direct" : "buffered"; }

ReadChoice ChooseReadOptions(const std::string& dir, const std::vector<const ReadableFile*>& files,
                             double seconds) {
  uint64_t total = 0;
  for (const ReadableFile* file : files) total += file->size();
  if (total < kSmallBytes) return {{}, 0, "not measured: the model is small"};

  const std::string disk = DiskName(dir);
  const Json disks = ReadDisks(dir);
  if (std::optional<ReadChoice> known = Remembered(disks, disk)) return *std::move(known);

  DiskProbe probe(files, kSpanBytes, std::random_device{}());
  if (!probe.has_data()) {
    // Large, so the page cache would only take memory from the program.
    ReadChoice direct;
    direct.source = "not measured: hardly anything is on the disk";
    direct.options.mode = ReadMode::kDirect;
    return direct;
  }
  const std::vector<ReadMeasurement> measured =
      MeasureReads(probe, QuickCandidates(), kSpans, kSpans, seconds);
  const ReadMeasurement* best = PickBest(measured);
  if (best == nullptr) return {{}, 0, "not measured: every way of reading failed"};
  ReadChoice choice = {best->options, std::floor(best->best()), "measured"};
  if (!disk.empty()) Remember(dir, disks, disk, choice);
  return choice;
}

std::vector<DiskChoice> ChooseReadsOfDisks(const std::vector<const ReadableFile*>& files) {
  std::vector<DiskChoice> choices;
  std::vector<std::vector<const ReadableFile*>> of_disk;
  for (const ReadableFile* file : files) {
    const uint64_t disk = DiskOf(*file);
    size_t i = 0;
    while (i < choices.size() && choices[i].disk != disk) ++i;
    if (i == choices.size()) {
      choices.push_back({disk, {}});
      of_disk.emplace_back();
    }
    of_disk[i].push_back(file);
  }
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string folder = std::filesystem::path(of_disk[i][0]->path()).parent_path().string();
    choices[i].choice = ChooseReadOptions(folder.empty() ? "." : folder, of_disk[i]);
  }
  return choices;
}

}  // namespace deltafin
