// What the host does in every program of this folder: run the case that the command line names. Each case breaks one rule;
// the line with the comment `// <- N` is where case N must be refused.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "acl/acl.h"
#include "kernel_operator.h"

constexpr uint32_t kBytes = 1u << 20;

// Device memory that holds zeros, for as many arguments as a case wants.
inline uint8_t* Device(uint32_t bytes = kBytes) {
  void* pointer = nullptr;
  aclrtMalloc(&pointer, bytes, ACL_MEM_MALLOC_HUGE_FIRST);
  aclrtMemset(pointer, bytes, 0, bytes);
  return static_cast<uint8_t*>(pointer);
}

#define CASE(n, launch) \
  case n:               \
    launch;             \
    break

#define MAIN(...)                                                        \
  int main(int argc, char** argv) {                                      \
    aclInit(nullptr);                                                    \
    aclrtSetDevice(0);                                                   \
    aclrtStream stream = nullptr;                                        \
    aclrtCreateStream(&stream);                                          \
    uint8_t* x = Device();                                               \
    uint8_t* y = Device();                                               \
    switch (argc > 1 ? std::atoi(argv[1]) : 0) {                         \
      __VA_ARGS__;                                                       \
      default:                                                           \
        std::puts("no such case");                                       \
        return 2;                                                        \
    }                                                                    \
    aclrtSynchronizeStream(stream);                                      \
    std::puts("not refused");                                            \
    return 0;                                                            \
  }
