"""docs/performance.md is what the stored results say, and what they name exists."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import page
import pytest
from stored import Result, number

from blockwright.tests.claims import claim

ROOT = Path(__file__).parents[2]
STORED = sorted(path for path in page.RESULTS.glob("*.json") if path.name != "schema.json")


@claim("The performance page is generated from stored results that name machine and commit", of="speed")
def test_the_page_is_made_from_the_results() -> None:
    assert page.PAGE.read_text() == page.page(page.RESULTS), "run python benchmarks/page.py"


@claim("The performance page is generated from stored results that name machine and commit", of="speed")
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_every_result_has_a_section_and_names_a_commit_that_exists(path: Path) -> None:
    assert path.stem in page.SECTIONS
    document = json.loads(path.read_text())
    assert document["benchmark"] == path.stem
    assert len(document["commit"]) == 40, "measured on what was not committed"

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)

    if not shutil.which("git") or git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("the history of git is not here")
    assert git("cat-file", "-t", document["commit"]).stdout.strip() == "commit"


def test_every_section_writes_itself_from_a_result_without_its_rows() -> None:
    empty = {"benchmark": "x", "settings": {"models": 1}, "rows": []}
    for _, words in page.SECTIONS.values():
        assert words(Result(empty))


@claim("A missed bar is printed and listed as a miss", of="speed")
def test_figures_of_a_result_are_on_the_page_and_a_missed_bar_is_listed(tmp_path: Path) -> None:
    rows = [
        {
            "case": f"S/bf16/c1/{load}",
            "subject": who,
            "metric": metric,
            "value": value,
            "low": value,
            "high": value,
            "runs": 1,
        }
        for load, who, metric, value in (
            ("alone", "blockwright", "out_tok_per_s", 1234.5),
            ("alone", "threads=1", "out_tok_per_s", 1000.0),
            ("quarter", "blockwright", "share", 0.801),
            ("always", "blockwright", "share", 0.5),
        )
    ]
    stored = {
        "benchmark": "contended", "commit": "c" * 40, "when": "2026-01-02T03:04:05Z",
        "machine": {"cpu": "Z80", "cores": 1, "gpu": None}, "versions": {}, "settings": {}, "rows": rows,
    }  # fmt: skip
    (tmp_path / "contended.json").write_text(json.dumps(stored))
    text = page.page(tmp_path)
    assert "| S bf16 | 1 | 1,230 | 80 % | 50 % | 1.23 / – / – |" in text
    assert "`python benchmarks/contended.py`, 1 cores of Z80, 2026-01-02, commit cccccccccc" in " ".join(text.split())
    assert "- contended: S/bf16/c1/always share: 0.5, the bar is at least 0.6" in text
    assert "S/bf16/c1/quarter share" not in text
    assert "Not measured for this page yet; `python benchmarks/serving.py` measures it." in text


def test_products_of_kernels_are_a_table_beside_torch() -> None:
    case, figures = "avx2/bf16/1024x5632/128", {"blockwright": 150.0, "torch": 100.0, "float32": 140.0}
    rows = [{"case": case, "subject": who, "metric": "gflops", "value": value} for who, value in figures.items()]
    text = page.of_kernels(Result({"benchmark": "kernels", "settings": {}, "rows": rows}))
    assert "| avx2 | bf16 | 1024x5632 | 128 | 150 | 1.50 | 1.07 |" in text


def test_numbers_have_three_digits_that_count() -> None:
    assert [number(value) for value in (0.01234, 1.0, 99.96, 123.4, 154321.0)] == ["0.0123", "1", "100", "123", "154,000"]
