// The XLA FFI handlers of this folder, one per operator file. module.cc lists them for Python.
#ifndef ATBFN_KERNELS_CPU_HANDLERS_H_
#define ATBFN_KERNELS_CPU_HANDLERS_H_

#include "xla/ffi/api/ffi.h"

XLA_FFI_DECLARE_HANDLER_SYMBOL(atbfn_kv_cache_write);

#endif  // ATBFN_KERNELS_CPU_HANDLERS_H_
