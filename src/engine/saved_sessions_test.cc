#include "deltafin/saved_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "deltafin/session.h"
#include "engine/engine_impl.h"
#include "engine/session_file.h"
#include "io/hash.h"
#include "shared_data.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

class SavedSessionsTest : public testing::Test {
 protected:
  SavedSessionsTest() {
    folder_ = (fs::path(testing::TempDir()) /
               ("deltafin_sessions_" + std::to_string(::getpid()) +
                std::string(testing::UnitTest::GetInstance()->current_test_info()->name())))
                  .string();
    fs::remove_all(folder_);
  }
  ~SavedSessionsTest() override { fs::remove_all(folder_); }

  static std::unique_ptr<Engine> Open(CacheFormat format = CacheFormat::kF32, int64_t context = 256,
                                      const std::string& dir = NanoDir()) {
    EngineOptions options;
    options.model_dir = dir;
    options.context_tokens = context;
    options.cache_format = format;
    return Engine::Open(options);
  }
  static GenerateOptions Options(int64_t tokens) {
    GenerateOptions options;
    options.max_new_tokens = tokens;
    options.stop_at_stop_tokens = false;
    options.sampling.temperature = 1;
    options.sampling.frequency_penalty = 0.2;
    options.sampling.seed = 3;
    return options;
  }
  std::string Path(const std::string& name) const { return SessionPath(folder_, name); }
  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  // The error of an action, as "CODE message".
  static std::pair<ErrorCode, std::string> ErrorOf(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
    return {ErrorCode::kCancelled, "no error"};
  }

  std::string folder_;
  std::vector<TokenId> prompt_ = {310, 42, 7, 1999, 5};
};

TEST_F(SavedSessionsTest, GoesOnInAnotherEngineWithTheSameBits) {
  const auto engine = Open();
  const auto whole = engine->NewSession();
  whole->Generate(prompt_, Options(30));
  {
    const auto first = engine->NewSession();
    first->Generate(prompt_, Options(11));
    first->SaveTo(Path("a"), "a note");
  }
  const auto other = Open();
  const auto session = other->NewSession();
  session->Append(std::vector<TokenId>{1, 2, 3}, 0, nullptr, nullptr);  // is replaced
  EXPECT_EQ(session->RestoreFrom(Path("a")), "a note");
  EXPECT_EQ(session->first_generated(), prompt_.size());
  session->Generate({}, Options(19));
  EXPECT_EQ(session->tokens(), whole->tokens());
  session->SaveTo(Path("b"), "");
  whole->SaveTo(Path("c"), "");
  EXPECT_EQ(Read(Path("b")), Read(Path("c")));  // state, logits and all
}

TEST_F(SavedSessionsTest, EveryDamagedByteIsNoticed) {
  const auto engine = Open();
  const auto session = engine->NewSession();
  session->Generate(prompt_, Options(3));
  session->SaveTo(Path("a"), "note");
  const std::string good = Read(Path("a"));
  const std::vector<TokenId> before = session->tokens();
  const auto expect_refused = [&](const std::string& bytes, const std::string& what) {
    Write(Path("a"), bytes);
    const auto [code, message] = ErrorOf([&] { session->RestoreFrom(Path("a")); });
    EXPECT_TRUE(code == ErrorCode::kCorrupt || code == ErrorCode::kUnsupported)
        << what << ": " << message;
    EXPECT_THAT(message, testing::HasSubstr(Path("a")));
    EXPECT_EQ(session->tokens(), before);
  };
  for (size_t at = 0; at < good.size(); at += at < 160 ? 1 : good.size() / 50) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    expect_refused(bad, "byte " + std::to_string(at));
  }
  for (size_t size : {size_t{0}, size_t{50}, size_t{104}, good.size() - 1}) {
    expect_refused(good.substr(0, size), "cut to " + std::to_string(size));
  }
  expect_refused(good + "x", "longer");
  Write(Path("a"), good);
  EXPECT_EQ(session->RestoreFrom(Path("a")), "note");
}

// Places in the header; the hash is over everything before it.
constexpr size_t kNumTokensAt = 56, kHeaderHashAt = 96;

// Replaces numbers of the header and makes its hash right again.
std::string WithHeader(std::string file, const std::vector<std::pair<size_t, uint64_t>>& numbers) {
  for (const auto& [at, number] : numbers) std::memcpy(file.data() + at, &number, sizeof(number));
  const uint64_t hash = Xxh3(std::as_bytes(std::span(file)).first(kHeaderHashAt));
  std::memcpy(file.data() + kHeaderHashAt, &hash, sizeof(hash));
  return file;
}

TEST_F(SavedSessionsTest, SizesThatWrapAroundAreRefused) {
  const auto engine = Open();
  const auto session = engine->NewSession();
  session->Append(prompt_, 0, nullptr, nullptr);
  session->SaveTo(Path("a"), "note");
  const std::string good = Read(Path("a"));
  const uint64_t wrap = uint64_t{1} << 62;
  const auto tokens = static_cast<uint64_t>(prompt_.size());
  Write(Path("a"), WithHeader(good, {{kNumTokensAt, wrap + tokens}}));
  EXPECT_EQ(ErrorOf([&] { InspectSession(folder_, "a", nullptr); }).first, ErrorCode::kCorrupt);
  EXPECT_NE(ListSessions(folder_)[0].problem, "");
  Write(Path("a"), WithHeader(good, {}));
  EXPECT_EQ(ErrorOf([&] { InspectSession(folder_, "a", nullptr); }).first, ErrorCode::kCancelled);
}

// Whole and of this model, but nothing that a session saves: nothing is computed from it.
TEST_F(SavedSessionsTest, ATextThatIsNotTheStatesIsRefused) {
  const auto engine = Open();
  auto& impl = dynamic_cast<EngineImpl&>(*engine);
  const SessionOrigin origin = impl.session_origin();
  SequenceState state(impl.config(), impl.device(), CacheFormat::kF32);
  state.Reserve(3);
  state.Advance(3);
  const std::vector<float> logits(static_cast<size_t>(engine->info().vocab_size));
  const auto restore = [&](const std::vector<TokenId>& tokens, const std::vector<float>& last) {
    WriteSessionFile(Path("a"), {origin, 0, tokens, last, ""}, state, Durability::kSynced);
    const auto session = engine->NewSession();
    return ErrorOf([&] { session->RestoreFrom(Path("a")); }).first;
  };
  fs::create_directories(folder_);
  const auto outside = static_cast<TokenId>(engine->info().vocab_size);
  EXPECT_EQ(restore({1, 2, 3}, logits), ErrorCode::kCancelled);  // no error
  EXPECT_EQ(restore({1, 2, 3, 4}, {}), ErrorCode::kCancelled);
  EXPECT_EQ(restore({1, 2, 3}, {}), ErrorCode::kCorrupt);
  EXPECT_EQ(restore({1, 2}, logits), ErrorCode::kCorrupt);
  EXPECT_EQ(restore({1, 2, 3}, {1, 2}), ErrorCode::kCorrupt);
  EXPECT_EQ(restore({1, 2, outside}, logits), ErrorCode::kInvalidArgument);
  EXPECT_EQ(restore({1, 2, -1}, logits), ErrorCode::kInvalidArgument);
}

TEST_F(SavedSessionsTest, WhatDiffersIsNamed) {
  {
    const auto engine = Open();
    const auto session = engine->NewSession();
    session->Generate(prompt_, Options(20));
    session->SaveTo(Path("a"), "");
  }
  const auto refusal = [&](Engine& engine) {
    const auto session = engine.NewSession();
    return ErrorOf([&] { session->RestoreFrom(Path("a")); });
  };
  EXPECT_THAT(refusal(*Open(CacheFormat::kBf16)),
              testing::Pair(ErrorCode::kInvalidArgument, testing::HasSubstr("--cache f32")));
  EXPECT_THAT(refusal(*Open(CacheFormat::kF32, 10)),
              testing::Pair(ErrorCode::kOutOfMemory, testing::HasSubstr("--context")));
  // The same weights under another config.json are another model.
  const fs::path copy = fs::path(folder_) / "model";
  fs::create_directories(copy);
  for (const auto& entry : fs::directory_iterator(NanoDir())) {
    if (entry.path().filename().string()[0] == '.') continue;
    fs::create_symlink(fs::absolute(entry.path()), copy / entry.path().filename());
  }
  fs::remove(copy / "config.json");
  std::string config = Read(NanoDir() + "/config.json");
  config.replace(config.find("\"rms_norm_eps\": 1e-05"), 21, "\"rms_norm_eps\": 2e-05");
  Write((copy / "config.json").string(), config);
  EXPECT_THAT(refusal(*Open(CacheFormat::kF32, 256, copy.string())),
              testing::Pair(ErrorCode::kInvalidArgument, testing::HasSubstr("another model")));
  const auto engine = Open();  // outlives its session
  const auto missing = engine->NewSession();
  EXPECT_EQ(ErrorOf([&] { missing->RestoreFrom(Path("none")); }).first, ErrorCode::kNotFound);
}

TEST_F(SavedSessionsTest, ListsInspectsAndRemoves) {
  EXPECT_TRUE(ListSessions(folder_).empty());
  const auto engine = Open();
  const auto session = engine->NewSession();
  session->Append(prompt_, 0, nullptr, nullptr);
  session->SaveTo(Path("one"), "");
  session->Append(prompt_, 0, nullptr, nullptr);
  session->SaveTo(Path("two.b"), "");
  Write(Path("bad"), "nonsense");
  Write(folder_ + "/one.session.Xa2b3c", "half written");
  const std::vector<SavedSession> sessions = ListSessions(folder_);
  ASSERT_EQ(sessions.size(), 3u);
  EXPECT_EQ(sessions[0].name, "bad");
  EXPECT_NE(sessions[0].problem, "");
  EXPECT_EQ(sessions[1].name, "one");
  EXPECT_EQ(sessions[1].num_tokens, 5);
  EXPECT_EQ(sessions[1].bytes, fs::file_size(Path("one")));
  EXPECT_EQ(sessions[2].name, "two.b");
  EXPECT_EQ(sessions[2].spine, "bf16");

  std::vector<TokenId> tokens;
  EXPECT_EQ(InspectSession(folder_, "one", &tokens).num_tokens, 5);
  EXPECT_EQ(tokens, prompt_);
  EXPECT_EQ(ErrorOf([&] { InspectSession(folder_, "bad", nullptr); }).first, ErrorCode::kCorrupt);
  RemoveSession(folder_, "bad");
  EXPECT_FALSE(SessionExists(folder_, "bad"));
  EXPECT_EQ(ErrorOf([&] { RemoveSession(folder_, "bad"); }).first, ErrorCode::kNotFound);
  for (const char* name : {"", ".", "../x", "a/b", ".hidden", "a b"}) {
    EXPECT_EQ(ErrorOf([&] { SessionPath(folder_, name); }).first, ErrorCode::kInvalidArgument);
  }
}

TEST_F(SavedSessionsTest, AFolderThatCannotBeListedIsNotTakenForAnEmptyOne) {
  fs::create_directories(folder_);
  Write(Path("file"), "no folder");
  EXPECT_EQ(ErrorOf([&] { ListSessions(Path("file")); }).first, ErrorCode::kIo);
  EXPECT_TRUE(ListSessions(folder_ + "/absent").empty());
}

TEST_F(SavedSessionsTest, OneAtATimeGoesOnWithASession) {
  const auto locked = [&](const std::string& name) {
    return ErrorOf([&] { const SessionLock lock(folder_, name); });
  };
  {
    const SessionLock lock(folder_, "a");
    EXPECT_EQ(locked("a").first, ErrorCode::kIo);
    EXPECT_THAT(locked("a").second, testing::HasSubstr(std::to_string(getpid())));
    const SessionLock other(folder_, "b");
    Write(Path("a"), "nonsense");
    EXPECT_EQ(ErrorOf([&] { RemoveSession(folder_, "a"); }).first, ErrorCode::kIo);
    EXPECT_EQ(ListSessions(folder_).size(), 1u);
  }
  RemoveSession(folder_, "a");
  EXPECT_TRUE(fs::is_empty(folder_));  // no lock is left behind
  Write(folder_ + "/.a.lock", "1");    // but by a process that was killed
  const SessionLock lock(folder_, "a");
}

}  // namespace
}  // namespace deltafin
