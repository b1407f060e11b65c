// MLA on the GPU.
#include <algorithm>
#include <climits>

#include "base/check.h"
#include "base/format.h"
#include "device/vulkan/lane_layout.h"
#include "device/vulkan/operator_jobs.h"
#include "device/vulkan/vulkan_device.h"

namespace deltafin {
namespace {

// shaders/mla_absorb.comp
constexpr int64_t kMostNope = 256;
// shaders/mla_attend.comp: of a token, and of a head's output
constexpr int64_t kMostLatent = 640;
constexpr int64_t kMostValues = 512;
constexpr int64_t kSegmentTokens = 1024;
static_assert(kSegmentTokens == kProvidedTokens);
constexpr int64_t kMostHeads = 8;  // of a workgroup; one where multiply-adds are emulated
// So few workgroups of segments are made workgroups of blocks.
constexpr int64_t kFewGroups = 256;

const char* FormatName(WeightFormat format) {
  if (format == WeightFormat::kF32) return "f32";
  return format == WeightFormat::kBf16 ? "bf16" : "int8";
}

}  // namespace

// ---- the latent cache ----

bool VulkanDevice::MayHold(const LatentCacheView& cache, const MlaShape& shape) const {
  return has_operators_ && !is_lost_ && cache.reader == nullptr && !cache.is_in_file &&
         shape.latent_dim() <= kMostLatent && shape.kv_lora <= kMostValues &&
         shape.num_heads <= kMostGroups &&
         (cache.format == CacheFormat::kF32 || shape.latent_dim() % 2 == 0);
}

VulkanDevice::Operands VulkanDevice::TokensOf(const LatentCacheView& cache, int64_t begin,
                                              int64_t end, const MlaShape& shape) {
  const int64_t values = cache.format == CacheFormat::kF32 ? 1 : 2;  // in the room of a float
  Operands all;
  for (int64_t token = begin; token < end;) {
    const int64_t page = token / cache.page_tokens;
    const int64_t last = std::min(end, (page + 1) * cache.page_tokens);
    const auto* const floats = static_cast<const float*>(cache.pages[page]);
    const int64_t from = token % cache.page_tokens * shape.latent_dim();
    const int64_t count = (last - token) * shape.latent_dim();
    // Values of two bytes may begin and end within a float.
    all.push_back(Whole(floats + from / values, (from % values + count + values - 1) / values));
    token = last;
  }
  return all;
}

// The pages themselves stay where they are; their list may not.
VulkanDevice::CacheCopy VulkanDevice::CopyOf(const LatentCacheView& cache, int64_t tokens) {
  CacheCopy copy{cache, {}};
  copy.pages.assign(cache.pages,
                    cache.pages + (tokens + cache.page_tokens - 1) / cache.page_tokens);
  return copy;
}

void VulkanDevice::MlaAppend(const LatentCacheView& cache, const float* latent, int64_t first,
                             int64_t n, const MlaShape& shape) {
  struct Job {
    VkDeviceAddress to;
    VkDeviceAddress from;
    uint32_t pairs;
    uint32_t unused = 0;
  };
  const Rows in = Whole(latent, n * shape.latent_dim());
  const Operands out = TokensOf(cache, first, first + n, shape);
  const auto run = [this, copy = CopyOf(cache, first + n), latent, first, n, shape] {
    host_->MlaAppend(copy.view(), latent, first, n, shape);
  };
  const auto record = [&] {
    uint64_t from_offset = 0;
    const GpuBuffer& from = ShadowOf(in, &from_offset);
    for (const Rows& tokens : out) {
      uint64_t to_offset = 0;
      const GpuBuffer& to = ShadowOf(tokens, &to_offset);
      if (cache.format == CacheFormat::kF32) {
        const uint64_t bytes = tokens.end() - tokens.begin();
        Commands().Copy(to, to_offset, from, from_offset, bytes);
        from_offset += bytes;
      } else {
        Commands().Run(
            "to_bf16",
            Job{to.address() + to_offset, from.address() + from_offset, U32(tokens.width)},
            GroupsOf(tokens.width));
        from_offset += static_cast<uint64_t>(tokens.width) * 2 * sizeof(float);
      }
    }
  };
  if (MayHold(cache, shape) && IsThere({in}) && OnGpu({in}, out, record, run)) return;
  OnHost({in}, out, run);
}

void VulkanDevice::MlaAttend(float* out, const float* absorbed, const LatentCacheView& cache,
                             int64_t first, int64_t n, const MlaShape& shape, float scale) {
  const int64_t rows = n * shape.num_heads;
  const Rows result = Whole(out, rows * shape.kv_lora);
  Operands reads{Whole(absorbed, rows * shape.latent_dim())};
  const Operands tokens = TokensOf(cache, 0, first + n, shape);
  // With a reader the other pages are nobody's.
  if (cache.reader == nullptr) reads.insert(reads.end(), tokens.begin(), tokens.end());
  const auto run = [this, copy = CopyOf(cache, first + n), out, absorbed, first, n, shape, scale] {
    host_->MlaAttend(out, absorbed, copy.view(), first, n, shape, scale);
  };
  const auto record = [&] {
    std::vector<VkDeviceAddress> pages;
    for (const Rows& page : tokens) pages.push_back(AddressOf(page));
    const DeviceRange table = Constant(pages.data(), pages.size() * sizeof(VkDeviceAddress));
    Order({&table, 1}, {});
    RecordAttend({AddressOf(result), AddressOf(reads[0]), table.begin, cache.page_tokens,
                  cache.format, first, n, scale},
                 shape);
  };
  if (MayHold(cache, shape) && IsThere({reads[0]}) && OnGpu(reads, {result}, record, run)) return;
  OnHost(reads, {result}, [&] { host_->MlaAttend(out, absorbed, cache, first, n, shape, scale); });
}

// As many positions at a time as have room for what is merged. Each turn is handed over by itself:
// drivers give up a GPU that is at work on one submission for seconds.
void VulkanDevice::RecordAttend(const AttendCall& call, const MlaShape& shape) {
  struct Job {
    VkDeviceAddress result;
    VkDeviceAddress spans;
    VkDeviceAddress queries;
    VkDeviceAddress pages;
    uint32_t page_tokens;
    uint32_t first;
    uint32_t span;
    uint32_t num_spans;
    uint32_t kv_lora;
    uint32_t latent;
    uint32_t scale;
    uint32_t flushes;
    uint32_t heads;
    uint32_t unused = 0;
  };
  struct MergeJob {
    VkDeviceAddress result;
    VkDeviceAddress merged;
    VkDeviceAddress spans;
    uint32_t first;
    uint32_t span;
    uint32_t num_spans;
    uint32_t group;
    uint32_t num_groups;
    uint32_t kv_lora;
  };
  const auto pieces = [](int64_t count, int64_t of) { return (count + of - 1) / of; };
  const int64_t all = call.first + call.n;
  const int64_t heads = shape.num_heads;
  const int64_t left = heads * (shape.kv_lora + 2) * int64_t{sizeof(float)};  // of a span
  const auto span_bytes = static_cast<int64_t>(span_bytes_);
  const bool emulated = gpu_.arithmetic() == GpuArithmetic::kEmulated;
  const int64_t head_groups = pieces(heads, emulated ? 1 : kMostHeads);
  const bool few = head_groups * pieces(all, kSegmentTokens) * call.n < kFewGroups &&
                   pieces(all, kAttentionBlock) * left <= span_bytes;
  const int64_t span = few ? kAttentionBlock : kSegmentTokens;
  const int64_t spans = pieces(all, span);
  const int64_t segments = pieces(all, kSegmentTokens);
  const int64_t turn = std::clamp<int64_t>(span_bytes / (spans * left), 1, call.n);
  const auto room = [&](int64_t count) {
    return scratch_.Take(static_cast<uint64_t>(turn * count * left)).address();
  };
  const VkDeviceAddress span_room = spans > 1 ? room(spans) : call.result;
  const bool in_two = span < kSegmentTokens && segments > 1;
  const VkDeviceAddress segment_room = in_two ? room(segments) : call.result;
  const std::string shader =
      format("mla_attend_{}", call.format == CacheFormat::kF32 ? "f32" : "bf16");
  for (int64_t p = 0; p < call.n; p += turn) {
    const int64_t n = std::min(turn, call.n - p);
    const int64_t first = call.first + p;
    const auto offset = [&](int64_t width) {
      return static_cast<uint64_t>(p * heads * width) * sizeof(float);
    };
    const VkDeviceAddress result = call.result + offset(shape.kv_lora);
    if (p > 0) Kick();
    Commands().RunArithmetic(
        shader,
        Job{result, span_room, call.queries + offset(shape.latent_dim()), call.pages,
            U32(call.page_tokens), U32(first), U32(span), U32(spans), U32(shape.kv_lora),
            U32(shape.latent_dim()), Bits(call.scale), flushes_subnormals_, U32(heads)},
        U32(pieces(first + n, span)), U32(head_groups), U32(n));
    if (spans == 1) continue;
    Commands().Barrier();
    MergeJob job{result,     segment_room, span_room, U32(first),        U32(span),
                 U32(spans), U32(spans),   1,         U32(shape.kv_lora)};
    if (in_two) {
      job.group = U32(kSegmentTokens / span);
      job.num_groups = U32(segments);
      Commands().RunArithmetic("mla_merge", job, U32(segments), U32(heads), U32(n));
      Commands().Barrier();
      job.spans = segment_room;
      job.span = U32(kSegmentTokens);
      job.num_spans = job.group = U32(segments);
      job.num_groups = 1;
    }
    Commands().RunArithmetic("mla_merge", job, 1, U32(heads), U32(n));
  }
}

// ---- what is multiplied with kv_b ----

// To be asked of the host: the matrix may have left its memory.
std::function<Matrix(std::vector<std::byte>&)> VulkanDevice::Again(const Matrix& w) const {
  Matrix matrix = w;
  if (origin_ != nullptr) matrix.data = nullptr;
  return [this, matrix](std::vector<std::byte>& bytes) { return ReadAgain(matrix, bytes); };
}

void VulkanDevice::MlaAbsorbQuery(float* out, const Matrix& kv_b, const float* q, int64_t n,
                                  const MlaShape& shape) {
  struct Job {
    VkDeviceAddress result;
    VkDeviceAddress queries;
    VkDeviceAddress weights;
    VkDeviceAddress scales;
    uint32_t heads;
    uint32_t nope;
    uint32_t rope;
    uint32_t values;
    uint32_t kv_lora;
    int32_t least;
  };
  const int64_t rows = n * shape.num_heads;
  const Rows in = Whole(q, rows * shape.query_dim());
  const Rows result = Whole(out, rows * shape.latent_dim());
  const bool fits = n <= kMostGroups && shape.nope_dim <= kMostNope &&
                    kv_b.format != WeightFormat::kMxfp4 && kv_b.cols == shape.kv_lora;
  const HeldMatrix* const held = fits && IsThere({in}) ? Place(kv_b) : nullptr;
  if (held != nullptr) {
    const auto record = [&] {
      // Integers are multiples of one, and their scales are in the queries.
      const int least =
          kv_b.format == WeightFormat::kInt8 ? LeastProduct() : LeastQuantum(kv_b, *held);
      const Job job{AddressOf(result),    AddressOf(in),
                    held->weights,        held->scales,
                    U32(shape.num_heads), U32(shape.nope_dim),
                    U32(shape.rope_dim),  U32(shape.v_dim),
                    U32(shape.kv_lora),   least};
      Commands().RunArithmetic(format("mla_absorb_{}", FormatName(kv_b.format)), job,
                               U32(shape.num_heads), U32(n));
    };
    const auto again = [this, matrix = Again(kv_b), out, q, n, shape] {
      std::vector<std::byte> bytes;
      host_->MlaAbsorbQuery(out, matrix(bytes), q, n, shape);
    };
    if (OnGpu({in}, {result}, record, again)) return;
  }
  OnHost({in}, {result}, [&] {
    std::vector<std::byte> bytes;
    host_->MlaAbsorbQuery(out, ReadAgain(kv_b, bytes), q, n, shape);
  });
}

void VulkanDevice::MlaExpandValue(float* out, const Matrix& kv_b, const float* o, int64_t n,
                                  const MlaShape& shape) {
  const int64_t rows = n * shape.num_heads;
  const Rows in = Whole(o, rows * shape.kv_lora);
  const Rows result = Whole(out, rows * shape.v_dim);
  const HeldMatrix* const held =
      kv_b.cols == shape.kv_lora && rows <= kMostGroups && IsThere({in}) ? Place(kv_b) : nullptr;
  if (held != nullptr) {
    const auto again = [this, matrix = Again(kv_b), out, o, n, shape] {
      std::vector<std::byte> bytes;
      host_->MlaExpandValue(out, matrix(bytes), o, n, shape);
    };
    if (OnGpu(
            {in}, {result}, [&] { RecordExpand(kv_b, *held, in, result, n, shape); }, again)) {
      return;
    }
  }
  OnHost({in}, {result}, [&] {
    std::vector<std::byte> bytes;
    host_->MlaExpandValue(out, ReadAgain(kv_b, bytes), o, n, shape);
  });
}

// A product for each head, of the rows of o that are its.
void VulkanDevice::RecordExpand(const Matrix& kv_b, const HeldMatrix& held, const Rows& in,
                                const Rows& result, int64_t n, const MlaShape& shape) {
  const int64_t heads = shape.num_heads;
  std::vector<int32_t> lists(static_cast<size_t>(n * heads));
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t p = 0; p < n; ++p) {
      lists[static_cast<size_t>(head * n + p)] = static_cast<int32_t>(p * heads + head);
    }
  }
  const DeviceRange list = Constant(lists.data(), lists.size() * sizeof(int32_t));
  const VkDeviceAddress x = AddressOf(in);
  const LaidOut laid_out = LayOut({in.data, n * heads, shape.kv_lora, shape.kv_lora}, x,
                                  shape.kv_lora, kv_b.format == WeightFormat::kMxfp4);
  const auto row_bytes = static_cast<uint64_t>(LaidOutRowBytes(kv_b.format, kv_b.cols));
  std::vector<ProductJob> jobs(static_cast<size_t>(heads));
  for (int64_t head = 0; head < heads; ++head) {
    const auto row = static_cast<uint64_t>(head * (shape.nope_dim + shape.v_dim) + shape.nope_dim);
    const auto h = static_cast<uint64_t>(head);
    ProductJob& job = jobs[h];
    job.weights = held.weights + row * row_bytes;
    job.scales = held.scales + row * sizeof(float);
    job.x = laid_out.values.begin;
    job.plain_x = x;
    job.quanta = laid_out.quanta.begin;
    job.y = AddressOf(result) + h * static_cast<uint64_t>(shape.v_dim) * sizeof(float);
    job.in_rows = list.begin + h * static_cast<uint64_t>(n) * sizeof(int32_t);
    job.lists = ProductJob::kInRows;
    job.rows = U32(shape.v_dim);
    job.cols = U32(kv_b.cols);
    job.n = U32(n);
    job.y_stride = U32(heads * shape.v_dim);
    job.least = LeastQuantum(kv_b, held);
  }
  const DeviceRange table = Constant(jobs.data(), jobs.size() * sizeof(ProductJob));
  const DeviceRange reads[] = {table, list, laid_out.values, laid_out.quanta};
  Order(reads, {});
  Commands().Products(kv_b.format, table.begin, U32(heads), jobs[0], U32(n), U32(n));
  if (jobs[0].least != INT_MIN) {
    Commands().ExactProducts(kv_b.format, table.begin, U32(heads), U32(n));
  }
  commands_bytes_ += static_cast<uint64_t>(kv_b.rows * kv_b.row_bytes());
}

}  // namespace deltafin
