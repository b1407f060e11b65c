// The results for a position do not depend on how many positions are computed at once, nor on the
// number of threads: seven positions in one call, one by one, and in two parts, bit by bit.
#include <gtest/gtest.h>

#include <tuple>

#include "device/cpu/cpu_device.h"
#include "device/device_test_util.h"

namespace deltafin {
namespace {

constexpr int64_t kPositions = 7;

// Inputs of seven positions for every operator, and a run of all of them in given parts.
class Workload {
 public:
  // Everything that the operators wrote, position by position; then the states.
  std::vector<float> Run(Device& device, const std::vector<int64_t>& parts) const {
    std::vector<float> all;
    const auto append = [&all](const DeviceFloats& result) {
      const std::vector<float> values = result.Read();
      all.insert(all.end(), values.begin(), values.end());
    };
    for (const OwnedMatrix& w : matrices_) {
      const DeviceFloats x(device, wide_), y(device, kPositions * kRows);
      ForParts(parts, [&](int64_t p, int64_t n) {
        device.MatMul(w.view, x.data() + p * kDim, y.data() + p * kRows, kRows, n);
      });
      append(y);
    }
    RunDense(device, parts, append);
    RunKda(device, parts, append);
    RunMla(device, parts, append);
    RunMoe(device, parts, append);
    return all;
  }

 private:
  static constexpr int64_t kDim = 96, kRows = 37, kHeads = 3, kHeadDim = 32;
  static constexpr int64_t kFirst = 125;  // crosses a block of the attention

  template <class Body>
  static void ForParts(const std::vector<int64_t>& parts, const Body& body) {
    int64_t position = 0;
    for (int64_t n : parts) {
      body(position, n);
      position += n;
    }
    ASSERT_EQ(position, kPositions);
  }

  template <class Append>
  void RunDense(Device& device, const std::vector<int64_t>& parts, const Append& append) const {
    const DeviceFloats x(device, wide_), norm(device, kPositions * kDim);
    const DeviceFloats mix(device, kPositions * kDim), sources(device, snapshots_);
    ForParts(parts, [&](int64_t p, int64_t n) {
      device.RmsNorm(norm.data() + p * kDim, x.data() + p * kDim, norm_.data(), n, kDim, kDim,
                     1e-5f);
      device.ResidualMix(mix.data() + p * kDim, sources.data() + p * kDim, kPositions * kDim, 2,
                         x.data() + p * kDim, norm_.data(), n, kDim, 1e-5f);
    });
    append(norm);
    append(mix);
    const DeviceFloats glu(device, kPositions * kDim), gated(device, wide_), sum(device, wide_);
    ForParts(parts, [&](int64_t p, int64_t n) {
      const int64_t at = p * kDim, count = n * kDim;
      device.SituGlu(glu.data() + at, x.data() + at, sources.data() + at, count, {4, 25});
      device.SigmoidGate(gated.data() + at, sources.data() + at, count);
      device.Add(sum.data() + at, sources.data() + at, count);
    });
    append(glu);
    append(gated);
    append(sum);
  }

  template <class Append>
  void RunKda(Device& device, const std::vector<int64_t>& parts, const Append& append) const {
    const DeviceFloats x(device, wide_), history(device, history_), conv(device, kPositions * kDim);
    const DeviceFloats q(device, wide_), gates(device, wide_), beta(device, beta_);
    const DeviceFloats state(device, state_), out(device, kPositions * kDim);
    ForParts(parts, [&](int64_t p, int64_t n) {
      const int64_t at = p * kDim;
      device.ShortConv(conv.data() + at, x.data() + at, conv_.data(), history.data(), n, kDim);
      device.L2Normalize(q.data() + at, n * kHeads, kHeadDim, 0.2f);
      device.KdaGates(gates.data() + at, beta.data() + p * kHeads, norm_.data(), norm_.data(), n,
                      kHeads, kHeadDim, -5);
      device.KdaRecurrence(out.data() + at, state.data(), q.data() + at, q.data() + at,
                           x.data() + at, gates.data() + at, beta.data() + p * kHeads, n, kHeads,
                           kHeadDim);
    });
    append(conv);
    append(history);
    append(gates);
    append(beta);
    append(out);
    append(state);
    ForParts(parts, [&](int64_t p, int64_t n) {
      device.GatedRmsNorm(out.data() + p * kDim, x.data() + p * kDim, norm_.data(), n * kHeads,
                          kHeadDim, 1e-5f);
    });
    append(out);
  }

  template <class Append>
  void RunMla(Device& device, const std::vector<int64_t>& parts, const Append& append) const {
    const DeviceBuffer page(device, 192 * static_cast<size_t>(shape_.latent_dim()) * 4);
    void* const pages[] = {page.address()};
    const LatentCacheView cache{pages, 192, CacheFormat::kF32};
    const DeviceFloats latents(device, latents_), q(device, query_);
    const DeviceFloats absorbed(device, kPositions * kHeads * shape_.latent_dim());
    const DeviceFloats attended(device, kPositions * kHeads * shape_.kv_lora);
    const DeviceFloats values(device, kPositions * kHeads * shape_.v_dim);
    device.MlaAppend(cache, latents.data(), 0, kFirst, shape_);
    ForParts(parts, [&](int64_t p, int64_t n) {
      const int64_t row = p * kHeads;
      device.MlaAppend(cache, latents.data() + (kFirst + p) * shape_.latent_dim(), kFirst + p, n,
                       shape_);
      device.MlaAbsorbQuery(absorbed.data() + row * shape_.latent_dim(), kv_b_.view,
                            q.data() + row * shape_.query_dim(), n, shape_);
      device.MlaAttend(attended.data() + row * shape_.kv_lora,
                       absorbed.data() + row * shape_.latent_dim(), cache, kFirst + p, n, shape_,
                       0.1f);
      device.MlaExpandValue(values.data() + row * shape_.v_dim, kv_b_.view,
                            attended.data() + row * shape_.kv_lora, n, shape_);
    });
    append(absorbed);
    append(attended);
    append(values);
  }

  template <class Append>
  void RunMoe(Device& device, const std::vector<int64_t>& parts, const Append& append) const {
    constexpr int64_t kTopK = 2;
    const DeviceFloats x(device, wide_), y(device, kPositions * kTopK * kDim);
    const DeviceFloats out(device, kPositions * kDim);
    std::vector<int32_t> ids(kPositions * kTopK);
    std::vector<float> weights(ids.size());
    ForParts(parts, [&](int64_t p, int64_t n) {
      float* const w = weights.data() + p * kTopK;
      device.RouterTopK(ids.data() + p * kTopK, w, x.data() + p * kDim, norm_.data(), n,
                        {kDim, kTopK, true, 1.5f});
      std::vector<int32_t> in_rows, out_rows;
      for (int32_t i = 0; i < n; ++i) {
        in_rows.push_back(i);
        out_rows.push_back(2 * i);
        in_rows.push_back(i);
        out_rows.push_back(2 * i + 1);
      }
      const ExpertTask task{{experts_[0].view, experts_[1].view, experts_[2].view},
                            in_rows.data(),
                            out_rows.data(),
                            2 * n};
      device.ExpertMlp({&task, 1}, x.data() + p * kDim, y.data() + p * kTopK * kDim, kDim, {4, 25});
      device.CombineExperts(out.data() + p * kDim, y.data() + p * kTopK * kDim, w, n, kTopK, kDim);
    });
    append(y);
    append(out);
    append(DeviceFloats(device, std::vector<float>(ids.begin(), ids.end())));
    append(DeviceFloats(device, weights));
  }

  Random random_{11};
  MlaShape shape_{.num_heads = kHeads, .nope_dim = 8, .rope_dim = 4, .v_dim = 8, .kv_lora = 40};
  std::vector<float> wide_ = random_.Values(kPositions * kDim);
  std::vector<float> norm_ = random_.Values(kDim);
  std::vector<float> snapshots_ = random_.Values(2 * kPositions * kDim);
  std::vector<float> conv_ = random_.Values(4 * kDim), history_ = random_.Values(3 * kDim);
  std::vector<float> beta_ = random_.Values(kPositions * kHeads);
  std::vector<float> state_ = random_.Values(kHeads * kHeadDim * kHeadDim);
  std::vector<float> latents_ = random_.Values((kFirst + kPositions) * shape_.latent_dim());
  std::vector<float> query_ = random_.Values(kPositions * kHeads * shape_.query_dim());
  std::vector<OwnedMatrix> matrices_ = AllFormats(kRows, kDim);
  std::vector<OwnedMatrix> experts_ = AllMxfp4();
  OwnedMatrix kv_b_ = random_.MatrixOf(WeightFormat::kBf16, kHeads * 16, 40);

  std::vector<OwnedMatrix> AllFormats(int64_t rows, int64_t cols) {
    std::vector<OwnedMatrix> all;
    for (WeightFormat format :
         {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kMxfp4}) {
      all.push_back(random_.MatrixOf(format, rows, cols));
    }
    return all;
  }
  std::vector<OwnedMatrix> AllMxfp4() {
    std::vector<OwnedMatrix> all;
    all.push_back(random_.MatrixOf(WeightFormat::kMxfp4, 64, kDim));
    all.push_back(random_.MatrixOf(WeightFormat::kMxfp4, 64, kDim));
    all.push_back(random_.MatrixOf(WeightFormat::kMxfp4, kDim, 64));
    return all;
  }
};

class InvarianceTest : public ::testing::TestWithParam<CpuIsa> {};

TEST_P(InvarianceTest, PartsAndThreadsDoNotChangeBits) {
  const Workload workload;
  ThreadPool one(1);
  const std::vector<float> expected = workload.Run(*MakeCpuDevice(one, GetParam()), {kPositions});
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    const std::unique_ptr<Device> device = MakeCpuDevice(pool, GetParam());
    for (const std::vector<int64_t>& parts :
         {std::vector<int64_t>{7}, {3, 4}, {1, 1, 1, 1, 1, 1, 1}, {6, 1}}) {
      ExpectSameBits(expected, workload.Run(*device, parts),
                     std::to_string(threads) + " threads, first part " + std::to_string(parts[0]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllIsas, InvarianceTest, ::testing::ValuesIn(AvailableCpuIsas()));

}  // namespace
}  // namespace deltafin
