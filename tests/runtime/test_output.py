"""Standard output when the threads of several handlers write to it."""

import contextlib
import io
import os
import sys
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kserve_torch.runtime import output

from .loaded import Load, function, results

REDIRECT = {"stdout": contextlib.redirect_stdout, "stderr": contextlib.redirect_stderr}


pytestmark = pytest.mark.parametrize("name", REDIRECT)


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Files that were made last; `written` tells what has come to them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in REDIRECT:
            file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
            patch.setattr(sys, name, file)
            patch.setattr(sys, f"__{name}__", file)
        output.share()
        yield


def say(name: str, text: str) -> None:
    print(text, end=" ", file=getattr(sys, name))


def written(name: str) -> str:
    shared = getattr(sys, f"__{name}__")
    shared.flush()
    return str(shared.buffer.getvalue().decode())


@shared()
def test_two_threads_redirect_at_the_same_time(name: str) -> None:
    """The first one to come is the first one to go, and closes what it redirected to."""
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        files = {one: io.StringIO(), two: io.StringIO()}
        redirects = {thread: REDIRECT[name](file) for thread, file in files.items()}
        for thread in files:
            thread.submit(redirects[thread].__enter__).result()
        one.submit(say, name, "one").result()
        assert files[one].getvalue() == "one "
        one.submit(redirects[one].__exit__, None, None, None).result()
        files[one].close()
        for thread in files:
            thread.submit(say, name, "more").result()
        two.submit(redirects[two].__exit__, None, None, None).result()
        two.submit(say, name, "last").result()
    assert (files[two].getvalue(), written(name)) == ("more ", "more last ")


class Flushed(io.StringIO):
    """Notes that it was flushed."""

    flushed = False

    def flush(self) -> None:
        self.flushed = True


@shared()
def test_redirects_within_redirects_and_to_nothing(name: str) -> None:
    outer, inner = Flushed(), Flushed()
    with REDIRECT[name](outer):
        with REDIRECT[name](inner):
            say(name, "inner")
        with REDIRECT[name](None):  # type: ignore[type-var]
            say(name, "lost")
        assert getattr(sys, name).closed is False
        getattr(sys, name).flush()
        assert (outer.flushed, inner.flushed) == (True, False)
        say(name, "outer")
    assert (outer.getvalue(), inner.getvalue(), written(name)) == ("outer ", "inner ", "")


class Tee:
    """A file that also writes to where it all went before, as tqdm's and loggers' do."""

    def __init__(self, file: typing.Any) -> None:
        self.file = file
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return int(self.file.write(text))

    def flush(self) -> None:
        self.file.flush()

    def writable(self) -> bool:
        return bool(self.file.writable())


@shared()
def test_what_is_redirected_to_writes_to_where_it_went_before(name: str) -> None:
    file = getattr(sys, name)
    outer, inner = Tee(file), Tee(file)
    other = ({*REDIRECT} - {name}).pop()
    with REDIRECT[name](outer), REDIRECT[name](inner), REDIRECT[name](file):
        say(name, "three")
        assert getattr(sys, name).writable()
    with REDIRECT[name](getattr(sys, other)), REDIRECT[other](getattr(sys, name)):
        say(name, "swapped")
    with file as same:
        say(name, "last")
    assert same is file
    assert (outer.text, inner.text, written(name)) == ("three ",) * 2 + ("three swapped last ",)


@shared()
def test_what_is_wrapped_anew_stays_open(name: str) -> None:
    """The wrapper that is forgotten first closes what is below it."""
    for _ in range(2):
        setattr(sys, name, io.TextIOWrapper(getattr(sys, name).buffer, write_through=True))
        say(name, "wrapped")
    setattr(sys, name, io.TextIOWrapper(getattr(sys, name).detach(), write_through=True))
    say(name, "detached")
    setattr(sys, name, getattr(sys, f"__{name}__"))
    say(name, "last")
    assert written(name) == "wrapped wrapped detached last "


@shared()
def test_a_closed_file_in_its_place_is_taken_away(name: str) -> None:
    getattr(sys, name).close()
    say(name, "still")
    other = io.StringIO()
    setattr(sys, name, other)
    output.mend()
    assert getattr(sys, name) is other
    with REDIRECT[name](io.StringIO()) as file:
        say(name, "as ever")
    assert file.getvalue() == "as ever "
    other.close()
    output.mend()
    say(name, "there")
    assert written(name) == "still there "


@shared()
def test_nobody_reads_it_any_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    pipe = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr(sys, name, output.Standard(pipe))
    print("line", file=getattr(sys, name), flush=True)
    getattr(sys, name).close()
    with pytest.raises(BrokenPipeError), shared(), REDIRECT[name](pipe):
        print("line", file=getattr(sys, name), flush=True)
    with pytest.raises(BrokenPipeError):
        pipe.close()


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def terminal_that_is_gone() -> int:
    controller, terminal = os.openpty()
    os.close(controller)
    return terminal


@pytest.mark.parametrize("broken", [full_disk, terminal_that_is_gone])
def test_it_cannot_be_written(
    name: str, broken: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = os.fdopen(broken(), "w", buffering=1)
    monkeypatch.setattr(sys, name, output.Standard(file))
    print("line", file=getattr(sys, name), flush=True)
    getattr(sys, name).close()
    with contextlib.suppress(OSError):  # what it still holds is lost
        file.close()


@shared()
def test_a_program_without_a_console(name: str) -> None:
    setattr(sys, name, None)
    output.share()
    assert getattr(sys, name) is None


@shared()
def test_a_call_that_leaves_a_closed_file_in_its_place_is_the_last_one(
    name: str, load: Load
) -> None:
    closes = f"sys.{name} = io.StringIO()\nsys.{name}.close()\nreturn data"
    instance = load("import io, sys\n" + function(f"print('said', file=sys.{name})\n{closes}"))
    for _ in range(2):
        assert results(instance, 1) == [1]
    load(f"import sys\nprint('loaded', file=sys.{name})\n" + function("return data"))
    assert written(name) == "said\nsaid\nloaded\n"
