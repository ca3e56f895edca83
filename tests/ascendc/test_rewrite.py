"""Launches found and rewritten, lines kept, and the cores that kernels run on told from their source."""

from __future__ import annotations

import re

import pytest

from atbfn.ascendc.rewrite import KEEP_MARKS, Kind, Program, RewriteError, Source, launches, rewrite

KERNEL = "__global__ __vector__ void add(GM_ADDR x, GM_ADDR y) {}\n"


def rewritten(text: str, *others: str, preprocessed: bool = False) -> str:
    sources = [Source(text, "a.asc"), *(Source(other, f"{index}.h") for index, other in enumerate(others))]
    out = rewrite(Program(sources), preprocessed)[0]
    assert out.count("\n") == text.count("\n")
    return out


def kinds(text: str, *others: str) -> dict[str, Kind | None]:
    program = Program([Source(text, "a.asc"), *(Source(other, f"{i}.h") for i, other in enumerate(others))])
    return {k.name: k.kind or (program.infer(k.body) if k.body else None) for k in program.kernels}


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def test_a_launch() -> None:
    out = rewritten(KERNEL + "void f() { add<<<8, nullptr, stream>>>(x, y); }\n")
    assert out.splitlines()[1] == (
        'void f() { ::atbfn::emulator::Launch{::atbfn::emulator::Kind::Vector, "add", "a.asc", 2, '
        "static_cast<::std::int64_t>(8), ( nullptr), ( stream)}"
        "([](auto&... atbfn_a) { return add(atbfn_a...); }, x, y); }"
    )


@pytest.mark.parametrize(
    ("launch", "name", "values", "arguments"),
    [
        ("add<<<8, 0, s>>>(x, y)", "add", "8|0|s", "x, y"),
        ("add<<<8, 0>>>(x, y)", "add", "8|0", "x, y"),
        ("add<<<8, 0, s>>>()", "add", "8|0|s", ""),
        ("add<<<8, 0, s>>>(/* nothing */)", None, None, None),
        ("add<2048><<<8, 0, s>>>(x)", "add<2048>", "8|0|s", "x"),
        ("add<half, 16><<<8, 0, s>>>(x)", "add<half, 16>", "8|0|s", "x"),
        ("add<std::pair<int, S<3>>><<<8, 0, s>>>(x)", "add<std::pair<int, S<3>>>", "8|0|s", "x"),
        ("add<(2 > 1), int><<<8, 0, s>>>(x)", "add<(2>1), int>", "8|0|s", "x"),
        ("add<const unsigned int &><<<8, 0, s>>>(x)", "add<const unsigned int&>", "8|0|s", "x"),
        ("::add<<<8, 0, s>>>(x)", "::add", "8|0|s", "x"),
        ("add <<<8, 0, s>>> (x)", None, None, None),
        ("add\n  <<<8,\n  0, s>>>(x,\n y)", "add", "8|0|s", "x, y"),
        ("add<16>\n\n<<<8, 0, s\n>>>(x)", "add<16>", "8|0|s", "x"),
        ("add<<<(n > 4 ? n : 4), 0, s>>>(x)", "add", "(n > 4 ? n : 4)|0|s", "x"),
        ("add<<<std::max<int>(a, b), 0, s>>>(x)", "add", "std::max<int>(a, b)|0|s", "x"),
        ("add<<<F<1, 2>::value, 0, s>>>(x)", "add", "F<1, 2>::value|0|s", "x"),
        ("add<<<F<G<H<int>>>::value, 0, s>>>(x)", "add", "F<G<H<int>>>::value|0|s", "x"),
        ("add<<<blocks[i, 0], 0, t.stream(1, 2)>>>(x)", "add", "blocks[i, 0]|0|t.stream(1, 2)", "x"),
        (
            "add<<<8, 0, s>>>(f<int, 2>(x), T{1, 2}, [&](int a, int b) { return a; })",
            "add",
            "8|0|s",
            "f<int, 2>(x), T{1, 2}, [&](int a, int b) { return a; }",
        ),
        ("add<<<8 /* , 9 */, 0, s /* >>>( */>>>(x /* ) */)", "add", "8 /* , 9 */|0|s /* >>>( */", "x /* ) */"),
        ('add<<<8, 0, ">>>("[0]>>>(x)', "add", '8|0|">>>("[0]', "x"),
        ("add<<<8, 0, s>>>(NULL, x)", "add", "8|0|s", "nullptr, x"),
    ],
)
def test_forms_of_a_launch(launch: str, name: str | None, values: str | None, arguments: str | None) -> None:
    text = KERNEL + f"void f() {{\n  {launch};\n}}\n"
    if name is None:
        assert squeezed("return add(atbfn_a...); }") in rewritten(text)
        return
    out = rewritten(text)
    body = squeezed(out.split("{\n", 1)[1].rsplit(";", 1)[0])
    found = re.fullmatch(
        r'::atbfn::emulator::Launch\{::atbfn::emulator::Kind::Vector, "(.*?)", "a.asc", 3, '
        r"static_cast<::std::int64_t>\((.*)\)\}\(\[\]\(auto&\.\.\. atbfn_a\) "
        r"\{ return (.*?)\(atbfn_a\.\.\.\); \}(?:, (.*))?\)",
        body,
    )
    assert found, body
    assert found[1] == found[3] == name
    assert "|".join(part.strip() for part in found[2].split("), (")) == values
    assert (found[4] or "") == arguments


@pytest.mark.parametrize("arguments", ["{1, 2}, x", "x, 0", "x, {}"])
def test_what_only_a_direct_call_converts_is_in_one(arguments: str) -> None:
    out = rewritten(KERNEL + f"void f() {{ add<<<8, 0, s>>>({arguments}); g(); }}\n")
    assert out.endswith(f"( s)}}([&]() {{ return add({arguments}); }}); g(); }}\n")


def test_lines_are_those_of_the_source() -> None:
    text = "\n".join(
        ["// one", KERNEL.strip(), "void f() {", "  add", "    <<<8, 0,", "    s>>>(x,", "    y); g(); }", ""]
    )
    out = rewritten(text).splitlines()
    assert '"a.asc", 4' in out[3]
    assert out[6] == "    y); g(); }"


def test_line_markers_of_the_preprocessor_give_file_and_line() -> None:
    text = f'# 1 "dir/k.h" 1\n\n{KERNEL}# 7 "m\\"ain.asc" 2\nvoid f() {{\n add<<<1, 0, s>>>(x); }}\n'
    assert '"m\\"ain.asc", 8' in rewritten(text)


def test_system_headers_are_left_alone() -> None:
    text = f'{KERNEL}# 1 "/usr/include/x.h" 1 3\nint a = b <<< c;\n# 3 "a.asc" 2\nvoid f() {{ add<<<1, 0, s>>>(x); }}\n'
    assert rewritten(text).count("Launch{") == 1


def test_a_pragma_of_a_system_header_does_not_end_it() -> None:
    system = '# 1 "/usr/include/x.h" 1 3\nnamespace n {\n#pragma GCC diagnostic push\nint a = b <<< c;\n# 9 "a.asc" 2\n'
    text = f"{system}{KERNEL}void f() {{ add<<<1, 0, s>>>(x); }}\n"
    assert rewritten(text).count("Launch{") == 1


def test_macros_of_system_headers_are_part_of_the_file_that_uses_them() -> None:
    text = (
        f'# 1 "a.asc"\n{KERNEL}void f() {{ add<<<1, 0, s>>>(\n# 3 "a.asc" 3 4\n__null\n# 3 "a.asc"\n, '
        '(\n# 4 "a.asc" 3 4\n(\n# 4 "a.asc"\nx)\n# 5 "a.asc" 3 4\n)\n# 5 "a.asc"\n); }\n'
    )
    assert "[](auto&... atbfn_a) { return add(atbfn_a...); }, \n" in (out := rewritten(text))
    assert "nullptr\n" in out and "__null" not in out


@pytest.mark.parametrize(
    "code",
    [
        "// add<<<1, 0, s>>>(x)",
        "// one \\\n add<<<1, 0, s>>>(x)",
        "/* add<<<1, 0, s>>>(x)\n */",
        'const char* a = "add<<<1, 0, s>>>(x)";',
        'const char* a = "\\"add<<<1, 0, s>>>(x)";',
        'const char* a = R"(add<<<1, 0, s>>>(x) "quoted" )";',
        'const char* a = u8R"xx(add<<<1, 0, s>>>(x))" )xx";',
        "#define LAUNCH add<<<1, 0, s>>>(x)",
        "#define LAUNCH(a) \\\n add<<<1, 0, s>>>(a)",
        "#error don't add<<<1, 0, s>>>(x)",
        "char a = '\"'; // <<<",
        "auto a = &operator<<<int>;",
        "int a = 1'000'000; // '<<<'",
    ],
)
def test_what_is_no_launch_stays(code: str) -> None:
    text = KERNEL + code + "\nint after;\n"
    assert rewritten(text) == text


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("void f() { mul<<<1, 0, s>>>(x); }", r"a.asc:2: error: kernel `mul` is launched here but never defined"),
        (
            "void mul(int);\nvoid f() { mul<<<1, 0, s>>>(1); }",
            r"a.asc:3: error: kernel `mul`.*never defined as __global__",
        ),
        (
            "__global__ void mul(int);\nvoid f() {\n mul<<<1, 0, s>>>(1); }",
            r"a.asc:4: error: .*never defined, only declared",
        ),
        ("void f() { add<<<1, 64, 0, s>>>(x); }", r"a.asc:2: error: `add` is launched with four values, as SIMT"),
        ("void f() { add<<<1>>>(x); }", r"a.asc:2: error: .*>>>"),
        ("void f() { add<<<1, 0, s>>; }", r"a.asc:2: error: this launch has no `>>>"),
        ("void f() { <<<1, 0, s>>>(x); }", r"a.asc:2: error: no kernel stands before <<<"),
        ("__global__ __mix__(2, 1) void m() {}", r"a.asc:2: error: `__mix__\(2, 1\)`: one block has"),
        (
            "__global__ void m() { KERNEL_TASK_TYPE_DEFAULT(FAST); }",
            r"a.asc:2: error: .*FAST.*expected one of KERNEL_TYPE",
        ),
        (
            "__global__ void m() {\n KERNEL_TASK_TYPE(1, KERNEL_TYPE_AIV_ONLY);\n"
            " KERNEL_TASK_TYPE(2, KERNEL_TYPE_AIC_ONLY); }",
            r"a.asc:4: error: the kernel has several task types",
        ),
    ],
)
def test_errors_have_file_and_line(code: str, message: str) -> None:
    with pytest.raises(RewriteError, match=message):
        rewritten(KERNEL + code + "\n")


def test_a_kernel_of_another_unit() -> None:
    text = "__global__ void mul(int);\nvoid f() { mul<<<1, 0, s>>>(1); }\n"
    assert "Kind::Cube" in rewritten(text, "__global__ __cube__ void mul(int a) {}\n")


def test_kernels_in_namespaces() -> None:
    text = (
        "namespace a::b { __global__ __cube__ void k(int) {} }\n"
        "namespace c { template <int N> __global__ __vector__ void k(int) {} }\n"
        "void f() { a::b::k<<<1, 0, s>>>(1); c::k<2><<<1, 0, s>>>(1); ::a::b::k<<<1, 0, s>>>(1); }\n"
    )
    assert re.findall(r'Kind::(\w+), "([^"]*)"', rewritten(text)) == [
        ("Cube", "a::b::k"),
        ("Vector", "c::k<2>"),
        ("Cube", "::a::b::k"),
    ]
    with pytest.raises(
        RewriteError, match=r"`k` may mean kernels of several kinds: Cube at a.asc:1, Vector at a.asc:2"
    ):
        rewritten(text + "void g() { k<<<1, 0, s>>>(1); }\n")


def test_a_variable_that_holds_a_kernel() -> None:
    text = KERNEL + (
        "void f(int n) {\n"
        "  auto chosen = n ? add : add;\n  chosen<<<1, 0, s>>>(x);\n"
        "  constexpr auto other = []() { return add; }();\n  other<<<1, 0, s>>>(x);\n"
        "  void (*table[])(GM_ADDR, GM_ADDR) = {add, add};\n  table[n]<<<1, 0, s>>>(x);\n"
        "}\n"
        "template <auto K> void g() { K<<<1, 0, s>>>(x); }\n"
        "void h(void (*kernel)(GM_ADDR, GM_ADDR)) { kernel<<<1, 0, s>>>(x); }\n"
    )
    out = rewritten(text)
    assert re.findall(r"\[=\]\(auto&\.\.\. atbfn_a\) \{ return (.*?)\(", out) == [
        "chosen",
        "other",
        "table[n]",
        "K",
        "kernel",
    ]
    assert out.count("Kind::Vector") == 5


@pytest.mark.parametrize(
    ("before", "body", "expected"),
    [
        ("__vector__", "", Kind.VECTOR),
        ("__cube__", "", Kind.CUBE),
        ("__mix__(1, 1)", "", Kind.MIX11),
        ("__mix__(1, 2)", "", Kind.MIX12),
        ("__mix__(0,1)", "", Kind.MIX01),
        ("__mix__(1,0)", "", Kind.MIX10),
        ("", "KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY); Mmad(a);", Kind.VECTOR),
        ("", "KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);", Kind.CUBE),
        ("", "KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);", Kind.MIX01),
        ("", "KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_0);", Kind.MIX10),
        ("", "KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_1);", Kind.MIX11),
        ("", "KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);", Kind.MIX12),
        ("", "KERNEL_TASK_TYPE(1, KERNEL_TYPE_AIC_ONLY);", Kind.CUBE),
        ("", "", Kind.VECTOR),
        ("", "AscendC::Add(z, x, y, 8);", Kind.VECTOR),
        ("", "Cast<half, float>(z, x);", Kind.VECTOR),
        ("", "Mmad(c, a, b, p);", Kind.CUBE),
        ("", "TQue<TPosition::A1, 2> q;", Kind.CUBE),
        ("", "TQue<AscendC::QuePosition::VECIN, 2> q;", Kind.VECTOR),
        ("", "LocalMemAllocator<Hardware::UB> ub;", Kind.VECTOR),
        ("", "LocalMemAllocator<Hardware::L1> l1;", Kind.CUBE),
        ("", "if ASCEND_IS_AIC { f(); }", Kind.CUBE),
        ("", "if ASCEND_IS_AIV { f(); } if ASCEND_IS_AIC { g(); }", Kind.MIX12),
        ("", "if (g_coreType == AIV) { f(); } else { Mmad(c, a, b, p); }", Kind.MIX12),
        ("", "Mmad(c, a, b, p); Add(z, x, y, 8);", Kind.MIX12),
        ("", '// Mmad(c)\n Add(z, x, y, 8); const char* s = "Mmad(";', Kind.VECTOR),
        ("", "object.Add(1); pointer->Mmad(2); int Max = 3; enum { A1 };", Kind.VECTOR),
    ],
)
def test_the_kind_of_a_kernel(before: str, body: str, expected: Kind) -> None:
    assert kinds(f"{before} __global__ __aicore__ void k(GM_ADDR x) {{ {body} }}") == {"k": expected}
    assert kinds(f'extern "C" __global__ __aicore__ {before} void k(GM_ADDR x)\n{{ {body} }}') == {"k": expected}
    assert kinds(f"template <class T = int, int N = (3 > 2)>\n__global__ {before} void k(T* x) {{ {body} }}") == {
        "k": expected
    }
    text = f"__global__ {before} void k(GM_ADDR x) {{ {body} }}\nvoid f() {{ k<<<1, 0, s>>>(x); }}"
    assert f"Kind::{expected}," in rewritten(text, preprocessed=True)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("void step() { Mmad(a); }\n__global__ void k() { step(); }", Kind.CUBE),
        ("void deep() { Mmad(a); } void step() { deep(); }\n__global__ void k() { step(); Add(x); }", Kind.MIX12),
        ("struct Op { void Run() { Mmad(a); } };\n__global__ void k() { Op op; op.Run(); }", Kind.CUBE),
        (
            "template <class T> class Op { void Run(); };\ntemplate <class T> void Op<T>::Run() { Mmad(a); }\n"
            "__global__ void k() { Op<half> op; op.Run(); }",
            Kind.CUBE,
        ),
        (
            "class Other { void Run() { Mmad(a); } };\nclass Op { void Run() { Add(x); } };\n"
            "__global__ void k() { Op op; op.Run(); }",
            Kind.VECTOR,
        ),
        ("struct Unused { void Run() { Mmad(a); } };\n__global__ void k() { Add(x); }", Kind.VECTOR),
        (
            "struct Base { void Go() { Mmad(a); } };\nstruct Op : public Base {};\n__global__ void k() { Op op; }",
            Kind.CUBE,
        ),
        ("struct Impl { void Go() { Mmad(a); } };\nusing Op = Impl;\n__global__ void k() { Op op; }", Kind.CUBE),
        ("struct Impl { void Go() { Mmad(a); } };\ntypedef Impl Op;\n__global__ void k() { Op op; }", Kind.CUBE),
        ("constexpr auto place = TPosition::CO1;\n__global__ void k() { TQue<place, 1> q; }", Kind.CUBE),
        ("void Add(int) {}\n__global__ void k() { Add(1); Mmad(a); }", Kind.CUBE),
        ("void Add(int) {}\n__global__ void k() { AscendC::Add(1); Mmad(a); }", Kind.MIX12),
        ("namespace n { struct Op { Op() : a(1), b{2} { Mmad(a); } }; }\n__global__ void k() { n::Op op; }", Kind.CUBE),
        ("auto step = [](int a) { Mmad(a); };\n__global__ void k() { step(1); }", Kind.CUBE),
        ("struct Op make() { Mmad(a); return {}; }\n__global__ void k() { make(); }", Kind.CUBE),
        ("enum class E { Mmad }; __global__ void k() { f(E::Mmad); }", Kind.VECTOR),
    ],
)
def test_a_plain_kernel_is_what_it_reaches(rest: str, expected: Kind) -> None:
    assert kinds(rest)["k"] == expected


def test_what_a_kernel_reaches_may_be_in_another_unit_of_the_program() -> None:
    assert kinds("__global__ void k() { step(); }", "void step() { Mmad(a); }") == {"k": Kind.CUBE}


def test_names_of_parameters() -> None:
    text = (
        "__global__ void k(GM_ADDR x, __gm__ half *y, const Tiling tiling, int n = f(1, 2), std::pair<int, int> p, int)"
    )
    (kernel,) = Program([Source(text + " {}", "a.asc")]).kernels
    assert kernel.parameters == ("x", "y", "tiling", "n", "p", "")
    (kernel,) = Program([Source("__global__ void k() {}", "a.asc")]).kernels
    assert kernel.parameters == ()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("if constexpr (g_coreType == AIC) {", "if  (g_coreType == AIC) {"),
        ("if constexpr(AscendC::g_coreType == AscendC::AIV) {", "if (AscendC::g_coreType == AscendC::AIV) {"),
        ("if constexpr (sizeof(T) == 2) {", "if constexpr (sizeof(T) == 2) {"),
        ("if constexpr (ASCEND_IS_AIC) {", "if  ((::atbfn::emulator::IsCubeCore())) {"),
        ("if ASCEND_IS_AIV {", "if (::atbfn::emulator::IsVectorCore()) {"),
    ],
)
def test_tests_of_the_core_type(code: str, expected: str) -> None:
    assert rewritten(f"void f() {{ {code} }} }}\n", preprocessed=True) == f"void f() {{ {expected} }} }}\n"


def test_marks_go_from_preprocessed_text() -> None:
    text = 'extern "C" __global__ __mix__(1,\n2) void k() { KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY); }\n'
    assert squeezed(rewritten(text, preprocessed=True)) == 'extern "C" void k() { ; }'


def test_the_definitions_that_keep_marks_cover_all_words() -> None:
    for word in ("__global__", "__vector__", "__cube__", "__mix__", "KERNEL_TASK_TYPE", "ASCEND_IS_AIC"):
        assert re.search(rf"^#define {word}\b", KEEP_MARKS, re.MULTILINE)
        assert re.search(rf"^#undef {word}$", KEEP_MARKS, re.MULTILINE)


def test_launches_can_be_listed() -> None:
    source = Source("void f() { a<<<1, 0, s>>>(x); b<2><<<1, 0>>>(a<<<3, 0>>>(y)); }", "a.asc")
    assert [launch.name for launch in launches(source)] == ["a", "b<2>", "a"]
