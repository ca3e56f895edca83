// Chooses the instruction set: the widest that the processor and the system offer, or the one named by the environment.
#include "cpu/isa.h"

#include <cstdlib>
#include <mutex>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace atbfn {
namespace {

#if defined(ATBFN_HAVE_AVX2) || defined(ATBFN_HAVE_AVX512) || defined(ATBFN_HAVE_AMX)

[[maybe_unused]] bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }

[[maybe_unused]] bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

// AMX needs the processor's support for its registers and the system's leave to use them, asked once per process.
[[maybe_unused]] bool HasAmx() {
  unsigned a, b, c, d;
  if (!HasAvx512() || !__builtin_cpu_supports("avx512bf16") || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d & (1u << 24)) || !(d & (1u << 22))) return false;  // tiles, bfloat16
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif

std::vector<const Kernels*> Available() {
  std::vector<const Kernels*> found = {&PortableKernels()};
#if defined(ATBFN_HAVE_AVX2)
  if (HasAvx2()) found.push_back(&Avx2Kernels());
#endif
#if defined(ATBFN_HAVE_AVX512)
  if (HasAvx512()) found.push_back(&Avx512Kernels());
#endif
#if defined(ATBFN_HAVE_AMX)
  if (HasAmx()) found.push_back(&AmxKernels());
#endif
  return found;
}

struct Choice {
  const Kernels* kernels;
  std::string names, problem;
};

const Choice& Chosen() {
  static const Choice choice = [] {
    const std::vector<const Kernels*> available = Available();
    Choice c{available.back(), "", ""};
    for (const Kernels* k : available) c.names += (c.names.empty() ? "" : " ") + std::string(k->name);
    const char* wanted = std::getenv("ATBFN_CPU_ISA");
    if (wanted && *wanted) {
      c.problem = "ATBFN_CPU_ISA: got '" + std::string(wanted) + "'; expected one of: " + c.names +
                  "; unset it to use the widest that this machine has";
      for (const Kernels* k : available)
        if (wanted == std::string(k->name)) {
          c.kernels = k;
          c.problem.clear();
        }
    }
    return c;
  }();
  return choice;
}

}  // namespace

const Kernels& Selected() { return *Chosen().kernels; }
std::string IsaProblem() { return Chosen().problem; }
std::string AvailableIsas() { return Chosen().names; }

}  // namespace atbfn
