// atbfn._kernels: hands the handlers to Python as capsules, which jax.ffi.register_ffi_target takes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpu/ceilings.h"
#include "cpu/handlers.h"
#include "cpu/isa.h"

namespace py = pybind11;

PYBIND11_MODULE(_kernels, m) {
  m.doc() = "Compiled kernels of atbfn: XLA FFI handlers, by the name they are registered under.";
  m.def("handlers", [] {
    py::dict table;
    table["atbfn_attention"] = py::capsule(reinterpret_cast<void*>(atbfn_attention));
    table["atbfn_flash_attention"] = py::capsule(reinterpret_cast<void*>(atbfn_flash_attention));
    table["atbfn_fused_ffn"] = py::capsule(reinterpret_cast<void*>(atbfn_fused_ffn));
    table["atbfn_kv_cache_write"] = py::capsule(reinterpret_cast<void*>(atbfn_kv_cache_write));
    table["atbfn_linear"] = py::capsule(reinterpret_cast<void*>(atbfn_linear));
    table["atbfn_linear_grad"] = py::capsule(reinterpret_cast<void*>(atbfn_linear_grad));
    table["atbfn_norm"] = py::capsule(reinterpret_cast<void*>(atbfn_norm));
    table["atbfn_norm_residual"] = py::capsule(reinterpret_cast<void*>(atbfn_norm_residual));
    table["atbfn_rope"] = py::capsule(reinterpret_cast<void*>(atbfn_rope));
    return table;
  });
  m.def("isa", [] { return std::string(atbfn::Selected().name); }, "The instruction set in use.");
  m.def("isas", &atbfn::AvailableIsas, "The instruction sets of this machine, narrowest first, separated by spaces.");
  m.def("isa_problem", &atbfn::IsaProblem, "Why ATBFN_CPU_ISA cannot be had; empty where it can.");
  m.def(
      "packed_bytes",
      [](int dtype, int64_t k, int64_t tokens) {
        return atbfn::Selected().many[dtype].packed_bytes(k, tokens);
      },
      py::arg("dtype"), py::arg("k"), py::arg("tokens"),
      "Bytes of `tokens` rows of k elements packed for a product; dtype 0 bfloat16, 1 float16, 2 float32.");
  // What benchmarks compare the kernels with. These run threads of their own: never during a computation.
  m.def("matrix_peak_kinds", &atbfn::MatrixPeakKinds, "Kinds that matrix_peak takes on this processor, widest first.");
  m.def("matrix_peak", &atbfn::MatrixPeak, py::arg("kind"), py::arg("threads"), py::arg("seconds"),
        py::call_guard<py::gil_scoped_release>(), "Floating-point operations per second, in registers.");
  m.def("read_bandwidth", &atbfn::ReadBandwidth, py::arg("bytes"), py::arg("threads"), py::arg("seconds"),
        py::call_guard<py::gil_scoped_release>(), "Bytes per second of reading `bytes` bytes again and again.");
  // The XLA FFI interface these handlers speak; a runtime older than this refuses them.
  m.attr("ffi_api_version") = py::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
}
