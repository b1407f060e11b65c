#include "model/sequence_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "deltafin/error.h"
#include "model/cache_spill.h"
#include "model/state_capture.h"

namespace deltafin {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

int64_t CacheValueBytes(CacheFormat format) { return format == CacheFormat::kBf16 ? 2 : 4; }

int64_t CacheTokenBytes(const ModelConfig& config, CacheFormat format) {
  return (config.kv_lora_rank + config.qk_rope_head_dim) * CacheValueBytes(format);
}

// Pieces of states, and whole pages, pass through it.
size_t HostBufferBytes(int64_t token_bytes) {
  return std::max(kPieceBytes, static_cast<size_t>(kCachePageTokens * token_bytes));
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

SequenceState::SequenceState(const ModelConfig& config, Device& device, CacheFormat format,
                             CacheSpill* spill)
    : config_(config), device_(device), format_(format), spill_(spill), layers_(config.num_layers) {
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.is_mla[layer]) continue;
    layers_[layer].kda = DeviceBuffer(device, kda_bytes());
    layers_[layer].conv = DeviceBuffer(device, conv_bytes());
  }
}

SequenceState::~SequenceState() { ForgetSpilledFrom(0); }

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

int64_t SequenceState::resident_pages() const {
  return spill_ == nullptr ? std::numeric_limits<int64_t>::max() : spill_->resident_pages();
}

void SequenceState::Reserve(int64_t num_tokens) {
  const int64_t pages = (num_tokens + kCachePageTokens - 1) / kCachePageTokens;
  const int64_t resident = std::min(pages, resident_pages());
  const auto page_bytes = static_cast<size_t>(kCachePageTokens * token_bytes());
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    if (!config_.is_mla[layer]) continue;
    Layer& l = layers_[layer];
    if (std::ssize(l.page_addresses) >= pages) continue;
    while (std::ssize(l.pages) < resident) {
      l.pages.emplace_back(device_, page_bytes);
      l.page_addresses.push_back(l.pages.back().address());
    }
    if (pages == resident) continue;
    if (l.tail.address() == nullptr) l.tail = DeviceBuffer(device_, page_bytes);
    l.page_addresses.resize(pages);
    l.slots.resize(pages - resident, kNone);
  }
}

int64_t SequenceState::SlotOf(const Layer& layer, int64_t page) const {
  const int64_t slot = layer.slots[page - resident_pages()];
  DF_CHECK(slot != kNone);
  return slot;
}

void SequenceState::WritePage(Layer& layer, int64_t page, const void* bytes) {
  int64_t& slot = layer.slots[page - resident_pages()];
  if (slot == kNone) slot = spill_->TakeSlot();
  spill_->Write(slot, bytes);
}

LatentCacheView SequenceState::BeginAppend(int64_t layer, int64_t first, int64_t count) {
  DF_CHECK(count >= 1);
  Layer& l = layers_[layer];
  LatentCacheView view{l.page_addresses.data(), kCachePageTokens, format_, nullptr,
                       spill_ != nullptr};
  const int64_t resident = resident_pages();
  const int64_t end_page = (first + count - 1) / kCachePageTokens + 1;
  if (end_page <= resident) return view;
  const int64_t first_page = std::max(first / kCachePageTokens, resident);
  if (l.tail_page == kNone && first > first_page * kCachePageTokens) {
    // The sequence went back into this page after it was written.
    spill_->Read(SlotOf(l, first_page), {static_cast<std::byte*>(l.tail.address()),
                                         static_cast<size_t>(kCachePageTokens * token_bytes())});
    l.tail_page = first_page;
  }
  size_t open = 0;
  for (int64_t page = first_page; page < end_page; ++page) {
    if (page == l.tail_page) continue;
    l.page_addresses[page] = spill_->open_pages()[open++].address();
  }
  if (l.tail_page != kNone) l.page_addresses[l.tail_page] = l.tail.address();
  const int64_t read_end = FilePagesEnd(l, first);
  spill_->SetWalk({std::span(l.slots).first(static_cast<size_t>(read_end - resident)),
                   l.page_addresses.data(), resident, read_end});
  if (read_end > resident) view.reader = spill_;
  return view;
}

int64_t SequenceState::FilePagesEnd(const Layer& layer, int64_t first) const {
  const int64_t first_page = std::max(first / kCachePageTokens, resident_pages());
  return layer.tail_page == kNone ? first_page : std::min(first_page, layer.tail_page);
}

void SequenceState::ReadAhead(int64_t layer, int64_t first) const {
  if (spill_ == nullptr) return;
  const Layer& l = layers_[layer];
  const int64_t count = FilePagesEnd(l, first) - resident_pages();
  if (count > 0) spill_->ReadAhead(std::span(l.slots).first(static_cast<size_t>(count)));
}

void SequenceState::EndAppend(int64_t layer, int64_t first, int64_t count) {
  Layer& l = layers_[layer];
  const int64_t last_page = (first + count - 1) / kCachePageTokens;
  if (last_page < resident_pages() || last_page == l.tail_page) return;
  const int64_t first_page = std::max(first / kCachePageTokens, resident_pages());
  if (l.tail_page != kNone) WritePage(l, l.tail_page, l.tail.address());
  for (int64_t page = first_page; page < last_page; ++page) {
    if (page != l.tail_page) WritePage(l, page, l.page_addresses[page]);
  }
  std::vector<DeviceBuffer>& open = spill_->open_pages();
  const auto buffer = std::find_if(open.begin(), open.end(), [&](const DeviceBuffer& b) {
    return b.address() == l.page_addresses[last_page];
  });
  DF_CHECK(buffer != open.end());
  std::swap(l.tail, *buffer);
  l.tail_page = last_page;
}

// What of pages from `page` on is not in the pages that stay.
void SequenceState::ForgetSpilledFrom(int64_t page) {
  if (spill_ == nullptr) return;
  std::vector<int64_t> slots;
  for (Layer& l : layers_) {
    for (int64_t i = std::max<int64_t>(0, page - resident_pages()); i < std::ssize(l.slots); ++i) {
      if (l.slots[i] != kNone) slots.push_back(std::exchange(l.slots[i], kNone));
    }
    if (l.tail_page >= page) l.tail_page = kNone;
  }
  spill_->FreeSlots(std::move(slots));
}

void SequenceState::Truncate(int64_t num_tokens) {
  DF_CHECK(num_tokens >= 0 && num_tokens <= num_tokens_);
  ForgetSpilledFrom((num_tokens + kCachePageTokens - 1) / kCachePageTokens);
  num_tokens_ = num_tokens;
}

void SequenceState::Clear() {
  const std::vector<std::byte> zeros(std::max(kda_bytes(), conv_bytes()));
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    if (config_.is_mla[layer]) continue;
    device_.ToDevice(layers_[layer].kda.address(), zeros.data(), kda_bytes());
    device_.ToDevice(layers_[layer].conv.address(), zeros.data(), conv_bytes());
  }
  ForgetSpilledFrom(0);
  num_tokens_ = 0;
}

float* SequenceState::conv_history(int64_t layer, int which) const {
  return layers_[layer].conv.floats() + which * (config_.conv_kernel - 1) * config_.kda_width();
}

template <class Visit>
void SequenceState::VisitParts(int64_t num_tokens, Visit&& visit) const {
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const Layer& l = layers_[layer];
    if (!config_.is_mla[layer]) {
      visit(Part{layer, l.kda.address(), kda_bytes()});
      visit(Part{layer, l.conv.address(), conv_bytes()});
      continue;
    }
    for (int64_t first = 0; first < num_tokens; first += kCachePageTokens) {
      const int64_t page = first / kCachePageTokens;
      const int64_t tokens = std::min(kCachePageTokens, num_tokens - first);
      void* const address = page < resident_pages() ? l.pages[page].address()
                            : page == l.tail_page   ? l.tail.address()
                                                    : nullptr;
      visit(Part{layer, address, static_cast<size_t>(tokens * token_bytes()), page});
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
  std::vector<std::byte> host(HostBufferBytes(token_bytes()));
  VisitParts(num_tokens, [&](const Part& part) {
    const Layer& l = layers_[part.layer];
    if (part.address == nullptr) {
      const auto page = std::span(host).first(part.bytes);
      spill_->Read(SlotOf(l, part.page), page);
      return write(page);
    }
    if (capture != nullptr && part.address == l.kda.address()) {
      return write(capture->kda(part.layer));
    }
    if (capture != nullptr && part.address == l.conv.address()) {
      return write(capture->conv(part.layer));
    }
    for (size_t at = 0; at < part.bytes; at += kPieceBytes) {
      const auto piece = std::span(host).first(std::min(kPieceBytes, part.bytes - at));
      device_.ToHost(piece.data(), static_cast<const std::byte*>(part.address) + at, piece.size());
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
  const auto per_token = static_cast<uint64_t>(token_bytes() * config_.num_mla_layers());
  if (per_token > 0 && static_cast<uint64_t>(header.num_tokens) > bytes / per_token) {
    refuse(format("of {} tokens, for which {} bytes are too few", header.num_tokens, bytes));
  }
  const uint64_t expected = SavedBytesOf(header.num_tokens);
  if (bytes != expected) refuse(format("expected {} bytes, got {}", expected, bytes));
  ForgetSpilledFrom(0);
  Reserve(header.num_tokens);
  const int64_t last_page = (header.num_tokens - 1) / kCachePageTokens;
  if (header.num_tokens > 0 && last_page >= resident_pages()) {
    for (Layer& l : layers_) {
      if (l.tail.address() != nullptr) l.tail_page = last_page;
    }
  }
  std::vector<std::byte> host(HostBufferBytes(token_bytes()));
  VisitParts(header.num_tokens, [&](const Part& part) {
    if (part.address == nullptr) {
      const auto page = std::span(host).first(part.bytes);
      read(page);
      return WritePage(layers_[part.layer], part.page, page.data());
    }
    for (size_t at = 0; at < part.bytes; at += kPieceBytes) {
      const auto piece = std::span(host).first(std::min(kPieceBytes, part.bytes - at));
      read(piece);
      device_.ToDevice(static_cast<std::byte*>(part.address) + at, piece.data(), piece.size());
    }
  });
  num_tokens_ = header.num_tokens;
}

uint64_t SequenceState::Bytes(const ModelConfig& config, CacheFormat format, int64_t num_tokens,
                              int64_t resident_pages) {
  const int64_t pages = (num_tokens + kCachePageTokens - 1) / kCachePageTokens;
  const int64_t in_memory = pages <= resident_pages ? pages : resident_pages + 1;
  const uint64_t kda_layers = static_cast<uint64_t>(config.num_layers - config.num_mla_layers());
  return kda_layers * (KdaBytes(config) + ConvBytes(config)) +
         static_cast<uint64_t>(in_memory * kCachePageTokens * CacheTokenBytes(config, format) *
                               config.num_mla_layers());
}

uint64_t SequenceState::MemoryBytes() const {
  return Bytes(config_, format_, num_tokens_, resident_pages());
}

}  // namespace deltafin
