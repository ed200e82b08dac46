// Pieces of four columns, in registers as fp32 and in memory as bf16. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/device_vec.cuh"

namespace rudder::cuda {

__device__ __forceinline__ uint2 pack_four(const float4& x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
  uint2 bits;
  memcpy(&bits.x, &low, sizeof(bits.x));
  memcpy(&bits.y, &high, sizeof(bits.y));
  return bits;
}
__device__ __forceinline__ float4 unpack_four(uint2 bits) {
  return {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
          __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u)};
}
__device__ __forceinline__ float4 load_four(const Bf16* from) {
  return unpack_four(*reinterpret_cast<const uint2*>(from));
}

__device__ __forceinline__ void add_dot(float& sum, const float4& a, const float4& b) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  sum = fmaf(a.w, b.w, sum);
}
__device__ __forceinline__ void add_scaled(float4& sum, float by, const float4& x) {
  sum.x = fmaf(by, x.x, sum.x);
  sum.y = fmaf(by, x.y, sum.y);
  sum.z = fmaf(by, x.z, sum.z);
  sum.w = fmaf(by, x.w, sum.w);
}
__device__ __forceinline__ float4 scaled(float by, const float4& x) {
  return {by * x.x, by * x.y, by * x.z, by * x.w};
}

}  // namespace rudder::cuda
