// Which way of reading suits the disk that a model lies on: measured once, then remembered.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/disk_probe.h"

namespace deltafin {

struct ReadChoice {
  ReadQueueOptions options;
  double bytes_per_second = 0;  // 0: not measured
  std::string source;           // for people: "measured", "remembered", "not measured: ..."
};

// The way for the files of the model folder `dir`. Measures for up to a second where
// DIR/.deltafin/device.json does not know this disk, and writes what it found there if it can:
// neither a file that cannot be used nor a folder that cannot be written is an error
// (docs/disk.md). Models that are small enough for any way are not measured, nor are those of which
// nothing is on the disk yet. No reads may go on meanwhile.
ReadChoice ChooseReadOptions(const std::string& dir, const std::vector<const ReadableFile*>& files,
                             double seconds = 0.8);

// The same for files on several disks: an entry for each disk, in the order of the files; what each
// measured is remembered in the folder of its first file.
struct DiskChoice {
  uint64_t disk = 0;  // DiskOf
  ReadChoice choice;
};
std::vector<DiskChoice> ChooseReadsOfDisks(const std::vector<const ReadableFile*>& files);

// "io_uring", "threads"; "direct", "buffered".
std::string EngineName(ReadEngine engine);
std::string ModeName(ReadMode mode);

}  // namespace deltafin
