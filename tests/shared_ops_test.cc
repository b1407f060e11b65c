// Operator fixtures that are not part of the project: a plain PyTorch form of the official code in
// float32, so both sides round; the fixtures' own tolerance is 1e-5 + 1e-4 relative. All their eps
// are 1e-5, the low-rank norms of MLA included.
#include <algorithm>
#include <cmath>

#include "cpu_devices.h"
#include "deltafin/json.h"
#include "modules.h"
#include "shared_data.h"
#include "tensors.h"

namespace deltafin {
namespace {

constexpr Tolerance kFixture{1e-5, 1e-4};
constexpr float kEps = 1e-5f;

using SharedOpsTest = OnEveryCpuIsa;

KdaModule Kda(const Tensors& t, const std::string& prefix, const std::string& suffix,
              const std::string& conv) {
  const auto matrix = [&](const char* name) { return t.MatrixF32(prefix + name + suffix); };
  return {.heads = 4,
          .dim = 16,
          .lower_bound = -5.0f,
          .eps = kEps,
          .q = matrix("q_proj"),
          .k = matrix("k_proj"),
          .v = matrix("v_proj"),
          .g = matrix("g_proj"),
          .o = matrix("o_proj"),
          .f_a = matrix(suffix.empty() ? "f_a" : "f_a_proj"),
          .f_b = matrix(suffix.empty() ? "f_b" : "f_b_proj"),
          .b = matrix("b_proj"),
          .q_conv = t[prefix + "q_" + conv + suffix].floats(),
          .k_conv = t[prefix + "k_" + conv + suffix].floats(),
          .v_conv = t[prefix + "v_" + conv + suffix].floats(),
          .a_log = t[prefix + "A_log"].floats(),
          .dt_bias = t[prefix + "dt_bias"].floats(),
          .o_norm = t[prefix + "o_norm" + suffix].floats()};
}

MlaModule Mla(const Tensors& t, const std::string& prefix) {
  const auto matrix = [&](const char* name) { return t.MatrixF32(prefix + name + "_weight"); };
  return {.shape = {.num_heads = 4, .nope_dim = 24, .rope_dim = 8, .v_dim = 16, .kv_lora = 32},
          .low_rank_eps = kEps,
          .q_a = matrix("q_a_proj"),
          .q_b = matrix("q_b_proj"),
          .kv_a = matrix("kv_a_proj_with_mqa"),
          .kv_b = matrix("kv_b_proj"),
          .g = matrix("g_proj"),
          .o = matrix("o_proj"),
          .q_a_norm = t[prefix + "q_a_layernorm_weight"].floats(),
          .kv_a_norm = t[prefix + "kv_a_layernorm_weight"].floats()};
}

MoeModule Moe(const Tensors& t, const std::string& prefix) {
  const auto matrix = [&](const std::string& name) {
    return t.MatrixF32(prefix + name + "_weight");
  };
  MoeModule moe{
      .router = {.num_experts = 8, .top_k = 2, .renormalize = true, .scaling_factor = 1.0f},
      .situ = {4, 25},
      .eps = kEps,
      .gate = matrix("gate"),
      .down = matrix("down"),
      .up = matrix("up"),
      .shared_gate = matrix("shared_w1"),
      .shared_up = matrix("shared_w3"),
      .shared_down = matrix("shared_w2"),
      .bias = t[prefix + "e_score_correction_bias"].floats(),
      .norm = t[prefix + "norm_weight"].floats(),
      .w1 = {},
      .w3 = {},
      .w2 = {}};
  for (int e = 0; e < 8; ++e) {
    const std::string expert = "experts_" + std::to_string(e);
    moe.w1.push_back(matrix(expert + "_w1"));
    moe.w3.push_back(matrix(expert + "_w3"));
    moe.w2.push_back(matrix(expert + "_w2"));
  }
  return moe;
}

// [n, blocks, hidden] -> one [n, hidden] per block.
std::vector<Floats> Snapshots(const Tensor& blocks) {
  std::vector<Floats> snapshots(static_cast<size_t>(blocks.dim(1)));
  for (int64_t i = 0; i < blocks.size(); ++i) {
    snapshots[static_cast<size_t>(i / blocks.dim(2) % blocks.dim(1))].push_back(
        static_cast<float>(blocks.data[static_cast<size_t>(i)]));
  }
  return snapshots;
}

Floats Sum(Floats a, const Floats& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

TEST_P(SharedOpsTest, RmsNorm) {
  SHARED_OR_SKIP(path, "fixtures/ops/rmsnorm.json");
  const Tensors t = Tensors::FromJson(path);
  ExpectNear(RmsNorm(device_, t["in"].floats(), t["weight"].floats(), kEps), t["out"], kFixture,
             "out");
}

TEST_P(SharedOpsTest, SituGlu) {
  SHARED_OR_SKIP(path, "fixtures/ops/situ_glu.json");
  const Tensors t = Tensors::FromJson(path);
  Floats gate, up;  // halves of each row
  for (size_t i = 0; i < t["in"].data.size(); ++i) {
    (i % 16 < 8 ? gate : up).push_back(static_cast<float>(t["in"].data[i]));
  }
  const DeviceFloats g(device_, gate), u(device_, up);
  device_.SituGlu(g.data(), g.data(), u.data(), t["out"].size(), {4, 25});
  ExpectNear(g.Read(), t["out"], kFixture, "out");
}

TEST_P(SharedOpsTest, ShortConvAndItsContinuation) {
  SHARED_OR_SKIP(path, "fixtures/ops/shortconv.json");
  const Tensors t = Tensors::FromJson(path);
  const Floats w = t["weight"].floats();
  const DeviceFloats x(device_, t["in"].floats()), next(device_, t["in_next"].floats());
  const DeviceFloats y(device_, 5 * 64), y_next(device_, 64), history(device_, Floats(3 * 64));
  device_.ShortConv(y.data(), x.data(), w.data(), history.data(), 5, 64);
  ExpectNear(y.Read(), t["out"], kFixture, "out");
  const Floats state = history.Read();
  for (size_t i = 0; i < state.size(); ++i) {
    EXPECT_EQ(state[i], static_cast<float>(t["state_after"].data[i % 64 * 3 + i / 64]));
  }
  device_.ShortConv(y_next.data(), next.data(), w.data(), history.data(), 1, 64);
  ExpectNear(y_next.Read(), t["out_next"], kFixture, "out_next");
}

TEST_P(SharedOpsTest, KdaDecay) {
  SHARED_OR_SKIP(path, "fixtures/ops/kda_decay.json");
  const Tensors t = Tensors::FromJson(path);
  const Floats a_log = t["A_log"].floats(), dt_bias = t["dt_bias"].floats();
  const DeviceFloats f(device_, t["z"].floats()), beta(device_, Floats(16));
  device_.KdaGates(f.data(), beta.data(), a_log.data(), dt_bias.data(), 4, 4, 16, -5.0f);
  ExpectNear(f.Read(), t["alpha"], kFixture, "alpha");
}

TEST_P(SharedOpsTest, KdaRecurrence) {
  for (const char* name : {"fixtures/ops/kda_recur1.json", "fixtures/ops/kda_recur8.json"}) {
    SHARED_OR_SKIP(path, name);
    const Tensors t = Tensors::FromJson(path);
    const int64_t n = t["q"].dim(0);
    Floats q = t["q"].floats();
    for (float& value : q) value *= static_cast<float>(t.number("q_scale"));
    const DeviceFloats dq(device_, q), dk(device_, t["k"].floats()), dv(device_, t["v"].floats()),
        da(device_, t["alpha"].floats()), db(device_, t["beta"].floats()),
        state(device_, Floats(4 * 16 * 16)), out(device_, n * 64);
    device_.KdaRecurrence(out.data(), state.data(), dq.data(), dk.data(), dv.data(), da.data(),
                          db.data(), n, 4, 16);
    ExpectNear(out.Read(), t["out"], kFixture, "out");
    ExpectNear(state.Read(), t["state_out"], kFixture, "state");
  }
}

TEST_P(SharedOpsTest, KdaLayer) {
  for (const char* name : {"fixtures/ops/kda_layer1.json", "fixtures/ops/kda_layer8.json"}) {
    SHARED_OR_SKIP(path, name);
    const Tensors t = Tensors::FromJson(path);
    const KdaModule kda = Kda(t, "", "", "conv");
    KdaModule::State state = kda.NewState();
    ExpectNear(kda.Run(device_, t["in"].floats(), &state), t["out"], kFixture, "out");
    ExpectNear(state.recurrent, t["state_out"], kFixture, "state");
  }
}

TEST_P(SharedOpsTest, Mla) {
  SHARED_OR_SKIP(path, "fixtures/ops/mla.json");
  const Tensors t = Tensors::FromJson(path);
  Floats latents;
  ExpectNear(Mla(t, "").Run(device_, t["in"].floats(), 6, &latents), t["out"], kFixture, "out");
}

// The picks come in no particular order: each must be there with its weight.
TEST_P(SharedOpsTest, Router) {
  SHARED_OR_SKIP(path, "fixtures/ops/router.json");
  const Tensors t = Tensors::FromJson(path);
  const DeviceFloats logits(device_, MatMul(device_, t.MatrixF32("gate_weight"), t["in"].floats()));
  const Floats bias = t["bias"].floats();
  int32_t ids[12];
  float weights[12];
  device_.RouterTopK(ids, weights, logits.data(), bias.data(), 6, {8, 2, true, 1.0f});
  for (size_t i = 0; i < 12; ++i) {
    const size_t row = i / 2 * 2;
    const size_t at = ids[row] == static_cast<int32_t>(t["topk_idx"].data[i]) ? row : row + 1;
    EXPECT_EQ(ids[at], static_cast<int32_t>(t["topk_idx"].data[i]));
    EXPECT_NEAR(static_cast<double>(weights[at]), t["topk_weight"].data[i], 1e-5);
  }
}

TEST_P(SharedOpsTest, Moe) {
  SHARED_OR_SKIP(path, "fixtures/ops/moe.json");
  const Tensors t = Tensors::FromJson(path);
  MoeModule::Trace trace;
  ExpectNear(Moe(t, "").Run(device_, t["in"].floats(), &trace), t["out"], kFixture, "out");
}

TEST_P(SharedOpsTest, ResidualMix) {
  SHARED_OR_SKIP(path, "fixtures/ops/attnres.json");
  const Tensors t = Tensors::FromJson(path);
  ExpectNear(ResidualMix(device_, Snapshots(t["block_residual"]), t["prefix_sum"].floats(),
                         t["norm_weight"], t["proj_weight"], kEps),
             t["out"], kFixture, "out");
}

// A whole decoder layer, spec 3.1; `attention` is KDA or MLA.
template <class Attention>
void CheckLayer(Device& device, const Tensors& t, const Attention& attention) {
  std::vector<Floats> snapshots = Snapshots(t["block_residual_in"]);
  Floats prefix = t["in"].floats();
  const Floats x = ResidualMix(device, snapshots, prefix, t["self_attention_res_norm_weight"],
                               t["self_attention_res_proj_weight"], kEps);
  const bool boundary =
      static_cast<int>(t.number("layer_idx")) % static_cast<int>(t.number("attn_res_block_size")) ==
      0;
  if (boundary) snapshots.push_back(prefix);
  const Floats a = attention(RmsNorm(device, x, t["input_layernorm_weight"].floats(), kEps));
  prefix = boundary ? a : Sum(prefix, a);
  const Floats y = ResidualMix(device, snapshots, prefix, t["mlp_res_norm_weight"],
                               t["mlp_res_proj_weight"], kEps);
  MoeModule::Trace trace;
  const Floats mlp_in = RmsNorm(device, y, t["post_attention_layernorm_weight"].floats(), kEps);
  prefix = Sum(prefix, Moe(t, "mlp_").Run(device, mlp_in, &trace));
  ExpectNear(prefix, t["out"], kFixture, "out");
  EXPECT_EQ(snapshots, Snapshots(t["block_residual_out"]));
}

TEST_P(SharedOpsTest, DecoderLayerWithKda) {
  SHARED_OR_SKIP(path, "fixtures/ops/layer_kda.json");
  const Tensors t = Tensors::FromJson(path);
  CheckLayer(device_, t, [&](const Floats& x) {
    const KdaModule kda = Kda(t, "self_attn_", "_weight", "conv1d");
    KdaModule::State state = kda.NewState();
    return kda.Run(device_, x, &state);
  });
}

TEST_P(SharedOpsTest, DecoderLayerWithMlaAtABlockBoundary) {
  SHARED_OR_SKIP(path, "fixtures/ops/layer_mla.json");
  const Tensors t = Tensors::FromJson(path);
  CheckLayer(device_, t, [&](const Floats& x) {
    Floats latents;
    return Mla(t, "self_attn_").Run(device_, x, 3, &latents);
  });
}

// Bytes of the released checkpoint: exact, all of them through windows of 128 columns, some through
// the whole row.
TEST_P(SharedOpsTest, Mxfp4OfTheReleaseIsExact) {
  SHARED_OR_SKIP(path, "fixtures/mxfp4.json");
  const Tensors t = Tensors::FromJson(path);
  const OwnedMatrix w = t.MatrixMxfp4("packed", "scales");
  const Floats expected = t["expected"].floats();
  const int64_t rows = w.view.rows, cols = w.view.cols;
  ASSERT_EQ(static_cast<int64_t>(expected.size()), rows * cols);

  const auto check = [&](const OwnedMatrix& matrix, int64_t first_col,
                         const std::vector<int64_t>& columns) {
    Floats unit(columns.size() * static_cast<size_t>(matrix.view.cols));
    for (size_t i = 0; i < columns.size(); ++i) {
      unit[i * static_cast<size_t>(matrix.view.cols) + static_cast<size_t>(columns[i])] = 1.0f;
    }
    const Floats y = MatMul(device_, matrix, unit);
    for (size_t i = 0; i < y.size(); ++i) {
      const auto row = static_cast<int64_t>(i) % rows;
      const int64_t col = first_col + columns[i / static_cast<size_t>(rows)];
      ASSERT_EQ(y[i], expected[static_cast<size_t>(row * cols + col)]) << row << ", " << col;
    }
  };
  for (int64_t first = 0; first < cols; first += 128) {
    OwnedMatrix window = MakeMatrix(WeightFormat::kMxfp4, rows, 128);
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(window.data.data() + row * 64, w.view.data + row * cols / 2 + first / 2, 64);
      std::memcpy(window.scales.data() + row * 4, w.view.scales + row * cols / 32 + first / 32, 4);
    }
    std::vector<int64_t> columns(128);
    for (int64_t i = 0; i < 128; ++i) columns[static_cast<size_t>(i)] = i;
    check(window, first, columns);
  }
  std::vector<int64_t> some;
  for (int64_t col = 0; col < cols; col += 97) some.push_back(col);
  check(w, 0, some);
}

INSTANTIATE_TEST_SUITE_P(Cpu, SharedOpsTest, ::testing::ValuesIn(AvailableCpuIsas()), IsaTestName);

}  // namespace
}  // namespace deltafin
