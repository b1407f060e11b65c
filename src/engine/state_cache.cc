#include "engine/state_cache.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <new>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "deltafin/error.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "state-";
constexpr std::string_view kExtension = ".session";
constexpr std::string_view kAnswer = "answer ";  // leads the note of a file

std::string NoteOf(uint64_t answer_key) {
  return std::string(kAnswer) + format("{:016x}", answer_key);
}

uint64_t KeyOf(std::string_view note) {
  uint64_t key = 0;
  if (!note.starts_with(kAnswer)) return 0;
  std::from_chars(note.data() + kAnswer.size(), note.data() + note.size(), key, 16);
  return key;
}

// Equal texts have one file.
std::string FileName(const KeptText& text) {
  const Hash128 tokens = Xxh3Wide(std::as_bytes(std::span(text.tokens)));
  const uint64_t parts[] = {tokens.high, tokens.low, text.answer_key,
                            static_cast<uint64_t>(text.first_generated)};
  const Hash128 hash = Xxh3Wide(std::as_bytes(std::span(parts)));
  return std::string(kPrefix) + format("{:016x}{:016x}", hash.high, hash.low) +
         std::string(kExtension);
}

}  // namespace

int64_t UsefulTokens(std::span<const TokenId> tokens, bool has_logits, int64_t first_generated,
                     uint64_t answer_key, const WantedText& wanted) {
  const std::span<const TokenId> prompt = wanted.prompt;
  const size_t common = std::min(tokens.size(), prompt.size());
  if (!std::equal(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(common),
                  prompt.begin())) {
    return 0;
  }
  if (tokens.size() >= prompt.size() && !has_logits) return 0;
  if (tokens.size() > prompt.size()) {
    const bool is_answer =
        first_generated == std::ssize(prompt) && answer_key != 0 && answer_key == wanted.answer_key;
    if (!is_answer) return 0;
  }
  return std::ssize(tokens);
}

StateCache::StateCache(const StateCacheOptions& options, const SessionOrigin& origin,
                       int64_t context_tokens)
    : options_(options), origin_(origin), context_tokens_(context_tokens) {
  if (options_.folder.empty()) return;
  MakeFolders(options_.folder);
  lock_ = std::make_unique<FolderLock>(options_.folder);
  FindFiles();
  MakeRoomInFolder();
}

void StateCache::FindFiles() {
  std::vector<std::pair<fs::file_time_type, std::string>> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    if (name.ends_with(kExtension)) {
      files.emplace_back(entry.last_write_time(error), entry.path().string());
    } else if (name.ends_with(".tmp")) {  // of a process that was killed
      fs::remove(entry.path(), error);
    }
  }
  std::sort(files.begin(), files.end());
  for (const auto& [time, path] : files) AddFile(path);
}

void StateCache::AddFile(const std::string& path) {
  auto entry = std::make_unique<Entry>();
  entry->id = ++last_id_;
  entry->last_use = ++clock_;
  entry->path = path;
  try {
    SessionContent content = PeekSession(path);
    entry->file_bytes = ReadSessionSummary(path).bytes;
    entry->usable = content.origin.model == origin_.model &&
                    content.origin.cache_format == origin_.cache_format &&
                    content.origin.spine == origin_.spine &&
                    std::ssize(content.tokens) <= context_tokens_;
    entry->text = {std::move(content.tokens), {}, content.first_generated, KeyOf(content.note)};
    entry->file_has_logits = !content.last_logits.empty();
  } catch (const Error& error) {
    ++failures_;
    if (error.code() == ErrorCode::kCorrupt) return RemoveFileOf(*entry);
    entry->usable = false;  // of a later version, or the disk fails
    std::error_code ignored;
    entry->file_bytes = fs::file_size(path, ignored);
    if (ignored) return;
  }
  entries_.push_back(std::move(entry));
}

const StateCache::Entry* StateCache::MostUsefulEntry(const WantedText& wanted) const {
  const Entry* best = nullptr;
  int64_t most = 0;
  for (const auto& entry : entries_) {
    if (!entry->usable) continue;
    const int64_t useful =
        UsefulTokens(entry->text.tokens, entry->has_logits(), entry->text.first_generated,
                     entry->text.answer_key, wanted);
    if (useful <= most) continue;
    most = useful;
    best = entry.get();
  }
  return best;
}

int64_t StateCache::MostUseful(const WantedText& wanted) const {
  const Entry* entry = MostUsefulEntry(wanted);
  return entry == nullptr ? 0 : std::ssize(entry->text.tokens);
}

std::optional<KeptText> StateCache::Restore(const WantedText& wanted, int64_t more_than,
                                            SequenceState& state) {
  while (const Entry* found = MostUsefulEntry(wanted)) {
    if (std::ssize(found->text.tokens) <= more_than) return std::nullopt;
    Entry& entry = *Find(found->id);
    entry.last_use = ++clock_;
    KeptText text = entry.text;
    bool found_bad = false;
    try {
      if (entry.is_best_in_ram()) {
        state.Restore(entry.state);
        return text;
      }
      const SessionReader reader(entry.path);
      CheckSameOrigin(entry.path, reader.content().origin, origin_);
      if (reader.content().tokens == text.tokens &&
          reader.content().last_logits.empty() != entry.file_has_logits) {
        reader.ReadState(state);
        text.logits = reader.content().last_logits;
        PutIntoRam(entry, text.logits, state, nullptr);
        std::error_code ignored;
        fs::last_write_time(entry.path, fs::file_time_type::clock::now(), ignored);
        ForgetLost();
        return text;
      }
      found_bad = true;  // another text has its name
    } catch (const Error& error) {
      found_bad = error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kNotFound;
    }
    ++failures_;
    state.Clear();
    entry.usable = false;
    if (found_bad) Drop(entry.id);
  }
  return std::nullopt;
}

StateCache::Id StateCache::Keep(const KeptText& text, const SequenceState& state,
                                const StateCapture* capture) {
  if (!keeps_any() || text.tokens.empty()) return 0;
  Entry* entry = nullptr;
  for (const auto& other : entries_) {
    if (other->usable && other->text.tokens == text.tokens &&
        other->text.answer_key == text.answer_key &&
        other->text.first_generated == text.first_generated) {
      entry = other.get();
    }
  }
  if (entry == nullptr) {
    entry = entries_.emplace_back(std::make_unique<Entry>()).get();
    entry->id = ++last_id_;
    entry->text = {text.tokens, {}, text.first_generated, text.answer_key};
  }
  entry->last_use = ++clock_;
  const bool adds_logits = !entry->has_logits() && !text.logits.empty();
  if (entry->state.empty() || adds_logits) PutIntoRam(*entry, text.logits, state, capture);
  if (entry->path.empty() || adds_logits) Write(*entry, text.logits, state, capture);
  const Id id = entry->id;
  ForgetLost();
  MakeRoomInFolder();
  return Find(id) == nullptr ? 0 : id;
}

// The least recently used states go until there is so much room, or none are left.
void StateCache::FreeRam(uint64_t bytes) {
  uint64_t in_use = ram_bytes() + reserved_bytes_;
  while (in_use + bytes > options_.ram_bytes) {
    Entry* oldest = nullptr;
    for (const auto& entry : entries_) {
      if (entry->state.empty()) continue;
      if (oldest == nullptr || entry->last_use < oldest->last_use) oldest = entry.get();
    }
    if (oldest == nullptr) return;
    in_use -= oldest->ram_bytes();
    oldest->state = {};
    oldest->text.logits = {};
  }
}

bool StateCache::ReserveRoom(uint64_t bytes) {
  if (bytes > options_.ram_bytes) return false;
  reserved_bytes_ = 0;  // the caller's claim takes the place of the one before
  FreeRam(bytes);
  ForgetLost();
  reserved_bytes_ = bytes;
  return true;
}

void StateCache::PutIntoRam(Entry& entry, const std::vector<float>& logits,
                            const SequenceState& state, const StateCapture* capture) {
  const uint64_t bytes = state.SavedBytes(capture) + logits.size() * sizeof(float);
  if (bytes + reserved_bytes_ > options_.ram_bytes) return;
  entry.state = {};
  entry.text.logits = {};
  FreeRam(bytes);  // before the copy is made: both would be too much
  try {
    entry.state = state.Save(capture);
    entry.text.logits = logits;
  } catch (const std::bad_alloc&) {  // less than was planned
    ++failures_;
  } catch (const Error&) {  // a page of the latent cache cannot be read
    ++failures_;
  }
}

void StateCache::Write(Entry& entry, const std::vector<float>& logits, const SequenceState& state,
                       const StateCapture* capture) {
  if (options_.folder.empty()) return;
  const std::string path = JoinPath(options_.folder, FileName(entry.text));
  try {
    WriteSessionFile(path,
                     {origin_, entry.text.first_generated, entry.text.tokens, logits,
                      NoteOf(entry.text.answer_key)},
                     state, Durability::kUnsynced, capture);
    // Another model's state of the same text had this name.
    for (const auto& other : entries_) {
      if (other.get() != &entry && other->path == path) ForgetFileOf(*other);
    }
    entry.path = path;
    entry.file_has_logits = !logits.empty();
    entry.file_bytes = ReadSessionSummary(path).bytes;
  } catch (const Error&) {
    ++failures_;
  }
}

// Those that are nowhere any more are forgotten.
void StateCache::ForgetLost() {
  std::erase_if(entries_, [](const auto& e) { return e->state.empty() && e->path.empty(); });
}

void StateCache::MakeRoomInFolder() {
  while (file_bytes() > options_.folder_bytes) {
    Entry* oldest = nullptr;
    for (const auto& entry : entries_) {
      if (entry->path.empty() || (oldest != nullptr && entry->last_use > oldest->last_use))
        continue;
      oldest = entry.get();
    }
    RemoveFileOf(*oldest);
  }
  ForgetLost();
}

void StateCache::RemoveFileOf(Entry& entry) {
  std::error_code ignored;
  if (!entry.path.empty()) fs::remove(entry.path, ignored);
  ForgetFileOf(entry);
}

void StateCache::ForgetFileOf(Entry& entry) {
  entry.path.clear();
  entry.file_bytes = 0;
  entry.file_has_logits = false;
}

void StateCache::Drop(Id id) {
  Entry* entry = Find(id);
  if (entry == nullptr) return;
  RemoveFileOf(*entry);
  entry->state = {};
  ForgetLost();
}

StateCache::Entry* StateCache::Find(Id id) {
  for (const auto& entry : entries_) {
    if (entry->id == id) return entry.get();
  }
  return nullptr;
}

uint64_t StateCache::ram_bytes() const {
  uint64_t bytes = 0;
  for (const auto& entry : entries_) bytes += entry->state.empty() ? 0 : entry->ram_bytes();
  return bytes;
}

uint64_t StateCache::file_bytes() const {
  uint64_t bytes = 0;
  for (const auto& entry : entries_) bytes += entry->file_bytes;
  return bytes;
}

}  // namespace deltafin
