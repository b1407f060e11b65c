#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "deltafin/error.h"
#include "model/pass.h"

namespace deltafin {

Model::Model(const ModelConfig& config, SpineStore& spine, ExpertStore& experts, Device& device,
             PhaseClock* clock)
    : config_(config),
      spine_(spine),
      experts_(experts),
      device_(device),
      clock_(clock),
      workspace_(device) {}

void Model::Forward(std::span<const Run> runs, const LogitsSink& sink, const ForwardHooks& hooks) {
  const PhaseScope phase(clock_, Phase::kOther);
  Pass pass;
  pass.runs.assign(runs.begin(), runs.end());
  pass.hooks = &hooks;
  int64_t logits_rows = 0;
  std::vector<TokenId> tokens;
  for (const Run& run : runs) {
    DF_CHECK(!run.tokens.empty());
    for (int64_t last = run.state->num_tokens(); const StateCapture* capture : run.captures) {
      DF_CHECK(capture->num_tokens() > last);
      last = capture->num_tokens();
      DF_CHECK(last < run.state->num_tokens() + std::ssize(run.tokens));
    }
    pass.index.push_back(pass.index.size());
    pass.first_row.push_back(pass.n);
    pass.n += static_cast<int64_t>(run.tokens.size());
    tokens.insert(tokens.end(), run.tokens.begin(), run.tokens.end());
    run.state->Reserve(run.state->num_tokens() + static_cast<int64_t>(run.tokens.size()));
    if (run.rollback) run.rollback->Begin(*run.state, static_cast<int64_t>(run.tokens.size()));
    if (run.logits == LogitsWanted::kAll) logits_rows += static_cast<int64_t>(run.tokens.size());
    if (run.logits == LogitsWanted::kLast) ++logits_rows;
  }
  const int64_t hidden = config_.hidden_size;
  workspace_.Reserve(
      static_cast<int64_t>(WorkspaceBytes(config_, pass.n, logits_rows) / sizeof(float)));
  Workspace::Frame frame(workspace_);
  pass.prefix = frame.Take(pass.n * hidden);
  pass.snapshots = frame.Take(config_.num_snapshots() * pass.n * hidden);

  std::vector<float> embedded(static_cast<size_t>(pass.n * hidden));
  spine_.ReadEmbeddings(tokens, embedded.data());  // [n, hidden]
  device_.ToDevice(pass.prefix, embedded.data(), embedded.size() * sizeof(float));

  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    if (hooks.cancelled && hooks.cancelled()) {
      throw Error(ErrorCode::kCancelled, "stopped on request");
    }
    if (hooks.on_layer) hooks.on_layer(layer);
    DropLeavingRuns(pass);
    DecoderLayer(pass, layer);
  }
  if (!pass.failed.empty()) DropLeavingRuns(pass);
  if (logits_rows > 0) Head(pass, sink);
  for (const Run& run : pass.runs) run.state->Advance(static_cast<int64_t>(run.tokens.size()));
  if (clock_ != nullptr) clock_->CountPass(pass.n);
}

// The rows of those that stay close up, so that nothing is computed or read for the others any
// more.
void Model::DropLeavingRuns(Pass& pass) {
  if (!pass.hooks->leaves && pass.failed.empty()) return;
  std::vector<size_t> staying;
  for (size_t r = 0; r < pass.runs.size(); ++r) {
    if (std::binary_search(pass.failed.begin(), pass.failed.end(), r)) continue;
    if (!pass.hooks->leaves || !pass.hooks->leaves(pass.index[r])) staying.push_back(r);
  }
  pass.failed.clear();
  if (staying.size() == pass.runs.size()) return;
  if (staying.empty()) throw Error(ErrorCode::kCancelled, "stopped on request");

  Pass rest;
  std::vector<int64_t> rows;  // of the old pass, ascending
  for (size_t r : staying) {
    rest.runs.push_back(pass.runs[r]);
    rest.index.push_back(pass.index[r]);
    rest.first_row.push_back(static_cast<int64_t>(rows.size()));
    for (int64_t i = 0; i < std::ssize(pass.runs[r].tokens); ++i) {
      rows.push_back(pass.first_row[r] + i);
    }
  }
  // Row by row from the front: each moves towards the front, over rows that have moved already.
  const int64_t hidden = config_.hidden_size;
  const int64_t n = std::ssize(rows);
  const auto close_up = [&](float* to, const float* from) {
    for (int64_t i = 0; i < n; ++i) {
      if (to + i * hidden == from + rows[i] * hidden) continue;
      device_.Copy(to + i * hidden, from + rows[i] * hidden,
                   static_cast<size_t>(hidden) * sizeof(float));
    }
  };
  close_up(pass.prefix, pass.prefix);
  for (int64_t i = 0; i < pass.num_snapshots; ++i) {
    close_up(pass.snapshots + i * n * hidden, pass.snapshots + i * pass.n * hidden);
  }
  pass.runs = std::move(rest.runs);
  pass.index = std::move(rest.index);
  pass.first_row = std::move(rest.first_row);
  pass.n = n;
}

void Model::DecoderLayer(Pass& pass, int64_t layer) {
  const int64_t n = pass.n;
  const int64_t hidden = config_.hidden_size;
  const int64_t stride = n * hidden;
  const float eps = config_.rms_norm_eps;
  const std::unique_ptr<SpineLease> spine = spine_.Acquire(layer);

  Workspace::Frame frame(workspace_);
  float* mixed = frame.Take(n * hidden);
  float* normed = frame.Take(n * hidden);
  float* out = frame.Take(n * hidden);

  // The first layer has no snapshot to mix with: it sees the embedding.
  const float* attn_in = pass.prefix;  // [n, hidden]
  if (pass.num_snapshots > 0) {
    device_.ResidualMix(mixed, pass.snapshots, stride, pass.num_snapshots, pass.prefix,
                        spine->Vector(SpineVector::kAttnResQuery), n, hidden, eps);
    attn_in = mixed;
  }
  Observe(pass, layer, TracePoint::kAttnIn, attn_in, n);
  device_.RmsNorm(normed, attn_in, spine->Vector(SpineVector::kInputNorm), n, hidden, hidden, eps);

  // At a block boundary the raw prefix sum is kept, not the mix, and the sum starts again from this
  // layer's attention output alone (spec 0, trap 4; the official oracle notices).
  const bool starts_block = layer % config_.attn_res_block_size == 0;
  if (starts_block) {
    device_.Copy(pass.snapshots + pass.num_snapshots * stride, pass.prefix,
                 static_cast<size_t>(stride) * sizeof(float));
    ++pass.num_snapshots;
  }
  if (config_.is_mla[layer]) {
    MlaBlock(pass, layer, *spine, normed, out);
    ReadCacheAhead(pass, layer);
  } else {
    KdaBlock(pass, layer, *spine, normed, out);
  }
  Observe(pass, layer, TracePoint::kAttnOut, out, n);
  if (starts_block) {
    device_.Copy(pass.prefix, out, static_cast<size_t>(stride) * sizeof(float));
  } else {
    device_.Add(pass.prefix, out, stride);
  }

  device_.ResidualMix(mixed, pass.snapshots, stride, pass.num_snapshots, pass.prefix,
                      spine->Vector(SpineVector::kMlpResQuery), n, hidden, eps);
  Observe(pass, layer, TracePoint::kMlpIn, mixed, n);
  device_.RmsNorm(normed, mixed, spine->Vector(SpineVector::kPostAttentionNorm), n, hidden, hidden,
                  eps);
  if (config_.IsMoe(layer)) {
    MoeBlock(pass, layer, *spine, normed, out);
  } else {
    DenseBlock(pass, *spine, normed, out);
  }
  Observe(pass, layer, TracePoint::kMlpOut, out, n);
  device_.Add(pass.prefix, out, stride);
  HintNextExperts(pass, layer);
  Observe(pass, layer, TracePoint::kHidden, pass.prefix, n);
}

// Called after the attention of an MLA layer: what the next one needs of a latent cache in a file
// comes while the layers between compute. After the last MLA layer that is the first one of the
// next pass, which probably goes on with the same sequence.
void Model::ReadCacheAhead(const Pass& pass, int64_t layer) {
  if (!pass.failed.empty()) return;  // its state is undefined
  int64_t next = layer;
  do {
    next = (next + 1) % config_.num_layers;
  } while (!config_.is_mla[next]);
  const Run& run = pass.runs.front();
  const int64_t added = next <= layer ? std::ssize(run.tokens) : 0;
  run.state->ReadAhead(next, run.state->num_tokens() + added);
}

// Final residual mix, norm and head, for the positions that asked for logits.
void Model::Head(Pass& pass, const LogitsSink& sink) {
  const int64_t hidden = config_.hidden_size;
  const int64_t vocab = config_.vocab_size;
  const PhaseScope phase(clock_, Phase::kHead);
  const std::unique_ptr<SpineLease> spine = spine_.Acquire(config_.num_layers);

  struct Wanted {
    size_t run;
    int64_t position;
    int64_t row;  // in the pass
  };
  std::vector<Wanted> wanted;
  for (size_t r = 0; r < pass.runs.size(); ++r) {
    const int64_t count = static_cast<int64_t>(pass.runs[r].tokens.size());
    if (pass.runs[r].logits == LogitsWanted::kNone) continue;
    const int64_t first = pass.runs[r].logits == LogitsWanted::kAll ? 0 : count - 1;
    for (int64_t p = first; p < count; ++p) wanted.push_back({r, p, pass.first_row[r] + p});
  }
  const int64_t rows = static_cast<int64_t>(wanted.size());
  if (rows == 0) return;  // those that wanted any have left

  Workspace::Frame frame(workspace_);
  float* mixed = frame.Take(rows * hidden);
  float* normed = frame.Take(rows * hidden);
  float* logits = frame.Take(rows * vocab);
  for (int64_t i = 0; i < rows;) {
    int64_t end = i + 1;  // wanted rows that lie side by side in the pass go together
    while (end < rows && wanted[end].row == wanted[end - 1].row + 1) ++end;
    const int64_t offset = wanted[i].row * hidden;
    device_.ResidualMix(mixed + i * hidden, pass.snapshots + offset, pass.n * hidden,
                        pass.num_snapshots, pass.prefix + offset,
                        spine->Vector(SpineVector::kOutputResQuery), end - i, hidden,
                        config_.rms_norm_eps);
    i = end;
  }
  Observe(pass, config_.num_layers, TracePoint::kFinalMix, mixed, rows);
  device_.RmsNorm(normed, mixed, spine->Vector(SpineVector::kFinalNorm), rows, hidden, hidden,
                  config_.rms_norm_eps);
  Observe(pass, config_.num_layers, TracePoint::kFinalNorm, normed, rows);
  Linear(*spine, SpineMatrix::kLmHead, normed, logits, vocab, rows);  // [rows, vocab]

  std::vector<float> host(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < rows; ++i) {
    device_.ToHost(host.data(), logits + i * vocab, host.size() * sizeof(float));
    for (float logit : host) {
      if (std::isfinite(logit)) continue;
      throw Error(
          ErrorCode::kCorrupt,
          format("a logit of position {} is {}: the weights are damaged (deltafin verify) or "
                 "this is not a Kimi K3 checkpoint",
                 pass.runs[wanted[i].run].state->num_tokens() + wanted[i].position, logit));
    }
    sink(pass.index[wanted[i].run], wanted[i].position, host);
  }
}

void Model::Linear(SpineLease& spine, SpineMatrix id, const float* x, float* y, int64_t height,
                   int64_t n, const std::function<bool()>& meanwhile) {
  spine.ForEachPiece(
      id,
      [&](int64_t first_row, const Matrix& rows) {
        device_.MatMul(rows, x, y + first_row, height, n);
      },
      meanwhile);
}

void Model::Observe(const Pass& pass, int64_t layer, TracePoint point, const float* values,
                    int64_t rows) {
  if (pass.hooks->trace == nullptr || !pass.hooks->trace->WantsActivations()) return;
  std::vector<float> host(static_cast<size_t>(rows * config_.hidden_size));
  device_.ToHost(host.data(), values, host.size() * sizeof(float));
  pass.hooks->trace->OnActivations(layer, point, host, config_.hidden_size);
}

uint64_t Model::WorkspaceBytes(const ModelConfig& config, int64_t positions, int64_t logits_rows) {
  const auto array = [](int64_t floats) { return Workspace::Rounded(floats); };
  const int64_t n = positions;
  const int64_t hidden = array(n * config.hidden_size);
  const int64_t kda = 8 * array(n * config.kda_width()) + array(n * config.kda_head_dim) +
                      array(n * config.kda_heads);
  const int64_t latent_dim = config.kv_lora_rank + config.qk_rope_head_dim;
  const int64_t query_dim = config.qk_nope_head_dim + config.qk_rope_head_dim;
  const int64_t mla = array(n * config.q_lora_rank) + array(n * config.mla_heads * query_dim) +
                      array(n * latent_dim) + array(n * config.mla_heads * latent_dim) +
                      array(n * config.mla_heads * config.kv_lora_rank) +
                      2 * array(n * config.mla_heads * config.v_head_dim);
  const int64_t dense = 2 * array(n * config.dense_intermediate_size);
  const int64_t moe = array(n * config.num_experts) + 2 * array(n * config.latent_size) +
                      array(n * config.experts_per_token * config.latent_size) +
                      2 * array(n * config.shared_width()) + hidden;
  const int64_t hint = hidden + array(n * config.num_experts);
  const int64_t layer = 3 * hidden + std::max({kda, mla, dense, moe, hint});
  const int64_t head =
      2 * array(logits_rows * config.hidden_size) + array(logits_rows * config.vocab_size);
  const int64_t carried = hidden + array(config.num_snapshots() * n * config.hidden_size);
  return static_cast<uint64_t>(carried + std::max(layer, head)) * sizeof(float);
}

}  // namespace deltafin
