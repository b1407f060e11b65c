// Devices that keep copies of weights in memory of their own, so that the host need not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/matrix.h"

namespace deltafin {

// Ids of experts' matrices have this bit; all others are the spine's.
inline constexpr uint64_t kExpertIdBit = uint64_t{1} << 62;
inline bool IsExpertId(uint64_t id) { return (id & kExpertIdBit) != 0; }

// Of the matrices of one expert, by its number among all of them.
enum class ExpertPart : uint8_t { kW1 = 0, kW3 = 1, kW2 = 2 };
inline uint64_t ExpertId(int64_t number, ExpertPart part) {
  return kExpertIdBit | static_cast<uint64_t>(number) * 4 | static_cast<uint64_t>(part);
}
inline int64_t ExpertNumberOf(uint64_t id) {
  return static_cast<int64_t>((id & ~kExpertIdBit) / 4);
}
inline ExpertPart ExpertPartOf(uint64_t id) { return static_cast<ExpertPart>(id % 4); }

// Whoever can read weights again by their id. Called by the thread that calls the device.
class WeightOrigin {
 public:
  virtual ~WeightOrigin() = default;
  // The matrix with this id; its bytes are in `bytes` or stay where they are while the origin
  // lives. Throws Error when a read fails.
  virtual Matrix ReadAgain(uint64_t id, std::vector<std::byte>& bytes) = 0;
};

// A device that keeps copies of matrices with an id (matrix.h) once it has seen their bytes.
class WeightKeeper {
 public:
  virtual ~WeightKeeper() = default;
  // True: the matrix can be used without its data. Turns false when the device is lost.
  virtual bool Holds(uint64_t id) const = 0;
  // Asked for the bytes of what was held when the device is lost: the spine's, and the experts'.
  // Must outlive the keeper's use; null: nobody can read again.
  virtual void SetOrigin(WeightOrigin* origin) = 0;
  virtual void SetExpertOrigin(WeightOrigin* origin) = 0;
  // Host memory that neither changes nor goes away while the origin of the spine stays set.
  virtual void SetConstant(std::span<const float> vectors) = 0;
  // Host memory that experts are read into: `count` slots of `slot_bytes`, from the beginning of a
  // page on. A device that shares the machine's memory may read it where it is, until Synchronize.
  // It stays until this is called again, with null for none.
  virtual void SetSlots(std::byte* begin, uint64_t slot_bytes, int64_t count) = 0;
};

// What a copy of a matrix takes at most, whatever order the device keeps it in.
inline uint64_t KeptBytes(const Matrix& matrix) {
  constexpr int64_t kBlock = 272;  // of a row: 16 lanes of 16 bytes, and MXFP4's scales
  constexpr int64_t kAlignment = 256;
  const int64_t blocks = (matrix.row_bytes() + 255) / 256;
  const int64_t block = matrix.format == WeightFormat::kMxfp4 ? kBlock : 256;
  const int64_t scales = matrix.format == WeightFormat::kInt8 ? matrix.rows * 4 : 0;
  return static_cast<uint64_t>(matrix.rows * blocks * block + scales + 2 * kAlignment);
}

}  // namespace deltafin
