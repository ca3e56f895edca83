// What the emulator enforces and assumes about a chip. The table of chips is atbfn/fusion/chips.py; a program is compiled
// for one of them, which registers itself here before main. Sizes in bytes; 0 is unknown.
#pragma once

#include <cstdint>

namespace atbfn::emulator {

struct Chip {
  const char* name;
  int arch;  // __NPU_ARCH__: 1001, 2002, 2201, 3510
  uint32_t ub, ub_reserved, l1, l1_reserved, l0a, l0b, l0c, bt, fb;
  uint64_t l2;
  int cube_cores, vector_cores;
  bool unified;  // cube and vector instructions run on the same core
  double clock_hz, hbm_bytes_per_s, l2_bytes_per_s;
  double cube_macs_per_cycle_f16;
  double vector_bytes_per_cycle;
  double mte_bytes_per_cycle;
};

bool SetChip(const Chip& chip);
const Chip& CurrentChip();

}  // namespace atbfn::emulator
