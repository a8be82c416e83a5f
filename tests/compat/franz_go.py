"""
The integration tests of franz-go's client `kgo`, compiled from its Go module and run against a broker.

The module comes through Go's own proxy and checksum database at one pinned version. A copy of it is compiled, and the
test program lies in the user's cache from then on.

Its own variables have TLS for all tests, and a sign-in for two of them without TLS. A few lines that its helpers get
before they are compiled have all tests sign in over TLS where `KGO_TEST_SIGN_IN` is set.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from secured import Access, access_of

MODULE = "github.com/twmb/franz-go"
VERSION = "v1.21.3"
MODULE_SUM = "h1:q9Mo8ri+OwBQBjKqrerNCqNWJlJnUDe2qnYsj2V3hdI="

# Records that each chain of consumers and producers hands on.
RECORDS = 100_000
SECONDS_MAX = 900.0

# What go.mod of the module asks for. An older Go from 1.21 on fetches this one by itself unless it is told not to.
GO_MIN = (1, 25)
GO_FETCHES_ITSELF = (1, 21)

# What stands in files of the package's tests, and what the compiled program has in its place: all clients sign in and
# speak TLS where that is asked for, those with a slow connection and of the two tests of sign-in as well.
_REPLACED = {
    "helpers_test.go": (
        "\tif testCert != nil {\n\t\topts = append(opts, DialTLSConfig(testCert))\n\t}\n\treturn opts\n}\n",
        """\tif testCert != nil {
\t\topts = append([]Opt{dialedTLS()}, opts...)
\t}
\tif saslScram != nil && os.Getenv("KGO_TEST_SIGN_IN") != "" {
\t\topts = append(opts, SASL(saslScram))
\t}
\treturn opts
}

type dial = func(context.Context, string, string) (net.Conn, error)

func dialedTLS() Opt {
\treturn overTLS((&net.Dialer{}).DialContext)
}

func overTLS(plain dial) Opt {
\treturn Dialer(func(ctx context.Context, network, host string) (net.Conn, error) {
\t\tconn, err := plain(ctx, network, host)
\t\tif err != nil || testCert == nil {
\t\t\treturn conn, err
\t\t}
\t\tcfg := testCert.Clone()
\t\tcfg.ServerName, _, _ = net.SplitHostPort(host)
\t\tencrypted := tls.Client(conn, cfg)
\t\treturn encrypted, encrypted.HandshakeContext(ctx)
\t})
}
""",
    ),
    "client_test.go": (
        'SeedBrokers(strings.Split(scramSeeds, ",")...),',
        'SeedBrokers(strings.Split(scramSeeds, ",")...), dialedTLS(),',
    ),
    "produce_request_test.go": (
        "Dialer(new(slowDialer).DialContext),",
        "overTLS(new(slowDialer).DialContext),",
    ),
}

# `-test.v=test2json` puts this byte before every line that the framework writes, so no test's own output is mistaken.
_RESULT = re.compile(r"\x16 *--- (?P<outcome>PASS|FAIL|SKIP): (?P<name>\S+)")


class FranzGoError(RuntimeError):
    """The suite cannot be built here; the message says what to install or check."""


def program() -> Path:
    """Where the compiled tests lie once they are built."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fluvial" / f"franz-go-{VERSION}" / "kgo-signs-in.test"


def lacking() -> str | None:
    """What this machine lacks to build the suite, as a reason to skip; None when it can be built or is there."""
    if program().exists():
        return None
    if shutil.which("go") is None:
        return f"franz-go's tests need Go {_dotted(GO_MIN)} or newer, and there is no `go` on PATH"
    version, toolchain = subprocess.run(
        ["go", "env", "GOVERSION", "GOTOOLCHAIN"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    least = GO_MIN if toolchain == "local" else GO_FETCHES_ITSELF
    if found < least:
        return f"franz-go's tests need Go {_dotted(GO_MIN)} or newer, and `go` is {version}"
    return None


def require_program(say: Callable[[str], None] = lambda _line: None) -> Path:
    """
    Return the compiled tests, built first when this machine has not got them yet (about a minute).

    Raises FranzGoError.
    """
    built = program()
    if built.exists():
        return built
    if (lack := lacking()) is not None:
        raise FranzGoError(lack)
    say(f"building the tests of {MODULE} {VERSION} (once, about a minute) …")
    downloaded = _go("mod", "download", "-json", f"{MODULE}@{VERSION}", cwd=Path.home())
    module = json.loads(downloaded)
    if module["Sum"] != MODULE_SUM:
        raise FranzGoError(f"{MODULE} {VERSION} has the checksum {module['Sum']}, not {MODULE_SUM}")
    built.parent.mkdir(parents=True, exist_ok=True)
    unfinished = built.with_suffix(f".{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix=".source-", dir=built.parent) as scratch:
        source = Path(scratch) / "franz-go"
        shutil.copytree(module["Dir"], source, copy_function=shutil.copyfile)
        _have_all_sign_in(source / "pkg/kgo")
        _go("test", "-c", "-o", str(unfinished), "./pkg/kgo", cwd=source)
    unfinished.rename(built)
    return built


def _have_all_sign_in(package: Path) -> None:
    package.chmod(0o755)
    for name, (found, instead) in _REPLACED.items():
        text = (package / name).read_text()
        if found not in text:
            raise FranzGoError(f"{name} is not as it was when all tests could be made to sign in")
        (package / name).write_text(text.replace(found, instead))


def signing_in(access: Access, scram_servers: str) -> dict[str, str]:
    """
    The variables by which two tests sign in by SCRAM at `scram_servers`.

    Where the tests' own servers ask for it, all sign in, and over TLS.
    """
    mechanism = access.mechanism.removeprefix("SCRAM-SHA-")
    environ = {
        "KGO_TEST_SCRAM": f"{access.user}:{access.password}:{mechanism}",
        "KGO_TEST_SCRAM_SEEDS": scram_servers,
    }
    if access_of(access.servers) is not None:
        environ |= {"KGO_TEST_TLS": f"ca:{access.authority}", "KGO_TEST_SIGN_IN": "1"}
    return environ


def run(
    bootstrap_servers: str, folder: Path, *flags: str, environ: Mapping[str, str], records: int, timeout: float
) -> dict[str, str]:
    """
    Run the compiled tests; return each test's outcome, PASS, FAIL or SKIP, by its name, sub-tests included.

    `environ` are further variables of the tests. `flags` are those of Go's tests. `folder` receives `stdout` and
    `stderr`. A test that came to no end in `timeout` seconds is not among the outcomes.

    Raises FranzGoError when the program fails and no test did.
    """
    variables = {
        "KGO_LOG_LEVEL": "none",
        **os.environ,
        **environ,
        "KGO_SEEDS": bootstrap_servers,
        "KGO_TEST_RF": os.environ.get("KGO_TEST_RF", "1"),
        "KGO_TEST_RECORDS": str(records),
    }
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(require_program()), "-test.v=test2json", f"-test.timeout={timeout:.0f}s", *flags]
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
        done = subprocess.run(
            command, cwd=folder, env=variables, stdout=out, stderr=err, check=False, timeout=timeout + 60
        )
    text = (folder / "stdout").read_text(errors="replace")
    outcomes = {match["name"]: match["outcome"] for match in _RESULT.finditer(text)}
    if done.returncode != 0 and "FAIL" not in outcomes.values() and "panic: test timed out" not in text:
        raise FranzGoError(f"the tests ended with {done.returncode}: {text[-400:]}")
    return outcomes


def names(*, pattern: str = ".") -> list[str]:
    """The names of the tests that a pattern selects, sub-tests left out."""
    done = subprocess.run([str(require_program()), f"-test.list={pattern}"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("Test")]


def _go(*words: str, cwd: Path) -> str:
    done = subprocess.run(["go", *words], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FranzGoError(f"`go {' '.join(words)}` failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
