// cuda_products: matrix products of K3's widths in CUDA, to compare the Vulkan shaders with
// (gpu_products.cc). Nothing of the engine: sums are added up in whatever order is fast.
//   nvcc -O3 -std=c++17 -arch=sm_90 bench/cuda_products.cu -o cuda_products
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                     \
  do {                                                                                  \
    const cudaError_t error = (call);                                                   \
    if (error != cudaSuccess) {                                                         \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));               \
      std::exit(1);                                                                     \
    }                                                                                   \
  } while (false)

namespace {

constexpr size_t kBytes = size_t{1} << 30;
constexpr int kWarpsOfBlock = 4;

enum class Format { kF32, kBf16, kInt8, kMxfp4 };

__device__ float WarpSum(float sum) {
  for (int width = 16; width > 0; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
  return sum;
}

// Weights of 16 bytes, times x.
template <Format kFormat>
__device__ float Dot16(uint4 words, const float* x) {
  float sum = 0;
  const uint32_t all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kFormat == Format::kF32) {
      sum = fmaf(__uint_as_float(all[i]), x[i], sum);
    } else if constexpr (kFormat == Format::kBf16) {
      sum = fmaf(__uint_as_float(all[i] << 16), x[2 * i], sum);
      sum = fmaf(__uint_as_float(all[i] & 0xffff0000u), x[2 * i + 1], sum);
    } else if constexpr (kFormat == Format::kInt8) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t bits = __byte_perm(all[i], 0x4b000000u, 0x7650 | j);
        sum = fmaf(__uint_as_float(bits) - 8388736.0f, x[4 * i + j], sum);
      }
    } else {
      // Codes j and j + 4 of the word are the halves of one word.
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t codes = all[i] >> (4 * j);
        const uint32_t bits = (codes & 0x00070007u) << 9 | (codes & 0x00080008u) << 12;
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&bits));
        sum = fmaf(pair.x, x[8 * i + 2 * j], sum);
        sum = fmaf(pair.y, x[8 * i + 2 * j + 1], sum);
      }
    }
  }
  return sum;
}

template <Format kFormat>
constexpr int kColumnsOf16 = kFormat == Format::kF32    ? 4
                             : kFormat == Format::kBf16 ? 8
                             : kFormat == Format::kInt8 ? 16
                                                        : 32;

// y = W x; a warp has kRows rows. MXFP4: `scales` has one byte for 32 columns.
template <Format kFormat, int kRows>
__global__ void Product(const uint4* weights, const uint8_t* scales, const float* x, float* y,
                        int rows, int cols) {
  constexpr int kColumns = kColumnsOf16<kFormat>;
  const int lane = threadIdx.x % 32;
  const int first = (blockIdx.x * kWarpsOfBlock + threadIdx.x / 32) * kRows;
  const int words = cols / kColumns;
  float sums[kRows] = {};
  for (int word = lane; word < words; word += 32) {
    uint4 read[kRows];
    float scale[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const size_t at = static_cast<size_t>(min(first + r, rows - 1)) * words + word;
      read[r] = __ldcs(weights + at);
      if constexpr (kFormat == Format::kMxfp4) {
        scale[r] = __uint_as_float(static_cast<uint32_t>(scales[at]) << 23);
      }
    }
    float values[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; i += 4) {
      // As a warp likes it: lane after lane, four at a time.
      const float4 four = *reinterpret_cast<const float4*>(x + (word - lane) * kColumns + i * 32 +
                                                           lane * 4);
      values[i] = four.x;
      values[i + 1] = four.y;
      values[i + 2] = four.z;
      values[i + 3] = four.w;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float part = Dot16<kFormat>(read[r], values);
      sums[r] = kFormat == Format::kMxfp4 ? fmaf(part, scale[r], sums[r]) : sums[r] + part;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = WarpSum(sums[r]);
    if (lane == 0 && first + r < rows) y[first + r] = sum;
  }
}

// y = W x for n positions (a multiple of 128), bf16 weights: a block has 128 rows and 128
// positions, a thread 8 of each.
__global__ void __launch_bounds__(256) TiledProduct(const uint16_t* weights, const float* x,
                                                     float* y, int rows, int cols) {
  constexpr int kTile = 128;
  constexpr int kDepth = 8;
  __shared__ float w_tile[kDepth][kTile + 4];
  __shared__ float x_tile[kDepth][kTile + 4];
  const int thread = threadIdx.x;
  const int first_row = blockIdx.y * kTile;
  const int first_position = blockIdx.x * kTile;
  const int load = thread / 2;            // row or position that this thread reads
  const int part = thread % 2 * 4;        // and which four columns
  const int row = thread / 16 * 8;        // of its tile
  const int position = thread % 16 * 8;
  float sums[8][8] = {};
  for (int k = 0; k < cols; k += kDepth) {
    const uint2 four = *reinterpret_cast<const uint2*>(
        weights + static_cast<size_t>(first_row + load) * cols + k + part);
    const float4 values = *reinterpret_cast<const float4*>(
        x + static_cast<size_t>(first_position + load) * cols + k + part);
    __syncthreads();
    w_tile[part][load] = __uint_as_float(four.x << 16);
    w_tile[part + 1][load] = __uint_as_float(four.x & 0xffff0000u);
    w_tile[part + 2][load] = __uint_as_float(four.y << 16);
    w_tile[part + 3][load] = __uint_as_float(four.y & 0xffff0000u);
    x_tile[part][load] = values.x;
    x_tile[part + 1][load] = values.y;
    x_tile[part + 2][load] = values.z;
    x_tile[part + 3][load] = values.w;
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      float a[8];
      float b[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i] = w_tile[d][row + i];
#pragma unroll
      for (int i = 0; i < 8; ++i) b[i] = x_tile[d][position + i];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
      }
    }
  }
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 8; ++i) {
      y[static_cast<size_t>(first_position + position + j) * rows + first_row + row + i] =
          sums[i][j];
    }
  }
}

// Multiply-adds from registers.
__global__ void Peak(float* out, int steps) {
  float sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = static_cast<float>(threadIdx.x + i);
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < 16; ++i) sums[i] = fmaf(sums[i], 0.999f, 0.5f);
  }
  float all = 0;
  for (int i = 0; i < 16; ++i) all += sums[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = all;
}

// Seconds of the fastest of some runs.
template <class Run>
double Best(Run run) {
  cudaEvent_t begin;
  cudaEvent_t end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  float best = 1e30f;
  for (int i = 0; i < 6; ++i) {
    CHECK(cudaEventRecord(begin));
    run();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaGetLastError());
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    best = std::min(best, ms);
  }
  return best / 1e3;
}

struct Memory {
  uint8_t* weights = nullptr;
  uint8_t* other = nullptr;
  float* x = nullptr;
  double copy_bandwidth = 0;
};

// A launch for each matrix of 1 GiB of them.
template <Format kFormat>
void Measure(const char* name, const Memory& memory, int rows, int cols) {
  constexpr int kRows = kFormat == Format::kMxfp4 ? 4 : 2;
  const size_t code_bytes = static_cast<size_t>(rows) * (cols / kColumnsOf16<kFormat>) * 16;
  const size_t scale_bytes = kFormat == Format::kMxfp4 ? static_cast<size_t>(rows) * cols / 32 : 0;
  const auto count = static_cast<int>(std::max<size_t>(1, kBytes / (code_bytes + scale_bytes)));
  const int blocks = (rows + kWarpsOfBlock * kRows - 1) / (kWarpsOfBlock * kRows);
  const double seconds = Best([&] {
    for (int i = 0; i < count; ++i) {
      const uint8_t* const at = memory.weights + i * ((code_bytes + scale_bytes) / 256 * 256);
      Product<kFormat, kRows><<<blocks, kWarpsOfBlock * 32>>>(
          reinterpret_cast<const uint4*>(at), at + code_bytes, memory.x,
          reinterpret_cast<float*>(memory.other), rows, cols);
    }
  });
  const double bandwidth = static_cast<double>(code_bytes + scale_bytes) * count / seconds;
  std::printf("%-6s %6d x %5d, 1 position: %8.1f us, %5.0f GB/s (%.2f of copy)\n", name, rows, cols,
              seconds / count * 1e6, bandwidth / 1e9, bandwidth / memory.copy_bandwidth);
}

}  // namespace

int main() {
  Memory memory;
  CHECK(cudaMalloc(&memory.weights, kBytes + (1 << 20)));
  CHECK(cudaMalloc(&memory.other, kBytes));
  CHECK(cudaMalloc(&memory.x, size_t{512} * 12288 * sizeof(float)));
  CHECK(cudaMemset(memory.weights, 0x31, kBytes + (1 << 20)));
  CHECK(cudaMemset(memory.x, 0x3c, size_t{512} * 12288 * sizeof(float)));
  constexpr int kTimes = 8;
  const double copy = Best([&] {
    for (int i = 0; i < kTimes; ++i) {
      CHECK(cudaMemcpyAsync(memory.other, memory.weights, kBytes, cudaMemcpyDeviceToDevice));
    }
  });
  memory.copy_bandwidth = 2.0 * static_cast<double>(kBytes) * kTimes / copy;
  std::printf("copy: %.0f GB/s read and written\n", memory.copy_bandwidth / 1e9);
  constexpr int kPeakBlocks = 132 * 8;
  constexpr int kPeakSteps = 20000;
  const double peak = Best([&] {
    Peak<<<kPeakBlocks, 256>>>(reinterpret_cast<float*>(memory.other), kPeakSteps);
  });
  std::printf("multiply-adds: %.1f TFLOP/s\n", 2.0 * 16 * kPeakSteps * kPeakBlocks * 256 / peak / 1e12);
  Measure<Format::kF32>("f32", memory, 12288, 7168);
  Measure<Format::kBf16>("bf16", memory, 12288, 7168);
  Measure<Format::kInt8>("int8", memory, 12288, 7168);
  Measure<Format::kMxfp4>("mxfp4", memory, 3584, 3072);
  Measure<Format::kMxfp4>("mxfp4", memory, 2 * 16 * 3072, 3584);
  constexpr int kRows = 12288;
  constexpr int kCols = 7168;
  constexpr int kPositions = 512;
  const double tiled = Best([&] {
    TiledProduct<<<dim3(kPositions / 128, kRows / 128), 256>>>(
        reinterpret_cast<const uint16_t*>(memory.weights), memory.x,
        reinterpret_cast<float*>(memory.other), kRows, kCols);
  });
  std::printf("bf16   %6d x %5d, %d positions: %8.1f us, %.1f TFLOP/s\n", kRows, kCols, kPositions,
              tiled * 1e6, 2.0 * kRows * kCols * kPositions / tiled / 1e12);
  return 0;
}
