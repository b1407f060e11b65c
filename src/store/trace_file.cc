// Reading traces of the router's picks.
#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "deltafin/json.h"
#include "deltafin/trace_analysis.h"
#include "io/file.h"
#include "io/quote.h"

namespace deltafin {
namespace {

static_assert(std::endian::native == std::endian::little, "binary traces are little-endian");

constexpr size_t kTracePieceBytes = size_t{1} << 20;
constexpr size_t kMaxLineBytes = size_t{1} << 20;
constexpr int64_t kMaxStep = int64_t{1} << 48;

// Calls use(piece) for consecutive pieces of the file.
void ForEachPiece(const ReadableFile& file, const std::function<void(std::string_view)>& use) {
  std::string piece;
  for (uint64_t offset = 0; offset < file.size(); offset += piece.size()) {
    piece.resize(static_cast<size_t>(std::min<uint64_t>(kTracePieceBytes, file.size() - offset)));
    file.ReadAt(offset, std::as_writable_bytes(std::span(piece)));
    use(piece);
  }
}

class JsonLinesReader {
 public:
  JsonLinesReader(const std::string& path, RouterTrace& trace) : path_(path), trace_(trace) {}

  void Take(std::string_view piece) {
    while (!piece.empty()) {
      const size_t end = piece.find('\n');
      line_ += piece.substr(0, end);
      if (line_.size() > kMaxLineBytes) {
        Fail(format("at most {} bytes", kMaxLineBytes), "a longer line");
      }
      if (end == std::string_view::npos) return;
      TakeLine();
      piece.remove_prefix(end + 1);
    }
  }
  void Finish() { TakeLine(); }

 private:
  [[noreturn]] void Fail(const std::string& expected, const std::string& got) const {
    throw Error(ErrorCode::kCorrupt,
                format("{}: line {}: expected {}, got {}", path_, number_, expected, got));
  }

  void TakeLine() {
    const std::string line = std::exchange(line_, {});
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      const Json json = ParseJson(line, format("{}: line {}", path_, number_));
      if (!json.is_object()) {
        Fail("an object with step, layer, ids", Quoted(json));
      }
      TracedPicks picks;
      picks.step = Integer(json, "step", kMaxStep);
      picks.layer = static_cast<int32_t>(Integer(json, "layer", kMaxTraceLayers));
      const Json& ids = Array(json, "ids");
      if (std::ssize(ids) > kMaxTracePicks) {
        Fail(format("ids: at most {}", kMaxTracePicks), std::to_string(ids.size()));
      }
      for (const Json& id : ids) {
        picks.ids.push_back(static_cast<int32_t>(CheckedInteger(id, "ids", kMaxTraceExperts)));
      }
      CheckDistinct(picks.ids);
      if (json.contains("w")) CheckWeights(Array(json, "w"), ids.size());
      trace_.picks.push_back(std::move(picks));
    }
    ++number_;
  }

  static std::string Quoted(const Json& json) { return Escape(json.dump(), 60); }
  const Json& Field(const Json& json, const char* name, const std::string& expected) const {
    const auto it = json.find(name);
    if (it == json.end()) Fail(format("{}: {}", name, expected), "no such field");
    return *it;
  }
  int64_t CheckedInteger(const Json& value, const char* name, int64_t limit) const {
    const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < uint64_t(limit);
    if (!fits) Fail(format("{}: an integer from 0 to {}", name, limit - 1), Quoted(value));
    return value.get<int64_t>();
  }
  int64_t Integer(const Json& json, const char* name, int64_t limit) const {
    return CheckedInteger(Field(json, name, "an integer"), name, limit);
  }
  const Json& Array(const Json& json, const char* name) const {
    const Json& value = Field(json, name, "an array");
    if (!value.is_array() || value.empty()) Fail(format("{}: a filled array", name), Quoted(value));
    return value;
  }
  void CheckDistinct(std::vector<int32_t> ids) const {
    std::sort(ids.begin(), ids.end());
    const auto twice = std::adjacent_find(ids.begin(), ids.end());
    if (twice != ids.end()) Fail("ids: each expert once", format("{} twice", *twice));
  }
  void CheckWeights(const Json& weights, size_t num_ids) const {
    if (weights.size() != num_ids) {
      Fail(format("w: {} weights, one per id", num_ids), std::to_string(weights.size()));
    }
    for (const Json& weight : weights) {
      if (!weight.is_number()) Fail("w: numbers", Quoted(weight));
    }
  }

  const std::string& path_;
  RouterTrace& trace_;
  std::string line_;
  int64_t number_ = 1;
};

// The file has no mark between tokens. A pass goes through the layers upwards, and in each writes
// top_k picks for token after token.
class BinaryReader {
 public:
  BinaryReader(const std::string& path, RouterTrace& trace) : path_(path), trace_(trace) {}

  void Take(std::string_view piece) {
    rest_ += piece;
    const size_t whole = rest_.size() / sizeof(Pair) * sizeof(Pair);
    for (size_t at = 0; at < whole; at += sizeof(Pair)) {
      Pair pair;
      std::memcpy(&pair, rest_.data() + at, sizeof(pair));
      TakePair(pair);
      offset_ += sizeof(pair);
    }
    rest_.erase(0, whole);
  }

  // `top_k` 0: the largest number that all of them can be multiples of.
  void Finish(int64_t top_k) {
    if (!rest_.empty()) Fail("pairs of 8 bytes", format("{} bytes more", rest_.size()));
    if (top_k == 0) {
      for (const Stretch& s : stretches_)
        top_k = std::gcd(top_k, static_cast<int64_t>(s.ids.size()));
    }
    if (top_k > kMaxTracePicks) {
      offset_ = 0;
      Fail(format("at most {} picks for each token (say how many with --top-k)", kMaxTracePicks),
           std::to_string(top_k));
    }
    int64_t first_step = 0;
    int64_t tokens = 0;
    int32_t last_layer = -1;
    for (const Stretch& s : stretches_) {
      offset_ = s.offset;
      if (s.layer <= last_layer) first_step += std::exchange(tokens, 0);
      last_layer = s.layer;
      const int64_t count = static_cast<int64_t>(s.ids.size()) / top_k;
      if (count * top_k != static_cast<int64_t>(s.ids.size())) {
        Fail(format("a multiple of {} picks of layer {}", top_k, s.layer),
             std::to_string(s.ids.size()));
      }
      tokens = std::max(tokens, count);
      for (int64_t token = 0; token < count; ++token) {
        const auto begin = s.ids.begin() + token * top_k;
        TracedPicks picks{first_step + token, s.layer, {begin, begin + top_k}};
        CheckDistinct(picks.ids, top_k);
        trace_.picks.push_back(std::move(picks));
      }
    }
  }

 private:
  struct Pair {
    int32_t layer;
    int32_t expert;
  };
  struct Stretch {  // of one layer
    uint64_t offset = 0;
    int32_t layer = 0;
    std::vector<int32_t> ids;
  };

  [[noreturn]] void Fail(const std::string& expected, const std::string& got) const {
    throw Error(ErrorCode::kCorrupt,
                format("{}: byte {}: expected {}, got {}", path_, offset_, expected, got));
  }

  void TakePair(Pair pair) {
    if (pair.layer < 0 || pair.layer >= kMaxTraceLayers) {
      Fail(format("a layer from 0 to {}", kMaxTraceLayers - 1), std::to_string(pair.layer));
    }
    if (pair.expert < 0 || pair.expert >= kMaxTraceExperts) {
      Fail(format("an expert from 0 to {}", kMaxTraceExperts - 1), std::to_string(pair.expert));
    }
    if (stretches_.empty() || stretches_.back().layer != pair.layer) {
      stretches_.push_back({offset_, pair.layer, {}});
    }
    stretches_.back().ids.push_back(pair.expert);
  }
  void CheckDistinct(std::vector<int32_t> ids, int64_t top_k) const {
    std::sort(ids.begin(), ids.end());
    const auto twice = std::adjacent_find(ids.begin(), ids.end());
    if (twice == ids.end()) return;
    Fail(format("{} different experts for each token (say how many with --top-k)", top_k),
         format("{} twice", *twice));
  }

  const std::string& path_;
  RouterTrace& trace_;
  std::string rest_;
  uint64_t offset_ = 0;
  std::vector<Stretch> stretches_;
};

TraceFormat Detect(const ReadableFile& file) {
  std::string head(static_cast<size_t>(std::min<uint64_t>(file.size(), 64)), '\0');
  file.ReadAt(0, std::as_writable_bytes(std::span(head)));
  const size_t first = head.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && head[first] == '{';
  return is_json ? TraceFormat::kJsonLines : TraceFormat::kBinary;
}

void Complete(const std::string& path, RouterTrace& trace) {
  if (trace.picks.empty()) {
    throw Error(ErrorCode::kCorrupt, path + ": expected picks of a router, got an empty file");
  }
  const auto order = [](const TracedPicks& p) { return std::pair(p.step, p.layer); };
  std::stable_sort(trace.picks.begin(), trace.picks.end(),
                   [&](const auto& a, const auto& b) { return order(a) < order(b); });
  for (size_t i = 0; i < trace.picks.size(); ++i) {
    const TracedPicks& picks = trace.picks[i];
    if (i > 0 && order(trace.picks[i - 1]) == order(picks)) {
      throw Error(ErrorCode::kCorrupt,
                  format("{}: expected one line for step {} of layer {}, got several; the trace of "
                         "one session belongs into one file",
                         path, picks.step, picks.layer));
    }
    trace.num_steps += i == 0 || trace.picks[i - 1].step != picks.step;
    trace.num_layers = std::max<int64_t>(trace.num_layers, picks.layer + 1);
    for (int32_t id : picks.ids) trace.num_experts = std::max<int64_t>(trace.num_experts, id + 1);
  }
}

}  // namespace

RouterTrace ReadRouterTrace(const std::string& path, TraceFormat format, int64_t top_k) {
  const auto file = RealFileSystem().OpenForReading(path);
  if (format == TraceFormat::kDetect) format = Detect(*file);
  RouterTrace trace;
  if (format == TraceFormat::kJsonLines) {
    JsonLinesReader reader(path, trace);
    ForEachPiece(*file, [&](std::string_view piece) { reader.Take(piece); });
    reader.Finish();
  } else {
    BinaryReader reader(path, trace);
    ForEachPiece(*file, [&](std::string_view piece) { reader.Take(piece); });
    reader.Finish(top_k);
  }
  Complete(path, trace);
  return trace;
}

}  // namespace deltafin
