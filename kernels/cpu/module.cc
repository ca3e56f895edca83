// atbfn._kernels: hands the handlers to Python as capsules, which jax.ffi.register_ffi_target takes.
#include <pybind11/pybind11.h>

#include "cpu/handlers.h"

namespace py = pybind11;

PYBIND11_MODULE(_kernels, m) {
  m.doc() = "Compiled kernels of atbfn: XLA FFI handlers, by the name they are registered under.";
  m.def("handlers", [] {
    py::dict table;
    table["atbfn_kv_cache_write"] = py::capsule(reinterpret_cast<void*>(atbfn_kv_cache_write));
    return table;
  });
  // The XLA FFI interface these handlers speak; a runtime older than this refuses them.
  m.attr("ffi_api_version") = py::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
}
