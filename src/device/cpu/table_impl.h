// Fills a KernelTable for one register type.
#pragma once

#include "device/cpu/elementwise_impl.h"
#include "device/cpu/kda_impl.h"
#include "device/cpu/mla_impl.h"
#include "device/cpu/panel_impl.h"

namespace deltafin {

template <class A>
constexpr KernelTable MakeKernelTable() {
  return {
      .pack_dense = &PackDense<A>,
      .pack_mxfp4 = &PackMxfp4<A>,
      .stream_positions = A::kStreamPositions,
      .dense_is_packed = kPlanes<A> == 1,
      .fma_ns = A::kFmaNs,
      .matmul = &MatMulRows<A>,
      .add = &ElementwiseKernels<A>::AddTo,
      .situ = &ElementwiseKernels<A>::Situ,
      .sigmoid = &ElementwiseKernels<A>::SigmoidOf,
      .sigmoid_gate = &ElementwiseKernels<A>::SigmoidGate,
      .rms_norm = &ElementwiseKernels<A>::RmsNorm,
      .gated_rms_norm = &ElementwiseKernels<A>::GatedRmsNorm,
      .l2_normalize = &ElementwiseKernels<A>::L2Normalize,
      .residual_mix = &ElementwiseKernels<A>::ResidualMix,
      .combine = &ElementwiseKernels<A>::Combine,
      .short_conv = &KdaKernels<A>::ShortConv,
      .kda_gate = &KdaKernels<A>::Gate,
      .kda_recurrence = &KdaKernels<A>::Recurrence,
      .to_bf16 = &ElementwiseKernels<A>::ToBf16,
      .absorb = &MlaKernels<A>::Absorb,
      .attend_segment = &MlaKernels<A>::AttendSegment,
      .attention_merge = &MlaKernels<A>::Merge,
      .attention_finish = &MlaKernels<A>::Finish,
  };
}

}  // namespace deltafin
