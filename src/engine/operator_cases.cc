#include "engine/operator_cases.h"

#include <algorithm>
#include <random>

namespace deltafin {
namespace {

constexpr int64_t kHeads = 96;
constexpr int64_t kKdaDim = 128;
constexpr int64_t kLatent = 3584;
constexpr int64_t kExpertWidth = 3072;
constexpr int64_t kExperts = 16;

// Odd bytes are upper bytes of bf16 and f32 values of about 0.03 .. 0.12 of either sign; the others
// are anything. As int8 and as MXFP4 codes every byte is fine.
void FillWeights(AlignedBuffer<std::byte>& data) {
  std::mt19937 random(1);
  const size_t unit = std::min(size_t{1} << 22, data.size());
  for (size_t i = 0; i < unit; ++i) {
    data[i] = static_cast<std::byte>(random());
    if (i % 2 == 1) data[i] = (data[i] & std::byte{0x80}) | std::byte{0x3d};
  }
  for (size_t at = unit; at < data.size(); at += unit) {
    std::copy_n(data.data(), std::min(data.size() - at, unit), data.data() + at);
  }
}

AlignedBuffer<float> RandomFloats(int64_t count) {
  AlignedBuffer<float> values(static_cast<size_t>(count));
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const size_t unit = std::min(size_t{1} << 20, values.size());
  for (size_t i = 0; i < unit; ++i) values[i] = normal(random);
  for (size_t at = unit; at < values.size(); at += unit) {
    std::copy_n(values.data(), std::min(values.size() - at, unit), values.data() + at);
  }
  return values;
}

AlignedBuffer<float> Filled(int64_t count, float value) {
  AlignedBuffer<float> values(static_cast<size_t>(count));
  std::fill(values.begin(), values.end(), value);
  return values;
}

class MatMulCase : public OperatorCase {
 public:
  MatMulCase(Device& device, WeightArena& arena, WeightFormat format, int64_t rows, int64_t cols,
             int64_t n)
      : device_(device),
        arena_(arena),
        format_(format),
        rows_(rows),
        cols_(cols),
        n_(n),
        x_(RandomFloats(n * cols)),
        y_(static_cast<size_t>(n * rows)) {
    const Matrix w = arena.Take(format, rows, cols);
    bytes_ = static_cast<double>(rows * w.row_bytes());
    if (format == WeightFormat::kMxfp4) bytes_ += static_cast<double>(rows * cols / 32);
    if (format == WeightFormat::kInt8) bytes_ += static_cast<double>(rows * 4);
    flops_ = 2.0 * static_cast<double>(rows * cols * n);
  }

  void Run() override {
    device_.MatMul(arena_.Take(format_, rows_, cols_), x_.data(), y_.data(), rows_, n_);
  }

 private:
  Device& device_;
  WeightArena& arena_;
  WeightFormat format_;
  int64_t rows_, cols_, n_;
  AlignedBuffer<float> x_, y_;
};

class ExpertCase : public OperatorCase {
 public:
  ExpertCase(Device& device, WeightArena& arena, int64_t n)
      : device_(device),
        arena_(arena),
        n_(n),
        z_(RandomFloats(n * kLatent)),
        y_(static_cast<size_t>(n * kExperts * kLatent)),
        in_rows_(static_cast<size_t>(n)),
        out_rows_(static_cast<size_t>(n * kExperts)) {
    for (size_t i = 0; i < in_rows_.size(); ++i) in_rows_[i] = static_cast<int32_t>(i);
    for (size_t i = 0; i < out_rows_.size(); ++i) out_rows_[i] = static_cast<int32_t>(i);
    const double weights = static_cast<double>(3 * kExperts * kExpertWidth * kLatent);
    bytes_ = weights / 2 + weights / 32;
    flops_ = 2.0 * weights * static_cast<double>(n);
  }

  void Run() override {
    std::vector<ExpertTask> tasks(kExperts);
    for (int64_t e = 0; e < kExperts; ++e) {
      ExpertTask& task = tasks[static_cast<size_t>(e)];
      task.weights.w1 = arena_.Take(WeightFormat::kMxfp4, kExpertWidth, kLatent);
      task.weights.w3 = arena_.Take(WeightFormat::kMxfp4, kExpertWidth, kLatent);
      task.weights.w2 = arena_.Take(WeightFormat::kMxfp4, kLatent, kExpertWidth);
      task.in_rows = in_rows_.data();
      task.out_rows = out_rows_.data() + e * n_;
      task.num_rows = n_;
    }
    device_.ExpertMlp(tasks, z_.data(), y_.data(), kLatent, SituParams{});
  }

 private:
  Device& device_;
  WeightArena& arena_;
  int64_t n_;
  AlignedBuffer<float> z_, y_;
  std::vector<int32_t> in_rows_, out_rows_;
};

class KdaCase : public OperatorCase {
 public:
  KdaCase(Device& device, int64_t n)
      : device_(device),
        n_(n),
        q_(RandomFloats(n * kHeads * kKdaDim)),
        k_(Filled(n * kHeads * kKdaDim, 0.08f)),
        alpha_(Filled(n * kHeads * kKdaDim, 0.9f)),
        beta_(Filled(n * kHeads, 0.5f)),
        out_(static_cast<size_t>(n * kHeads * kKdaDim)),
        states_(RandomFloats(kLayers * kStateFloats)) {
    bytes_ = static_cast<double>(kStateFloats) * 2 * sizeof(float);
    // Per element of the state: decay, read, update, read.
    flops_ = 7.0 * static_cast<double>(kStateFloats * n);
  }

  void Run() override {
    device_.KdaRecurrence(out_.data(), states_.data() + layer_ * kStateFloats, q_.data(), k_.data(),
                          q_.data(), alpha_.data(), beta_.data(), n_, kHeads, kKdaDim);
    layer_ = (layer_ + 1) % kLayers;
  }

 private:
  static constexpr int64_t kStateFloats = kHeads * kKdaDim * kKdaDim;
  static constexpr int64_t kLayers = 69;  // 434 MB, as in K3
  Device& device_;
  int64_t n_;
  int64_t layer_ = 0;
  AlignedBuffer<float> q_, k_, alpha_, beta_, out_, states_;
};

class MlaCase : public OperatorCase {
 public:
  MlaCase(Device& device, CacheFormat format, int64_t context, int64_t n)
      : device_(device),
        context_(context),
        n_(n),
        absorbed_(RandomFloats(n * kHeads * kShape.latent_dim())),
        out_(static_cast<size_t>(n * kHeads * kShape.kv_lora)) {
    const int64_t tokens = context + n;
    const int64_t value_bytes = format == CacheFormat::kF32 ? 4 : 2;
    const int64_t page_bytes = kPageTokens * kShape.latent_dim() * value_bytes;
    const int64_t num_pages = (tokens + kPageTokens - 1) / kPageTokens;
    memory_ = AlignedBuffer<std::byte>(static_cast<size_t>(num_pages * page_bytes));
    for (int64_t i = 0; i < num_pages; ++i) pages_.push_back(memory_.data() + i * page_bytes);
    cache_ = {pages_.data(), kPageTokens, format};
    const AlignedBuffer<float> latent = RandomFloats(kPageTokens * kShape.latent_dim());
    for (int64_t t = 0; t < tokens; t += kPageTokens) {
      device.MlaAppend(cache_, latent.data(), t, std::min(kPageTokens, tokens - t), kShape);
    }
    bytes_ = static_cast<double>(tokens * kShape.latent_dim() * value_bytes);
    const double pairs = static_cast<double>(kHeads * n) *
                         (static_cast<double>(context) + static_cast<double>(n + 1) / 2);
    flops_ = pairs * 2.0 * static_cast<double>(kShape.latent_dim() + kShape.kv_lora);
  }

  void Run() override {
    device_.MlaAttend(out_.data(), absorbed_.data(), cache_, context_, n_, kShape, 0.07f);
  }

 private:
  static constexpr MlaShape kShape{kHeads, 128, 64, 128, 512};
  static constexpr int64_t kPageTokens = 1024;
  Device& device_;
  int64_t context_, n_;
  AlignedBuffer<float> absorbed_, out_;
  AlignedBuffer<std::byte> memory_;
  std::vector<void*> pages_;
  LatentCacheView cache_;
};

}  // namespace

WeightArena::WeightArena(int64_t bytes)
    : data_(static_cast<size_t>(bytes)),
      scales_(static_cast<size_t>(bytes / 16)),
      float_scales_(Filled(1 << 18, 0.01f)),
      bytes_(bytes) {
  FillWeights(data_);
  std::fill(scales_.begin(), scales_.end(), std::byte{120});
}

Matrix WeightArena::Take(WeightFormat format, int64_t rows, int64_t cols) {
  Matrix matrix{format, rows, cols, nullptr, nullptr};
  const int64_t bytes = rows * matrix.row_bytes();
  DF_CHECK(bytes <= bytes_);
  if (at_ + bytes > bytes_) at_ = 0;
  matrix.data = data_.data() + at_;
  // One scale byte for 16 bytes of MXFP4: the scales of a matrix lie as far into their memory.
  if (format == WeightFormat::kMxfp4) matrix.scales = scales_.data() + at_ / 16;
  if (format == WeightFormat::kInt8) {
    matrix.scales = reinterpret_cast<const std::byte*>(float_scales_.data());
  }
  at_ += (bytes + 63) / 64 * 64;
  return matrix;
}

std::unique_ptr<OperatorCase> MakeMatMulCase(Device& device, WeightArena& arena,
                                             WeightFormat format, int64_t rows, int64_t cols,
                                             int64_t n) {
  return std::make_unique<MatMulCase>(device, arena, format, rows, cols, n);
}

std::unique_ptr<OperatorCase> MakeExpertCase(Device& device, WeightArena& arena, int64_t n) {
  return std::make_unique<ExpertCase>(device, arena, n);
}

std::unique_ptr<OperatorCase> MakeKdaCase(Device& device, int64_t n) {
  return std::make_unique<KdaCase>(device, n);
}

std::unique_ptr<OperatorCase> MakeMlaCase(Device& device, CacheFormat format, int64_t context,
                                          int64_t n) {
  return std::make_unique<MlaCase>(device, format, context, n);
}

}  // namespace deltafin
