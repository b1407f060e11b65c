// The forward pass of Kimi K3 (spec section 3), written once over the operators of a Device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/phase_clock.h"
#include "deltafin/error.h"
#include "deltafin/types.h"
#include "device/device.h"
#include "model/rollback.h"
#include "model/sequence_state.h"
#include "model/state_capture.h"
#include "model/trace.h"
#include "model/workspace.h"
#include "store/expert_store.h"
#include "store/model_config.h"
#include "store/spine_store.h"

namespace deltafin {

enum class LogitsWanted : uint8_t { kNone, kLast, kAll };

// Consecutive new tokens of one sequence.
struct Run {
  SequenceState* state = nullptr;
  std::span<const TokenId> tokens;  // at least one, ids in the vocabulary
  LogitsWanted logits = LogitsWanted::kLast;
  Rollback* rollback = nullptr;  // keeps what taking tokens back needs; null: nothing can be
  // Get the state between tokens of the run; ascending, before the last token.
  std::span<StateCapture* const> captures = {};
};

// logits[vocab_size] of token `position` (from 0) of run `run`; valid during the call.
using LogitsSink = std::function<void(size_t run, int64_t position, std::span<const float> logits)>;

struct ForwardHooks {
  std::function<bool()> cancelled;  // asked before every layer; true throws Error(kCancelled)
  TraceSink* trace = nullptr;
  std::function<void(int64_t layer)> on_layer = {};  // before every layer
  // Asked before every layer for each run that is left, by its index: true takes it out of the
  // pass. Its sequence is then in an undefined state, and no logits of it come; what the others
  // compute stays the same. Throws Error(kCancelled) when none is left.
  std::function<bool(size_t run)> leaves = {};
  // Hears of each run that the pass goes on without, as for `leaves`, because its own latent cache
  // could not be read or written. Null: such an error ends the pass.
  std::function<void(size_t run, const Error& error)> on_run_failed = {};
};

// One thread. The stores and the device must outlive it.
class Model {
 public:
  // `clock` hears which phase a pass is in; null: nobody does.
  Model(const ModelConfig& config, SpineStore& spine, ExpertStore& experts, Device& device,
        PhaseClock* clock = nullptr);

  // Advances every run's sequence by its tokens; each spine layer is read once and each needed
  // expert once for the whole pass. What a run computes does not depend on the other runs, nor on
  // how its tokens are split into passes. Throws Error when a read fails, a logit is not finite or
  // the caller cancelled; the sequences of the pass are then in an undefined state.
  void Forward(std::span<const Run> runs, const LogitsSink& sink, const ForwardHooks& hooks);

  // Scratch for a pass of `positions` with `logits_rows` positions whose logits are wanted.
  static uint64_t WorkspaceBytes(const ModelConfig& config, int64_t positions, int64_t logits_rows);

 private:
  struct Pass;

  void DropLeavingRuns(Pass& pass);
  void DecoderLayer(Pass& pass, int64_t layer);
  void KdaBlock(Pass& pass, int64_t layer, SpineLease& spine, const float* x, float* out);
  void MlaBlock(Pass& pass, int64_t layer, SpineLease& spine, const float* x, float* out);
  void AttendRun(Pass& pass, size_t r, int64_t layer, const float* latent, const float* absorbed,
                 float* attended);
  void ReadCacheAhead(const Pass& pass, int64_t layer);
  void DenseBlock(Pass& pass, SpineLease& spine, const float* x, float* out);
  void MoeBlock(Pass& pass, int64_t layer, SpineLease& spine, const float* x, float* out);
  std::unique_ptr<ExpertBatch> RequestExperts(Pass& pass, int64_t layer,
                                              std::span<const int32_t> ids);
  void HintNextExperts(Pass& pass, int64_t layer);
  bool RunSomeExperts(Pass& pass, ExpertBatch& batch, const float* z, float* y);
  void Head(Pass& pass, const LogitsSink& sink);

  // y[p] = W x[p] for n positions, piece by piece as the weight arrives; y rows of w's height.
  // `meanwhile` is what to do where it has not (SpineLease::ForEachPiece).
  void Linear(
      SpineLease& spine, SpineMatrix id, const float* x, float* y, int64_t height, int64_t n,
      const std::function<bool()>& meanwhile = [] { return false; });
  void Observe(const Pass& pass, int64_t layer, TracePoint point, const float* values,
               int64_t rows);

  const ModelConfig& config_;
  SpineStore& spine_;
  ExpertStore& experts_;
  Device& device_;
  PhaseClock* const clock_;
  Workspace workspace_;
};

}  // namespace deltafin
