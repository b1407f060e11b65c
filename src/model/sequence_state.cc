#include "model/sequence_state.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"
#include "model/state_capture.h"

namespace deltafin {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

int64_t CacheValueBytes(CacheFormat format) { return format == CacheFormat::kBf16 ? 2 : 4; }

int64_t CacheTokenBytes(const ModelConfig& config, CacheFormat format) {
  return (config.kv_lora_rank + config.qk_rope_head_dim) * CacheValueBytes(format);
}

}  // namespace

// Leads a saved state: what must be equal for it to fit.
struct SequenceState::SavedHeader {
  int64_t num_tokens = 0;
  int64_t num_layers = 0;
  int64_t kda_bytes = 0;
  int64_t conv_bytes = 0;
  int64_t token_bytes = 0;
};

SequenceState::SequenceState(const ModelConfig& config, Device& device, CacheFormat format)
    : config_(config), device_(device), format_(format), layers_(config.num_layers) {
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.is_mla[layer]) continue;
    layers_[layer].kda = DeviceBuffer(device, kda_bytes());
    layers_[layer].conv = DeviceBuffer(device, conv_bytes());
  }
}

size_t SequenceState::KdaBytes(const ModelConfig& config) {
  return static_cast<size_t>(config.kda_heads * config.kda_head_dim * config.kda_head_dim) *
         sizeof(float);
}

// Three histories (q, k, v) of conv_kernel - 1 steps.
size_t SequenceState::ConvBytes(const ModelConfig& config) {
  return static_cast<size_t>(3 * (config.conv_kernel - 1) * config.kda_width()) * sizeof(float);
}

int64_t SequenceState::token_bytes() const { return CacheTokenBytes(config_, format_); }
size_t SequenceState::kda_bytes() const { return KdaBytes(config_); }
size_t SequenceState::conv_bytes() const { return ConvBytes(config_); }

void SequenceState::Reserve(int64_t num_tokens) {
  const size_t pages = static_cast<size_t>((num_tokens + kCachePageTokens - 1) / kCachePageTokens);
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    if (!config_.is_mla[layer]) continue;
    Layer& l = layers_[layer];
    while (l.pages.size() < pages) {
      l.pages.emplace_back(device_, static_cast<size_t>(kCachePageTokens * token_bytes()));
      l.page_addresses.push_back(l.pages.back().address());
    }
  }
}

void SequenceState::Truncate(int64_t num_tokens) {
  DF_CHECK(num_tokens >= 0 && num_tokens <= num_tokens_);
  num_tokens_ = num_tokens;
}

void SequenceState::Clear() {
  const std::vector<std::byte> zeros(std::max(kda_bytes(), conv_bytes()));
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    if (config_.is_mla[layer]) continue;
    device_.ToDevice(layers_[layer].kda.address(), zeros.data(), kda_bytes());
    device_.ToDevice(layers_[layer].conv.address(), zeros.data(), conv_bytes());
  }
  num_tokens_ = 0;
}

float* SequenceState::conv_history(int64_t layer, int which) const {
  return layers_[layer].conv.floats() + which * (config_.conv_kernel - 1) * config_.kda_width();
}

LatentCacheView SequenceState::cache(int64_t layer) const {
  return {layers_[layer].page_addresses.data(), kCachePageTokens, format_};
}

// Calls visit(layer, address, bytes) for every part of the state of `num_tokens` tokens, in a fixed
// order.
template <class Visit>
void SequenceState::VisitParts(int64_t num_tokens, Visit&& visit) const {
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const Layer& l = layers_[layer];
    if (!config_.is_mla[layer]) {
      visit(layer, l.kda.address(), kda_bytes());
      visit(layer, l.conv.address(), conv_bytes());
      continue;
    }
    for (int64_t first = 0; first < num_tokens; first += kCachePageTokens) {
      const int64_t tokens = std::min(kCachePageTokens, num_tokens - first);
      visit(layer, l.pages[first / kCachePageTokens].address(),
            static_cast<size_t>(tokens * token_bytes()));
    }
  }
}

std::vector<std::byte> SequenceState::Save(const StateCapture* capture) const {
  std::vector<std::byte> saved;
  saved.reserve(SavedBytes(capture));
  const auto append = [&](std::span<const std::byte> piece) {
    saved.insert(saved.end(), piece.begin(), piece.end());
  };
  SaveTo(append, capture);
  return saved;
}

uint64_t SequenceState::SavedBytes(const StateCapture* capture) const {
  return SavedBytesOf(capture == nullptr ? num_tokens_ : capture->num_tokens());
}

uint64_t SequenceState::SavedBytesOf(int64_t num_tokens) const {
  return sizeof(SavedHeader) + Bytes(config_, format_, 0) +
         static_cast<uint64_t>(num_tokens * token_bytes() * config_.num_mla_layers());
}

void SequenceState::SaveTo(const std::function<void(std::span<const std::byte>)>& write,
                           const StateCapture* capture) const {
  const int64_t num_tokens = capture == nullptr ? num_tokens_ : capture->num_tokens();
  DF_CHECK(num_tokens <= num_tokens_);
  const SavedHeader header{num_tokens, config_.num_layers, static_cast<int64_t>(kda_bytes()),
                           static_cast<int64_t>(conv_bytes()), token_bytes()};
  write(std::as_bytes(std::span(&header, 1)));
  std::vector<std::byte> host(kPieceBytes);
  VisitParts(num_tokens, [&](int64_t layer, void* address, size_t bytes) {
    if (capture != nullptr && address == layers_[layer].kda.address()) {
      return write(capture->kda(layer));
    }
    if (capture != nullptr && address == layers_[layer].conv.address()) {
      return write(capture->conv(layer));
    }
    for (size_t at = 0; at < bytes; at += kPieceBytes) {
      const auto piece = std::span(host).first(std::min(kPieceBytes, bytes - at));
      device_.ToHost(piece.data(), static_cast<const std::byte*>(address) + at, piece.size());
      write(piece);
    }
  });
}

void SequenceState::Restore(std::span<const std::byte> saved) {
  RestoreFrom(saved.size(), [&](std::span<std::byte> to) {
    std::memcpy(to.data(), saved.data(), to.size());
    saved = saved.subspan(to.size());
  });
}

void SequenceState::RestoreFrom(uint64_t bytes,
                                const std::function<void(std::span<std::byte>)>& read) {
  SavedHeader header;
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "saved state: " + why);
  };
  if (bytes < sizeof(header)) refuse("shorter than its header");
  read(std::as_writable_bytes(std::span(&header, 1)));
  if (header.num_layers != config_.num_layers ||
      header.kda_bytes != static_cast<int64_t>(kda_bytes()) ||
      header.conv_bytes != static_cast<int64_t>(conv_bytes()) ||
      header.token_bytes != token_bytes() || header.num_tokens < 0) {
    refuse("made by another model or with another cache format");
  }
  const uint64_t expected = SavedBytesOf(header.num_tokens);
  if (bytes != expected) refuse(format("expected {} bytes, got {}", expected, bytes));
  Reserve(header.num_tokens);
  std::vector<std::byte> host(kPieceBytes);
  VisitParts(header.num_tokens, [&](int64_t, void* address, size_t part) {
    for (size_t at = 0; at < part; at += kPieceBytes) {
      const auto piece = std::span(host).first(std::min(kPieceBytes, part - at));
      read(piece);
      device_.ToDevice(static_cast<std::byte*>(address) + at, piece.data(), piece.size());
    }
  });
  num_tokens_ = header.num_tokens;
}

uint64_t SequenceState::Bytes(const ModelConfig& config, CacheFormat format, int64_t num_tokens) {
  const int64_t pages = (num_tokens + kCachePageTokens - 1) / kCachePageTokens;
  const uint64_t kda_layers = static_cast<uint64_t>(config.num_layers - config.num_mla_layers());
  return kda_layers * (KdaBytes(config) + ConvBytes(config)) +
         static_cast<uint64_t>(pages * kCachePageTokens * CacheTokenBytes(config, format) *
                               config.num_mla_layers());
}

}  // namespace deltafin
