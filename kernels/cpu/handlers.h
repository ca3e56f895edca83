// The XLA FFI handlers of this folder, one per operator file. module.cc lists them for Python.
#ifndef ATBFN_KERNELS_CPU_HANDLERS_H_
#define ATBFN_KERNELS_CPU_HANDLERS_H_

#include "xla/ffi/api/ffi.h"

XLA_FFI_DECLARE_HANDLER_SYMBOL(atbfn_attention);
XLA_FFI_DECLARE_HANDLER_SYMBOL(atbfn_flash_attention);
XLA_FFI_DECLARE_HANDLER_SYMBOL(atbfn_fused_ffn);
XLA_FFI_DECLARE_HANDLER_SYMBOL(atbfn_kv_cache_write);
XLA_FFI_DECLARE_HANDLER_SYMBOL(atbfn_linear);
XLA_FFI_DECLARE_HANDLER_SYMBOL(atbfn_linear_grad);
XLA_FFI_DECLARE_HANDLER_SYMBOL(atbfn_norm);
XLA_FFI_DECLARE_HANDLER_SYMBOL(atbfn_norm_residual);
XLA_FFI_DECLARE_HANDLER_SYMBOL(atbfn_rope);

#endif  // ATBFN_KERNELS_CPU_HANDLERS_H_
