"""The code of docs/coming-from.md runs."""

import re
from pathlib import Path

import log_broker

PAGE = Path(__file__).resolve().parents[3] / "docs" / "coming-from.md"


def test_the_code_of_the_page_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    with log_broker.embedded(topics={"orders": 1}) as broker:
        exec(compile("\n".join(blocks), str(PAGE), "exec"), {"broker": broker})
