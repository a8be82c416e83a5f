"""Declarations and projects: what is made of them, and what each mistake is answered with."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluvial.tables import (
    DeclarationError,
    compacted,
    count,
    history,
    latest,
    mean,
    pipeline,
    state,
    sum_,
)
from fluvial.tables.declare.folds import Fold
from fluvial.tables.declare.project import load_project


def test_tables_are_named_after_topics() -> None:
    assert history("flight_events").table == "history.flight_events"
    assert history("eu.flights-v2", name="flights").table == "history.flights"
    assert compacted("eu.planes").table == "compacted.eu_planes"
    assert state("aircraft", topic="t", key="id", fields={"n": count()}).table == "state.aircraft"


def test_declarations_are_values() -> None:
    fields = {"n": count(), "x": mean("x", "y > 0")}
    one, other = (state("s", topic="t", key="k", fields=fields) for _ in range(2))
    assert one == other
    assert len({one, other, history("t"), history("t")}) == 2
    assert str(fields["x"]) == "mean(x, where y > 0)"


def test_a_pipeline_is_still_its_function() -> None:
    @pipeline(name="sums", inputs=["history.a", "state.b"])
    def sums(a: int, b: int) -> int:
        return a + b

    assert sums(1, 2) == 3
    assert (sums.table, sums.inputs) == ("marts.sums", ("history.a", "state.b"))


def test_a_pipeline_knows_what_leads_from_its_inputs_to_its_key() -> None:
    declared = pipeline(name="p", inputs=["history.a", "state.b"], key="c")(lambda *_: None)
    assert (declared.key, dict(declared.paths)) == (("c",), {"history.a": ("c",), "state.b": ("c",)})
    paths = {"history.a": ["customer", "date(at)"], "state.b": None}
    declared = pipeline(name="p", inputs=paths, key=["c", "day"])(lambda *_: None)
    assert declared.inputs == ("history.a", "state.b")
    assert dict(declared.paths) == {"history.a": ("customer", "date(at)"), "state.b": None}


def a_state(**changes: Any) -> Any:
    arguments: dict[str, Any] = {"topic": "t", "key": "k", "fields": {"n": count()}}
    return state("s", **{**arguments, **changes})


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: history("no spaces"), "no topic name"),
        (lambda: history("t", name="a-b"), "no table name"),
        (lambda: compacted("t", key="_key"), "starts with an underscore"),
        (lambda: a_state(fields={}), "declares no field"),
        (lambda: a_state(fields={"k": count()}), "two columns named k"),
        (lambda: a_state(fields={"n": "x"}), r"not a fold: wrap it, as in latest\('x'\)"),
        (lambda: a_state(fields={"n": sum_(" ")}), "write it as a line of SQL"),
        (lambda: a_state(fields={"_fold": count()}), "starts with an underscore"),
        (lambda: a_state(key="a b"), "no column name"),
        (lambda: a_state(dedupe="id"), r"a row of this table does not tell .* declare history\(…, dedupe=\"id\"\)"),
        (lambda: compacted("t", dedupe="id"), "leave dedupe out"),
        (lambda: history("t", dedupe="a.b"), "dedupe 'a.b' is no column name"),
        (lambda: history("t", dedupe_within="1 hour"), "dedupe_within needs dedupe"),
        (lambda: history("t", dedupe="id", dedupe_within="1h"), "dedupe_within is '1h': write a duration such as"),
        (lambda: history("t", dedupe="id", dedupe_within="0 days"), 'such as "10 minutes" or "1 day"'),
        (lambda: a_state(with_position=True, scd2=True), "leave with_position out"),
        (
            lambda: a_state(with_position=True, fields=None, reduce=lambda state, _: state, returns="n INT"),
            "have the reducer keep the event's _partition, _offset and _timestamp",
        ),
        (lambda: pipeline(name="p", inputs=[]), "needs a list of input tables"),
        (lambda: pipeline(name="p", inputs="history.a"), "needs a list of input tables"),
        (lambda: pipeline(name="p", inputs=["flights"]), "is not <database>.<table>"),
        (lambda: pipeline(name="p", inputs=["marts.p"]), "reads the table that it writes"),
        (lambda: pipeline(name="p", inputs={"history.a": "x"}), 'there is none: name it, as in key="customer"'),
        (lambda: pipeline(name="p", inputs=["history.a"], key="a b"), "no column name"),
        (lambda: pipeline(name="p", inputs=["history.a"], key=["a", "A"]), "names a column twice"),
        (lambda: pipeline(name="p", inputs={"history.a": "x"}, key=["x", "y"]), "for each column of the key"),
        (lambda: pipeline(name="p", inputs={"history.a": None}, key="x"), "no input leads to the key"),
    ],
)
def test_a_mistake_is_said_when_it_is_declared(declare: Callable[[], object], said: str) -> None:
    with pytest.raises(DeclarationError, match=said) as raised:
        declare()
    assert "\n" not in str(raised.value)


def test_a_state_has_columns_of_its_position_if_asked() -> None:
    assert a_state().columns == ("n",)
    assert a_state(with_position=True).columns == ("n", "_partition", "_offset", "_updated_at")


def test_folds_say_what_they_need_to_remember() -> None:
    remembered = {fold.kind: fold.remembers for fold in (latest("x"), mean("x"), sum_("x"), count())}
    assert remembered == {"latest": True, "mean": True, "sum": False, "count": False}
    assert isinstance(latest("x"), Fold)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """A package written from module texts; its name is returned."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    name = f"project_{tmp_path.name.replace('-', '_')}"

    def write(**modules: str) -> str:
        (tmp_path / name).mkdir()
        for module, text in {"__init__": "", **modules}.items():
            body = "from fluvial.tables import *\n" + text
            (tmp_path / name / f"{module}.py").write_text(body)
        return name

    yield write
    for module in set(sys.modules) - before:
        del sys.modules[module]


def test_a_project_is_found_in_all_its_modules_inputs_first(project: Callable[..., str]) -> None:
    name = project(
        a="late = pipeline(name='a_late', inputs=['marts.early', 'history.t'])(lambda *frames: frames[0])",
        b="from .c import events\nearly = pipeline(name='early', inputs=['history.t'])(lambda frame: frame)",
        c="events = history('t')",
    )
    assert list(load_project(name)) == ["history.t", "marts.early", "marts.a_late"]


def test_a_topic_that_is_published_comes_between_its_table_and_its_readers(project: Callable[..., str]) -> None:
    name = project(
        a="again = compacted('u.v', key='id')",
        b="out = publish('state.zebra', topic='u.v', key='id')",
        c="zebra = state('zebra', topic='t', key='id', fields={'n': count()})",
    )
    assert list(load_project(name)) == ["state.zebra", "topics.u.v", "compacted.u_v"]


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({"a": "x = history('t')", "b": "y = history('u', name='t')"}, "declared twice, in .*a.x and in .*b.y"),
        ({"a": "import no_such_module"}, "it needs no_such_module"),
        ({"a": "history('no spaces')"}, "no topic name"),
        ({"a": "1 / 0"}, "ZeroDivisionError"),
        (
            {
                "a": "a = pipeline(name='a', inputs=['marts.b'])(lambda frame: frame)\n"
                "b = pipeline(name='b', inputs=['marts.a'])(lambda frame: frame)"
            },
            "in a circle: marts.a -> marts.b -> marts.a",
        ),
        (
            {"a": "a = compacted('t', key='id')\nb = publish('compacted.t', topic='t', key='id')"},
            "in a circle: compacted.t -> topics.t -> compacted.t",
        ),
        ({"a": "publish('history.t', topic='u', key='id')"}, "a history is its topic already"),
        ({"a": "publish('state.t', topic='u', key='_offset')"}, "starts with an underscore"),
    ],
)
def test_a_broken_project_says_where(project: Callable[..., str], modules: dict[str, str], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        load_project(project(**modules))


def test_a_project_that_is_not_there() -> None:
    with pytest.raises(DeclarationError, match="no project module no_such_project"):
        load_project("no_such_project")
