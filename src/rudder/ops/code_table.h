// What a code of four bits stands for where it is not the number itself. C++17: kernels read it
// too.
#pragma once

#include <cstdint>

namespace rudder::ops {

// E2M1: the fp4 of OCP's MX formats; IQ4_NL: of GGUF's blocks of that name and of IQ4_XS; NF4: of
// bitsandbytes.
enum class CodeTable : uint8_t { kNone, kE2M1, kIq4Nl, kNf4 };

// By code. OCP Microscaling Formats 1.0, table 5: sign, two bits of exponent, one of mantissa.
inline constexpr float kE2M1Numbers[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                           -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
// ggml's kvalues_iq4nl.
inline constexpr float kIq4NlNumbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};
// QLoRA (Dettmers 2023), appendix E: quantiles of a normal distribution, in f32 as bitsandbytes
// has them.
inline constexpr float kNf4Numbers[16] = {-1.0f,
                                          -0.6961928009986877f,
                                          -0.5250730514526367f,
                                          -0.39491748809814453f,
                                          -0.28444138169288635f,
                                          -0.18477343022823334f,
                                          -0.09105003625154495f,
                                          0.0f,
                                          0.07958029955625534f,
                                          0.16093020141124725f,
                                          0.24611230194568634f,
                                          0.33791524171829224f,
                                          0.44070982933044434f,
                                          0.5626170039176941f,
                                          0.7229568362236023f,
                                          1.0f};

}  // namespace rudder::ops
