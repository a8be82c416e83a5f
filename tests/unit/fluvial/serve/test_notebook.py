"""`%%sql` in a notebook that Jupyter's kernel runs, about a warehouse that stands on disk."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

import nbformat
import pytest
from keyed_history import KeyedHistory, Row, customers
from nbclient import NotebookClient

pytest.importorskip("pysail", reason="Sail is an extra: fluvial[sql]")

Run = Callable[..., list[str]]


def row(customer: str, orders: int) -> Row:
    return {"customer": customer, "orders": orders, "spent": Decimal(orders) / 4, "_fold": "{}"}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> KeyedHistory:
    history = customers(tmp_path_factory.mktemp("warehouse"))
    history.put([row("ada", 1), row("<b>bob", 2), row("cyd", 3)])
    history.put([row("ada", 4), row("dot", 5)], gone=["cyd"])
    return history


@pytest.fixture
def run(history: KeyedHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run cells behind `%load_ext fluvial` in a kernel; return what each shows."""
    monkeypatch.setenv("FLUVIAL_WAREHOUSE", str(history.folder.parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))

    def run(*cells: str) -> list[str]:
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(each) for each in ("%load_ext fluvial", *cells)]
        )
        where = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=120, allow_errors=True, resources=where).execute()
        return [shown(cell.outputs) for cell in notebook.cells[1:]]

    return run


def shown(outputs: Sequence[nbformat.NotebookNode]) -> str:
    """What the first of a cell's outputs says, as HTML where it is."""
    for each in outputs:
        match each.output_type:
            case "stream":
                return str(each.text)
            case "error":
                return f"{each.ename}: {each.evalue}"
        return str(each.data.get("text/html", each.data["text/plain"]))
    return ""


def test_a_statement_is_shown_as_a_table(run: Run) -> None:
    line, cell, opened, kept, rows, older = run(
        "%sql select count(*) n from state.customers",
        "%%sql\nselect *\nfrom state.customers\norder by orders",
        "import os, fluvial\nLeast = 4\ndb = fluvial.connect(os.environ['FLUVIAL_WAREHOUSE'])",
        "%%sql --db db -o found\nselect customer from state.customers where orders >= :Least order by 1",
        "found.rows()",
        "%%sql --at orders:0=9\nselect customer from state.customers where customer = 'cyd'",
    )
    assert "<td>3</td>" in line
    assert "&lt;b&gt;bob" in cell
    assert "_fold" not in cell
    assert opened == kept == ""
    assert rows == "[{'customer': 'ada'}, {'customer': 'dot'}]"
    assert "<td>cyd</td>" in older


def test_a_wrong_statement_is_said_in_one_line(run: Run) -> None:
    wrong = {
        "%sql select * from state.nothing": "state.nothing",
        "%sql select * from state.customers where orders > :least": "the notebook has no variable least",
        "%%sql --db nothing\nselect 1": "the notebook has no variable nothing",
        "import os": "",
        "%%sql --db os\nselect 1": "not what fluvial.connect() gives",
        "%%sql --wide\nselect 1": "unrecognized arguments: --wide",
        "%%sql --fresh --at orders:0=1\nselect 1": "not both",
        "%sql": "there is no statement",
    }
    for said, expected in zip(run(*wrong), wrong.values(), strict=True):
        assert expected in said
        assert not expected or (said.startswith("UsageError") and said.count("\n") <= 1), said
