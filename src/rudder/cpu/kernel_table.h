// The table of an instruction set whose products run on vector registers. Included by
// kernels_<isa>.cpp, last.
#pragma once

#include "rudder/cpu/attend.h"
#include "rudder/cpu/code_product.h"
#include "rudder/cpu/kernels.h"
#include "rudder/cpu/panel_product.h"
#include "rudder/cpu/row_kernels.h"

namespace rudder::cpu::RUDDER_CPU_ISA {

inline Kernels vector_kernels() {
  Kernels table = {};
  table.pack_rows[static_cast<int>(Element::kBf16)] = pack_rows<Element::kBf16>;
  table.pack_rows[static_cast<int>(Element::kF32)] = pack_rows<Element::kF32>;
  table.product[static_cast<int>(Element::kBf16)] = panel_product<Bf16Step>;
  table.product[static_cast<int>(Element::kF32)] = panel_product<F32Step>;
  table.attend[static_cast<int>(Element::kBf16)] = attend<VectorEngine<Bf16Step>>;
  table.attend[static_cast<int>(Element::kF32)] = attend<VectorEngine<F32Step>>;
  table.round_rows = round_rows;
  table.code_product = code_product;
  table.add = add;
  table.scale = scale;
  table.rms_norm = rms_norm;
  table.uclip_norm = uclip_norm;
  table.rotate = rotate;
  table.gated_act = gated_act;
  table.soft_cap = soft_cap;
  table.read = read;
  return table;
}

}  // namespace rudder::cpu::RUDDER_CPU_ISA
