// atbfn._kernels: hands the handlers to Python as capsules, which jax.ffi.register_ffi_target takes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpu/ceilings.h"
#include "cpu/handlers.h"

namespace py = pybind11;

PYBIND11_MODULE(_kernels, m) {
  m.doc() = "Compiled kernels of atbfn: XLA FFI handlers, by the name they are registered under.";
  m.def("handlers", [] {
    py::dict table;
    table["atbfn_kv_cache_write"] = py::capsule(reinterpret_cast<void*>(atbfn_kv_cache_write));
    return table;
  });
  // What benchmarks compare the kernels with. These run threads of their own: never during a computation.
  m.def("matrix_peak_kinds", &atbfn::MatrixPeakKinds, "Kinds that matrix_peak takes on this processor, widest first.");
  m.def("matrix_peak", &atbfn::MatrixPeak, py::arg("kind"), py::arg("threads"), py::arg("seconds"),
        py::call_guard<py::gil_scoped_release>(), "Floating-point operations per second, in registers.");
  m.def("read_bandwidth", &atbfn::ReadBandwidth, py::arg("bytes"), py::arg("threads"), py::arg("seconds"),
        py::call_guard<py::gil_scoped_release>(), "Bytes per second of reading `bytes` bytes again and again.");
  // The XLA FFI interface these handlers speak; a runtime older than this refuses them.
  m.attr("ffi_api_version") = py::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
}
