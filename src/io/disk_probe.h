// Measures how fast a disk gives random spans of files, and which way of reading is the fastest.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "io/read_queue.h"

namespace deltafin {

// Draws random spans of files and reads them. Spans lie at any offset, as experts do, and never in
// a hole of a sparse file. Reads are cold (what they touch leaves the page cache before
// and after) until KeepPageCache.
// Not thread-safe.
class DiskProbe {
 public:
  // The files must outlive this; those without a descriptor or without room for a span are left
  // out. `span_bytes` is at least 1.
  DiskProbe(const std::vector<const ReadableFile*>& files, uint64_t span_bytes, uint64_t seed);

  // False when hardly a span of the files is on the disk: then nothing can be measured.
  bool has_data();

  // Reads `num_spans` spans through the queue, at most `at_once` of them at a time; the seconds
  // that took. Throws the Error of a read that failed.
  double Read(ReadQueue& queue, int num_spans, int at_once);
  // The same with nothing but pread: `num_threads` loops, each with one piece of `piece_bytes` in
  // flight.
  double ReadPlainly(ReadMode mode, int num_threads, uint64_t piece_bytes, int num_spans);

  uint64_t span_bytes() const { return span_bytes_; }

  // From now on the page cache keeps what it has: reads are as warm as the files are.
  void KeepPageCache() { keeps_page_cache_ = true; }

 private:
  struct Span {
    const ReadableFile* file;
    uint64_t offset;
  };
  std::vector<Span> Draw(int num_spans);
  bool DrawOne(Span* span);
  void Drop(const std::vector<Span>& spans) const;

  std::vector<const ReadableFile*> files_;
  std::vector<uint64_t> ends_;  // running total of the places where a span can begin
  const uint64_t span_bytes_;
  std::mt19937_64 random_;
  bool keeps_page_cache_ = false;
};

// One way of reading, measured.
struct ReadMeasurement {
  ReadQueueOptions options;
  std::string refused;        // why it is not possible, else ""
  std::vector<double> rates;  // bytes per second, a round each
  double best() const;        // 0 without rounds
  double median() const;
};

// What is worth trying at a first start, the plainest first.
std::vector<ReadQueueOptions> QuickCandidates();

// Measures the candidates in turns (a round each, then again) until `seconds` are over, but one at
// least once. A way that is refused or fails says why.
std::vector<ReadMeasurement> MeasureReads(DiskProbe& probe,
                                          const std::vector<ReadQueueOptions>& candidates,
                                          int num_spans, int at_once, double seconds);

// The first of those whose best round comes within 5 % of the best of all (so that noise does not
// choose); null when none was measured.
const ReadMeasurement* PickBest(const std::vector<ReadMeasurement>& measurements);

}  // namespace deltafin
