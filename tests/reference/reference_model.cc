#include "reference/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace deltafin::reference {
namespace {

constexpr double kLowRankNormEps = 1e-6;  // section 0, trap 6
constexpr double kL2NormEps = 1e-6;       // section 3.2, step 3

// Appends values to the trace under "Lnn.name", or "name" outside the layers.
class Recorder {
 public:
  explicit Recorder(NamedTensors* trace) : trace_(trace) {}
  Recorder(NamedTensors* trace, int64_t layer) : trace_(trace) {
    char text[24];
    std::snprintf(text, sizeof(text), "L%02d.", static_cast<int>(layer));
    prefix_ = text;
  }

  void operator()(const char* name, const Vec& values) const {
    if (trace_ == nullptr) return;
    Vec& tensor = (*trace_)[prefix_ + name];
    tensor.insert(tensor.end(), values.begin(), values.end());
  }

 private:
  NamedTensors* trace_;
  std::string prefix_;
};

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }

// y = W x.
Vec MatVec(const Matrix& w, const Vec& x) {
  if (static_cast<int64_t>(x.size()) != w.cols) throw std::logic_error("MatVec: sizes differ");
  Vec y(w.rows);
  for (int64_t row = 0; row < w.rows; ++row) {
    const float* values = &w.values[row * w.cols];
    double sums[4] = {0, 0, 0, 0};  // four chains: twice as fast as one, the order is immaterial
    int64_t col = 0;
    for (; col + 4 <= w.cols; col += 4) {
      for (int i = 0; i < 4; ++i) sums[i] += static_cast<double>(values[col + i]) * x[col + i];
    }
    for (; col < w.cols; ++col) sums[0] += static_cast<double>(values[col]) * x[col];
    y[row] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
  return y;
}

double MeanSquare(const Vec& x) {
  return std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size());
}

// Section 3: RMS(x; w, eps).
Vec RmsNorm(const Vec& x, const Vec& weight, double eps) {
  const double scale = 1.0 / std::sqrt(MeanSquare(x) + eps);
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = weight[i] * x[i] * scale;
  return y;
}

void AddTo(Vec& sum, const Vec& x) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
}

Vec Softmax(const Vec& scores) {
  const double max = *std::max_element(scores.begin(), scores.end());
  Vec p(scores.size());
  for (size_t i = 0; i < p.size(); ++i) p[i] = std::exp(scores[i] - max);
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}

struct Mix {
  Vec out;
  Vec probs;
};

// Section 3.1, AttnRes: a softmax over the snapshots and the prefix sum. Scores see the normed
// values, the mixture the raw ones.
Mix AttnRes(const std::vector<Vec>& blocks, const Vec& prefix, const Vec& norm, const Vec& proj,
            double eps) {
  std::vector<const Vec*> sources;
  for (const Vec& block : blocks) sources.push_back(&block);
  sources.push_back(&prefix);
  Vec scores;
  for (const Vec* source : sources) {
    const Vec key = RmsNorm(*source, norm, eps);
    scores.push_back(std::inner_product(key.begin(), key.end(), proj.begin(), 0.0));
  }
  Mix mix{Vec(prefix.size(), 0.0), Softmax(scores)};
  for (size_t i = 0; i < sources.size(); ++i) {
    for (size_t d = 0; d < prefix.size(); ++d) mix.out[d] += mix.probs[i] * (*sources[i])[d];
  }
  return mix;
}

// Section 3.2, step 2: causal depthwise convolution and SiLU. `history` holds the kernel - 1 steps
// before this one and moves on by one.
Vec ShortConv(const Vec& x, const Vec& weight, int64_t kernel, std::vector<Vec>& history) {
  history.push_back(x);
  Vec y(x.size(), 0.0);
  for (size_t c = 0; c < x.size(); ++c) {
    for (int64_t j = 0; j < kernel; ++j) y[c] += weight[c * kernel + j] * history[j][c];
    y[c] = Silu(y[c]);
  }
  history.erase(history.begin());
  return y;
}

// Section 3.2, step 3: per head, the sum of squares (not the mean), eps inside the root.
void L2NormalizeHeads(Vec& x, int64_t head_dim) {
  for (size_t begin = 0; begin < x.size(); begin += head_dim) {
    double sum = 0;
    for (int64_t d = 0; d < head_dim; ++d) sum += x[begin + d] * x[begin + d];
    const double scale = 1.0 / std::sqrt(sum + kL2NormEps);
    for (int64_t d = 0; d < head_dim; ++d) x[begin + d] *= scale;
  }
}

// Section 3.2, step 4: the logarithm of the decay. A_log is per head; no clamp, no softplus.
Vec KdaLogDecay(const Vec& f, const KdaWeights& w, const Config& c) {
  Vec g(f.size());
  for (int64_t head = 0; head < c.kda_heads; ++head) {
    for (int64_t d = 0; d < c.kda_head_dim; ++d) {
      const int64_t i = head * c.kda_head_dim + d;
      g[i] = c.gate_lower_bound * Sigmoid(std::exp(w.a_log[head]) * (f[i] + w.dt_bias[i]));
    }
  }
  return g;
}

// Section 3.2, step 6, for one head: S is [dim, dim] by key, value.
void KdaRecurrence(double* s, const double* q, const double* k, const double* v, const double* g,
                   double beta, int64_t dim, double* o) {
  for (int64_t i = 0; i < dim; ++i) {
    const double alpha = std::exp(g[i]);
    for (int64_t j = 0; j < dim; ++j) s[i * dim + j] *= alpha;  // along the key
  }
  for (int64_t j = 0; j < dim; ++j) {
    double read = 0;  // with the decayed state
    for (int64_t i = 0; i < dim; ++i) read += k[i] * s[i * dim + j];
    for (int64_t i = 0; i < dim; ++i) s[i * dim + j] += beta * k[i] * (v[j] - read);
    o[j] = 0;  // read after the update
    for (int64_t i = 0; i < dim; ++i) o[j] += q[i] * s[i * dim + j];
  }
}

// Section 3.2.
Vec Kda(const Vec& x, const KdaWeights& w, const Config& c, KdaState& state,
        const Recorder& record) {
  const int64_t dim = c.kda_head_dim;
  Vec q = ShortConv(MatVec(w.q_proj, x), w.q_conv, c.conv_kernel, state.q_history);
  Vec k = ShortConv(MatVec(w.k_proj, x), w.k_conv, c.conv_kernel, state.k_history);
  const Vec v = ShortConv(MatVec(w.v_proj, x), w.v_conv, c.conv_kernel, state.v_history);
  L2NormalizeHeads(q, dim);
  L2NormalizeHeads(k, dim);
  record("kda_q", q);
  record("kda_k", k);
  record("kda_v", v);
  for (double& value : q) value /= std::sqrt(static_cast<double>(dim));

  const Vec g = KdaLogDecay(MatVec(w.f_b_proj, MatVec(w.f_a_proj, x)), w, c);
  Vec beta = MatVec(w.b_proj, x);
  for (double& value : beta) value = Sigmoid(value);
  record("kda_g", g);
  record("kda_beta", beta);

  const Vec gate = MatVec(w.g_proj, x);
  Vec out(q.size());
  for (int64_t head = 0; head < c.kda_heads; ++head) {
    const int64_t at = head * dim;
    Vec o(dim);
    KdaRecurrence(&state.state[at * dim], &q[at], &k[at], &v[at], &g[at], beta[head], dim,
                  o.data());
    o = RmsNorm(o, w.o_norm, c.rms_norm_eps);  // step 7: the norm first, then the gate
    for (int64_t d = 0; d < dim; ++d) out[at + d] = o[d] * Sigmoid(gate[at + d]);
  }
  return MatVec(w.o_proj, out);
}

// Section 3.3, the textbook form: keys and values of every token are expanded and kept. No
// positions; the "rope" part is used as it is.
Vec Mla(const Vec& x, const MlaWeights& w, const Config& c, MlaState& cache,
        const Recorder& record) {
  const int64_t nope = c.qk_nope_head_dim;
  const int64_t rope = c.qk_rope_head_dim;
  const int64_t v_dim = c.v_head_dim;
  const Vec q = MatVec(w.q_b_proj, RmsNorm(MatVec(w.q_a_proj, x), w.q_a_norm, kLowRankNormEps));
  const Vec compressed = MatVec(w.kv_a_proj, x);
  const auto split = compressed.begin() + c.kv_lora_rank;
  const Vec latent = RmsNorm(Vec(compressed.begin(), split), w.kv_a_norm, kLowRankNormEps);
  const Vec k_pe(split, compressed.end());  // shared by all heads, not normed
  record("mla_latent", latent);
  record("mla_krope", k_pe);

  const Vec kv = MatVec(w.kv_b_proj, latent);
  Vec k_nope, v;
  for (int64_t head = 0; head < c.mla_heads; ++head) {
    const auto begin = kv.begin() + head * (nope + v_dim);
    k_nope.insert(k_nope.end(), begin, begin + nope);
    v.insert(v.end(), begin + nope, begin + nope + v_dim);
  }
  cache.k_nope.push_back(k_nope);
  cache.k_pe.push_back(k_pe);
  cache.v.push_back(v);

  const Vec gate = MatVec(w.g_proj, x);
  const double scale = 1.0 / std::sqrt(static_cast<double>(nope + rope));
  Vec out(c.mla_heads * v_dim, 0.0);
  for (int64_t head = 0; head < c.mla_heads; ++head) {
    const double* q_nope = &q[head * (nope + rope)];
    const double* q_pe = q_nope + nope;
    Vec scores;
    for (size_t pos = 0; pos < cache.v.size(); ++pos) {
      const double* key = &cache.k_nope[pos][head * nope];
      const double dot = std::inner_product(q_nope, q_nope + nope, key, 0.0) +
                         std::inner_product(q_pe, q_pe + rope, cache.k_pe[pos].begin(), 0.0);
      scores.push_back(dot * scale);
    }
    const Vec p = Softmax(scores);
    for (size_t pos = 0; pos < p.size(); ++pos) {
      for (int64_t d = 0; d < v_dim; ++d) {
        out[head * v_dim + d] += p[pos] * cache.v[pos][head * v_dim + d];
      }
    }
  }
  for (size_t i = 0; i < out.size(); ++i) out[i] *= Sigmoid(gate[i]);  // no norm here
  return MatVec(w.o_proj, out);
}

// Section 3.4, SiTU-GLU; without a linear beta `up` passes as it is (section 10).
double Situ(double gate, double up, const Config& c) {
  const double g = c.situ_beta * std::tanh(gate / c.situ_beta) * Sigmoid(gate);
  if (!c.situ_linear_beta) return g * up;
  return g * *c.situ_linear_beta * std::tanh(up / *c.situ_linear_beta);
}

Vec RunMlp(const Vec& x, const Mlp& w, const Config& c) {
  const Vec gate = MatVec(w.gate, x);
  const Vec up = MatVec(w.up, x);
  Vec inner(gate.size());
  for (size_t i = 0; i < inner.size(); ++i) inner[i] = Situ(gate[i], up[i], c);
  return MatVec(w.down, inner);
}

// Section 3.4: the bias takes part in the selection only.
Routing Route(const Vec& x, const MoeWeights& w, const Config& c) {
  Vec scores = MatVec(w.gate, x);
  for (double& value : scores) value = Sigmoid(value);
  Vec biased = scores;
  AddTo(biased, w.score_bias);
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return biased[a] > biased[b]; });

  const int64_t k = c.experts_per_token;
  Routing routing;
  routing.experts.assign(order.begin(), order.begin() + k);
  routing.margin = k == c.num_experts ? std::numeric_limits<double>::infinity()
                                      : biased[order[k - 1]] - biased[order[k]];
  double sum = 0;
  for (const int expert : routing.experts) sum += scores[expert];
  const double divisor = c.moe_renormalize && k > 1 ? sum + 1e-20 : 1.0;
  for (const int expert : routing.experts) {
    routing.weights.push_back(scores[expert] / divisor * c.routed_scaling_factor);
  }
  return routing;
}

// Section 3.4: experts work in the latent space; the norm comes after their weighted sum.
Vec Moe(const Vec& x, const MoeWeights& w, const Config& c, Routing& routing,
        const Recorder& record) {
  routing = Route(x, w, c);
  const Vec latent = MatVec(w.latent_down, x);
  record("moe_latent", latent);
  Vec sum(latent.size(), 0.0);
  for (size_t i = 0; i < routing.experts.size(); ++i) {
    const Vec y = RunMlp(latent, w.experts[routing.experts[i]], c);
    for (size_t d = 0; d < sum.size(); ++d) sum[d] += routing.weights[i] * y[d];
  }
  record("moe_agg", sum);
  Vec out = MatVec(w.latent_up, RmsNorm(sum, w.latent_norm, c.rms_norm_eps));
  AddTo(out, RunMlp(x, w.shared, c));
  return out;
}

}  // namespace

double StepResult::MinRouterMargin() const {
  double margin = std::numeric_limits<double>::infinity();
  for (const Routing& r : routing) {
    if (!r.experts.empty()) margin = std::min(margin, r.margin);
  }
  return margin;
}

Session::Session(const Weights& weights)
    : weights_(weights), kda_(weights.layers.size()), mla_(weights.layers.size()) {
  const Config& c = weights.config;
  const size_t width = c.kda_heads * c.kda_head_dim;
  for (KdaState& state : kda_) {
    const std::vector<Vec> zeros(c.conv_kernel - 1, Vec(width, 0.0));  // nothing before the start
    state.q_history = state.k_history = state.v_history = zeros;
    state.state.assign(width * c.kda_head_dim, 0.0);
  }
}

// Section 3.1.
StepResult Session::Step(TokenId token, NamedTensors* trace) {
  const Config& c = weights_.config;
  const double eps = c.rms_norm_eps;
  if (token < 0 || token >= c.vocab_size) throw std::out_of_range("token id");
  StepResult result;
  result.routing.resize(c.num_layers);

  const float* row = &weights_.embed_tokens.values[token * c.hidden_size];
  Vec prefix(row, row + c.hidden_size);
  std::vector<Vec> blocks;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const LayerWeights& w = weights_.layers[layer];
    const Recorder record(trace, layer);

    Vec attn_in = prefix;
    if (!blocks.empty()) {  // the mix comes before this layer's own snapshot
      Mix mix = AttnRes(blocks, prefix, w.attn_res_norm, w.attn_res_proj, eps);
      record("attn_res_probs", mix.probs);
      attn_in = std::move(mix.out);
    }
    record("attn_in", attn_in);
    const Vec x = RmsNorm(attn_in, w.input_norm, eps);
    record("attn_normed", x);
    const Vec attn_out =
        w.mla ? Mla(x, *w.mla, c, mla_[layer], record) : Kda(x, *w.kda, c, kda_[layer], record);
    record("attn_out", attn_out);
    if (layer % c.attn_res_block_size == 0) {  // trap 4: snapshot the raw sum, then restart it
      blocks.push_back(prefix);
      prefix = attn_out;
    } else {
      AddTo(prefix, attn_out);
    }

    const Mix mix = AttnRes(blocks, prefix, w.mlp_res_norm, w.mlp_res_proj, eps);
    record("mlp_res_probs", mix.probs);
    record("mlp_in", mix.out);
    const Vec y = RmsNorm(mix.out, w.post_attention_norm, eps);
    record("mlp_normed", y);
    const Vec mlp_out =
        w.moe ? Moe(y, *w.moe, c, result.routing[layer], record) : RunMlp(y, *w.dense, c);
    record("mlp_out", mlp_out);
    AddTo(prefix, mlp_out);
    record("hidden", prefix);
  }
  const Recorder record(trace);
  const Mix mix = AttnRes(blocks, prefix, weights_.output_res_norm, weights_.output_res_proj, eps);
  record("out_res", mix.out);
  record("out_res_probs", mix.probs);
  const Vec normed = RmsNorm(mix.out, weights_.final_norm, eps);
  record("final_norm", normed);
  result.logits = MatVec(weights_.lm_head, normed);
  return result;
}

Vec Session::conv_state(int64_t layer) const {
  Vec values;
  const KdaState& state = kda_[layer];
  for (const auto* history : {&state.q_history, &state.k_history, &state.v_history}) {
    for (size_t channel = 0; channel < history->front().size(); ++channel) {
      for (const Vec& step : *history) values.push_back(step[channel]);
    }
  }
  return values;
}

std::vector<StepResult> RunTokens(const Weights& weights, std::span<const TokenId> tokens,
                                  NamedTensors* trace) {
  Session session(weights);
  std::vector<StepResult> results;
  for (const TokenId token : tokens) results.push_back(session.Step(token, trace));
  return results;
}

GreedyResult Greedy(const Weights& weights, std::span<const TokenId> prompt, int64_t count) {
  Session session(weights);
  GreedyResult result;
  Vec logits;
  double router_margin = std::numeric_limits<double>::infinity();
  const auto append = [&](TokenId token) {
    StepResult step = session.Step(token);
    router_margin = std::min(router_margin, step.MinRouterMargin());
    logits = std::move(step.logits);
  };
  for (const TokenId token : prompt) append(token);
  for (int64_t i = 0; i < count; ++i) {
    const auto best = std::max_element(logits.begin(), logits.end());
    const auto id = static_cast<TokenId>(best - logits.begin());
    double second = -std::numeric_limits<double>::infinity();
    for (TokenId other = 0; other < static_cast<TokenId>(logits.size()); ++other) {
      if (other != id) second = std::max(second, logits[other]);
    }
    result.ids.push_back(id);
    result.margins.push_back(*best - second);
    result.router_margins.push_back(router_margin);
    result.logits.push_back(logits);
    if (i + 1 < count) append(id);
  }
  return result;
}

}  // namespace deltafin::reference
