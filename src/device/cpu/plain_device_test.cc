// The plain device against the formulas of the specification, evaluated here in double precision
// and in their own words (no lanes, no blocks, no absorbed attention).
#include "device/cpu/plain_device.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/bf16.h"
#include "base/format.h"
#include "device/device_test_util.h"

namespace deltafin {
namespace {

using Doubles = std::vector<double>;

// A sum of rounded products is off by half an ulp (6e-8) of its partial sums at each step; lanes
// keep that to K / 16 + 5 steps. 1e-6 of the sum of the magnitudes is 16 such steps, all in one
// direction: a wrong term, scale or order of indices is off by far more.
constexpr double kTolerance = 1e-6;

// |got - exact| <= tolerance * scale, element by element.
void ExpectClose(const std::vector<float>& got, const Doubles& exact, const Doubles& scale,
                 const std::string& what, double tolerance = kTolerance) {
  ASSERT_EQ(got.size(), exact.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::fabs(static_cast<double>(got[i]) - exact[i]), tolerance * std::fabs(scale[i]))
        << what << ": element " << i << ": expected " << exact[i] << ", got " << got[i];
  }
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }
double Situ(double g, double u, double beta, double linear_beta) {
  const double up = linear_beta == 0 ? u : linear_beta * std::tanh(u / linear_beta);
  return beta * std::tanh(g / beta) * Sigmoid(g) * up;
}

// Weight (row, col), decoded from the bytes as spec 4 says.
double Weight(const Matrix& w, int64_t row, int64_t col) {
  const std::byte* const begin = w.data + row * w.row_bytes();
  switch (w.format) {
    case WeightFormat::kF32: {
      float value;
      std::memcpy(&value, begin + 4 * col, 4);
      return value;
    }
    case WeightFormat::kBf16: {
      uint32_t bits = std::to_integer<uint32_t>(begin[2 * col]) << 16 |
                      std::to_integer<uint32_t>(begin[2 * col + 1]) << 24;
      return std::bit_cast<float>(bits);
    }
    case WeightFormat::kInt8: {
      float scale;
      std::memcpy(&scale, w.scales + 4 * row, 4);
      return static_cast<double>(std::to_integer<int8_t>(begin[col])) * static_cast<double>(scale);
    }
    case WeightFormat::kMxfp4: {
      const int nibble = std::to_integer<int>(begin[col / 2]) >> (col % 2 == 0 ? 0 : 4) & 15;
      const int exponent = std::max((nibble >> 1 & 3) - 1, 0);  // E2M1: 2 exponent bits, bias 1
      const double fraction = (nibble & 1) * 0.5 + ((nibble & 6) != 0 ? 1 : 0);
      const double magnitude = std::ldexp(fraction, exponent);
      const int scale = std::to_integer<int>(w.scales[row * (w.cols / 32) + col / 32]) - 127;
      return std::ldexp((nibble & 8) != 0 ? -magnitude : magnitude, scale);
    }
  }
  return 0;
}

// y = W x and, in `scale`, the sum of the magnitudes.
Doubles Product(const Matrix& w, const Doubles& x, Doubles* scale = nullptr) {
  Doubles y;
  for (int64_t row = 0; row < w.rows; ++row) {
    double sum = 0, magnitude = 0;
    for (int64_t col = 0; col < w.cols; ++col) {
      const double term = Weight(w, row, col) * x[static_cast<size_t>(col)];
      sum += term;
      magnitude += std::fabs(term);
    }
    y.push_back(sum);
    if (scale != nullptr) scale->push_back(magnitude);
  }
  return y;
}

Doubles Row(const std::vector<float>& x, int64_t row, int64_t dim) {
  return {x.begin() + row * dim, x.begin() + (row + 1) * dim};
}

double SumOfSquares(const Doubles& x) {
  return std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
}

class PlainDeviceTest : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  PlainDevice device_{pool_};
  Random random_{7};
};

TEST_F(PlainDeviceTest, MatMul) {
  for (WeightFormat weights :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kMxfp4}) {
    for (int64_t cols : {1, 7, 15, 16, 17, 33, 100, 160}) {
      const int64_t width = weights == WeightFormat::kMxfp4 ? 32 * ((cols + 31) / 32) : cols;
      const int64_t n = 3, rows = 11, stride = 13;
      const OwnedMatrix w = random_.MatrixOf(weights, rows, width);
      const std::vector<float> x = random_.Values(n * width);
      const DeviceFloats in(device_, x), out(device_, (n - 1) * stride + rows);
      device_.MatMul(w.view, in.data(), out.data(), stride, n);
      const std::vector<float> y = out.Read();
      for (int64_t p = 0; p < n; ++p) {
        Doubles scale;
        const Doubles exact = Product(w.view, Row(x, p, width), &scale);
        ExpectClose({y.begin() + p * stride, y.begin() + p * stride + rows}, exact, scale,
                    format("format {}, {} columns", static_cast<int>(weights), width));
      }
      EXPECT_EQ(std::bit_cast<uint32_t>(y[static_cast<size_t>(rows)]), kFenceBits);  // stride gap
    }
  }
}

// Each code times each scale byte against one and against the smallest normal number; exact.
TEST_F(PlainDeviceTest, MatMulMxfp4EveryCodeAndScale) {
  for (int scale = 0; scale <= 254; ++scale) {
    for (int64_t column : {0, 5, 31, 32, 63}) {
      OwnedMatrix w = MakeMatrix(WeightFormat::kMxfp4, 16, 64);
      for (int64_t code = 0; code < 16; ++code) {
        w.data.data()[code * 32 + column / 2] =
            static_cast<std::byte>(column % 2 == 0 ? code : code << 4);
        w.scales.data()[2 * code + column / 32] = static_cast<std::byte>(scale);
      }
      for (float value : {1.0f, -1.0f, 0x1p-126f}) {
        std::vector<float> x(64);
        x[static_cast<size_t>(column)] = value;
        const DeviceFloats in(device_, x), out(device_, 16);
        device_.MatMul(w.view, in.data(), out.data(), 16, 1);
        const std::vector<float> y = out.Read();
        for (int64_t code = 0; code < 16; ++code) {
          const double exact = Weight(w.view, code, column) * static_cast<double>(value);
          ASSERT_EQ(y[static_cast<size_t>(code)], static_cast<float>(exact))
              << "code " << code << " scale " << scale << " column " << column;
        }
      }
    }
  }
}

TEST_F(PlainDeviceTest, Elementwise) {
  const int64_t count = 300;
  const std::vector<float> a = random_.Values(count), b = random_.Values(count);
  const DeviceFloats sum(device_, a), gated(device_, a), other(device_, b), glu(device_, count);
  device_.Add(sum.data(), other.data(), count);
  device_.SigmoidGate(gated.data(), other.data(), count);
  const std::vector<float> sums = sum.Read();
  Doubles exact;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(sums[i], a[i] + b[i]);
    exact.push_back(static_cast<double>(a[i]) * Sigmoid(static_cast<double>(b[i])));
  }
  ExpectClose(gated.Read(), exact, exact, "SigmoidGate");
  for (const SituParams params : {SituParams{4, 25}, SituParams{2.5f, 11}, SituParams{1, 0}}) {
    const DeviceFloats gate(device_, a);
    device_.SituGlu(glu.data(), gate.data(), other.data(), count, params);
    Doubles situ;
    for (size_t i = 0; i < a.size(); ++i) {
      situ.push_back(Situ(static_cast<double>(a[i]), static_cast<double>(b[i]),
                          static_cast<double>(params.beta),
                          static_cast<double>(params.linear_beta)));
    }
    ExpectClose(glu.Read(), situ, situ, "SituGlu");
  }
}

TEST_F(PlainDeviceTest, Norms) {
  for (int64_t dim : {1, 7, 24, 129}) {
    const int64_t n = 4;
    std::vector<float> x = random_.Values(n * dim);
    std::fill_n(x.begin(), dim, 0.0f);                                           // a row of zeros
    for (int64_t d = 0; d < dim; ++d) x[static_cast<size_t>(dim + d)] *= 1e-4f;  // eps matters
    const std::vector<float> w = random_.Values(dim), gate = random_.Values(n * dim);
    Doubles rms, l2, gated;
    for (int64_t p = 0; p < n; ++p) {
      const Doubles row = Row(x, p, dim);
      for (int64_t d = 0; d < dim; ++d) {
        const auto i = static_cast<size_t>(d);
        const double normed =
            row[i] / std::sqrt(SumOfSquares(row) / static_cast<double>(dim) + 1e-5);
        rms.push_back(normed * static_cast<double>(w[i]));
        gated.push_back(rms.back() *
                        Sigmoid(static_cast<double>(gate[static_cast<size_t>(p * dim + d)])));
        l2.push_back(row[i] / std::sqrt(SumOfSquares(row) + 1e-6) * 0.25);
      }
    }
    const DeviceFloats in(device_, x), gates(device_, gate), out(device_, n * dim);
    device_.RmsNorm(out.data(), in.data(), w.data(), n, dim, dim, 1e-5f);
    ExpectClose(out.Read(), rms, rms, "RmsNorm");
    const DeviceFloats both(device_, x);
    device_.GatedRmsNorm(both.data(), gates.data(), w.data(), n, dim, 1e-5f);
    ExpectClose(both.Read(), gated, gated, "GatedRmsNorm");
    device_.L2Normalize(in.data(), n, dim, 0.25f);
    ExpectClose(in.Read(), l2, l2, "L2Normalize");
  }
}

TEST_F(PlainDeviceTest, ResidualMix) {
  for (int64_t snapshots : {1, 2, 8}) {
    const int64_t n = 3, dim = 45, stride = n * dim + 4;
    std::vector<std::vector<float>> sources;
    std::vector<float> blocks(static_cast<size_t>(snapshots * stride));
    for (int64_t i = 0; i <= snapshots; ++i) {
      sources.push_back(random_.Values(n * dim));
      if (i < snapshots)
        std::copy(sources.back().begin(), sources.back().end(), blocks.begin() + i * stride);
    }
    const std::vector<float> query = random_.Values(dim);
    Doubles exact, scale;
    for (int64_t p = 0; p < n; ++p) {
      Doubles weights;
      for (const std::vector<float>& source : sources) {
        const Doubles v = Row(source, p, dim), q(query.begin(), query.end());
        const double rms = std::sqrt(SumOfSquares(v) / static_cast<double>(dim) + 1e-5);
        weights.push_back(std::exp(std::inner_product(v.begin(), v.end(), q.begin(), 0.0) / rms));
      }
      const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (int64_t d = 0; d < dim; ++d) {
        double sum = 0, magnitude = 0;
        for (size_t i = 0; i < sources.size(); ++i) {
          const double term = weights[i] / total * Row(sources[i], p, dim)[static_cast<size_t>(d)];
          sum += term;
          magnitude += std::fabs(term);
        }
        exact.push_back(sum);
        scale.push_back(magnitude);
      }
    }
    const DeviceFloats live(device_, sources.back()), memory(device_, blocks),
        out(device_, n * dim);
    device_.ResidualMix(out.data(), memory.data(), stride, snapshots, live.data(), query.data(), n,
                        dim, 1e-5f);
    // The error of a score (1e-7 of about 30 of magnitudes) is a relative error of its weight.
    ExpectClose(out.Read(), exact, scale, "ResidualMix", 4e-6);
  }
}

TEST_F(PlainDeviceTest, ShortConvCarriesItsHistory) {
  const int64_t channels = 21;
  for (int64_t n : {1, 2, 3, 9}) {
    const std::vector<float> x = random_.Values(n * channels), w = random_.Values(4 * channels);
    const std::vector<float> before = random_.Values(3 * channels);
    std::vector<float> all = before;  // [3 + n, channels]
    all.insert(all.end(), x.begin(), x.end());
    Doubles exact, scale;
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0, magnitude = 0;
        for (int64_t j = 0; j < 4; ++j) {
          const double term = static_cast<double>(w[static_cast<size_t>(4 * c + j)]) *
                              static_cast<double>(all[static_cast<size_t>((t + j) * channels + c)]);
          sum += term;
          magnitude += std::fabs(term);
        }
        exact.push_back(Silu(sum));
        scale.push_back(magnitude);
      }
    }
    const DeviceFloats in(device_, x), history(device_, before), out(device_, n * channels);
    device_.ShortConv(out.data(), in.data(), w.data(), history.data(), n, channels);
    ExpectClose(out.Read(), exact, scale, "ShortConv");
    EXPECT_EQ(history.Read(), std::vector<float>(all.end() - 3 * channels, all.end()));
  }
}

TEST_F(PlainDeviceTest, KdaGates) {
  const int64_t n = 3, heads = 5, dim = 7;
  const std::vector<float> f = random_.Values(n * heads * dim), beta = random_.Values(n * heads);
  const std::vector<float> a_log = random_.Values(heads), dt_bias = random_.Values(heads * dim);
  Doubles alpha, gates;
  for (int64_t i = 0; i < n * heads * dim; ++i) {
    const int64_t channel = i % (heads * dim);
    const double z = static_cast<double>(f[static_cast<size_t>(i)]) +
                     static_cast<double>(dt_bias[static_cast<size_t>(channel)]);
    const double a = std::exp(static_cast<double>(a_log[static_cast<size_t>(channel / dim)]));
    alpha.push_back(std::exp(-5 * Sigmoid(a * z)));
  }
  for (float b : beta) gates.push_back(Sigmoid(static_cast<double>(b)));
  const DeviceFloats decay(device_, f), strength(device_, beta);
  device_.KdaGates(decay.data(), strength.data(), a_log.data(), dt_bias.data(), n, heads, dim, -5);
  // The exponent reaches 5 in magnitude, so its 2.4 ulp become 12 ulp (7e-7) of alpha; A and its
  // product add as much where the sigmoid is steep.
  ExpectClose(decay.Read(), alpha, alpha, "alpha", 2e-6);
  ExpectClose(strength.Read(), gates, gates, "beta");
}

TEST_F(PlainDeviceTest, KdaRecurrence) {
  for (int64_t dim : {1, 8, 24}) {
    const int64_t n = 33, heads = 2, rows = n * heads;
    std::vector<float> q = random_.Values(rows * dim), k = q, v = random_.Values(rows * dim);
    std::vector<float> alpha(q.size()), beta(static_cast<size_t>(rows));
    for (float& value : k) value = random_.Uniform(-1, 1) / std::sqrt(static_cast<float>(dim));
    for (float& value : alpha) value = random_.Uniform(0.0067f, 1.0f);
    for (float& value : beta) value = random_.Uniform(0.0f, 1.0f);
    const std::vector<float> before = random_.Values(heads * dim * dim);
    Doubles state(before.begin(), before.end()), exact;
    for (int64_t row = 0; row < rows; ++row) {
      double* const s = state.data() + row % heads * dim * dim;
      const Doubles q_t = Row(q, row, dim), k_t = Row(k, row, dim), v_t = Row(v, row, dim),
                    a_t = Row(alpha, row, dim);
      Doubles read(static_cast<size_t>(dim)), out = read;
      for (int64_t i = 0; i < dim * dim; ++i) {
        s[i] *= a_t[static_cast<size_t>(i / dim)];
        read[static_cast<size_t>(i % dim)] += k_t[static_cast<size_t>(i / dim)] * s[i];
      }
      for (int64_t i = 0; i < dim * dim; ++i) {
        const auto key = static_cast<size_t>(i / dim), value = static_cast<size_t>(i % dim);
        s[i] += static_cast<double>(beta[static_cast<size_t>(row)]) * k_t[key] *
                (v_t[value] - read[value]);
        out[value] += q_t[key] * s[i];
      }
      exact.insert(exact.end(), out.begin(), out.end());
    }
    const DeviceFloats dq(device_, q), dk(device_, k), dv(device_, v), da(device_, alpha),
        db(device_, beta), ds(device_, before), out(device_, rows * dim);
    device_.KdaRecurrence(out.data(), ds.data(), dq.data(), dk.data(), dv.data(), da.data(),
                          db.data(), n, heads, dim);
    // Sums of at most 24 products of values up to 4, over a state that forgets.
    ExpectClose(out.Read(), exact, Doubles(exact.size(), 10.0), "output");
    ExpectClose(ds.Read(), state, Doubles(state.size(), 4.0), "state");
  }
}

// The whole latent attention against the form that expands keys and values (spec 3.3).
TEST_F(PlainDeviceTest, MlaIsCausalAttention) {
  const MlaShape shape{.num_heads = 3, .nope_dim = 12, .rope_dim = 6, .v_dim = 10, .kv_lora = 24};
  for (const auto& [first, n, cache_format, weights] :
       {std::tuple{0, 5, CacheFormat::kF32, WeightFormat::kF32},
        std::tuple{60, 9, CacheFormat::kBf16, WeightFormat::kBf16},
        std::tuple{1020, 7, CacheFormat::kF32, WeightFormat::kInt8},
        std::tuple{2100, 2, CacheFormat::kF32, WeightFormat::kBf16}}) {
    const int64_t tokens = first + n, width = shape.latent_dim(), heads = shape.num_heads;
    const OwnedMatrix kv_b = random_.MatrixOf(weights, heads * 22, shape.kv_lora);
    std::vector<float> latents = random_.Values(tokens * width);
    const std::vector<float> q = random_.Values(n * heads * shape.query_dim());
    const std::vector<float> appended = latents;
    if (cache_format == CacheFormat::kBf16) {
      for (float& value : latents) value = Bf16ToFloat(FloatToBf16(value));
    }

    Doubles exact;
    for (int64_t row = 0; row < n * heads; ++row) {
      const Doubles query = Row(q, row, shape.query_dim());
      const int64_t head = row % heads, visible = first + row / heads + 1;
      Doubles out(static_cast<size_t>(shape.v_dim));
      double total = 0;
      for (int64_t s = 0; s < visible; ++s) {
        const Doubles latent = Row(latents, s, width);
        const Doubles kv = Product(kv_b.view, latent);
        double score = 0;
        for (int64_t d = 0; d < shape.query_dim(); ++d) {
          const double key = d < shape.nope_dim
                                 ? kv[static_cast<size_t>(head * 22 + d)]
                                 : latent[static_cast<size_t>(shape.kv_lora + d - shape.nope_dim)];
          score += query[static_cast<size_t>(d)] * key;
        }
        const double weight = std::exp(score * 0.05);
        total += weight;
        for (size_t d = 0; d < out.size(); ++d) {
          out[d] += weight * kv[static_cast<size_t>(head * 22 + shape.nope_dim) + d];
        }
      }
      for (double o : out) exact.push_back(o / total);
    }

    const int64_t page_tokens = 128;
    std::vector<DeviceBuffer> pages;
    std::vector<void*> addresses;
    for (int64_t t = 0; t < tokens; t += page_tokens) {
      pages.emplace_back(device_, static_cast<size_t>(page_tokens * width * 4));
      addresses.push_back(pages.back().address());
    }
    const LatentCacheView cache{addresses.data(), page_tokens, cache_format};
    const DeviceFloats in(device_, appended), query(device_, q);
    const DeviceFloats absorbed(device_, n * heads * width);
    const DeviceFloats attended(device_, n * heads * shape.kv_lora);
    const DeviceFloats out(device_, n * heads * shape.v_dim);
    device_.MlaAppend(cache, in.data(), 0, tokens, shape);
    device_.MlaAbsorbQuery(absorbed.data(), kv_b.view, query.data(), n, shape);
    device_.MlaAttend(attended.data(), absorbed.data(), cache, first, n, shape, 0.05f);
    device_.MlaExpandValue(out.data(), kv_b.view, attended.data(), n, shape);
    // Scores are sums of 12 x 24 products of about 1, times 0.05: an error of 2e-6 in the exponent.
    // Values are sums of 24 products of about 1.
    ExpectClose(out.Read(), exact, Doubles(exact.size(), 5.0), format("{} from {}", n, first),
                2e-6);
  }
}

TEST_F(PlainDeviceTest, RouterPicksByBiasedScoreAndWeighsUnbiased) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f};
  const std::vector<float> bias = {0.0f, 0.0f, -1.0f, 0.9f};  // 2 falls out, 3 comes first
  const DeviceFloats in(device_, logits);
  int32_t ids[2];
  float weights[2];
  device_.RouterTopK(ids, weights, in.data(), bias.data(), 1, {4, 2, true, 2.5f});
  EXPECT_EQ(ids[0], 3);
  EXPECT_EQ(ids[1], 1);
  const double s3 = Sigmoid(-1), s1 = Sigmoid(1);
  ExpectClose({weights[0], weights[1]}, {2.5 * s3 / (s3 + s1), 2.5 * s1 / (s3 + s1)}, {2.5, 2.5},
              "weights");
  device_.RouterTopK(ids, weights, in.data(), bias.data(), 1, {4, 2, false, 1.0f});
  ExpectClose({weights[0], weights[1]}, {s3, s1}, {1, 1}, "not renormalised");
  device_.RouterTopK(ids, weights, in.data(), bias.data(), 1, {4, 1, true, 1.0f});
  ExpectClose({weights[0]}, {s3}, {1}, "a single pick is never renormalised");
}

TEST_F(PlainDeviceTest, RouterTakesTheLowestIndexOnTies) {
  const DeviceFloats in(device_, {1.0f, 2.0f, 2.0f, 1.0f, 2.0f});
  const std::vector<float> bias(5, 0.0f);
  int32_t ids[4];
  float weights[4];
  device_.RouterTopK(ids, weights, in.data(), bias.data(), 1, {5, 4, true, 1.0f});
  EXPECT_EQ(std::vector<int32_t>(ids, ids + 4), (std::vector<int32_t>{1, 2, 4, 0}));
}

TEST_F(PlainDeviceTest, ExpertsAndTheirSum) {
  const int64_t latent = 96, width = 64, n = 3, top_k = 2;
  const SituParams params{4, 25};
  const std::vector<float> z = random_.Values(n * latent), weights = random_.Values(n * top_k);
  std::vector<OwnedMatrix> matrices;
  for (int e = 0; e < 2; ++e) {
    matrices.push_back(random_.MatrixOf(WeightFormat::kMxfp4, width, latent));
    matrices.push_back(random_.MatrixOf(WeightFormat::kMxfp4, width, latent));
    matrices.push_back(random_.MatrixOf(WeightFormat::kMxfp4, latent, width));
  }
  const int32_t in_rows[] = {0, 1, 2};
  const int32_t out_rows[2][3] = {{0, 2, 4}, {1, 3, 5}};  // y[p * top_k + e]
  std::vector<ExpertTask> tasks;
  Doubles exact(static_cast<size_t>(n * latent)), scale = exact;
  for (int64_t e = 0; e < 2; ++e) {
    const auto m = static_cast<size_t>(3 * e);
    tasks.push_back(
        {{matrices[m].view, matrices[m + 1].view, matrices[m + 2].view}, in_rows, out_rows[e], 3});
    for (int64_t p = 0; p < n; ++p) {
      const Doubles gate = Product(matrices[m].view, Row(z, p, latent));
      const Doubles up = Product(matrices[m + 1].view, Row(z, p, latent));
      Doubles hidden, magnitude;
      for (size_t i = 0; i < gate.size(); ++i) hidden.push_back(Situ(gate[i], up[i], 4, 25));
      const Doubles y = Product(matrices[m + 2].view, hidden, &magnitude);
      const auto weight = static_cast<double>(weights[static_cast<size_t>(p * top_k + e)]);
      for (size_t d = 0; d < y.size(); ++d) {
        exact[static_cast<size_t>(p * latent) + d] += weight * y[d];
        scale[static_cast<size_t>(p * latent) + d] += std::fabs(weight) * magnitude[d];
      }
    }
  }
  const DeviceFloats in(device_, z), y(device_, n * top_k * latent), out(device_, n * latent);
  device_.ExpertMlp(tasks, in.data(), y.data(), latent, params);
  device_.CombineExperts(out.data(), y.data(), weights.data(), n, top_k, latent);
  // Three products in a row; the middle one has up to 96 terms that may cancel.
  ExpectClose(out.Read(), exact, scale, "ExpertMlp", 3e-6);
}

}  // namespace
}  // namespace deltafin
