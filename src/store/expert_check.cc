#include "store/expert_check.h"

#include <cstring>
#include <new>
#include <utility>

#include "base/format.h"
#include "store/layout.h"

namespace deltafin {
std::optional<ExpertFailure> CheckExpertBytes(const Checkpoint& checkpoint, int64_t layer,
                                              int64_t expert, const std::byte* span) noexcept {
  const ExpertWeights weights = checkpoint.ViewExpert(span);
  const std::pair<const Matrix*, size_t> parts[] = {// matrix, its scales' index in the layout
                                                    {&weights.w1, 1},
                                                    {&weights.w2, 3},
                                                    {&weights.w3, 5}};
  for (const auto& [matrix, part] : parts) {
    const int64_t row_bytes = matrix->cols / kMxfp4Block;
    const void* hit =
        std::memchr(matrix->scales, 255, static_cast<size_t>(matrix->rows * row_bytes));
    if (hit == nullptr) continue;
    const int64_t at = static_cast<const std::byte*>(hit) - matrix->scales;
    const std::string name = LayoutOfExpert(checkpoint.config(), layer, expert)[part].name;
    const Extent extent = checkpoint.ExpertSpan(layer, expert);
    return ExpertFailure{
        ErrorCode::kCorrupt,
        format("{}: layer {} expert {}: tensor {} has the scale byte 255 in row {}, "
               "block {}, expected 0 to 254; the shard is damaged, fetch it again",
               checkpoint.file(extent.shard).path(), layer, expert, name, at / row_bytes,
               at % row_bytes)};
  }
  return std::nullopt;
}

ExpertFailure ExpertReadFailure(const Checkpoint& checkpoint, int64_t layer, int64_t expert,
                                const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {e.code(), format("layer {} expert {}: {}", layer, expert, e.what())};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kOutOfMemory,
            format("layer {} expert {}: no memory for {} bytes; use fewer expert slots", layer,
                   expert, checkpoint.expert_bytes())};
  } catch (const std::exception& e) {
    return {ErrorCode::kIo, format("layer {} expert {}: {}", layer, expert, e.what())};
  } catch (...) {
    return {ErrorCode::kIo, format("layer {} expert {}: the read failed", layer, expert)};
  }
}

}  // namespace deltafin
