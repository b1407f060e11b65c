// Every instruction set that this machine has against the plain device, bit by bit: all operators,
// odd sizes, tails, misaligned weights that end at the edge of readable memory, values at the edges
// of the format, several numbers of threads.
#include "device/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <tuple>

#include "base/format.h"
#include "deltafin/error.h"
#include "device/cpu/plain_device.h"
#include "device/device_test_util.h"

namespace deltafin {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8,
                                     WeightFormat::kMxfp4};
constexpr Range kRanges[] = {Range::kOrdinary, Range::kWild};

class CpuDeviceTest : public ::testing::TestWithParam<std::tuple<CpuIsa, int>> {
 protected:
  CpuDeviceTest()
      : pool_(std::get<1>(GetParam())), device_(MakeCpuDevice(pool_, std::get<0>(GetParam()))) {}

  // `run` makes its buffers on the device that it is given and returns all results.
  void Compare(const std::string& what,
               const std::function<std::vector<float>(Device& device)>& run) {
    ExpectSameBits(run(plain_), run(*device_), what);
  }

  void CompareMatMul(WeightFormat format, int64_t rows, int64_t cols, int64_t n, Range range) {
    const OwnedMatrix w = random_.MatrixOf(format, rows, cols, range);
    const std::vector<float> x = random_.Values(n * cols, range);
    const int64_t stride = rows + (Coin() ? 3 : 0);
    Compare(FormatName(format) + deltafin::format(" [{}, {}] x {}", rows, cols, n),
            [&](Device& device) {
              const DeviceFloats in(device, x);
              const DeviceFloats out(device, (n - 1) * stride + rows);
              device.MatMul(w.view, in.data(), out.data(), stride, n);
              return out.Read();
            });
  }

  bool Coin() { return random_.Bits() % 2 == 0; }

  static std::string FormatName(WeightFormat format) {
    const char* const names[] = {"f32", "bf16", "int8", "mxfp4"};
    return names[static_cast<int>(format)];
  }

  ThreadPool one_thread_{1};
  PlainDevice plain_{one_thread_};
  ThreadPool pool_;
  std::unique_ptr<Device> device_;
  Random random_{20240607};
};

std::vector<float> Join(std::initializer_list<std::vector<float>> parts) {
  std::vector<float> all;
  for (const std::vector<float>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST_P(CpuDeviceTest, MemoryIsAlignedZeroAndCopies) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{64}, size_t{1000}}) {
    const DeviceBuffer buffer(*device_, bytes);
    ASSERT_NE(buffer.address(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.address()) % 64, 0u);
    std::vector<char> host(bytes, 'x');
    device_->ToHost(host.data(), buffer.address(), bytes);
    EXPECT_EQ(host, std::vector<char>(bytes, 0));
  }
  const std::vector<float> values = random_.Values(100, Range::kWild);
  const DeviceBuffer a(*device_, 400), b(*device_, 400);
  device_->ToDevice(a.address(), values.data(), 400);
  device_->Copy(b.address(), a.address(), 400);
  device_->Synchronize();
  std::vector<float> back(100);
  device_->ToHost(back.data(), b.address(), 400);
  ExpectSameBits(values, back, "copied");
  EXPECT_NE(device_->Describe().find("cpu ("), std::string::npos);
  EXPECT_THROW(device_->Allocate(~size_t{0} - 100), Error);
}

TEST_P(CpuDeviceTest, MatMulColumns) {
  for (WeightFormat format : kFormats) {
    for (int64_t cols = 1; cols <= 300; cols += cols < 70 ? 1 : 7) {
      const int64_t width = format == WeightFormat::kMxfp4 ? 32 * cols : cols;
      if (width > 1600) break;
      for (Range range : kRanges) {
        CompareMatMul(format, 5, width, 1, range);
        CompareMatMul(format, 3, width, 5, range);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CpuDeviceTest, MatMulRowsAndPositions) {
  for (WeightFormat format : kFormats) {
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 33, 63, 64, 65, 130}) {
      for (int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 64, 65}) {
        CompareMatMul(format, rows, 96, n, Range::kOrdinary);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CpuDeviceTest, MatMulRandomShapes) {
  for (int trial = 0; trial < 200; ++trial) {
    const WeightFormat format = kFormats[trial % 4];
    const int64_t cols =
        format == WeightFormat::kMxfp4 ? 32 * random_.Between(1, 20) : random_.Between(1, 600);
    CompareMatMul(format, random_.Between(1, 70), cols, random_.Between(1, 40),
                  kRanges[random_.Bits() % 2]);
    if (HasFatalFailure()) return;
  }
}

TEST_P(CpuDeviceTest, MatMulLargerThanAnyBlock) {
  for (WeightFormat format : kFormats) {
    CompareMatMul(format, 1033, 3104, 1, Range::kOrdinary);
    CompareMatMul(format, 261, 1568, 19, Range::kWild);
    CompareMatMul(format, 70, 1056, 133, Range::kOrdinary);
    // Few positions take blocks of columns, longer ones for fewer.
    const int64_t cols = format == WeightFormat::kMxfp4 ? 4512 : 4509;
    for (int64_t n : {2, 3, 4, 5, 8, 16}) CompareMatMul(format, 21, cols, n, Range::kWild);
  }
}

// Every code, every scale byte, every input sign, one weight at a time and in whole rows.
TEST_P(CpuDeviceTest, MatMulMxfp4EveryCodeAndScale) {
  OwnedMatrix w = MakeMatrix(WeightFormat::kMxfp4, 255, 256);
  for (int64_t row = 0; row < 255; ++row) {
    for (int64_t b = 0; b < 128; ++b) {
      w.data.data()[row * 128 + b] = static_cast<std::byte>(b * 2 + row % 2);
    }
    std::fill_n(w.scales.data() + row * 8, 8, static_cast<std::byte>(row));
  }
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<float> x = random_.Values(256, Range::kWild);
    if (trial % 2 == 0) {  // a single column
      const float value = trial % 4 == 0 ? 1.0f : -1.0f;
      x.assign(256, 0.0f);
      x[static_cast<size_t>(random_.Between(0, 255))] = value;
    }
    Compare("all codes", [&](Device& device) {
      const DeviceFloats in(device, x);
      const DeviceFloats out(device, 255);
      device.MatMul(w.view, in.data(), out.data(), 255, 1);
      return out.Read();
    });
  }
}

const int64_t kCounts[] = {1,  2,  3,  5,  7,   8,   9,   15,  16,  17,  24,  31,   32,
                           33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 1000, 4097};

TEST_P(CpuDeviceTest, Elementwise) {
  for (int64_t count : kCounts) {
    for (Range range : kRanges) {
      const std::vector<float> a = random_.Values(count, range), b = random_.Values(count, range);
      Compare(format("Add {}", count), [&](Device& device) {
        const DeviceFloats dst(device, a), src(device, b);
        device.Add(dst.data(), src.data(), count);
        return dst.Read();
      });
      Compare(format("SigmoidGate {}", count), [&](Device& device) {
        const DeviceFloats y(device, a), gate(device, b);
        device.SigmoidGate(y.data(), gate.data(), count);
        return y.Read();
      });
      for (const SituParams params : {SituParams{4, 25}, SituParams{2.5f, 11}, SituParams{1, 0}}) {
        Compare(format("SituGlu {}", count), [&](Device& device) {
          const DeviceFloats gate(device, a), up(device, b), out(device, count);
          device.SituGlu(out.data(), gate.data(), up.data(), count, params);
          const std::vector<float> apart = out.Read();
          const DeviceFloats gate2(device, a), up2(device, b);
          device.SituGlu(gate2.data(), gate2.data(), up.data(), count, params);
          device.SituGlu(up2.data(), gate.data(), up2.data(), count, params);
          return Join({apart, gate2.Read(), up2.Read()});
        });
      }
      if (HasFatalFailure()) return;
    }
  }
}

// All exponents and both signs, a quarter of a million values, infinities included: exp, sigmoid,
// tanh, silu.
TEST_P(CpuDeviceTest, ElementaryFunctionsOverAllMagnitudes) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 16411) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!std::isnan(value)) x.push_back(value);
  }
  for (int i = -4400; i <= 4400; ++i) x.push_back(static_cast<float>(i) / 40);
  for (float edge : {0.625f, 88.72283f, 89.0f, 104.0f, 87.33654f, 44.5f, INFINITY}) {
    for (float sign : {1.0f, -1.0f}) {
      for (float toward : {-1e9f, 1e9f}) x.push_back(std::nextafter(sign * edge, toward));
      x.push_back(sign * edge);
    }
  }
  const auto count = static_cast<int64_t>(x.size());
  const std::vector<float> ones(x.size(), 1.0f);
  Compare("sigmoid", [&](Device& device) {
    const DeviceFloats y(device, ones), gate(device, x);
    device.SigmoidGate(y.data(), gate.data(), count);
    return y.Read();
  });
  Compare("tanh", [&](Device& device) {
    const DeviceFloats gate(device, ones), up(device, x);
    device.SituGlu(up.data(), gate.data(), up.data(), count, {1, 1});
    return up.Read();
  });
  Compare("silu", [&](Device& device) {
    std::vector<float> taps(4 * x.size());
    for (size_t c = 0; c < x.size(); ++c) taps[4 * c + 3] = 1.0f;
    const DeviceFloats y(device, count), in(device, x),
        history(device, std::vector<float>(3 * x.size()));
    device.ShortConv(y.data(), in.data(), taps.data(), history.data(), 1, count);
    return y.Read();
  });
  Compare("exp", [&](Device& device) {
    const DeviceFloats f(device, x), beta(device, std::vector<float>(x.size(), 0.0f));
    const std::vector<float> a_log(x.size(), 0.0f), dt_bias(x.size(), 0.0f);
    device.KdaGates(f.data(), beta.data(), a_log.data(), dt_bias.data(), 1, count, 1, -90.0f);
    return f.Read();
  });
}

TEST_P(CpuDeviceTest, Norms) {
  for (int64_t dim : kCounts) {
    for (int64_t n : {1, 2, 3, 7}) {
      const Range range = kRanges[random_.Bits() % 2];
      const std::vector<float> x = random_.Values(n * dim, range);
      const std::vector<float> gate_values = random_.Values(n * dim);
      const GuardedFloats w(random_.Values(dim));
      Compare(format("RmsNorm {} x {}", n, dim), [&](Device& device) {
        const DeviceFloats in(device, x), out(device, n * dim);
        device.RmsNorm(out.data(), in.data(), w.data(), n, dim, dim, 1e-5f);
        const std::vector<float> apart = out.Read();
        // Only the head of each row: the rest of it must stay.
        device.RmsNorm(in.data(), in.data(), w.data(), n, (dim + 1) / 2, dim, 1e-6f);
        return Join({apart, in.Read()});
      });
      Compare(format("L2Normalize {} x {}", n, dim), [&](Device& device) {
        const DeviceFloats in(device, x);
        device.L2Normalize(in.data(), n, dim, 0.0883883461f);
        return in.Read();
      });
      Compare(format("GatedRmsNorm {} x {}", n, dim), [&](Device& device) {
        const DeviceFloats in(device, x), gate(device, gate_values);
        device.GatedRmsNorm(in.data(), gate.data(), w.data(), n, dim, 1e-5f);
        return in.Read();
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CpuDeviceTest, ResidualMix) {
  for (int64_t snapshots : {1, 2, 3, 8, 9, 17}) {
    for (int64_t dim : {1, 7, 16, 96, 129, 1000}) {
      for (int64_t n : {1, 2, 5}) {
        for (Range range : kRanges) {
          const int64_t stride = n * dim + 5;
          const std::vector<float> sources = random_.Values(snapshots * stride, range);
          const std::vector<float> live = random_.Values(n * dim, range);
          const GuardedFloats query(random_.Values(dim));
          Compare(format("{} snapshots, {} x {}", snapshots, n, dim), [&](Device& device) {
            const DeviceFloats blocks(device, sources), prefix(device, live), out(device, n * dim);
            device.ResidualMix(out.data(), blocks.data(), stride, snapshots, prefix.data(),
                               query.data(), n, dim, 1e-5f);
            return out.Read();
          });
        }
      }
    }
  }
}

TEST_P(CpuDeviceTest, ShortConv) {
  for (int64_t channels : kCounts) {
    for (int64_t n : {1, 2, 3, 4, 5, 9, 33}) {
      const Range range = kRanges[random_.Bits() % 2];
      const std::vector<float> x = random_.Values(n * channels, range);
      const std::vector<float> before = random_.Values(3 * channels, range);
      const GuardedFloats w(random_.Values(4 * channels));
      Compare(format("{} steps of {}", n, channels), [&](Device& device) {
        const DeviceFloats in(device, x), history(device, before), y(device, n * channels);
        device.ShortConv(y.data(), in.data(), w.data(), history.data(), n, channels);
        return Join({y.Read(), history.Read()});
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CpuDeviceTest, KdaGates) {
  for (int64_t dim : {1, 3, 8, 16, 24, 33, 64, 128}) {
    for (int64_t heads : {1, 2, 5, 12}) {
      for (int64_t n : {1, 2, 7}) {
        const std::vector<float> f_in = random_.Values(n * heads * dim, kRanges[n % 2]);
        const std::vector<float> beta_in = random_.Values(n * heads, kRanges[n % 2]);
        const GuardedFloats a_log(random_.Values(heads)), dt_bias(random_.Values(heads * dim));
        Compare(format("{} x {} x {}", n, heads, dim), [&](Device& device) {
          const DeviceFloats f(device, f_in), beta(device, beta_in);
          device.KdaGates(f.data(), beta.data(), a_log.data(), dt_bias.data(), n, heads, dim, -5);
          return Join({f.Read(), beta.Read()});
        });
      }
    }
  }
}

TEST_P(CpuDeviceTest, KdaRecurrence) {
  for (int64_t dim : {1, 2, 5, 8, 16, 17, 24, 32, 40, 64, 65, 128}) {
    for (int64_t heads : {1, 2, 5}) {
      for (int64_t n : {1, 2, 3, 8, 21}) {
        const int64_t rows = n * heads;
        const Range range = kRanges[random_.Bits() % 2];
        const std::vector<float> q = random_.Values(rows * dim), k = random_.Values(rows * dim),
                                 v = random_.Values(rows * dim, range),
                                 state_in = random_.Values(heads * dim * dim, range);
        std::vector<float> alpha = random_.Values(rows * dim), beta = random_.Values(rows);
        for (float& a : alpha) a = 0.0067f + 0.99f * (std::fabs(a) / 2);
        for (float& b : beta) b = std::fabs(b) / 2;
        Compare(format("{} x {} x {}", n, heads, dim), [&](Device& device) {
          const DeviceFloats state(device, state_in), out(device, rows * dim);
          const DeviceFloats dq(device, q), dk(device, k), dv(device, v), da(device, alpha),
              db(device, beta);
          device.KdaRecurrence(out.data(), state.data(), dq.data(), dk.data(), dv.data(), da.data(),
                               db.data(), n, heads, dim);
          return Join({out.Read(), state.Read()});
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The pages of a cache, some tokens filled at random by MlaAppend.
class Cache {
 public:
  Cache(Device& device, const std::vector<float>& latents, const MlaShape& shape,
        CacheFormat format, int64_t page_tokens) {
    const auto tokens = static_cast<int64_t>(latents.size()) / shape.latent_dim();
    const int64_t value_bytes = format == CacheFormat::kF32 ? 4 : 2;
    for (int64_t t = 0; t < tokens; t += page_tokens) {
      buffers_.emplace_back(device,
                            static_cast<size_t>(page_tokens * shape.latent_dim() * value_bytes));
      pages_.push_back(buffers_.back().address());
    }
    view_ = {pages_.data(), page_tokens, format};
    const DeviceFloats in(device, latents);
    const int64_t first = std::min<int64_t>(tokens, 37);  // in two calls, cut anywhere
    device.MlaAppend(view_, in.data(), 0, first, shape);
    device.MlaAppend(view_, in.data() + first * shape.latent_dim(), first, tokens - first, shape);
  }
  const LatentCacheView& view() const { return view_; }
  std::vector<float> Read(Device& device) const {  // raw bytes, padded to floats
    std::vector<float> all;
    for (const DeviceBuffer& buffer : buffers_) {
      std::vector<float> page(buffer.size_bytes() / sizeof(float));
      device.ToHost(page.data(), buffer.address(), page.size() * sizeof(float));
      all.insert(all.end(), page.begin(), page.end());
    }
    return all;
  }

 private:
  std::vector<DeviceBuffer> buffers_;
  std::vector<void*> pages_;
  LatentCacheView view_;
};

const MlaShape kMlaShapes[] = {
    {.num_heads = 1, .nope_dim = 1, .rope_dim = 1, .v_dim = 1, .kv_lora = 1},
    {.num_heads = 3, .nope_dim = 12, .rope_dim = 6, .v_dim = 10, .kv_lora = 24},
    {.num_heads = 2, .nope_dim = 5, .rope_dim = 0, .v_dim = 7, .kv_lora = 17},
    {.num_heads = 5, .nope_dim = 16, .rope_dim = 8, .v_dim = 16, .kv_lora = 64},
    {.num_heads = 2, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .kv_lora = 512},
};

TEST_P(CpuDeviceTest, MlaAttend) {
  for (const MlaShape& shape : kMlaShapes) {
    const bool large = shape.kv_lora > 100;
    for (int64_t first : {0, 1, 15, 16, 62, 63, 64, 100, 127, 500, 1020, 1024, 2100}) {
      if (large && first > 127 && first != 1020) continue;
      for (int64_t n : {1, 2, 6, 17}) {
        if (first > 500 && n > 6) continue;
        const auto format = Coin() ? CacheFormat::kF32 : CacheFormat::kBf16;
        const int64_t page_tokens = Coin() ? 64 : 192;
        const Range range = n == 2 ? Range::kWild : Range::kOrdinary;
        const std::vector<float> latents = random_.Values((first + n) * shape.latent_dim(), range);
        const std::vector<float> query = random_.Values(n * shape.num_heads * shape.latent_dim());
        Compare(deltafin::format("kv_lora {}, {} positions from {}", shape.kv_lora, n, first),
                [&](Device& device) {
                  const Cache cache(device, latents, shape, format, page_tokens);
                  const DeviceFloats q(device, query);
                  const DeviceFloats out(device, n * shape.num_heads * shape.kv_lora);
                  device.MlaAttend(out.data(), q.data(), cache.view(), first, n, shape, 0.31f);
                  return Join({cache.Read(device), out.Read()});
                });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CpuDeviceTest, MlaProjections) {
  for (const MlaShape& shape : kMlaShapes) {
    for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8}) {
      for (int64_t n : {1, 2, 3, 8, 19}) {
        const Range range = kRanges[random_.Bits() % 2];
        const OwnedMatrix kv_b = random_.MatrixOf(
            format, shape.num_heads * (shape.nope_dim + shape.v_dim), shape.kv_lora, range);
        const std::vector<float> q = random_.Values(n * shape.num_heads * shape.query_dim(), range);
        const std::vector<float> o = random_.Values(n * shape.num_heads * shape.kv_lora, range);
        Compare(FormatName(format) + deltafin::format(" kv_lora {} x {}", shape.kv_lora, n),
                [&](Device& device) {
                  const DeviceFloats query(device, q), attended(device, o);
                  const DeviceFloats absorbed(device, n * shape.num_heads * shape.latent_dim());
                  const DeviceFloats values(device, n * shape.num_heads * shape.v_dim);
                  device.MlaAbsorbQuery(absorbed.data(), kv_b.view, query.data(), n, shape);
                  device.MlaExpandValue(values.data(), kv_b.view, attended.data(), n, shape);
                  return Join({absorbed.Read(), values.Read()});
                });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CpuDeviceTest, RouterTopK) {
  for (int64_t num_experts : {1, 2, 5, 12, 16, 33, 96, 896}) {
    for (int64_t top_k : {1, 2, 3, 8, 16}) {
      if (top_k > num_experts) continue;
      for (int64_t n : {1, 2, 9}) {
        std::vector<float> logits = random_.Values(n * num_experts);
        for (float& logit : logits) {  // some saturate, and many are equal
          if (Coin()) logit = std::round(4 * logit) * (random_.Bits() % 16 == 0 ? 50.0f : 0.25f);
        }
        const GuardedFloats bias(std::vector<float>(static_cast<size_t>(num_experts),
                                                    Coin() ? 0.0f : random_.Uniform(-1, 1)));
        const RouterParams params{num_experts, top_k, Coin(), Coin() ? 1.0f : 2.5f};
        Compare(format("{} of {}, {} positions", top_k, num_experts, n), [&](Device& device) {
          const DeviceFloats in(device, logits);
          std::vector<int32_t> ids(static_cast<size_t>(n * top_k));
          std::vector<float> weights(static_cast<size_t>(n * top_k));
          device.RouterTopK(ids.data(), weights.data(), in.data(), bias.data(), n, params);
          return Join({std::vector<float>(ids.begin(), ids.end()), weights});
        });
      }
    }
  }
}

TEST_P(CpuDeviceTest, ExpertMlp) {
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t latent = 32 * random_.Between(1, 9), width = 32 * random_.Between(1, 7);
    const int64_t n = trial % 3 == 0 ? 1 : random_.Between(1, 24);
    const int64_t num_experts = random_.Between(1, 6);
    const Range range = trial % 4 == 0 ? Range::kWild : Range::kOrdinary;
    const SituParams params = trial % 5 == 0 ? SituParams{1, 0} : SituParams{4, 25};
    std::vector<OwnedMatrix> weights;
    std::vector<std::vector<int32_t>> in_rows(static_cast<size_t>(num_experts)), out_rows = in_rows;
    std::vector<ExpertTask> tasks;
    int32_t num_outputs = 0;
    for (size_t e = 0; e < in_rows.size(); ++e) {
      const WeightFormat format = trial % 6 == 5 ? WeightFormat::kBf16 : WeightFormat::kMxfp4;
      weights.push_back(random_.MatrixOf(format, width, latent));
      weights.push_back(random_.MatrixOf(format, width, latent));
      weights.push_back(random_.MatrixOf(format, latent, width));
      for (int32_t p = 0; p < n; ++p) {
        if (n > 1 && Coin()) continue;
        in_rows[e].push_back(p);
        out_rows[e].push_back(num_outputs++);
      }
      std::reverse(out_rows[e].begin(), out_rows[e].end());  // any mapping
      tasks.push_back({{weights[3 * e].view, weights[3 * e + 1].view, weights[3 * e + 2].view},
                       in_rows[e].data(),
                       out_rows[e].data(),
                       static_cast<int64_t>(in_rows[e].size())});
    }
    const std::vector<float> z = random_.Values(n * latent, range);
    Compare(format("{} experts {} -> {}, {} rows", num_experts, latent, width, num_outputs),
            [&](Device& device) {
              const DeviceFloats in(device, z), out(device, num_outputs * latent);
              device.ExpertMlp(tasks, in.data(), out.data(), latent, params);
              device.Synchronize();
              return out.Read();
            });
    if (HasFatalFailure()) return;
  }
}

TEST_P(CpuDeviceTest, CombineExperts) {
  for (int64_t dim : kCounts) {
    for (int64_t top_k : {1, 2, 3, 16}) {
      for (int64_t n : {1, 2, 5}) {
        const std::vector<float> y = random_.Values(n * top_k * dim, kRanges[n % 2]);
        const GuardedFloats weights(random_.Values(n * top_k));
        Compare(format("{} x {} x {}", n, top_k, dim), [&](Device& device) {
          const DeviceFloats in(device, y), out(device, n * dim);
          device.CombineExperts(out.data(), in.data(), weights.data(), n, top_k, dim);
          return out.Read();
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllIsas, CpuDeviceTest,
                         ::testing::Combine(::testing::ValuesIn(AvailableCpuIsas()),
                                            ::testing::Values(1, 3)),
                         [](const auto& parameters) {
                           std::string name(CpuIsaName(std::get<0>(parameters.param)));
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name + "_" + std::to_string(std::get<1>(parameters.param)) +
                                  "threads";
                         });

}  // namespace
}  // namespace deltafin
