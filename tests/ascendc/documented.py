"""Input and output examples of the public Ascend C documentation, and rows of its edge value tables, as data.

The facts are from the pages of the asc-devkit repository (docs/zh/api) that each table names, for the A2 and A3 series;
where a page contradicts itself or arithmetic, or leaves open what it means, the row is not here. `edge_values.csv` has
the rows of plain arithmetic and conversions; here are those of fused instructions, comparisons, reductions and atomic
copies, and the examples.

Values are written as the pages have them: `MAX` and `MIN` are the ends of the type, and `a|b` is `a`, or `b` in
saturation mode. `1 2 3 ... 512` as an input goes on evenly up to its last number; as an output it states its first
numbers and its last. Numbers with a decimal point are held to the digits given, all others to the bit.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

TYPES: dict[str, np.dtype] = {
    "half": np.dtype(np.float16),
    "bfloat16_t": np.dtype(ml_dtypes.bfloat16),
    "float": np.dtype(np.float32),
    **{
        f"{name}_t": np.dtype(name)
        for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    },
    "int4b_t": np.dtype(np.int8),  # two in a byte where it is stored
}
COUNT, MASK, BITS = 0, 1, 2
ALL = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class Job:
    """One instruction: what `documented_kernels/job.h` reads, with its operands.

    `out` is the destination as it is before. Strides are of `dst`, `a` and `b`, between blocks and between repeats.
    """

    op: str
    from_type: str
    to_type: str
    a: np.ndarray | None
    b: np.ndarray | None
    out: np.ndarray
    scalar: np.generic | None = None
    saturate: bool = False
    form: int = COUNT
    lanes: int = 0
    repeats: int = 1
    bits: tuple[int, int] = (0, 0)
    blocks: tuple[int, int, int] = (1, 1, 1)
    strides: tuple[int, int, int] = (8, 8, 8)
    mode: int = 0
    extra: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Case:
    """An example: `name` is of the API, `page` states it, `family` is the kernel that runs it.

    `want` holds the stated elements of the destination by their index; a tuple is (value, digits after the point).
    """

    name: str
    page: str
    family: str
    job: Job
    want: dict[int, object]


def number(text: str, dtype: str) -> np.generic:
    """A value of the tables."""
    kind = TYPES[dtype]
    if dtype in ("half", "float", "bfloat16_t"):
        ends = {"MAX": float(ml_dtypes.finfo(kind).max), "MIN": float(ml_dtypes.finfo(kind).min)}
        return kind.type(ends.get(text) if text in ends else float(text))
    limits = (-8, 7) if dtype == "int4b_t" else (np.iinfo(kind).min, np.iinfo(kind).max)
    return kind.type({"MIN": limits[0], "MAX": limits[1]}[text] if text in ("MIN", "MAX") else int(float(text)))


def numbers(text: str, dtype: str, count: int | None = None) -> np.ndarray:
    """An input: all values, or an even series `a b ... z`, of `count` elements where all are the same."""
    if "..." not in text:
        values = [number(word, dtype) for word in text.split()]
        return np.array(values if count is None else (values * count)[:count], TYPES[dtype])
    head, last = text.split("...")
    first = [float(word) for word in head.split()]
    step = first[1] - first[0]
    if step == 0:
        return np.full(count or 512, first[0], TYPES[dtype])
    return np.arange(first[0], float(last) + step / 2, step).astype(TYPES[dtype])


def stated(text: str, dtype: str, count: int) -> dict[int, object]:
    """An output: its first numbers, and after `...` its last ones."""
    head, _, tail = text.partition("...")

    def value(word: str) -> object:
        if "." not in word or "e" in word or dtype not in ("half", "float", "bfloat16_t"):
            return number(word, dtype)
        return float(word), len(word.partition(".")[2])

    found = {i: value(word) for i, word in enumerate(head.split())}
    last = tail.split()
    return found | {count - len(last) + i: value(word) for i, word in enumerate(last)}


def _forms(dtype: str, count: int) -> Iterator[tuple[str, dict[str, object]]]:
    """The call forms of an instruction on `count` elements that lie one after the other."""
    lanes = 256 // TYPES[dtype].itemsize
    yield "count", {"form": COUNT, "lanes": count}
    if count % lanes == 0:
        yield "mask", {"form": MASK, "lanes": lanes, "repeats": count // lanes}
        bits = (ALL, ALL) if lanes == 128 else (ALL, 0)
        yield "bits", {"form": BITS, "bits": bits, "repeats": count // lanes}


# ----------------------------------------------------------------------------------------------------------- arithmetic

# Pages 基础算术, 复合计算 and 逻辑计算: API; types; first source; second source or scalar; result.
# `dst=` is what the destination held before.
ELEMENTWISE = """
Abs; half float; 0.0 -1.0 2.0 -3.0; -; 0 1 2 3
Exp; half; 0.0 1.0 2.0 3.0; -; 1 2.719 7.391 20.08
Ln; float; 1 2 3 4; -; 0 0.6931 1.0986 1.3863
Sqrt; half; 1.0 2.0 3.0 4.0; -; 1 1.414 1.732 2
Relu; half; 6.938 -8.86 -0.2263 1.971 1.778; -; 6.938 0 0 1.971 1.778
Reciprocal; half; -7.152 -7.24 1.771 -1.339; -; -0.1398 -0.1382 0.5645 -0.747
Add; half float int16_t int32_t; 1 2 3 ... 512; 513 514 515 ... 1024; 514 516 518 ... 1536
Sub; half float int16_t int32_t; 1 2 3 ... 512; 513 514 515 ... 1024; -512 -512 -512 ... -512
Mul; half float int16_t int32_t; 1 2 3 ... 512; 2 2 2 ... 2; 2 4 6 ... 1024
Div; half float; 1.0 2.0 3.0 ... 512.0; 2.0 2.0 2.0 ... 2.0; 0.5 1.0 1.5 ... 256
Max; half float int16_t int32_t; 1 2 3 ... 512; 513 512 511 ... 2; 513 512 511 ... 512
Min; half float int16_t int32_t; 1 2 3 ... 512; 513 512 511 ... 2; 1 2 3 ... 2
Adds; half float int16_t int32_t; 1 2 3 ... 512; 2; 3 4 5 ... 514
Muls; half float int16_t int32_t; 1 2 3 ... 512; 2; 2 4 6 ... 1024
Maxs; half float int16_t int32_t; 1 2 3 ... 512; 2; 2 2 3 ... 512
Mins; half float int16_t int32_t; 1 2 3 ... 512; 2; 1 2 2 ... 2
LeakyRelu; float; -287 246 -438 177 596 -950 -293 322 -900; 0.001; -0.287 246 -0.438 177 596 -0.950 -0.293 322 -0.900
Axpy; half float; 1 2 3 4 5 6 ... 512; 2; 2 4 6 8 10 12 ... 1024; dst=0
AddRelu; half float int16_t; 1 -2 3 -6; 1 3 -4 5; 2 1 0 0
SubRelu; half float int16_t; 1 2 3 512; 0 1 4 513; 1 1 0 0
Not; int16_t uint16_t; 9 -2 8 9 0; -; -10 1 -9 -10 -1
And; int16_t uint16_t; 1 2 3 ... 512; 513 512 511 ... 2; 1 0 3 ... 0
Or; int16_t uint16_t; 1 2 3 ... 512; 513 512 511 ... 2; 513 514 511 ... 514
ShiftLeft; int16_t uint16_t int32_t; 1 2 3 ... 512; 2; 4 8 12 ... 2048
ShiftRight; int16_t uint16_t int32_t; 1 2 3 ... 512; 2; 0 0 0 1 1 1 1 ... 128
"""
WITH_SCALAR = ("Adds", "Muls", "Maxs", "Mins", "LeakyRelu", "Axpy", "ShiftLeft", "ShiftRight")
COMPOUND = ("Axpy", "AddRelu", "SubRelu", "MulAddDst", "FusedMulAdd", "MulAddRelu")
LOGICAL = ("Not", "And", "Or", "ShiftLeft", "ShiftRight")
PAGES = {**dict.fromkeys(COMPOUND, "复合计算"), **dict.fromkeys(LOGICAL, "逻辑计算")}


def _signed(text: str, dtype: str) -> str:
    """Negative numbers of an unsigned type, by their bits."""
    if not dtype.startswith("u"):
        return text
    size = 1 << TYPES[dtype].itemsize * 8
    return " ".join(str(int(w) % size) if re.fullmatch(r"-\d+", w) else w for w in text.split())


def _elementwise() -> Iterator[Case]:
    for line in ELEMENTWISE.strip().splitlines():
        api, dtypes, a, b, result, *rest = [part.strip() for part in line.split(";")]
        before = rest[0].removeprefix("dst=") if rest else "1"
        for dtype in dtypes.split():
            first = numbers(_signed(a, dtype), dtype)
            count = len(first)
            scalar = number(b, dtype) if api in WITH_SCALAR else None
            second = None if b == "-" or scalar is not None else numbers(_signed(b, dtype), dtype, count)
            want = stated(_signed(result, dtype), dtype, count)
            for form, how in _forms(dtype, count):
                out = np.full(count, number(before, dtype), TYPES[dtype])
                job = Job(api, dtype, dtype, first, second, out, scalar, **how)  # type: ignore[arg-type]
                yield Case(f"{api}-{dtype}-{form}", f"{PAGES.get(api, '基础算术')}/{api}", "arithmetic", job, want)


# Page 更多样例-9: Add of 1 2 3 ... 512 and 513 514 ... 1024, halves, of parts: call, and runs (index: first ... last).
STRIDED_ADD = (
    ("64 lanes", {"form": MASK, "lanes": 64, "repeats": 4}, "0: 514 640; 128: 770 896; 256: 1026 1152; 384: 1282 1408"),
    (
        "64 bits",
        {"form": BITS, "bits": (ALL, 0), "repeats": 4},
        "0: 514 640; 128: 770 896; 256: 1026 1152; 384: 1282 1408",
    ),
    ("repeats apart", {"form": MASK, "lanes": 128, "repeats": 2, "strides": (8, 16, 8)}, "0: 514 768; 128: 898 1152"),
    (
        "blocks apart",
        {"form": MASK, "lanes": 128, "repeats": 2, "blocks": (1, 2, 1), "strides": (8, 16, 8)},
        "0: 514 544; 16: 562 592; 32: 610 640; 48: 658 688; 64: 706 736; 80: 754 784; 96: 802 832; 112: 850 880; "
        "128: 898 928; 144: 946 976; 160: 994 1024; 176: 1042 1072; 192: 1090 1120; 208: 1138 1168; 224: 1186 1216; "
        "240: 1234 1264",
    ),
)


def _strided() -> Iterator[Case]:
    a, b = numbers("1 2 ... 512", "half"), numbers("513 514 ... 1024", "half")
    for name, how, runs in STRIDED_ADD:
        want: dict[int, object] = {}
        for run in runs.split(";"):
            start, first, last = (int(word.rstrip(":")) for word in run.split())
            length = (last - first) // 2 + 1
            want |= {start + i: np.float16(first + 2 * i) for i in range(length)}
        untouched = np.float16(-1)
        want |= {i: untouched for i in range(512) if i not in want}  # what is not computed keeps its value
        job = Job("Add", "half", "half", a, b, np.full(512, untouched), **how)  # type: ignore[arg-type]
        yield Case(f"Add-{name.replace(' ', '-')}", "基础算术/更多样例-9", "arithmetic", job, want)


# Page SIMD计算说明/掩码: Adds of 1.0 to halves, blocks of both operands 2 apart: how, and which elements (from a
# contiguous view, so 16 to a block) are computed.
MASKED_ADDS = (
    ("counter", {"mode": 0, "bits": (130, 0)}, range(130)),
    ("counter-register", {"mode": 1, "lanes": 130}, range(130)),
    ("bits-register", {"mode": 3, "bits": (0x69A569A569A569A5,) * 2}, [i for i in range(128) if 0x69A5 >> i % 16 & 1]),
    ("lanes-register", {"mode": 4, "lanes": 128}, range(128)),
)


def _masked() -> Iterator[Case]:
    a, untouched = numbers("1 2 ... 512", "half"), np.float16(-1)
    for name, how, elements in MASKED_ADDS:
        want: dict[int, object] = dict.fromkeys(range(512), untouched)
        for element in elements:
            place = element // 16 * 32 + element % 16
            want[place] = np.float16(a[place] + 1)
        job = Job(
            "Masked",
            "half",
            "half",
            a,
            None,
            np.full(512, untouched),
            np.float16(1),
            blocks=(2, 2, 1),
            strides=(16, 16, 8),
            **how,
        )  # type: ignore[arg-type]
        yield Case(f"Adds-{name}", "SIMD计算说明/掩码", "arithmetic", job, want)
    job = Job("Masked", "half", "half", a, None, np.full(512, untouched), np.float16(1), mode=2, lanes=128)
    want = {i: np.float16(a[i] + 1) if i < 128 else untouched for i in range(512)}
    yield Case("Adds-counter-register-count", "SIMD计算说明/掩码", "arithmetic", job, want)


# -------------------------------------------------------------------------------------------- edges of fused arithmetic

# Page 附录/Memory矢量计算接口边界值汇总, tables 20 to 23: products with this value, and the sum with each of ADDENDS;
# `?` is not stated, or not clear.
PRODUCTS = {
    "0": "0*0 -0*-0 0*MAX -0*MIN",
    "-0": "0*-0 0*MIN -0*MAX",
    "inf": "inf*inf inf*MAX -inf*MIN MAX*MAX MIN*MIN",
    "-inf": "inf*-inf inf*MIN -inf*MAX MAX*MIN",
    "MAX": "MAX*1",
    "MIN": "MIN*1",
    "nan": "nan*0 nan*MAX nan*inf nan*nan 0*inf 0*-inf -0*inf -0*-inf",
}
ADDENDS = ("0", "-0", "inf", "-inf", "MAX", "MIN", "nan")
SUMS = {
    "0": "0 0|? inf|MAX -inf|MIN MAX MIN nan|0",
    "-0": "0 -0 inf|? -inf|? MAX MIN nan|0",
    "inf": "inf|MAX inf|MAX inf|MAX nan|MIN inf|MAX inf|0 nan|0",
    "-inf": "-inf|MIN -inf|MIN nan|MAX -inf|MIN -inf|0 -inf|MIN nan|0",
    "MAX": "MAX MAX inf|MAX -inf|MIN ? 0 nan|0",
    "MIN": "MIN MIN inf|MAX -inf|MIN 0 -inf|MIN nan|0",
    "nan": "nan|0 nan|0 nan|MAX nan|MIN nan|MAX nan|MIN nan|0",
}
RELU_SUMS = {
    "0": "0 0 inf|MAX 0 MAX 0 nan|0",
    "-0": "0 0 inf|MAX 0 MAX 0 nan|0",
    "inf": "inf|MAX inf|MAX inf|MAX nan|0 inf|MAX inf|0 nan|0",
    "-inf": "0 0 nan|MAX 0 0 0 nan|0",
    "MAX": "MAX MAX inf|MAX 0 ? 0 nan|0",
    "MIN": "0 0 inf|MAX 0 0 0 nan|0",
    "nan": "nan|0 nan|0 nan|MAX nan|0 nan|MAX nan|0 nan|0",
}
EDGE_PAGE = "附录/Memory矢量计算接口边界值汇总"

# Pages 复合计算: elements of their examples: both sources, the destination before and after. Those of halves show
# that the product is rounded before the sum: rounded once, the first nine results would be others.
FUSED_EXAMPLES = (
    (
        "FusedMulAdd", "half", "half",
        "21.02 4.74 70.25 -63.03 81.3 13.43 34.16 -93.4 -46.62 51.4 25.92 28.3",
        "94.4 -70.6 43.44 84.8 92.9 6.64 -97.06 70.3 10.91 -43.1 -90. -0.7295",
        "61.4 14.92 61.2 -38.94 -78.25 99.3 4.16 68.1 -60.2 -18.36 44.94 32.34",
        "1384. 0.0625 4344. 2538. -6272. 1341. 45.06 -6288. 2816. -987. 1075. 914.5",
    ),
    (
        "MulAddRelu", "half", "half",
        "19.3 -45.88 -60.75 -31.77 -75.56 99.75 41.34 -34.88 -33.12 77.25 59.84 -39.5",
        "27.14 43.16 65.6 -78.44 45.16 10.54 -57.53 42.06 -24.27 -20.95 -1.547 -46.25",
        "19.9 -70. -23.17 -35.6 -38.03 73.7 82.5 -83.1 -45.84 -69.5 -8.8 -38.3",
        "411.5 3256. 1474. 1053. 2920. 7364. 3352. 2940. 1495. 0. 0. 1467.",
    ),
    (
        "MulAddDst", "half", "float",
        "-83. -43.12 -93.5 -69.56 -37.03 -71.56 -35.4 95.3 -56.34 58.2 -14.28",
        "-57.97 72.4 83.56 88.56 47.34 16.88 -66.75 90.44 12.78 43.5 8.08",
        "-97.94773 -87.50743 6.481831 98.1897 86.71727 72.111435 69.46122 25.561102 -10.202202 -61.303955 32.56878",
        "4.71345850e+03 -3.20867920e+03 -7.80661182e+03 -6.06243945e+03 -1.66648096e+03 -1.13550574e+03 2.43282837e+03 "
        "8.64538574e+03 -7.30345764e+02 2.46985229e+03 -8.27969437e+01",
    ),
)  # fmt: skip


def _fused_examples() -> Iterator[Case]:
    for api, source, dtype, a, b, before, after in FUSED_EXAMPLES:
        first, out = numbers(a, source), numbers(before, dtype)
        want: dict[int, object] = {i: number(word, dtype) for i, word in enumerate(after.split())}
        job = Job(api, source, dtype, first, numbers(b, source), out, lanes=len(out))
        yield Case(f"{api}-{source}-{dtype}-example", f"复合计算/{api}", "arithmetic", job, want)


def _edge(text: str, saturate: bool) -> str:
    plain, _, saturated = text.partition("|")
    return (saturated or plain) if saturate else plain


def _fused() -> Iterator[Case]:
    for api in ("Axpy", "MulAddDst", "FusedMulAdd", "MulAddRelu"):
        table = RELU_SUMS if api == "MulAddRelu" else SUMS
        kinds = [("half", "half"), ("float", "float")] + [("half", "float")] * (api in ("Axpy", "MulAddDst"))
        for source, dtype in kinds:
            for product, factors in PRODUCTS.items():
                pairs = [tuple(word.split("*")) for word in factors.split()]
                if source != dtype:  # products of halves stay within floats
                    pairs = [pair for pair in pairs if not {pair[0], pair[1]} <= {"MAX", "MIN", "1"}]
                for saturate in (False, True)[: 1 + (dtype == "half")]:
                    results = [_edge(text, saturate) for text in table[product].split()]
                    columns = [i for i, text in enumerate(results) if text != "?"]
                    for x, y in pairs:
                        first = np.full(len(columns), number(x, source))
                        second = np.full(len(columns), number(y, source if api != "FusedMulAdd" else dtype))
                        third = np.array([number(ADDENDS[i], dtype) for i in columns])
                        out, b, scalar = third, second, None
                        if api == "Axpy":
                            b, scalar = None, second[0]
                        elif api in ("FusedMulAdd", "MulAddRelu"):
                            out, b = second, third
                        job = Job(api, source, dtype, first, b, out, scalar, saturate, lanes=len(columns))
                        want = {n: number(results[i], dtype) for n, i in enumerate(columns)}
                        kind = dtype if source == dtype else f"{source}-{dtype}"
                        name = f"{api}-{kind}-{x}*{y}{'-saturating' * saturate}"
                        yield Case(name, EDGE_PAGE, "arithmetic", job, want)


# Tables 24 to 28: a pair of sources, and the result: in floating point with relu, as int8_t, as int8_t with a product.
PAIRS = """
AddRelu; half float; 0,0 0,-0 -0,-0 > 0; inf,inf inf,MAX inf,MIN 0,inf -0,inf MAX,MAX > inf|MAX; -inf,-inf -inf,MAX -inf,MIN 0,-inf MIN,MIN > 0; MAX,0 > MAX; MIN,0 > 0; nan,0 nan,inf nan,MIN inf,-inf > nan|0
SubRelu; half float; 0,0 0,-0 -0,0 > 0; inf,-inf inf,MAX inf,MIN 0,-inf -0,-inf MAX,MIN MAX,-inf MIN,-inf > inf|MAX; -inf,MAX -inf,MIN -0,inf > 0; MAX,0 > MAX; MIN,0 > 0; nan,0 nan,inf nan,MIN inf,inf > nan|0
AddReluCast; half>int8_t; 0,0 0,-0 -0,-0 > 0; inf,inf inf,MAX inf,MIN 0,inf -0,inf MAX,MAX MAX,0 > MAX; -inf,-inf -inf,MAX -inf,MIN 0,-inf MIN,MIN MIN,0 > 0; nan,0 nan,inf inf,-inf > 0
AddReluCast; int16_t>int8_t; 0,0 > 0; MAX,MAX > MAX; MIN,MIN > 0
SubReluCast; half>int8_t; 0,0 0,-0 -0,0 > 0; inf,-inf inf,MAX inf,MIN inf,0 inf,-0 0,-inf -0,-inf MAX,MIN MAX,0 > MAX; -inf,MAX -inf,MIN -0,inf MIN,0 > 0; nan,0 nan,inf inf,inf > 0
SubReluCast; int16_t>int8_t; 0,0 > 0; MAX,MIN > MAX; MIN,MAX > 0
MulCast; half>int8_t; 0,0 -0,-0 0,MAX -0,MIN 0,-0 0,MIN -0,MAX > 0; MAX,MAX inf,MAX -inf,MIN MAX,1 > MAX; MAX,MIN inf,MIN -inf,MAX MIN,1 > MIN; nan,0 nan,1 nan,inf 0,inf 0,-inf -0,inf -0,-inf > 0
"""  # noqa: E501 - one line for each table
# Pages 复合计算: the examples of the same.
PAIR_EXAMPLES = """
AddReluCast; half>int8_t; 1 1 3 512; 0 0.5 -4 -513; 1 2 0 0
SubReluCast; half>int8_t; 1 2 3 512; 0 0.5 4 513; 1 2 0 0
MulCast; half>int8_t; 1 -2 3 -6; 1 3 -4 5; 1 -6 -12 -30
"""


def _pairs() -> Iterator[Case]:
    for line in PAIRS.strip().splitlines():
        api, kinds, *rows = [part.strip() for part in line.split(";")]
        for kind in kinds.split():
            source, _, dtype = kind.partition(">")
            dtype = dtype or source
            for row in rows:
                pairs, result = row.rsplit(" > ", 1)
                # Floats do not saturate; conversions to integers always do.
                for saturate in (False, True)[: 1 + (dtype == "half")]:
                    a, b = (np.array([number(p.split(",")[i], source) for p in pairs.split()]) for i in (0, 1))
                    out = np.full(len(a), number("1", dtype))
                    job = Job(api, source, dtype, a, b, out, saturate=saturate, lanes=len(a))
                    value = number(_edge(result, saturate), dtype)
                    family = "conversion" if api.endswith("Cast") else "arithmetic"
                    name = f"{api}-{kind}-{pairs.split()[0]}{'-saturating' * saturate}"
                    yield Case(name, EDGE_PAGE, family, job, dict.fromkeys(range(len(a)), value))
    for line in PAIR_EXAMPLES.strip().splitlines():
        api, kind, a, b, result = [part.strip() for part in line.split(";")]
        source, dtype = kind.split(">")
        first = numbers(a, source)
        job = Job(api, source, dtype, first, numbers(b, source), np.zeros(len(first), TYPES[dtype]), lanes=len(first))
        yield Case(f"{api}-{kind}-example", f"复合计算/{api}", "conversion", job, stated(result, dtype, len(first)))


# ---------------------------------------------------------------------------------------------------------- conversions

MODES = ("NONE", "RINT", "FLOOR", "CEIL", "ROUND", "TRUNC", "ODD")
FIVE = MODES[1:6]
# Page 数据结构/precision_conversion: types; input; the result of RINT, FLOOR, CEIL, ROUND and TRUNC.
ROUNDINGS = (
    ("int16_t", "half", 2**12 + 2, (2**12, 2**12, 2**12 + 4, 2**12 + 4, 2**12)),
    ("half", "int4b_t", 1.5, (2, 1, 2, 2, 1)),
    ("half", "int8_t", 2**7 - 0.5, (127, 127, 127, 127, 127)),
    ("half", "uint8_t", 1.75, (2, 1, 2, 2, 1)),
    ("half", "int16_t", 2**7 - 0.5, (128, 127, 128, 128, 127)),
    ("half", "int32_t", -1.5, (-2, -2, -1, -2, -1)),
    ("bfloat16_t", "int32_t", 2**6 + 0.5, (64, 64, 65, 65, 64)),
    ("int32_t", "float", 2**25 + 3, (2**25 + 4, 2**25, 2**25 + 4, 2**25 + 4, 2**25)),
    ("float", "int16_t", 2**22 + 0.5, (32767,) * 5),
    ("float", "half", 0.5 + 2**-12, (0.5, 0.5, 0.5 + 2**-11, 0.5 + 2**-11, 0.5)),
    ("float", "bfloat16_t", 0.5 + 2**-9 + 2**-11, (0.5 + 2**-8, 0.5, 0.5 + 2**-8, 0.5 + 2**-8, 0.5)),
    ("float", "int32_t", 2**22 + 0.5, (2**22, 2**22, 2**22 + 1, 2**22 + 1, 2**22)),
    ("float", "float", 0.5, (0.0, 0.0, 1.0, 1.0, 0.0)),
    ("float", "int64_t", 2**22 + 0.5, (2**22, 2**22, 2**22 + 1, 2**22 + 1, 2**22)),
    ("int64_t", "float", 2**35 + 2**12 + 2**11, tuple(2**35 + 2**n for n in (13, 12, 13, 13, 12))),
)  # fmt: skip
# The same page, conversions with one mode.
PLAIN = (
    ("int4b_t", "half", 1, 1.0),
    ("int8_t", "half", -1, -1.0),
    ("uint8_t", "half", 1, 1.0),
    ("int16_t", "float", 2**15 - 1, 2**15 - 1),
    ("half", "float", 1.5 - 2**-10, 1.5 - 2**-10),
    ("bfloat16_t", "float", 1.5 - 2**-6, 1.5 - 2**-6),
    ("int32_t", "int16_t", 2**31 - 1, 2**15 - 1),
    ("int32_t", "int64_t", 2**31 - 1, 2**31 - 1),
    ("int64_t", "int32_t", 2**31, 2**31 - 1),
)
# Page 类型转换/Cast: half to int32_t.
CAST_INPUT = "1.4 1.5 1.6 2.4 2.5 2.6"
CAST_RESULTS = {
    "CEIL": "2 2 2 3 3 3",
    "RINT": "1 2 2 2 2 3",
    "FLOOR": "1 1 1 2 2 2",
    "ROUND": "1 2 2 2 3 3",
    "TRUNC": "1 1 1 2 2 2",
}


def _cast(
    source: str, dtype: str, mode: str, values: Sequence[float], results: Sequence[float], page: str, label: str
) -> Case:
    a = np.array(values, TYPES[source])
    want = {i: TYPES[dtype].type(value) for i, value in enumerate(results)}
    out = np.zeros(len(a), TYPES[dtype])
    job = Job("Cast", source, dtype, a, None, out, mode=MODES.index(mode), lanes=len(a))
    return Case(f"Cast-{source}-{dtype}-{mode}{label}", page, "conversion", job, want)


def _conversions() -> Iterator[Case]:
    page = "数据结构/precision_conversion"
    for source, dtype, value, results in ROUNDINGS:
        for mode, result in zip(FIVE, results, strict=True):
            yield _cast(source, dtype, mode, [value] * 64, [result] * 64, page, "")
    yield _cast("float", "half", "ODD", [0.5 + 2**-12], [0.5 + 2**-11], page, "")
    for source, dtype, value, result in PLAIN:
        yield _cast(source, dtype, "NONE", [value] * 64, [result] * 64, page, "")
    for mode, text in CAST_RESULTS.items():
        values, results = [float(v) for v in CAST_INPUT.split()], [float(v) for v in text.split()]
        yield _cast("half", "int32_t", mode, values, results, "类型转换/Cast", "-example")
    # Page 类型转换/Cast: CAST_NONE rounds like CAST_RINT where something is lost.
    half = [0.5, 1.5, 2.5, -0.5, -2.5, 3.25]
    yield _cast("half", "int8_t", "NONE", half, [0, 2, 2, 0, -2, 3], "类型转换/Cast", "-is-rint")
    yield _cast("int16_t", "half", "NONE", [2**12 + 2], [2**12], "类型转换/Cast", "-is-rint")
    yield _cast("int32_t", "float", "NONE", [2**25 + 3], [2**25 + 4], "类型转换/Cast", "-is-rint")
    yield _cast("float", "half", "NONE", [0.5 + 2**-12], [0.5], "类型转换/Cast", "-is-rint")
    # Table 29 with a scale of 1: integers through SetDeqScale.
    a = np.array([0, 65504, -65504, 2**31 - 1, -(2**31)], np.int32)
    for saturate, ends in ((False, "inf -inf"), (True, "MAX MIN")):
        job = Job("Dequantise", "int32_t", "half", a, None, np.ones(5, np.float16), np.float16(1), saturate, lanes=5)
        want = stated(f"0 MAX MIN {ends}", "half", 5)
        yield Case(f"SetDeqScale-half{'-saturating' * saturate}", EDGE_PAGE, "conversion", job, want)


# --------------------------------------------------------------------------------------------- comparison and selection

COMPARISONS = ("LT", "GT", "EQ", "LE", "GE", "NE")
COMPARED = ("MIN", "MAX", "0", "-0", "nan", "inf", "-inf")
# Tables 30 and 31: a row for each first operand, a column for each second one. A nan is not even unequal (NE).
COMPARISON_EDGES = {
    "EQ": "1000000 0100000 0011000 0011000 0000000 0000010 0000001",
    "GE": "1000001 1111001 1011001 1011001 0000000 1111011 0000001",
    "GT": "0000001 1011001 1000001 1000001 0000000 1111001 0000000",
    "LE": "1111010 0100010 0111010 0111010 0000000 0000010 1111011",
    "LT": "0111010 0000010 0100010 0100010 0000000 0000000 1111010",
    "NE": "0111011 1011011 1100011 1100011 0000000 1111001 1111010",
}
# Page 比较与选择/Compare, floats: eight of each of these, and the first bytes of the result.
EIGHTS = "2 3 5 7 11 13 17 19", "2 4 6 8 10 12 14 16"
# The same page: the operands one after the other, and the bits of the first byte.
COMPARE_EXAMPLES = {"GT": 0b11110000, "GE": 0b11110001, "LE": 0b00001111, "EQ": 0b00000001, "NE": 0b11111110}


def _bytes(bits: Sequence[int]) -> dict[int, object]:
    return {i // 8: np.uint8(sum(bit << n for n, bit in enumerate(bits[i : i + 8]))) for i in range(0, len(bits), 8)}


def _comparisons() -> Iterator[Case]:
    for mode, table in COMPARISON_EDGES.items():
        code = COMPARISONS.index(mode)
        for dtype in ("half", "float"):
            lanes = 256 // TYPES[dtype].itemsize
            for x, row in zip(COMPARED, table.split(), strict=True):
                a = np.full(lanes, number(x, dtype))
                b = np.resize(np.array([number(y, dtype) for y in COMPARED]), lanes)
                bits = [int(row[i % 7]) for i in range(lanes)]
                job = Job("Compare", dtype, "uint8_t", a, b, np.zeros(32, np.uint8), lanes=lanes, mode=code)
                yield Case(f"Compare-{dtype}-{mode}-{x}", EDGE_PAGE, "selection", job, _bytes(bits))
            for column, y in enumerate(COMPARED):
                a = np.resize(np.array([number(x, dtype) for x in COMPARED]), lanes)
                bits = [int(table.split()[i % 7][column]) for i in range(lanes)]
                out = np.zeros(32, np.uint8)
                job = Job("Compares", dtype, "uint8_t", a, None, out, number(y, dtype), lanes=lanes, mode=code)
                yield Case(f"Compares-{dtype}-{mode}-{y}", EDGE_PAGE, "selection", job, _bytes(bits))
    ends = np.resize(np.array([-(2**31), 2**31 - 1], np.int32), 64)
    for x, bits in (("MIN", [1, 0]), ("MAX", [0, 1])):
        same = np.full(64, number(x, "int32_t"))
        out, mode = np.zeros(32, np.uint8), COMPARISONS.index("EQ")
        job = Job("Compare", "int32_t", "uint8_t", same, ends, out, lanes=64, mode=mode)
        yield Case(f"Compare-int32_t-EQ-{x}", EDGE_PAGE, "selection", job, _bytes(bits * 32))
        job = Job("Compares", "int32_t", "uint8_t", ends, None, out, same[0], lanes=64, mode=mode)
        yield Case(f"Compares-int32_t-EQ-{x}", EDGE_PAGE, "selection", job, _bytes(bits * 32))
    page = "比较与选择/Compare"
    x, y = (np.array([float(w) for w in text.split()], np.float32) for text in EIGHTS)
    for mode, byte in COMPARE_EXAMPLES.items():
        how = {"lanes": 64, "mode": COMPARISONS.index(mode)}
        a, b = np.resize(x, 64), np.resize(y, 64)
        for op in ("Compare", "CompareOperator"):
            job = Job(op, "float", "uint8_t", a, b, np.zeros(32, np.uint8), **how)  # type: ignore[arg-type]
            yield Case(f"{op}-float-{mode}-example", page, "selection", job, dict.fromkeys(range(8), np.uint8(byte)))
    # Masked comparisons: bits of lanes that are left out are 0.
    a, b = np.repeat(x, 8), np.repeat(y, 8)
    how = {
        "form": BITS,
        "bits": (858993459, 0),
        "mode": COMPARISONS.index("LE"),
        "blocks": (1, 1, 1),
        "strides": (1, 8, 8),
    }
    job = Job("Compare", "float", "uint8_t", a, b, np.zeros(32, np.uint8), **how)  # type: ignore[arg-type]
    want = {i: np.uint8(v) for i, v in enumerate([51, 51, 51, 51, 0, 0, 0, 0])}
    yield Case("Compare-float-LE-bits", page, "selection", job, want)


# Page 比较与选择/Select: which source an element comes from. 64 floats of each; the mask of the page's examples.
SELECT_MASK = (60, 32, 10, 7, 42, 52, 38, 26, 19, 15, 18, 83, 41, 43, 91, 30)
# And its example of two tensors, of which these are the first numbers.
SELECT_FIRST = "-80.4933 52.2499 -50.6124 -72.3737 -33.7107 -83.4001 34.3954 61.3188 96.5484 27.1321 -56.8153 9.80549"
SELECT_SECOND = "35.8789 44.0334 54.9997 44.8567 -30.8579 -53.714 -59.8013 71.1663 46.3484 8.56818 -59.4716 6.07412"
SELECT_RESULT = "35.8789 44.0334 -50.6124 -72.3737 -33.7107 -83.4001 -59.8013 71.1663 46.3484 8.56818 -59.4716 6.07412"
SELECT_SCALAR_RESULT = "0 0 -50.6124 -72.3737 -33.7107 -83.4001 0 0 0 0 0 0"


def _select_job(first: np.ndarray, second: np.ndarray, mode: int, how: dict[str, object], scalar: object = None) -> Job:
    mask = np.array((SELECT_MASK * 2)[:32], np.uint8)
    b = np.concatenate([mask, second.view(np.uint8)])
    kind = {np.dtype(np.float16): "half", np.dtype(np.float32): "float"}[first.dtype]
    out = np.full(len(first), -1, first.dtype)
    return Job("Select", kind, kind, first, b, out, scalar, mode=mode, extra=(32,), **how)  # type: ignore[arg-type]


def _selects() -> Iterator[Case]:
    page = "比较与选择/Select"
    a, b = (np.resize(numbers(text, "float"), 128) for text in (SELECT_FIRST, SELECT_SECOND))
    for mode in (0, 2):
        job = _select_job(a, b, mode, {"lanes": 128})
        want = {i: number(w, "float") for i, w in enumerate(SELECT_RESULT.split())}
        yield Case(f"Select-float-mode-{mode}-example", page, "selection", job, want)
    job = _select_job(a, b, 1, {"lanes": 128}, np.float32(0))
    want = {i: number(w, "float") for i, w in enumerate(SELECT_SCALAR_RESULT.split())}
    yield Case("Select-float-mode-1-example", page, "selection", job, want)
    # Mode 0 takes the same bits in every repeat, the others go on.
    bit = [SELECT_MASK[i // 8] >> i % 8 & 1 for i in range(128)]
    for dtype in ("half", "float"):
        lanes = 256 // TYPES[dtype].itemsize
        count = 128 if dtype == "float" else 256
        first, second = np.arange(1, count + 1).astype(TYPES[dtype]), np.arange(-1, -count - 1, -1).astype(TYPES[dtype])
        for mode in (0, 1, 2):
            scalar = TYPES[dtype].type(7)
            for form, how in _forms(dtype, count):
                chosen = [bit[i % (lanes if mode == 0 else 128)] for i in range(count)]
                if mode != 0 and dtype == "half":
                    chosen = [(SELECT_MASK * 2)[i // 8] >> i % 8 & 1 for i in range(count)]
                other = [scalar] * count if mode == 1 else second
                want = {i: first[i] if chosen[i] else other[i] for i in range(count)}
                job = _select_job(first, second, mode, how, scalar if mode == 1 else None)
                yield Case(f"Select-{dtype}-mode-{mode}-{form}", page, "selection", job, want)


def _gathers() -> Iterator[Case]:
    source = np.arange(128).astype(np.float16)
    offsets = np.arange(254, -1, -2).astype(np.uint32)
    for form, how in _forms("half", 128):
        job = Job("Gather", "half", "half", source, offsets, np.zeros(128, np.float16), extra=(0,), **how)  # type: ignore[arg-type]
        want = {i: np.float16(127 - i) for i in range(128)}
        yield Case(f"Gather-half-{form}", "离散与聚合/Gather", "selection", job, want)
    words = np.arange(128).astype(np.uint16)
    blocks = np.array([224, 192, 160, 128, 96, 64, 32, 0], np.uint32)
    job = Job("Gatherb", "uint16_t", "uint16_t", words, blocks, np.zeros(128, np.uint16))
    want = {i: np.uint16(112 - i // 16 * 16 + i % 16) for i in range(128)}
    yield Case("Gatherb-uint16_t", "离散与聚合/Gatherb(ISASI)", "selection", job, want)
    # Page 比较与选择/GatherMask: pattern 2 keeps every second element, from the second on.
    page, count = "比较与选择/GatherMask", 256
    for dtype, repeats in (("float", 4), ("half", 2), ("uint16_t", 2)):
        values = np.arange(1, count + 1).astype(TYPES[dtype])
        # Patterns 1 to 7: the elements of every two, of every four, and all.
        kept = {1: (2, 0), 2: (2, 1), 3: (4, 0), 4: (4, 1), 5: (4, 2), 6: (4, 3), 7: (1, 0)}
        for pattern, (of, which) in kept.items():
            result = values[which::of]
            job = Job(
                "GatherMask", dtype, dtype, values, None, np.zeros(count, TYPES[dtype]), mode=pattern, repeats=repeats,
                strides=(0, 8, 0), extra=(len(result),),
            )  # fmt: skip
            yield Case(f"GatherMask-{dtype}-pattern-{pattern}", page, "selection", job, dict(enumerate(result)))
    # Counter mode with a tensor of bits: 70 elements of each of 2 repeats that are 4 blocks, 32 elements, apart.
    values = np.arange(1, 129).astype(np.float32)
    bits = np.zeros(8, np.uint32)
    bits[:3] = (0x55555555, 0x0000FFFF, 0x3F)
    flags = [int(bits[i // 32]) >> i % 32 & 1 for i in range(70)]
    result = [values[repeat * 32 + i] for repeat in range(2) for i in range(70) if flags[i]]
    job = Job(
        "GatherPattern", "float", "float", values, bits, np.zeros(128, np.float32), form=MASK, lanes=70, repeats=2,
        strides=(0, 4, 0), extra=(len(result),),
    )  # fmt: skip
    yield Case("GatherMask-float-counter", page, "selection", job, dict(enumerate(result)))


# ----------------------------------------------------------------------------------------------------------- reductions

# Tables 33 to 41. What fills a block, a repeat or the whole, and the largest, the smallest and the sum. `ones x` are
# ones and a single x, and `alternating` values follow each other to the end. Sums of halves that saturate are stated
# for the whole repeat (128) and for two of them (256).
FILLS = """
all MIN; MIN; MIN; -inf|MIN
all MAX; MAX; MAX; inf|MAX
all 0; 0; 0; 0
all -0; -0; -0; -0
all nan; nan|0; nan|0; nan|0
all inf; inf|MAX; inf|MAX; inf|MAX
all -inf; -inf|MIN; -inf|MIN; -inf|MIN
alternating inf -inf nan; nan|0; nan|0; nan|0
alternating inf -inf; inf|MAX; -inf|MIN; nan|0
alternating inf nan; nan|0; nan|0; nan|0
alternating -inf nan; nan|0; nan|0; nan|0
ones inf; inf|MAX; 1; inf|?
ones -inf; 1; -inf|MIN; -inf|?
ones nan; nan|0; nan|0; nan|?
"""
SATURATING_SUMS = {  # by the number of elements
    16: {"ones nan": "14"},
    128: {"ones inf": "MAX", "ones -inf": "-65376", "ones nan": "126"},
    256: {"ones inf": "MAX", "ones -inf": "-65248", "ones nan": "254"},
}
# Of two repeats each is reduced, and saturated, before the two are: a nan counts as 0 among ones.
WHOLE = {"ones nan": ("nan|1", "nan|0")}
SUM, LARGEST, SMALLEST = 0, 1, 2


def _fill(text: str, dtype: str, count: int) -> np.ndarray:
    kind, *values = text.split()
    if kind == "ones":
        filled = np.full(count, 1, TYPES[dtype])
        filled[count // 2 - 1] = number(values[0], dtype)
        return filled
    return np.resize(np.array([number(value, dtype) for value in values]), count)


def _reduced(fill: str, results: Sequence[str], kind: int, count: int, dtype: str, saturate: bool) -> str:
    text = _edge(results[{LARGEST: 0, SMALLEST: 1, SUM: 2}[kind]], saturate)
    if saturate and kind == SUM and fill.startswith("ones"):
        return SATURATING_SUMS.get(count, {}).get(fill, "?")
    return text


def _reduction_edges() -> Iterator[Case]:
    for line in FILLS.strip().splitlines():
        fill, *results = [part.strip() for part in line.split(";")]
        for dtype in ("half", "float"):
            size = TYPES[dtype].itemsize
            lanes, block = 256 // size, 32 // size
            for saturate in (False, True)[: 1 + (dtype == "half")]:
                for api, count, kinds in (
                    ("ReduceDataBlock", block, (SUM, LARGEST, SMALLEST)),
                    ("ReduceRepeat", lanes, (SUM, LARGEST, SMALLEST)),
                    ("ReduceSum", 256 if dtype == "half" else 64, (SUM,)),
                    ("ReduceMax", 256 if dtype == "half" else 64, (LARGEST,)),
                    ("ReduceMin", 256 if dtype == "half" else 64, (SMALLEST,)),
                ):
                    whole = api in ("ReduceSum", "ReduceMax", "ReduceMin")
                    if whole and fill.startswith("alternating") and dtype == "half":
                        continue  # the page puts them among ones there, and does not say where
                    for kind in kinds:
                        text = _reduced(fill, results, kind, count, dtype, saturate)
                        if whole and dtype == "half" and fill in WHOLE and kind != SUM:
                            text = _edge(WHOLE[fill][kind - 1], saturate)
                        if text == "?":
                            continue
                        a = _fill(fill, dtype, count)
                        if api == "ReduceDataBlock":
                            a = np.tile(a, 8)
                        out = np.full(16, 3, TYPES[dtype])
                        job = Job(
                            "Reduce" if whole else api, dtype, dtype, a, None, out, saturate=saturate,
                            form=COUNT if whole else MASK, lanes=count if whole else lanes, strides=(1, 8, 8),
                            extra=(kind,),
                        )  # fmt: skip
                        value = number(text, dtype)
                        want = dict.fromkeys(range(8), value) if api == "ReduceDataBlock" else {0: value}
                        sort = "" if whole else f"-{('SUM', 'MAX', 'MIN')[kind]}"
                        name = f"{api}{sort}-{dtype}-{fill.replace(' ', '_')}{'-saturating' * saturate}"
                        yield Case(name, EDGE_PAGE, "reduction", job, want)


def _reduction_examples() -> Iterator[Case]:
    page = "归约计算"
    # ReduceDataBlock, halves: blocks of ones with one larger value, blocks of tens with one smaller one.
    largest, smallest = np.ones((8, 16), np.float16), np.full((8, 16), 10, np.float16)
    largest[0, 10], largest[1, 13], largest[7, 3] = 2, 3, 4
    smallest[0, 11], smallest[1, 13], smallest[7, 9] = 2, -3, 4
    for kind, values, ends in ((LARGEST, largest, (2, 3, 4)), (SMALLEST, smallest, (2, -3, 4))):
        for form, how in (("mask", {"form": MASK, "lanes": 128}), ("bits", {"form": BITS, "bits": (ALL, ALL)})):
            want = dict(zip((0, 1, 7), map(np.float16, ends), strict=True))
            for api in ("ReduceDataBlock", "BlockReduce"):
                job = Job(
                    api,
                    "half",
                    "half",
                    values.reshape(-1),
                    None,
                    np.zeros(16, np.float16),
                    strides=(1, 8, 8),
                    extra=(kind,),
                    **how,
                )  # type: ignore[arg-type]
                yield Case(
                    f"{api}-{'MAX' if kind == LARGEST else 'MIN'}-half-{form}",
                    f"{page}/ReduceDataBlock",
                    "reduction",
                    job,
                    want,
                )
    # ReducePairElem, halves.
    pairs = np.array([1, 1, 1, -1, 2, 2, -1, 2, 3, 3, 3, -1, 4, 4, -2, 4] + [0] * 112, np.float16)
    sums = {i: np.float16(v) for i, v in enumerate([2, 0, 4, 1, 6, 2, 8, 2])}
    for api in ("ReducePairElem", "PairReduceSum"):
        for form, how in (("mask", {"form": MASK, "lanes": 128}), ("bits", {"form": BITS, "bits": (ALL, ALL)})):
            job = Job(
                api, "half", "half", pairs, None, np.zeros(64, np.float16), strides=(1, 8, 8), extra=(SUM,), **how
            )  # type: ignore[arg-type]
            yield Case(f"{api}-half-{form}", f"{page}/ReducePairElem", "reduction", job, sums)
    # ReduceRepeat, halves: four repeats, of which the first has its extreme at 52, the second at 100, the last at 19;
    # the index is an integer in the bits of a half, and 32 bits long where it comes alone.
    for kind, base, extremes in ((LARGEST, (1, 2, 2, 3), (11, 12, 12, 13)), (SMALLEST, (10, 20, 20, 30), (1, 2, 2, 3))):
        places = (52, 100, 100, 19)
        values = np.repeat(np.array(base, np.float16), 128).reshape(4, 128)
        for repeat, place in enumerate(places):
            values[repeat, place] = extremes[repeat]
        index = np.array(places, np.uint16).view(np.float16)
        value = [np.float16(v) for v in extremes]
        orders = {
            0: {**{2 * i: value[i] for i in range(4)}, **{2 * i + 1: index[i] for i in range(4)}},
            1: {**{2 * i: index[i] for i in range(4)}, **{2 * i + 1: value[i] for i in range(4)}},
            2: dict(enumerate(value)),
            3: {**{2 * i: index[i] for i in range(4)}, **{2 * i + 1: np.float16(0) for i in range(4)}},
        }
        names = ("value-index", "index-value", "only-value", "only-index")
        for order, want in orders.items():
            for api in ("ReduceRepeat", "WholeReduce"):
                job = Job(
                    api, "half", "half", values.reshape(-1), None, np.zeros(16, np.float16), form=MASK, lanes=128,
                    repeats=4, strides=(1, 8, 8), mode=order, extra=(kind,),
                )  # fmt: skip
                sort = "MAX" if kind == LARGEST else "MIN"
                yield Case(f"{api}-{sort}-half-{names[order]}", f"{page}/ReduceRepeat", "reduction", job, want)
    # ReduceSum, halves: ones.
    ones = np.ones(8320, np.float16)
    job = Job(
        "Reduce",
        "half",
        "half",
        ones,
        None,
        np.zeros(16, np.float16),
        form=MASK,
        lanes=128,
        repeats=65,
        strides=(1, 8, 8),
        extra=(SUM,),
    )
    yield Case("ReduceSum-half-mask", f"{page}/ReduceSum", "reduction", job, {0: np.float16(8320)})
    job = Job("Reduce", "half", "half", ones[:288], None, np.zeros(16, np.float16), lanes=288, extra=(SUM,))
    yield Case("ReduceSum-half-count", f"{page}/ReduceSum", "reduction", job, {0: np.float16(288)})
    # ReduceMax and ReduceMin, halves: the value and the bits of its index, at the places of the pages' examples. Of
    # equal values the first is meant.
    for api, kind, extreme, cases in (
        ("ReduceMax", LARGEST, 0.9985, ((512, 114), (288, 232))),
        ("ReduceMin", SMALLEST, 0.00393, ((512, 353), (288, 72))),
    ):
        for count, place in cases:
            values = np.resize(np.linspace(0.1, 0.9, 61).astype(np.float16), count)
            values[[place, count - 1]] = extreme
            form = {"form": MASK, "lanes": 128, "repeats": 4} if count == 512 else {"lanes": 288}
            out = np.zeros(16, np.float16)
            job = Job("Reduce", "half", "half", values, None, out, strides=(1, 8, 8), mode=1, extra=(kind,), **form)  # type: ignore[arg-type]
            want = {0: np.float16(extreme), 1: np.array(place, np.uint16).view(np.float16)[()]}
            yield Case(f"{api}-half-index-{place}", f"{page}/{api}", "reduction", job, want)


# ----------------------------------------------------------------------------------------- filling, reordering, copying


def _layout() -> Iterator[Case]:
    for form, how in _forms("half", 256):
        job = Job("Duplicate", "half", "half", None, None, np.zeros(256, np.float16), np.float16(18), **how)  # type: ignore[arg-type]
        yield Case(
            f"Duplicate-half-{form}", "数据填充/Duplicate", "layout", job, dict.fromkeys(range(256), np.float16(18))
        )
    job = Job("Brcb", "half", "half", np.arange(1, 17).astype(np.float16), None, np.zeros(256, np.float16), repeats=2)
    yield Case("Brcb-half", "数据填充/Brcb", "layout", job, {i: np.float16(i // 16 + 1) for i in range(256)})
    for dtype in ("int16_t", "half", "float", "int32_t"):
        for form, how in _forms(dtype, 128):
            job = Job(
                "CreateVecIndex", dtype, dtype, None, None, np.full(128, 9, TYPES[dtype]), TYPES[dtype].type(0), **how
            )  # type: ignore[arg-type]
            want = {i: TYPES[dtype].type(i) for i in range(128)}
            yield Case(f"CreateVecIndex-{dtype}-{form}", "数据填充/CreateVecIndex", "layout", job, want)
    square = np.arange(256).astype(np.float16)
    turned = dict(enumerate(square.reshape(16, 16).T.reshape(-1)))
    yield Case(
        "Transpose-half", "数据排布转换/Transpose", "layout",
        Job("Transpose", "half", "half", square, None, np.zeros(256, np.float16)), turned,
    )  # fmt: skip
    page = "数据排布转换/TransDataTo5HD"
    for name, addresses in (("half", 0), ("half-address-tensors", 1)):
        out, extra = np.zeros(256, np.float16), (16, 16, addresses)
        job = Job("TransDataTo5HD", "half", "half", square, None, out, strides=(0, 0, 0), extra=extra)
        yield Case(f"TransDataTo5HD-{name}", page, "layout", job, turned)
    # Bytes: from the upper halves of the sources' blocks to the upper halves of the destinations'.
    rows = np.resize(np.arange(128), 512).astype(np.int8).reshape(16, 32)
    result = np.zeros((16, 32), np.int8)
    result[:, 16:] = rows[:, 16:].T
    job = Job(
        "TransDataTo5HD",
        "int8_t",
        "int8_t",
        rows.reshape(-1),
        None,
        np.zeros(512, np.int8),
        strides=(0, 0, 0),
        mode=3,
        extra=(32, 32),
    )
    yield Case("TransDataTo5HD-int8_t-high-halves", page, "layout", job, dict(enumerate(result.reshape(-1))))
    page = "数据搬运/Copy"
    numbered = np.arange(1152).astype(np.int32)
    job = Job(
        "Copy", "int32_t", "int32_t", numbered[:512], None, np.zeros(512, np.int32), form=MASK, lanes=64, repeats=8
    )
    yield Case("Copy-int32_t", page, "layout", job, dict(enumerate(numbered[:512])))
    first_columns = dict(enumerate(numbered.reshape(18, 64)[:, :8].reshape(-1)))
    job = Job(
        "Copy",
        "int32_t",
        "int32_t",
        numbered,
        None,
        np.zeros(144, np.int32),
        form=MASK,
        lanes=8,
        repeats=18,
        strides=(1, 8, 8),
    )
    yield Case("Copy-int32_t-columns", page, "layout", job, first_columns)
    job = Job("Copy", "int32_t", "int32_t", numbered, None, np.zeros(144, np.int32), lanes=144, blocks=(1, 8, 1))
    yield Case("Copy-int32_t-counter", page, "layout", job, first_columns)
    page = "数据搬运/DataCopyPad"
    # Rows padded to whole blocks: 20 halves with the value of SetPadValue, 59 floats with zeros.
    row = np.arange(1, 21).astype(np.float16)
    job = Job(
        "DataCopyPad", "half", "half", np.concatenate([row, row[:12]]), None, np.zeros(32, np.float16), np.float16(1),
        lanes=40, blocks=(1, 0, 12), strides=(0, 0, 0), extra=(1,),
    )  # fmt: skip
    yield Case("DataCopyPad-half-SetPadValue", page, "layout", job, dict(enumerate([*row, *[np.float16(1)] * 12])))
    rows_of = np.arange(32 * 59).astype(np.float32)
    padded = np.zeros((32, 64), np.float32)
    padded[:, :59] = rows_of.reshape(32, 59)
    job = Job(
        "DataCopyPad", "float", "float", rows_of, None, np.full(32 * 64, -1, np.float32), np.float32(0), lanes=59 * 4,
        repeats=32, blocks=(1, 0, 5), strides=(0, 0, 0), mode=1, extra=(0,),
    )  # fmt: skip
    yield Case("DataCopyPad-float-zeros", page, "layout", job, dict(enumerate(padded.reshape(-1))))


# Page 附录/原子操作类接口边界值汇总, halves: what lies in GM, and the results with each of COMPARED.
ATOMICS = {
    "SetAtomicAdd": """
MIN: -inf|MIN 0 MIN MIN nan|0 inf|MAX -inf|MIN
MAX: ? inf|MAX MAX MAX nan|0 inf|MAX -inf|MIN
0: ? ? 0 0 nan|0 inf|MAX -inf|MIN
-0: ? ? ? -0 nan|0 inf|MAX -inf|MIN
nan: ? ? ? ? nan|0 nan|0 nan|0
inf: ? ? ? ? ? inf|MAX nan|0
-inf: ? ? ? ? ? ? -inf|MIN""",
    "SetAtomicMax": """
MIN: MIN MAX 0 -0 nan|0 inf|MAX MIN
MAX: ? MAX MAX MAX nan|0 inf|MAX MAX
0: ? ? 0 0 nan|0 inf|MAX 0
-0: ? ? ? -0 nan|0 inf|MAX -0
nan: ? ? ? ? nan|0 nan|0 nan|0
inf: ? ? ? ? ? inf|MAX inf|MAX
-inf: ? ? ? ? ? ? -inf|MIN""",
    "SetAtomicMin": """
MIN: MIN MIN MIN MIN nan|0 MIN -inf|MIN
MAX: ? MAX 0 -0 nan|0 MAX -inf|MIN
0: ? ? 0 -0 nan|0 0 -inf|MIN
-0: ? ? ? -0 nan|0 -0 -inf|MIN
nan: ? ? ? ? nan|0 nan|0 nan|0
inf: ? ? ? ? ? inf|MAX -inf|MIN
-inf: ? ? ? ? ? ? -inf|MIN""",
}


def _atomics() -> Iterator[Case]:
    for api, table in ATOMICS.items():
        for line in table.strip().splitlines():
            there, results = line.split(":")
            for saturate in (False, True):
                texts = [_edge(text, saturate) for text in results.split()]
                columns = [i for i, text in enumerate(texts) if text != "?"]
                values = np.resize(np.array([number(COMPARED[i], "half") for i in columns]), 16)
                out = np.full(16, number(there, "half"))
                want = {i: number(texts[columns[i % len(columns)]], "half") for i in range(16)}
                job = Job(api, "half", "half", None, values, out, saturate=saturate, lanes=16)
                name = f"{api}-half-{there}{'-saturating' * saturate}"
                yield Case(name, "附录/原子操作类接口边界值汇总", "layout", job, want)


# ------------------------------------------------------------------------------------------------------ the scalar unit

# Pages 标量计算: function; argument; results (of <0> and <1> where it has a template argument).
SCALARS = (
    ("GetBitCount", 0xFFFF, (48, 16)),
    ("CountLeadingZero", 0xFFFF, (48,)),
    ("CountLeadingZero", 0, (64,)),
    ("CountLeadingZero", ALL, (0,)),
    ("CountBitsCntSameAsSignBit", 0, (-1,)),
    ("CountBitsCntSameAsSignBit", ALL, (-1,)),
    ("CountBitsCntSameAsSignBit", 0x7FFFFFFFFFFFFFFF, (0,)),
    ("CountBitsCntSameAsSignBit", 0x8000000000000000, (0,)),
    ("CountBitsCntSameAsSignBit", 1, (62,)),
    ("CountBitsCntSameAsSignBit", 0x00F0000000000000, (7,)),
    ("GetSFFValue", ALL, (-1, 0)),
    ("GetSFFValue", 0, (0, -1)),
    ("GetSFFValue", 0xFF00, (0, 8)),
    ("GetSFFValue", 0x00FF, (8, 0)),
)
# Pages 工具接口/NumericLimits工具类: the bits of Max, Lowest, Min, Infinity, NegativeInfinity, QuietNaN and DeNormMin.
LIMITS = {
    "half": (0x7BFF, 0xFBFF, 0x0400, 0x7C00, 0xFC00, 0x7E00, 0x0001),
    "bfloat16_t": (0x7F7F, 0xFF7F, 0x0080, 0x7F80, 0xFF80, 0x7FC0, 0x0001),
    "float": (0x7F7FFFFF, 0xFF7FFFFF, 0x00800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001),
}


def _scalars() -> Iterator[Case]:
    for name, argument, results in SCALARS:
        a = np.array([argument] * 4, np.uint64)
        job = Job(name, "int64_t", "int64_t", a, None, np.full(4, 77, np.int64))
        yield Case(
            f"{name}-{argument:#x}", f"标量计算/{name}", "layout", job, {i: np.int64(v) for i, v in enumerate(results)}
        )
    for value, results in ((1.5, (2, 1, 2, 2)), (2.5, (2, 2, 3, 3))):
        job = Job("ScalarCast", "float", "int32_t", np.full(8, value, np.float32), None, np.zeros(8, np.int32))
        yield Case(
            f"Cast-scalar-{value}", "标量计算/Cast", "layout", job, {i: np.int32(v) for i, v in enumerate(results)}
        )
    for name, text in (("ScalarCastHalf", "3.142578"), ("ScalarCastBfloat", "3.140625")):
        job = Job(name, "float", "float", np.full(8, 3.14159, np.float32), None, np.zeros(8, np.float32))
        yield Case(f"Cast-scalar-{name[10:].lower()}", "标量计算/Cast", "layout", job, stated(text, "float", 8))
    for dtype, bits in LIMITS.items():
        word = np.dtype(f"u{TYPES[dtype].itemsize}")
        job = Job("NumericLimits", dtype, dtype, None, None, np.zeros(16, TYPES[dtype]))
        want = {i: np.array(b, word).view(TYPES[dtype])[()] for i, b in enumerate(bits)}
        yield Case(f"NumericLimits-{dtype}", "工具接口/NumericLimits工具类", "layout", job, want)


def cases() -> list[Case]:
    """All of them."""
    makers = (
        *(_elementwise, _strided, _masked, _fused, _fused_examples, _pairs, _conversions, _comparisons, _selects),
        *(_gathers, _reduction_edges, _reduction_examples, _layout, _atomics, _scalars),
    )
    return [case for make in makers for case in make()]
