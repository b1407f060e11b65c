#include <algorithm>

#include "base/check.h"
#include "device/cpu/fast_device.h"

namespace deltafin {
namespace {

constexpr int64_t kHiddenRows = 1024;  // (expert, position) pairs whose hidden values are kept

// The `top_k` largest of scores[e] + bias[e], descending, the lower index first among equals.
void PickExperts(int32_t* ids, const float* scores, const float* bias, int64_t num_experts,
                 int64_t top_k) {
  const auto rank = [&](int32_t e) { return scores[e] + bias[e]; };
  int64_t kept = 0;
  for (int32_t e = 0; e < num_experts; ++e) {
    const float mine = rank(e);
    if (kept == top_k && !(mine > rank(ids[kept - 1]))) continue;
    int64_t at = kept < top_k ? kept++ : kept - 1;
    for (; at > 0 && mine > rank(ids[at - 1]); --at) ids[at] = ids[at - 1];
    ids[at] = e;
  }
}

MatMulJob JobOf(const Matrix& w, int64_t first_row, int64_t rows) {
  const int64_t scale_bytes = w.format == WeightFormat::kInt8 ? 4 : w.cols / kMxBlock;
  MatMulJob job;
  job.format = w.format;
  job.data = w.data + first_row * w.row_bytes();
  job.scales = w.scales == nullptr ? nullptr : w.scales + first_row * scale_bytes;
  job.rows = rows;
  job.cols = w.cols;
  return job;
}

}  // namespace

void FastDevice::RouterTopK(int32_t* host_ids, float* host_weights, const float* logits,
                            const float* host_bias, int64_t n, const RouterParams& params) {
  DF_CHECK(params.top_k >= 1 && params.top_k <= params.num_experts);
  const bool renormalize = params.renormalize && params.top_k > 1;
  float* const all_scores = states_.Reserve(n * params.num_experts);
  Parallel(n, 1, 4.0 * static_cast<double>(params.num_experts), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      float* const scores = all_scores + p * params.num_experts;
      int32_t* const ids = host_ids + p * params.top_k;
      float* const weights = host_weights + p * params.top_k;
      kernels_.sigmoid(scores, logits + p * params.num_experts, params.num_experts);
      PickExperts(ids, scores, host_bias, params.num_experts, params.top_k);
      float sum = 0.0f;
      for (int64_t i = 0; i < params.top_k; ++i) sum += scores[ids[i]];
      for (int64_t i = 0; i < params.top_k; ++i) {
        const float score = scores[ids[i]];
        const float weight = renormalize ? score / (sum + 1e-20f) : score;
        weights[i] = weight * params.scaling_factor;
      }
    }
  });
}

void FastDevice::GatherExpertInputs(std::span<const ExpertTask> tasks, const float* z,
                                    int64_t latent) {
  row_places_.clear();
  gathered_rows_.clear();
  expert_inputs_.clear();
  for (const ExpertTask& task : tasks) {
    for (int64_t i = 0; i < task.num_rows; ++i) {
      const auto row = static_cast<size_t>(task.in_rows[i]);
      if (row >= row_places_.size()) row_places_.resize(row + 1, -1);
      if (row_places_[row] < 0) {
        row_places_[row] = static_cast<int32_t>(gathered_rows_.size());
        gathered_rows_.push_back(task.in_rows[i]);
      }
      expert_inputs_.push_back(row_places_[row]);
    }
  }
  const WeightFormat format = tasks.front().weights.w1.format;
  const int64_t stride = PackedFloats(format, latent);
  const auto count = static_cast<int64_t>(gathered_rows_.size());
  float* const packed = packed_.Reserve(count * stride);
  Parallel(count, 1, 0.5 * static_cast<double>(latent), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* const src = z + gathered_rows_[static_cast<size_t>(i)] * latent;
      PackRow(format, packed + i * stride, src, 0, latent, latent);
    }
  });
}

void FastDevice::ExpertMlp(std::span<const ExpertTask> tasks, const float* z, float* y,
                           int64_t latent, SituParams params) {
  if (tasks.empty()) return;
  for (const ExpertTask& task : tasks) {
    const auto& [w1, w3, w2] = task.weights;
    DF_CHECK(w1.cols == latent && w3.cols == latent && w2.rows == latent);
    DF_CHECK(w1.rows == w2.cols && w3.rows == w2.cols);
    DF_CHECK((w1.format == WeightFormat::kMxfp4) == (w3.format == WeightFormat::kMxfp4));
    const WeightFormat first = tasks.front().weights.w1.format;
    DF_CHECK((w1.format == WeightFormat::kMxfp4) == (first == WeightFormat::kMxfp4));
  }
  GatherExpertInputs(tasks, z, latent);
  expert_pieces_.clear();
  int64_t hidden_rows = 0;
  size_t input = 0;
  for (const ExpertTask& task : tasks) {
    for (int64_t i = 0; i < task.num_rows; i += kPanelPositions) {
      const int64_t count = std::min(task.num_rows - i, kPanelPositions);
      if (hidden_rows + count > kHiddenRows) {
        RunExperts(y, latent, hidden_rows, params);
        expert_pieces_.clear();
        hidden_rows = 0;
      }
      expert_pieces_.push_back(
          {&task.weights, expert_inputs_.data() + input, task.out_rows + i, count, hidden_rows});
      input += static_cast<size_t>(count);
      hidden_rows += count;
    }
  }
  if (hidden_rows > 0) RunExperts(y, latent, hidden_rows, params);
}

void FastDevice::RunExperts(float* y, int64_t latent, int64_t hidden_rows, SituParams params) {
  int64_t hidden_floats = 0;
  for (const ExpertPiece& piece : expert_pieces_) {
    const Matrix& w2 = piece.weights->w2;
    hidden_floats = std::max(hidden_floats, PackedFloats(w2.format, w2.cols));
  }
  hidden_.Reserve(hidden_rows * hidden_floats);
  scratch_.Reserve(kMatMulScratch + kExpertScratch);

  const auto run = [&](auto rows_of, double matrices, const auto& one) {
    expert_units_.clear();
    int64_t positions = 0;
    int64_t cols = 0;
    for (const ExpertPiece& piece : expert_pieces_) {
      for (int64_t row = 0; row < rows_of(piece); row += kExpertRows) {
        expert_units_.push_back({&piece, row});
      }
      positions += piece.count;
      cols = std::max(cols, piece.weights->w1.cols);
    }
    const auto pieces = static_cast<double>(expert_pieces_.size());
    const double per_piece = 4.0 + static_cast<double>(positions) / pieces;
    const double ns = kernels_.fma_ns * matrices *
                      static_cast<double>(std::min(kExpertRows, rows_of(expert_pieces_[0]))) *
                      static_cast<double>(cols) * per_piece;
    Parallel(static_cast<int64_t>(expert_units_.size()), 1, ns, [&](int64_t begin, int64_t end) {
      const ThreadScratch::Lease scratch(scratch_);
      for (int64_t u = begin; u < end; ++u) {
        one(expert_units_[static_cast<size_t>(u)], scratch.data());
      }
    });
  };
  run([](const ExpertPiece& piece) { return piece.weights->w1.rows; }, 2.0,
      [&](const ExpertUnit& unit, float* scratch) {
        RunExpertHidden(unit, scratch, latent, params);
      });
  run([](const ExpertPiece& piece) { return piece.weights->w2.rows; }, 1.0,
      [&](const ExpertUnit& unit, float* scratch) { RunExpertOutput(unit, scratch, y, latent); });
}

// Hidden values [first_row, first_row + 128) of all positions of a piece, packed for w2.
void FastDevice::RunExpertHidden(const ExpertUnit& unit, float* scratch, int64_t latent,
                                 SituParams params) {
  const ExpertPiece& piece = *unit.piece;
  const Matrix& w1 = piece.weights->w1;
  const Matrix& w2 = piece.weights->w2;
  const int64_t rows = std::min(kExpertRows, w1.rows - unit.first_row);
  float* const gate = scratch + kMatMulScratch;
  float* const up = gate + kPanelPositions * kExpertRows;
  const auto multiply = [&](const Matrix& w, float* to) {
    MatMulJob job = JobOf(w, unit.first_row, rows);
    job.n = piece.count;
    job.x = {packed_.data(), PackedFloats(w.format, latent), piece.inputs};
    job.y = {to, kExpertRows, nullptr};
    kernels_.matmul(job, scratch);
  };
  multiply(w1, gate);
  multiply(piece.weights->w3, up);
  const int64_t hidden_floats = PackedFloats(w2.format, w2.cols);
  for (int64_t i = 0; i < piece.count; ++i) {
    float* const g = gate + i * kExpertRows;
    kernels_.situ(g, g, up + i * kExpertRows, rows, params.beta, params.linear_beta);
    PackRow(w2.format, hidden_.data() + (piece.first_hidden + i) * hidden_floats, g, unit.first_row,
            unit.first_row + rows, w2.cols);
  }
}

void FastDevice::RunExpertOutput(const ExpertUnit& unit, float* scratch, float* y, int64_t latent) {
  const ExpertPiece& piece = *unit.piece;
  const Matrix& w2 = piece.weights->w2;
  const int64_t hidden_floats = PackedFloats(w2.format, w2.cols);
  MatMulJob job = JobOf(w2, unit.first_row, std::min(kExpertRows, w2.rows - unit.first_row));
  job.n = piece.count;
  job.x = {hidden_.data() + piece.first_hidden * hidden_floats, hidden_floats, nullptr};
  job.y = {y + unit.first_row, latent, piece.outputs};
  kernels_.matmul(job, scratch);
}

void FastDevice::CombineExperts(float* out, const float* y, const float* host_weights, int64_t n,
                                int64_t top_k, int64_t dim) {
  Parallel(n, 1, 0.1 * static_cast<double>(dim * top_k), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      kernels_.combine(out + p * dim, y + p * top_k * dim, host_weights + p * top_k, top_k, dim);
    }
  });
}

}  // namespace deltafin
