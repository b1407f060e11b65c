#include "store/int8_spine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>

#include "base/bf16.h"
#include "deltafin/synth.h"
#include "io/atomic_file.h"
#include "io/read_queue.h"
#include "io/testing_file_system.h"
#include "shared_data.h"
#include "store/spine_pieces.h"
#include "store/spine_reader.h"
#include "store/spine_store.h"
#include "store/testing/checkpoint_editor.h"
#include "store/testing/temp_dir.h"

namespace deltafin {
namespace {

namespace fs = std::filesystem;

std::vector<uint16_t> ToBf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float value : values) bits.push_back(FloatToBf16(value));
  return bits;
}

TEST(QuantizeRowsTest, RoundsToNearestEven) {
  // scale = 127 / 127 = 1
  const auto w = ToBf16({127, 0.5, 1.5, 2.5, -0.5, -1.5, 0.498046875, -127, 126.5, 3});
  std::vector<int8_t> q(w.size());
  float scale = 0;
  EXPECT_EQ(QuantizeRows(w.data(), 1, 10, q.data(), &scale), -1);
  EXPECT_EQ(scale, 1.0f);
  EXPECT_EQ(q, (std::vector<int8_t>{127, 0, 2, 2, 0, -2, 0, -127, 126, 3}));
}

TEST(QuantizeRowsTest, IsTheFormulaForEveryMagnitude) {
  std::mt19937 random(3);
  for (int row = 0; row < 2000; ++row) {
    std::vector<uint16_t> w(37);
    const auto exponent = static_cast<uint32_t>(random() % 255);
    for (uint16_t& bits : w) {
      const uint32_t e = exponent - std::min(exponent, static_cast<uint32_t>(random() % 12));
      bits = static_cast<uint16_t>((random() & 0x807f) | e << 7);
    }
    std::vector<int8_t> q(w.size());
    float scale = 0;
    ASSERT_EQ(QuantizeRows(w.data(), 1, 37, q.data(), &scale), -1);
    float largest = 0;
    for (uint16_t bits : w) largest = std::max(largest, std::fabs(Bf16ToFloat(bits)));
    ASSERT_EQ(scale, largest / 127.0f);
    for (size_t i = 0; i < w.size(); ++i) {
      const float quotient = scale == 0 ? 0 : Bf16ToFloat(w[i]) / scale;
      ASSERT_EQ(q[i], std::nearbyint(std::min(127.0f, std::max(-127.0f, quotient))));
    }
  }
}

TEST(QuantizeRowsTest, EdgesOfTheRange) {
  const std::vector<uint16_t> w = {0, 0x8000, 0, 0,   // zeros
                                   1, 0x8001, 0, 0};  // the smallest: its scale underflows
  std::vector<int8_t> q(8, 77);
  float scales[2] = {7, 7};
  EXPECT_EQ(QuantizeRows(w.data(), 2, 4, q.data(), scales), -1);
  EXPECT_EQ(scales[0], 0.0f);
  EXPECT_EQ(std::vector<int8_t>(q.begin(), q.begin() + 4), (std::vector<int8_t>(4)));

  const auto infinite = ToBf16({1, 2, 3, -std::numeric_limits<float>::infinity()});
  EXPECT_EQ(QuantizeRows(infinite.data(), 2, 2, q.data(), scales), 1);
  const auto nan = ToBf16({std::nanf(""), 2});
  EXPECT_EQ(QuantizeRows(nan.data(), 1, 2, q.data(), scales), 0);
}

class Int8SpineTest : public testing::Test {
 protected:
  Int8SpineTest() {
    for (const auto& entry : fs::directory_iterator(DataPath("official/model"))) {
      if (!entry.is_regular_file()) continue;  // not what earlier runs keep beside the files
      fs::copy(entry.path(), dir_ / entry.path().filename().string());
    }
    Reopen();
  }

  void Reopen() { checkpoint_ = Checkpoint::Open(files_, dir_.path()); }
  Int8Summary Convert(const Int8ProgressSink& sink = nullptr) {
    return WriteInt8Spine(files_, *checkpoint_, pool_, sink);
  }
  std::string LayerPath(int64_t layer) const {
    return Int8LayerPath(dir_.path(), checkpoint_->config(), layer);
  }
  int64_t num_layers() const { return checkpoint_->config().num_layers; }

  // Name to content, without the lock.
  std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(Int8SpineFolder(dir_.path()))) {
      const std::string name = entry.path().filename().string();
      if (name == "lock") continue;
      files[name] = ReadWholeFile(RealFileSystem(), entry.path().string(), 1 << 28);
    }
    return files;
  }
  void FlipByte(const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    if (at < 0) at += static_cast<int64_t>(fs::file_size(path));
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(at);
    file.put(byte);
  }
  // What Open or use says; "" when all is well.
  std::string ErrorOf(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  void UseEverything(bool resident, uint64_t piece_bytes, bool check = true) {
    SpineSource source = OpenInt8Spine(files_, *checkpoint_);
    const SpinePieces pieces(source, piece_bytes);
    const auto queue = MakeReadQueue({});
    const auto store = MakeSpineStore(
        *checkpoint_, std::move(source), *queue,
        {piece_bytes, std::vector<bool>(pieces.size(), resident), pieces.LargestRingBytes()});
    for (int64_t layer = 0; layer <= num_layers(); ++layer) {
      const auto lease = store->Acquire(layer);
      for (const MatrixSpec& spec : LayoutOfSpine(checkpoint_->config(), layer).matrices) {
        if (check) {
          CheckMatrix(*lease, spec);
        } else {
          lease->ForEachPiece(spec.id, [](int64_t, const Matrix&) {});
        }
      }
    }
  }
  void CheckMatrix(SpineLease& lease, const MatrixSpec& spec) {
    const Extent extent = checkpoint_->Find(spec.tensor);
    std::vector<uint16_t> released(extent.bytes / 2);
    checkpoint_->file(extent.shard)
        .ReadAt(extent.offset, std::as_writable_bytes(std::span(released)));
    const int64_t cols = spec.tensor.shape.dims[1];
    int64_t rows_seen = 0;
    lease.ForEachPiece(spec.id, [&](int64_t first_row, const Matrix& rows) {
      ASSERT_EQ(first_row, rows_seen);
      rows_seen += rows.rows;
      const uint16_t* from = released.data() + first_row * cols;
      const size_t count = static_cast<size_t>(rows.rows * cols);
      if (!IsConvertedToInt8(spec.id)) {
        ASSERT_EQ(rows.format, WeightFormat::kBf16);
        ASSERT_EQ(std::memcmp(rows.data, from, count * 2), 0) << spec.tensor.name;
        return;
      }
      ASSERT_EQ(rows.format, WeightFormat::kInt8);
      std::vector<int8_t> q(count);
      std::vector<float> scales(static_cast<size_t>(rows.rows));
      ASSERT_EQ(QuantizeRows(from, rows.rows, cols, q.data(), scales.data()), -1);
      ASSERT_EQ(std::memcmp(rows.data, q.data(), count), 0) << spec.tensor.name;
      ASSERT_EQ(std::memcmp(rows.scales, scales.data(), scales.size() * 4), 0);
    });
    ASSERT_EQ(rows_seen, spec.tensor.shape.dims[0]);
  }

  TempDir dir_;
  FaultyFileSystem files_{RealFileSystem()};
  std::unique_ptr<Checkpoint> checkpoint_;
  ThreadPool pool_{2};
};

TEST_F(Int8SpineTest, HandsOutTheConvertedRows) {
  std::string why;
  EXPECT_EQ(FindInt8Spine(files_, *checkpoint_, &why), Int8SpineState::kAbsent);
  EXPECT_EQ(why, "there is none");
  int64_t layers_done = -1;
  uint64_t bytes_done = 0;
  const Int8Summary written = Convert([&](const Int8Progress& p) {
    EXPECT_GE(p.layers_done, layers_done);
    EXPECT_GE(p.bytes_done, bytes_done);
    EXPECT_LE(p.bytes_done, p.total_bytes);
    layers_done = p.layers_done;
    bytes_done = p.bytes_done;
    return true;
  });
  EXPECT_EQ(layers_done, num_layers() + 1);
  EXPECT_EQ(bytes_done, ReleasedSpine(*checkpoint_).TotalBytes());
  EXPECT_EQ(written.layers_written, num_layers() + 1);
  EXPECT_EQ(FindInt8Spine(files_, *checkpoint_, nullptr), Int8SpineState::kComplete);
  UseEverything(true, 1 << 20);
  UseEverything(false, 5000);
  const Int8Summary checked = CheckInt8Spine(files_, *checkpoint_, nullptr);
  EXPECT_EQ(checked.bytes, written.bytes);

  const auto files = Files();
  const Int8Summary again = Convert();
  EXPECT_EQ(again.layers_kept, num_layers() + 1);
  EXPECT_EQ(again.layers_written, 0);
  EXPECT_EQ(Files(), files);
}

TEST_F(Int8SpineTest, DamageIsNamed) {
  Convert();
  const Int8LayerLayout layout = LayoutOfInt8Layer(checkpoint_->config(), 2);
  const std::string path = LayerPath(2);
  const auto open = [&] { OpenInt8Spine(files_, *checkpoint_); };
  const auto use = [&] { UseEverything(false, 5000, false); };
  const auto verify = [&] { CheckInt8Spine(files_, *checkpoint_, nullptr); };
  const auto names_file = testing::AllOf(
      testing::StartsWith(path + ": "),
      testing::HasSubstr("delete this file and run: deltafin convert spine --to int8 --model " +
                         dir_.path()));
  for (int64_t at : {int64_t{0}, int64_t{30}, int64_t{80}, int64_t{4095}}) {  // header
    FlipByte(path, at);
    EXPECT_THAT(ErrorOf(open), names_file) << at;
    FlipByte(path, at);
  }
  const int64_t in_scales = static_cast<int64_t>(layout.scales_offset) + 5;
  const int64_t in_rows = static_cast<int64_t>(layout.parts[1].offset) + 7;
  const int64_t in_copy = static_cast<int64_t>(layout.parts[4].offset) + 7;  // f_b, bf16
  for (int64_t at : {in_scales, in_rows, in_copy}) {
    FlipByte(path, at);
    EXPECT_EQ(ErrorOf(open), "");
    EXPECT_THAT(ErrorOf(use), names_file) << at;
    EXPECT_THAT(ErrorOf(verify), names_file) << at;
    FlipByte(path, at);
  }
  EXPECT_EQ(ErrorOf(verify), "");
  fs::resize_file(path, layout.file_bytes - 1);
  EXPECT_THAT(ErrorOf(open), names_file);
  fs::remove(path);
  EXPECT_THAT(ErrorOf(open), names_file);
  EXPECT_EQ(Convert().layers_written, 1);  // as the message says
  EXPECT_EQ(ErrorOf(verify), "");
}

// The same places, other weights: the conversion must not be taken for theirs.
TEST_F(Int8SpineTest, OtherWeightsMakeItStale) {
  Convert();
  const auto before = Files();
  EditableShard shard(
      checkpoint_
          ->file(
              checkpoint_->Find(LayoutOfSpine(checkpoint_->config(), 1).matrices[0].tensor).shard)
          .path());
  std::string& bytes =
      shard.Get(LayoutOfSpine(checkpoint_->config(), 1).matrices[0].tensor.name).bytes;
  for (size_t i = 0; i < bytes.size(); i += 2) bytes[i] = static_cast<char>(bytes[i] ^ 1);
  shard.Write();
  Reopen();
  std::string why;
  EXPECT_EQ(FindInt8Spine(files_, *checkpoint_, &why), Int8SpineState::kStale);
  EXPECT_THAT(why, testing::HasSubstr("manifest.json was made from other weights"));
  EXPECT_THAT(ErrorOf([&] { CheckInt8Spine(files_, *checkpoint_, nullptr); }),
              testing::HasSubstr("run: deltafin convert"));
  EXPECT_EQ(Convert().layers_written, 1);
  EXPECT_EQ(FindInt8Spine(files_, *checkpoint_, nullptr), Int8SpineState::kComplete);
  EXPECT_NE(Files(), before);
}

TEST_F(Int8SpineTest, WeightsThatAreNotFiniteAreRefused) {
  const TensorSpec tensor = LayoutOfSpine(checkpoint_->config(), 3).matrices[1].tensor;
  EditableShard shard(checkpoint_->file(checkpoint_->Find(tensor).shard).path());
  const size_t row_bytes = static_cast<size_t>(tensor.shape.dims[1]) * 2;
  shard.Get(tensor.name).bytes.replace(5 * row_bytes + 4, 2, "\x80\x7f");  // infinity
  shard.Write();
  Reopen();
  EXPECT_THAT(
      ErrorOf([&] { Convert(); }),
      testing::HasSubstr("tensor " + tensor.name + " has a weight that is not finite in row 5"));
  EXPECT_FALSE(fs::exists(LayerPath(3)));
  EXPECT_TRUE(fs::exists(LayerPath(2)));
  EXPECT_EQ(FindInt8Spine(files_, *checkpoint_, nullptr), Int8SpineState::kAbsent);
}

TEST_F(Int8SpineTest, GoesOnAfterCancellationAndFailedReads) {
  const auto cancel_at = [](int64_t layers) {
    return [layers](const Int8Progress& p) { return p.layers_done < layers; };
  };
  EXPECT_EQ(ErrorOf([&] { Convert(cancel_at(3)); }), "stopped on request");
  std::string why;
  EXPECT_EQ(FindInt8Spine(files_, *checkpoint_, &why), Int8SpineState::kAbsent);
  EXPECT_EQ(why, "the conversion is not complete");
  // Each run gets one layer further: a sample of each layer that is there and the matrices of the
  // next one are read, and then reading fails.
  for (int64_t there = 3; there < 8; ++there) {
    files_.FailReads(".safetensors", 2 * there + 16);
    EXPECT_NE(ErrorOf([&] { Convert(); }), "");
    files_.ClearFaults();
  }
  EXPECT_GT(Convert().layers_kept, 3);
  const auto files = Files();
  fs::remove_all(Int8SpineFolder(dir_.path()));
  Convert();
  EXPECT_EQ(Files(), files);
}

// A checkpoint of holes becomes a conversion of holes: it takes next to no disk.
TEST(Int8SpineOfZerosTest, TakesNoRoom) {
  const TempDir dir;
  SynthOptions options;
  options.dir = dir / "model";
  options.like = SynthLike::kNano;
  options.skeleton = true;
  WriteSynth(options);
  const auto checkpoint = Checkpoint::Open(RealFileSystem(), options.dir);
  ThreadPool pool(2);
  const Int8Summary written = WriteInt8Spine(RealFileSystem(), *checkpoint, pool, nullptr);
  uint64_t disk_bytes = 0;
  for (int64_t layer = 0; layer <= checkpoint->config().num_layers; ++layer) {
    const std::string path = Int8LayerPath(options.dir, checkpoint->config(), layer);
    EXPECT_EQ(fs::file_size(path), LayoutOfInt8Layer(checkpoint->config(), layer).file_bytes);
    disk_bytes += DiskBytesOf(path);
  }
  EXPECT_LT(disk_bytes, written.bytes / 4);
  EXPECT_EQ(CheckInt8Spine(RealFileSystem(), *checkpoint, nullptr).bytes, written.bytes);
}

// However often it is killed, the next run goes on and the result is the same.
TEST_F(Int8SpineTest, SurvivesBeingKilled) {
  Convert();
  const auto files = Files();
  fs::remove_all(Int8SpineFolder(dir_.path()));
  std::mt19937 random(11);
  int killed = 0;
  for (int run = 0; run < 12; ++run) {
    // Some die as soon as they have written something, whatever the machine's speed.
    const bool at_once = run % 3 == 0;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ThreadPool pool(2);
      WriteInt8Spine(RealFileSystem(), *checkpoint_, pool, [&](const Int8Progress&) {
        if (at_once) raise(SIGKILL);
        usleep(300);  // so that there is time to be killed
        return true;
      });
      _exit(0);
    }
    if (!at_once) {
      usleep(static_cast<useconds_t>(2000 + random() % 20000));
      kill(child, SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status);
    if (!fs::exists(Int8SpineFolder(dir_.path()))) continue;  // killed before it began
    // What has its final name is whole.
    for (const auto& [name, content] : Files()) {
      if (!name.ends_with(".tmp")) {
        EXPECT_EQ(content, files.at(name)) << name;
      }
    }
    if (!WIFSIGNALED(status)) fs::remove_all(Int8SpineFolder(dir_.path()));  // begin anew
  }
  EXPECT_GT(killed, 2);
  Convert();
  EXPECT_EQ(Files(), files);
}

TEST_F(Int8SpineTest, OneConversionAtATime) {
  MakeFolders(Int8SpineFolder(dir_.path()));
  const FolderLock lock(Int8SpineFolder(dir_.path()));
  EXPECT_THAT(ErrorOf([&] { Convert(); }), testing::HasSubstr("another process is writing"));
}

TEST(CheckDiskSpaceTest, SaysHowMuchIsMissing) {
  EXPECT_NO_THROW(CheckDiskSpace("/m", 0, 0));
  EXPECT_NO_THROW(CheckDiskSpace("/m", 10'000'000'000, 10'200'000'000));
  try {
    CheckDiskSpace("/m", 56'000'000'000, 12'000'000'000);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "/m: the int8 spine takes 56.56 GB more and the disk has 12.00 GB free; free "
                 "44.56 GB and run the command again");
  }
}

}  // namespace
}  // namespace deltafin
