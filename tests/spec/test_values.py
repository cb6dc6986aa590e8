"""How single values read, as tables; and every canonical text reads as the value it came from."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.spec.grammar import values
from orch.spec.grammar.values import Problem
from orch.spec.models import resources
from orch.spec.models.resources import GpuRequest

GB = 1024


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("16GB", 16 * GB),
        ("16gb", 16 * GB),
        ("16 GiB", 16 * GB),
        ("512MB", 512),
        ("1.5TB", 1536 * GB),
        ("24", 24 * GB),
        ("0.0001GB", 1),
    ],
)
def test_a_size_is_whole_mib(text: str, mib: int) -> None:
    assert values.parse_size(text) == mib


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("3d", 259_200),
        ("2w", 1_209_600),
        ("0s", 0),
        ("off", None),
        ("false", None),
        ("-1", None),
        ("true", 42),
    ],
)
def test_a_duration_is_seconds_or_never(text: str, seconds: int | None) -> None:
    assert values.parse_duration(text, default=42) == seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1 hour", "1h"),
        ("90 min", "1h30m"),
        ("2:00:00", "2h"),
        ("24:00:00", "1d"),
        ("30:00", "30m"),
        ("1-12:00:00", "1d12h"),
        ("1.5h", "1h30m"),
        ("30m1h", "1h30m"),
        ("2 days and 3 hours", "2d3h"),
        ("1H", "1h"),
    ],
)
def test_a_duration_written_otherwise_is_understood_in_the_hint(text: str, hint: str) -> None:
    with pytest.raises(Problem) as caught:
        values.parse_duration(text)
    assert caught.value.hint == f"write `{hint}`"
    assert values.parse_duration(hint) is not None


@pytest.mark.parametrize("text", ["", "1", "h", "1x", "1h1h", "1e3", "١h", "9" * 50, "1h 30m", "--1", "1..2"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    if text == "1":
        assert values.parse_duration(text) == 1
        return
    with pytest.raises(Problem, match="not a duration"):
        values.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("4", (4, 4)),
        ("4..8", (4, 8)),
        ("4 .. 8", (4, 8)),
        ("4..", (4, None)),
        ("..8", (None, 8)),
        ("4..4", (4, 4)),
    ],
)
def test_a_range_has_one_or_two_ends(text: str, ends: tuple[int | None, int | None]) -> None:
    assert values.parse_range(text, values.parse_int) == ends


@pytest.mark.parametrize("text", ["..", "8..4", "4...8", "1..2..3", "a..b"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(Problem):
        values.parse_range(text, values.parse_int)


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("8", GpuRequest(count=(8, 8))),
        ("0", GpuRequest(count=(0, 0))),
        ("1..8", GpuRequest(count=(1, 8))),
        ("H100", GpuRequest(names=("H100",))),
        ("H100:8", GpuRequest(names=("H100",), count=(8, 8))),
        ("8:H100", GpuRequest(names=("H100",), count=(8, 8))),
        ("A100:80GB:8", GpuRequest(names=("A100",), memory_mib=(80 * GB, 80 * GB), count=(8, 8))),
        ("24GB", GpuRequest(memory_mib=(24 * GB, 24 * GB))),
        ("24GB..", GpuRequest(memory_mib=(24 * GB, None))),
        ("..24GB", GpuRequest(memory_mib=(None, 24 * GB))),
        ("40GB..80GB:1..8", GpuRequest(memory_mib=(40 * GB, 80 * GB), count=(1, 8))),
        ("nvidia:1..8", GpuRequest(vendor="nvidia", count=(1, 8))),
        ("tpu:v5", GpuRequest(vendor="google", names=("v5",))),
        ("tt:n150:4", GpuRequest(vendor="tenstorrent", names=("n150",), count=(4, 4))),
        ("A100, H100:8", GpuRequest(names=("A100", "H100"), count=(8, 8))),
    ],
)
def test_a_gpu_text_names_vendor_model_memory_and_count(text: str, request_: GpuRequest) -> None:
    assert resources.parse_gpu(text) == request_


@pytest.mark.parametrize(
    ("text", "cpu"),
    [
        ("4", (None, (4, None))),
        ("4..4", (None, (4, 4))),
        ("arm:4..8", ("arm", (4, 8))),
        ("x86:2", ("x86", (2, None))),
    ],
)
def test_one_number_of_cpus_is_a_minimum(text: str, cpu: object) -> None:
    assert resources.parse_cpu(text) == cpu


@pytest.mark.parametrize(("text", "amount"), [("2", "2"), ("0.05", "0.05"), ("98.32", "98.32")])
def test_money_is_a_decimal(text: str, amount: str) -> None:
    assert values.parse_money(text) == Decimal(amount)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("$2.50", "`2.50`"), ("2.50$/h", "`2.50`"), ("3 USD", "`3`"), ("0", "no limit"), ("much", "`2.50`")],
)
def test_money_written_otherwise_is_understood_in_the_hint(text: str, hint: str) -> None:
    with pytest.raises(Problem) as caught:
        values.parse_money(text)
    assert caught.value.code == "ORCH126"
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "truth"), [("yes", True), ("ON", True), ("true", True), ("no", False), ("off", False)]
)
def test_flags_have_three_words_for_each_side(text: str, truth: bool) -> None:
    assert values.parse_bool(text) is truth


@pytest.mark.parametrize(
    ("text", "entry"), [("A=1", ("A", "1")), ("A=", ("A", "")), ("A", ("A", None)), ("A=b=c", ("A", "b=c"))]
)
def test_an_environment_item_has_a_value_or_takes_the_callers(text: str, entry: object) -> None:
    assert values.parse_env_item(text) == entry


@pytest.mark.parametrize(("key", "value"), [("team", "ml ops/2"), ("_a-1", "")])
def test_a_tag_is_what_clouds_take(key: str, value: str) -> None:
    values.check_tag(key, value)


@pytest.mark.parametrize(
    ("key", "value"), [("cost centre", "12"), ("", "x"), ("x" * 61, "y"), ("a", "what?")]
)
def test_a_tag_that_a_cloud_refuses_is_refused_here(key: str, value: str) -> None:
    with pytest.raises(Problem) as caught:
        values.check_tag(key, value)
    assert caught.value.code == "ORCH128"


sizes = st.integers(min_value=1, max_value=2**40)
counts = st.integers(min_value=0, max_value=resources.MAX_GPUS)
names = st.from_regex(r"[A-Z][A-Za-z0-9]{0,12}", fullmatch=True).filter(
    lambda name: name.lower() not in resources.VENDORS
)


def ends(number: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int | None, int | None]]:
    both = st.tuples(number, number).map(lambda pair: (min(pair), max(pair)))
    return st.one_of(both, number.map(lambda low: (low, None)), number.map(lambda high: (None, high)))


@given(sizes)
def test_a_rendered_size_reads_as_itself(mib: int) -> None:
    assert values.parse_size(values.render_size(mib)) == mib


@given(st.one_of(st.none(), st.integers(min_value=0, max_value=10**9)))
def test_a_rendered_duration_reads_as_itself(seconds: int | None) -> None:
    assert values.parse_duration(values.render_duration(seconds)) == seconds


@given(ends(sizes))
def test_a_rendered_range_reads_as_itself(pair: tuple[int | None, int | None]) -> None:
    text = values.render_range(*pair, values.render_size)
    assert values.parse_range(text, values.parse_size, values.render_size) == pair


@given(
    st.builds(
        GpuRequest,
        vendor=st.sampled_from([None, *set(resources.VENDORS.values())]),
        names=st.lists(names, max_size=3).map(tuple),
        memory_mib=st.one_of(st.none(), ends(sizes)),
        count=ends(counts),
    )
)
def test_a_gpu_request_reads_as_it_was_written(request_: GpuRequest) -> None:
    tokens = [request_.vendor, ",".join(request_.names)]
    if request_.memory_mib:
        tokens.append(values.render_range(*request_.memory_mib, values.render_size))
    tokens.append(values.render_range(*request_.count))
    assert resources.parse_gpu(":".join(filter(None, tokens))) == request_


@given(st.sampled_from([None, "x86", "arm"]), ends(st.integers(min_value=0, max_value=4096)))
def test_a_cpu_request_reads_as_it_was_written(
    arch: str | None, count: tuple[int | None, int | None]
) -> None:
    low, high = count
    text = f"{low}..{high}" if low is not None and low == high else values.render_range(low, high)
    assert resources.parse_cpu(f"{arch}:{text}" if arch else text) == (arch, count)


@given(st.decimals(min_value="0.01", max_value=10**6, places=2))
def test_a_rendered_amount_reads_as_itself(amount: Decimal) -> None:
    assert values.parse_money(values.render_money(amount)) == amount


@given(st.text(max_size=60))
def test_a_name_in_a_hint_is_a_name(text: str) -> None:
    try:
        offered = values.check_name(text)
    except Problem as problem:
        offered = problem.replacement
    assert offered is None or re.fullmatch(r"[a-z][a-z0-9-]{1,40}", offered)


@given(st.text(alphabet="0123456789.GMTBbi:AaHx ,-$", max_size=16))
def test_any_text_reads_or_is_a_problem_with_a_code(text: str) -> None:
    for read in (
        values.parse_size,
        values.parse_duration,
        values.parse_money,
        resources.parse_gpu,
        resources.parse_cpu,
    ):
        code = None
        try:
            read(text)
        except Problem as problem:
            code = problem.code
        assert code is None or code.startswith("ORCH1")
