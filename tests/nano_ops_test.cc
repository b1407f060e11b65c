// The 27 operation fixtures of tests/data/nano: float64 results of independent code, odd sizes.
//
// Tolerance: inputs and weights are stored as float64 and rounded to float32 here (6e-8 each), and
// sums of up to 256 terms are rounded at every step. kTight is eight roundings in one direction,
// for one operator (largest error found: 1.9e-7); kModule allows for a chain of about ten operators
// (5.8e-7). Both are relative to the largest value of the tensor, because a sum that cancels is not
// more exact than its terms.
#include <cmath>
#include <set>

#include "cpu_devices.h"
#include "deltafin/json.h"
#include "io/file.h"
#include "modules.h"
#include "shared_data.h"
#include "tensors.h"

namespace deltafin {
namespace {

constexpr double kTight = 5e-7;
constexpr double kModule = 2e-6;

Tensors Case(const std::string& name) {
  return Tensors::FromSafetensors(DataPath("nano/ops.safetensors"), name);
}

void ExpectClose(const Floats& got, const Tensor& expected, const std::string& what,
                 double tolerance = kTight) {
  double largest = 0;
  for (double value : expected.data) largest = std::max(largest, std::fabs(value));
  double worst = 0;
  for (size_t i = 0; i < std::min(got.size(), expected.data.size()); ++i) {
    worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - expected.data[i]) / largest);
  }
  std::printf("  %-28s largest error %.1e\n", what.c_str(), worst);
  ExpectNear(got, expected, {tolerance * largest, 0}, what);
}

// [channels, 3] as files have it -> [3, channels] as the device wants it, or back.
Floats Transposed(const Floats& x, int64_t rows) {
  const auto cols = static_cast<int64_t>(x.size()) / rows;
  Floats y(x.size());
  for (int64_t i = 0; i < rows * cols; ++i) {
    y[static_cast<size_t>(i % cols * rows + i / cols)] = x[static_cast<size_t>(i)];
  }
  return y;
}

// All weights of an MXFP4 matrix, seen through products with unit vectors.
Floats Dequantised(Device& device, const OwnedMatrix& w) {
  const int64_t cols = w.view.cols;
  Floats unit(static_cast<size_t>(cols * cols));
  for (int64_t i = 0; i < cols; ++i) unit[static_cast<size_t>(i * cols + i)] = 1.0f;
  return Transposed(MatMul(device, w, unit), cols);
}

using NanoOpsTest = OnEveryCpuIsa;

TEST_P(NanoOpsTest, EveryFixtureHasATest) {
  const std::set<std::string> tested = {
      "rmsnorm0",  "rmsnorm1",      "rmsnorm2",       "l2norm",        "situ_k3",   "situ_other",
      "mxfp4",     "mxfp4_matmul",  "mxfp4_quant",    "conv0",         "conv1",     "conv2",
      "kda_gate",  "kda_step",      "kda_seq_zero",   "attnres1",      "attnres2",  "attnres5",
      "attnres9",  "router",        "router_ties",    "router_scaled", "kda_layer", "mla_layer",
      "moe_layer", "kda_seq_state", "kda_seq_extreme"};
  std::set<std::string> listed;
  const std::string path = DataPath("nano/ops.json");
  const Json document = ParseJson(ReadWholeFile(RealFileSystem(), path, 1 << 20), path);
  for (const auto& [name, value] : document.items()) listed.insert(name);
  EXPECT_EQ(listed, tested);
}

TEST_P(NanoOpsTest, RmsNorm) {
  for (const auto& [name, eps] :
       {std::pair{"rmsnorm0", 1e-5f}, {"rmsnorm1", 1e-6f}, {"rmsnorm2", 1e-5f}}) {
    const Tensors t = Case(name);
    ExpectClose(RmsNorm(device_, t["x"].floats(), t["w"].floats(), eps), t["out"], name);
  }
}

TEST_P(NanoOpsTest, L2Norm) {
  const Tensors t = Case("l2norm");
  const DeviceFloats x(device_, t["x"].floats());
  device_.L2Normalize(x.data(), t["x"].dim(0), t["x"].dim(1), 1.0f);
  ExpectClose(x.Read(), t["out"], "l2norm");
}

TEST_P(NanoOpsTest, Situ) {
  for (const auto& [name, params] :
       {std::pair{"situ_k3", SituParams{4, 25}}, {"situ_other", SituParams{2.5f, 11}}}) {
    const Tensors t = Case(name);
    const DeviceFloats gate(device_, t["gate"].floats()), up(device_, t["up"].floats());
    device_.SituGlu(gate.data(), gate.data(), up.data(), t["gate"].size(), params);
    ExpectClose(gate.Read(), t["out"], name);
  }
}

TEST_P(NanoOpsTest, Mxfp4IsExact) {
  const Tensors t = Case("mxfp4");
  EXPECT_EQ(Dequantised(device_, t.MatrixMxfp4("packed", "scale")), t["w"].floats());
}

TEST_P(NanoOpsTest, Mxfp4MatMul) {
  const Tensors t = Case("mxfp4_matmul");
  ExpectClose(MatMul(device_, t.MatrixMxfp4("packed", "scale"), t["x"].floats()), t["y"],
              "mxfp4_matmul");
}

// The quantiser rounds to the nearest code: half of the widest gap, 2 scales between 4 and 6.
TEST_P(NanoOpsTest, Mxfp4IsNearestToWhatWasQuantised) {
  const Tensors t = Case("mxfp4_quant");
  const Floats w = Dequantised(device_, t.MatrixMxfp4("packed", "scale"));
  ASSERT_EQ(w.size(), t["w"].data.size());
  for (size_t i = 0; i < w.size(); ++i) {
    const double scale = std::exp2(t["scale"].data[i / 32] - 127);
    EXPECT_LE(std::fabs(static_cast<double>(w[i]) - t["w"].data[i]), scale) << i;
  }
}

TEST_P(NanoOpsTest, ShortConv) {
  for (const char* name : {"conv0", "conv1", "conv2"}) {
    const Tensors t = Case(name);
    const int64_t n = t["x"].dim(0), channels = t["x"].dim(1);
    const Floats w = t["w"].floats();
    const DeviceFloats x(device_, t["x"].floats()), y(device_, n * channels);
    const DeviceFloats history(device_, Transposed(t["state_in"].floats(), channels));
    device_.ShortConv(y.data(), x.data(), w.data(), history.data(), n, channels);
    ExpectClose(y.Read(), t["out"], name);
    EXPECT_EQ(Transposed(history.Read(), 3), t["state_out"].floats());
  }
}

TEST_P(NanoOpsTest, KdaGate) {
  const Tensors t = Case("kda_gate");
  const int64_t n = t["z"].dim(0), heads = t["z"].dim(1), dim = t["z"].dim(2);
  const Floats a_log = t["A_log"].floats(), dt_bias = t["dt_bias"].floats();
  const DeviceFloats f(device_, t["z"].floats());
  const DeviceFloats beta(device_, Floats(static_cast<size_t>(n * heads)));
  device_.KdaGates(f.data(), beta.data(), a_log.data(), dt_bias.data(), n, heads, dim, -5.0f);
  ExpectClose(f.Read(), t["alpha"], "kda_gate");
  EXPECT_EQ(beta.Read(), Floats(static_cast<size_t>(n * heads), 0.5f));
}

TEST_P(NanoOpsTest, KdaRecurrence) {
  for (const char* name : {"kda_step", "kda_seq_zero", "kda_seq_state", "kda_seq_extreme"}) {
    const Tensors t = Case(name);
    const int64_t n = t["q"].dim(0), heads = t["q"].dim(1), dim = t["q"].dim(2);
    Floats q = t["q"].floats(), alpha;
    for (float& value : q) value *= static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
    for (double g : t["g"].data) alpha.push_back(static_cast<float>(std::exp(g)));
    const bool from_zero =
        std::string(name) == "kda_seq_zero" || std::string(name) == "kda_seq_extreme";
    const DeviceFloats state(device_, from_zero ? Floats(static_cast<size_t>(heads * dim * dim))
                                                : t["state_in"].floats());
    const DeviceFloats dq(device_, q), dk(device_, t["k"].floats()), dv(device_, t["v"].floats()),
        da(device_, alpha), db(device_, t["beta"].floats()), out(device_, n * heads * dim);
    device_.KdaRecurrence(out.data(), state.data(), dq.data(), dk.data(), dv.data(), da.data(),
                          db.data(), n, heads, dim);
    ExpectClose(out.Read(), t["out"], name);
    ExpectClose(state.Read(), t["state_out"], std::string(name) + " state");
  }
}

TEST_P(NanoOpsTest, ResidualMix) {
  for (const char* name : {"attnres1", "attnres2", "attnres5", "attnres9"}) {
    const Tensors t = Case(name);
    const Floats blocks = t["blocks"].floats();
    const int64_t size = t["prefix"].size();
    std::vector<Floats> snapshots;
    for (int64_t i = 0; i < t["blocks"].dim(0); ++i) {
      snapshots.emplace_back(blocks.begin() + i * size, blocks.begin() + (i + 1) * size);
    }
    ExpectClose(ResidualMix(device_, snapshots, t["prefix"].floats(), t["norm"], t["proj"], 1e-5f),
                t["out"], name);
  }
}

TEST_P(NanoOpsTest, Router) {
  for (const auto& [name, top_k, scale] :
       {std::tuple{"router", 3, 1.0f}, {"router_scaled", 4, 2.5f}, {"router_ties", 3, 1.0f}}) {
    const Tensors t = Case(name);
    const int64_t n = t["x"].dim(0);
    const DeviceFloats logits(device_, MatMul(device_, t.MatrixF32("w"), t["x"].floats()));
    const Floats bias = t["bias"].floats();
    std::vector<int32_t> ids(static_cast<size_t>(n * top_k));
    Floats weights(ids.size());
    device_.RouterTopK(ids.data(), weights.data(), logits.data(), bias.data(), n,
                       {t["bias"].size(), top_k, true, scale});
    const std::vector<double> expected = t["idx"].data;
    EXPECT_EQ(std::vector<double>(ids.begin(), ids.end()), expected) << name;
    ExpectClose(weights, t["weight"], name);
  }
}

TEST_P(NanoOpsTest, KdaLayer) {
  const Tensors t = Case("kda_layer");
  KdaModule kda{.heads = 5,
                .dim = 24,
                .lower_bound = -5.0f,
                .eps = 1e-5f,
                .q = t.MatrixF32("w_q_proj"),
                .k = t.MatrixF32("w_k_proj"),
                .v = t.MatrixF32("w_v_proj"),
                .g = t.MatrixF32("w_g_proj"),
                .o = t.MatrixF32("w_o_proj"),
                .f_a = t.MatrixF32("w_f_a_proj"),
                .f_b = t.MatrixF32("w_f_b_proj"),
                .b = t.MatrixF32("w_b_proj"),
                .q_conv = t["w_q_conv1d"].floats(),
                .k_conv = t["w_k_conv1d"].floats(),
                .v_conv = t["w_v_conv1d"].floats(),
                .a_log = t["w_A_log"].floats(),
                .dt_bias = t["w_dt_bias"].floats(),
                .o_norm = t["w_o_norm"].floats()};
  const Floats x = t["x"].floats();
  KdaModule::State state = kda.NewState();
  const Floats out = kda.Run(device_, x, &state);
  ExpectClose(out, t["out"], "kda_layer", kModule);
  ExpectClose(state.recurrent, t["state_out"], "kda_layer state", kModule);
  Floats histories;
  for (const Floats& history : state.histories) {
    const Floats by_channel = Transposed(history, 3);
    histories.insert(histories.end(), by_channel.begin(), by_channel.end());
  }
  ExpectClose(histories, t["conv_state_out"], "kda_layer conv state", kModule);

  KdaModule::State stepped = kda.NewState();  // 4 and 15 positions, then the same bits
  Floats parts = kda.Run(device_, Floats(x.begin(), x.begin() + 4 * 96), &stepped);
  const Floats rest = kda.Run(device_, Floats(x.begin() + 4 * 96, x.end()), &stepped);
  parts.insert(parts.end(), rest.begin(), rest.end());
  ExpectSameBits(out, parts, "in two passes");
  ExpectSameBits(state.recurrent, stepped.recurrent, "state in two passes");
}

TEST_P(NanoOpsTest, MlaLayer) {
  const Tensors t = Case("mla_layer");
  const MlaModule mla{
      .shape = {.num_heads = 3, .nope_dim = 12, .rope_dim = 6, .v_dim = 10, .kv_lora = 24},
      .low_rank_eps = 1e-6f,
      .q_a = t.MatrixF32("w_q_a_proj"),
      .q_b = t.MatrixF32("w_q_b_proj"),
      .kv_a = t.MatrixF32("w_kv_a_proj_with_mqa"),
      .kv_b = t.MatrixF32("w_kv_b_proj"),
      .g = t.MatrixF32("w_g_proj"),
      .o = t.MatrixF32("w_o_proj"),
      .q_a_norm = t["w_q_a_layernorm"].floats(),
      .kv_a_norm = t["w_kv_a_layernorm"].floats()};
  Floats latents, again;
  const Floats out = mla.Run(device_, t["x"].floats(), 21, &latents);
  ExpectClose(out, t["out"], "mla_layer", kModule);
  Tensor expected;  // rows of [latent_normed, k_rope]
  for (size_t p = 0; p < 21; ++p) {
    const auto& c = t["latent_normed"].data;
    const auto& k = t["k_rope"].data;
    expected.data.insert(expected.data.end(), &c[p * 24], &c[p * 24] + 24);
    expected.data.insert(expected.data.end(), &k[p * 6], &k[p * 6] + 6);
  }
  ExpectClose(latents, expected, "mla_layer latents", kModule);
  ExpectSameBits(out, mla.Run(device_, t["x"].floats(), 1, &again), "one position at a time");
}

TEST_P(NanoOpsTest, MoeLayer) {
  const Tensors t = Case("moe_layer");
  MoeModule moe{
      .router = {.num_experts = 12, .top_k = 3, .renormalize = true, .scaling_factor = 2.5f},
      .situ = {4, 25},
      .eps = 1e-5f,
      .gate = t.MatrixF32("w_gate"),
      .down = t.MatrixF32("w_routed_expert_down_proj"),
      .up = t.MatrixF32("w_routed_expert_up_proj"),
      .shared_gate = t.MatrixF32("w_shared_experts.gate_proj"),
      .shared_up = t.MatrixF32("w_shared_experts.up_proj"),
      .shared_down = t.MatrixF32("w_shared_experts.down_proj"),
      .bias = t["w_gate.e_score_correction_bias"].floats(),
      .norm = t["w_routed_expert_norm"].floats(),
      .w1 = {},
      .w3 = {},
      .w2 = {}};
  for (int64_t e = 0; e < 12; ++e) {
    moe.w1.push_back(t.MatrixMxfp4("w_w1_packed", "w_w1_scale", e));
    moe.w3.push_back(t.MatrixMxfp4("w_w3_packed", "w_w3_scale", e));
    moe.w2.push_back(t.MatrixMxfp4("w_w2_packed", "w_w2_scale", e));
  }
  MoeModule::Trace trace;
  const Floats out = moe.Run(device_, t["x"].floats(), &trace);
  EXPECT_EQ(std::vector<double>(trace.ids.begin(), trace.ids.end()), t["router_idx"].data);
  ExpectClose(trace.weights, t["router_weight"], "moe_layer weights");
  ExpectClose(trace.latent, t["latent"], "moe_layer latent");
  ExpectClose(trace.aggregate, t["aggregate"], "moe_layer aggregate", kModule);
  ExpectClose(out, t["out"], "moe_layer", kModule);
}

INSTANTIATE_TEST_SUITE_P(Cpu, NanoOpsTest, ::testing::ValuesIn(AvailableCpuIsas()), IsaTestName);

}  // namespace
}  // namespace deltafin
