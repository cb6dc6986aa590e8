"""What a reader of a pull request is told of plans: dangers first, bounded, harmless, without secrets."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from kit.forges.dangers import CASES, COMMENTS, HOSTILE, change, compiled, fleet, node, plan, review, subject
from markdown_it import MarkdownIt
from markdown_it.token import Token

from orch.cli.errors import worst
from orch.cli.fleets.preview_files import Output, outputs_of
from orch.review.assess import fleet_review
from orch.review.blocks import MOST_BYTES, Block, fit, size_of
from orch.review.escape import escape, fenced, marked, mermaid
from orch.review.html import html
from orch.review.markdown import basis_line, markdown
from orch.review.model import Basis, Danger, Review, StackReview
from orch.spec.errors import ExitCode
from orch.stacks.events.changes import PropertyChange

READER = MarkdownIt("commonmark", {"html": True}).enable("table")
OUR_HTML = re.compile(
    r"(<!-- orch:plan v1 project=\S* path=\S* -->|<details><summary>[^<>]*</summary>|</details>)\n?"
)


def tokens(text: str) -> list[Token]:
    """All tokens of a text, as Markdown reads it."""
    found = READER.parse(text)
    return [*found, *(child for each in found for child in each.children or ())]


@pytest.mark.parametrize("case", CASES)
def test_a_danger_stands_in_the_first_lines_of_its_comment(case: str) -> None:
    make, danger = CASES[case]
    text = markdown(make())
    assert danger in "\n".join(text.splitlines()[:25])
    assert text == (COMMENTS / f"{case}.md").read_text(), "kit/forges/dangers.py writes it anew"


@pytest.mark.parametrize("case", CASES)
def test_a_comment_is_bounded_and_the_same_each_time(case: str) -> None:
    make, _ = CASES[case]
    text = markdown(make())
    assert len(text.encode()) <= MOST_BYTES
    assert text == markdown(make())
    assert html(make()) == html(make())
    assert text.splitlines()[0].startswith("<!-- orch:plan v1 project=")


@pytest.mark.parametrize("case", CASES)
def test_markdown_sees_no_more_than_we_wrote(case: str) -> None:
    make, _ = CASES[case]
    found = tokens(markdown(make()))
    assert all(OUR_HTML.fullmatch(each.content) for each in found if each.type == "html_block")
    assert not [each for each in found if each.type in ("html_inline", "link_open", "image")]
    assert len([each for each in found if each.type == "heading_open"]) == 1
    said = [each.content for each in found if each.type == "text"]
    assert not [text for text in said if re.search(r"[@#]\w|GH-\d|\w://|www\.", text)]


def test_what_people_write_reaches_the_reader_as_they_wrote_it() -> None:
    said = "".join(each.content for each in tokens(escape(HOSTILE)) if each.type == "text")
    assert said.replace("\u200b", "") == HOSTILE.replace("\n", " ").replace("\u202e", "<202e>")
    assert "\u202e" not in escape(HOSTILE)
    assert escape("x" * 50, 20) == f"{'x' * 17}…"
    assert len(escape("@|" * 500, 100).encode()) <= 100


@pytest.mark.parametrize(
    "text", [":tada:", ":+1:", "a:skull_and_crossbones:b", "p5.yml:100:3", ":8ball:", "&1", "acme&23"]
)
def test_no_text_of_people_becomes_an_emoji_or_an_epic(text: str) -> None:
    said = "".join(each.content for each in tokens(escape(text)) if each.type == "text")
    assert said.replace("\u200b", "") == text
    assert not re.search(r":[a-z+][a-z0-9_+-]*:|:100:|:8ball:|&\d", said)
    assert escape("infra/p5.yml:9:3") == "infra/p5.yml:9:3"


def test_a_fence_is_longer_than_what_is_in_it() -> None:
    lines = fenced(["a ````` b", "```"])
    assert lines[0] == lines[-1] == "``````"
    (code,) = [each for each in tokens("\n".join(lines)) if each.type == "fence"]
    assert code.content == "a ````` b\n```\n"


def test_a_value_cannot_end_the_marker_nor_a_label() -> None:
    assert not re.search(r"--|>| ", marked("a --> b"))
    assert marked("infra/p5.yml") == "infra/p5.yml"
    assert mermaid('x"] --> y; click') == "x#34;] --#62; y#59; click"


def test_secrets_are_in_neither_form() -> None:
    for case in ("secret-in-env", "budget-refused"):
        made = CASES[case][0]()
        for text in (markdown(made), html(made)):
            assert "hunter2" not in text
    assert "HF\\_TOKEN=(secret)" in markdown(CASES["secret-in-env"][0]())


def test_that_tokens_are_asked_for_is_no_secret() -> None:
    leaf = PropertyChange("metadataOptions.httpTokens", "required", "optional")
    after = compiled(1)
    made = plan([change("update", "x:y/z:Machine", "m", leaf)], after, 1)
    text = markdown(review(fleet_review(subject(made, fleet(nodes=1), after, 1))))
    assert "metadataOptions.httpTokens: required -> optional" in text


def test_a_shortened_comment_says_so_and_drops_what_loses_the_least() -> None:
    text = markdown(CASES["many-nodes"][0]())
    assert len(text.encode()) > MOST_BYTES * 0.9
    assert "Do not approve from this comment" in "\n".join(text.splitlines()[:10])
    assert re.search(r"… \d+ more groups of resources of lower risk, left out here\.", text)
    groups = [line for line in text.splitlines() if line.startswith("- ±") or line.startswith("- ~")]
    assert groups[0].startswith("- ± replace instance **p5-217**")
    assert text.count("<details>") == text.count("</details>")
    whole = markdown(CASES["node-under-512-gpus"][0]())
    assert "Do not approve" not in whole


def test_even_the_worst_review_is_bounded() -> None:
    long = "@" * 3000
    dangers = tuple(Danger("nodes", f"fleet {i}{long}", f"{i} {long}") for i in range(100))
    one = CASES["hostile-names"][0]().stacks[0]
    stacks = tuple(
        replace(
            one,
            name=f"{i}{long}",
            dangers=dangers[i : i + 1],
            approvals=tuple(replace(each, to=f"{i}{long}") for each in one.approvals),
            losses=tuple(replace(each, names=long, forced_by=long, stops=long) for each in one.losses) * 3,
            drift=CASES["drift-mixed-in"][0]().stacks[0].drift * 3,
            policies=tuple(replace(each, message=long) for each in one.policies) * 3,
        )
        for i in range(100)
    )
    text = markdown(Review(long, long, stacks, f"orch up {long}"))
    assert len(text.encode()) <= MOST_BYTES
    assert text.splitlines()[1].startswith("### ⛔ refused")
    assert "more dangers of lower risk" in text
    assert text.count("<details>") == text.count("</details>")


def test_rows_go_from_the_end_of_the_block_that_comes_first() -> None:
    a, b, c, d, e = (letter * 100 for letter in "abcde")
    count = "… 2 more rows of lower risk, left out here."

    def blocks() -> tuple[Block, Block]:
        return Block(["high"], [[d], [e]]), Block(["low"], [[a], [b], [c]], keep=1)

    high, low = blocks()
    everything = fit([high, low], [low, high], 1000)
    assert everything.lines == ["high", d, e, "low", a, b, c]
    assert (everything.dropped, everything.gone) == (0, 0)
    high, low = blocks()
    bounded = fit([high, low], [low, high], size_of(["high", d, e, "low", a, "", count]))
    assert bounded.lines == ["high", d, e, "low", a, "", count]
    high, low = blocks()
    both = fit([high, low], [low, high], size_of(["high", d, e, "low", a, "", count]) - 1)
    assert both.lines == ["high", d, "", count.replace("2 more", "1 more"), "low", a, "", count]
    assert both.dropped == 3


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.said.append(data)


@pytest.mark.parametrize("case", CASES)
def test_a_page_needs_nothing_else_and_runs_nothing(case: str) -> None:
    page = _Page()
    text = html(CASES[case][0]())
    page.feed(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "form", "a", "foreignobject"}
    loading = {"src", "href", "xlink:href", "action", "data", "srcset", "style", "onload", "onerror"}
    assert not [(tag, found) for tag, attrs in page.tags if (found := loading & set(attrs))]
    assert "url(" not in text
    assert "@import" not in text
    assert (
        "meta",
        {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"},
    ) in page.tags


def test_a_page_has_all_that_changes_and_the_plan_as_a_graph() -> None:
    page = _Page()
    page.feed(html(CASES["many-nodes"][0]()))
    said = "".join(page.said)
    assert all(f"p5-{index}" in said for index in range(400))
    assert sum(tag == "rect" for tag, _ in page.tags) >= 400


def test_drift_that_was_there_is_apart_from_what_the_change_does() -> None:
    (stack,) = CASES["drift-mixed-in"][0]().stacks
    assert [(each.names, each.then) for each in stack.drift] == [
        ("instance p5-1", "goes with the resource"),
        ("instance p5-2", "made again"),
        ("security group p5-nodes", "put back"),
    ]
    mended = [each.names for each in stack.groups if each.mends_drift]
    assert mended == ["p5-2", "p5-nodes"]
    assert not [each for each in stack.dangers if each.kind == "exposure"], "nobody opens anything now"
    assert any("since somebody changed it outside orch" in each.text for each in stack.dangers)


def test_costs_keep_spot_reserved_and_unknown_apart() -> None:
    costs = {stack.name: cost for stack, cost in CASES["price-unknown"][0]().costs()}
    assert (costs["lab"].unknown, costs["lab"].ceiling) == (("lab-[0-1] (p5.48xlarge, on-demand)",), None)
    assert (costs["p5"].spot, costs["p5"].on_demand, costs["p5"].unknown) == (110.08, 0.0, ())
    assert (costs["res"].reserved, costs["res"].reserved_nodes, costs["res"].spot) == (110.08, 2, 0.0)
    text = markdown(CASES["price-unknown"][0]())
    assert "not known at the most; 1 price is not known" in text
    (largest,) = CASES["budget-at-max-nodes"][0]().stacks
    assert largest.cost is not None
    assert (largest.cost.now, largest.cost.after, largest.cost.ceiling) == (55.04, 110.08, 880.64)


def test_hosts_of_the_user_are_no_loss() -> None:
    from kit.engine.recorded_plans import Preview

    made = Preview.of("ssh-a-host-less").plan()
    nodes = [{"name": f"gpu{i}", "gpus": {"count": 8}} for i in range(5)]
    made = replace(made, lost_nodes=frozenset({"gpu3"}))
    (stack,) = review(fleet_review(replace(subject(made, fleet(), compiled(4), 0), recorded=nodes))).stacks
    assert [each.stops for each in stack.losses] == ["8 GPUs; the machines stay as they are"]
    assert not [each for each in stack.dangers if each.kind == "nodes"]


def test_a_fleet_without_changes_has_no_danger_and_no_details() -> None:
    after = compiled(2)
    made = plan([node("same", 0), node("same", 1)], after, 2)
    stack = fleet_review(subject(made, fleet(nodes=2), after, 2))
    assert (stack.verdict, stack.dangers, stack.approvals) == ("unchanged", (), ())
    assert "<details>" not in markdown(review(stack))


def test_the_worst_exit_code_is_that_of_the_folder() -> None:
    assert worst(iter([])) == ExitCode.OK
    assert worst(iter([ExitCode.OK, ExitCode.HOSTS, ExitCode.POLICY])) == ExitCode.POLICY
    assert worst(iter([ExitCode.CONFIG, ExitCode.PROVISION, ExitCode.CONFLICT])) == ExitCode.PROVISION
    assert worst(iter([ExitCode.BUG, ExitCode.PROVISION])) == ExitCode.BUG


def test_stacks_without_a_plan_come_first() -> None:
    ok = StackReview("fleet", "a", "a.yml:1", "changes")
    failed = StackReview("fleet", "z", "z.yml:1", "failed")
    assert [each.name for each in review(ok, failed).stacks] == ["z", "a"]
    assert review(ok, failed).verdict == "failed"


def test_the_last_line_says_what_a_plan_stands_on() -> None:
    """And nothing of what is not known."""
    make, _ = CASES[next(iter(CASES))]
    bare = make()
    assert basis_line(bare) == ""
    stacks = tuple(replace(each, serial=7) for each in bare.stacks)
    basis = Basis("c" * 40, "b" * 40, dirty=True, plan="3fa9c1d2e0b7", valid_until="2026-11-26T13:00:00Z")
    full = replace(bare, stacks=stacks, basis=basis, command="orch up --plan plan.json")
    line = markdown(full).splitlines()[-1]
    for words in (
        "Plan 3fa9c1d2e0b7 of commit cccc",
        "not committed as they are",
        "against base bbbb",
        " 7;",
    ):
        assert words in line
    assert line.endswith("valid until 2026-11-26T13:00:00Z.")
    assert "orch up --plan plan.json" in markdown(full).splitlines()[-3]
    assert "valid until 2026-11-26T13:00:00Z" in html(full)
    assert markdown(full) == markdown(full)
    alone = replace(bare, stacks=stacks, basis=Basis(plan="3fa9c1d2e0b7"))
    assert basis_line(alone).startswith("Plan 3fa9c1d2e0b7; serial of the state: ")
    assert "commit" not in basis_line(alone)


def test_the_ending_of_a_name_says_what_is_written() -> None:
    files = ["a/comment.md", "review.HTML", "plan.json"]
    assert outputs_of([], files) == [
        Output("markdown", "a/comment.md"),
        Output("html", "review.HTML"),
        Output("plan", "plan.json"),
    ]
    assert outputs_of(["json"], ["plan.json"]) == [Output("json", "plan.json")]
    assert outputs_of(["markdown"], []) == [Output("markdown")]
    assert outputs_of([], []) == []
