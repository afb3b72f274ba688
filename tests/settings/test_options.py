from dataclasses import replace

import pytest

from kserve_torch.errors import SettingError
from kserve_torch.settings.options import help_text, read_command_line
from kserve_torch.settings.table import KEYS


@pytest.mark.parametrize("flag", ["--model-store", "--model_store"])
@pytest.mark.parametrize("form", ["{} store", "{}=store"])
def test_both_spellings_and_both_forms(flag: str, form: str) -> None:
    line = read_command_line(form.format(flag).split(), "torchserve")
    assert line.values == {"model_store": "store"}


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        ("--models a.mar b=b.mar --ncs", {"load_models": "a.mar,b=b.mar"}),
        ("--load_models all", {"load_models": "all"}),
        ("--disable-token-auth", {"disable_token_authorization": "true"}),
        ("--dt", {"disable_token_authorization": "true"}),
        ("--disable_token_authorization false", {"disable_token_authorization": "false"}),
        ("--enable_docs_url --http_port 1", {"enable_docs_url": "true", "http_port": "1"}),
        ("--event-loop asyncio", {"event_loop": "asyncio"}),
        ("--timeout-keep-alive 5", {"timeout_keep_alive": "5"}),
        ("--start --foreground --no-config-snapshots", {}),
    ],
)
def test_options_of_both_worlds(argv: str, values: dict[str, str]) -> None:
    line = read_command_line(argv.split(), "torchserve")
    assert line.values == values
    assert line.ignored == line.unknown == ()


@pytest.mark.parametrize(
    ("argv", "action"),
    [
        ([], "start"),
        (["--start"], "start"),
        (["--stop"], "stop"),
        (["-v"], "version"),
        (["--version"], "version"),
        (["--print-settings", "--http_port", "x"], "print_settings"),
        (["--print_settings"], "print_settings"),
        (["--start", "-h"], "help"),
        (["--check"], "check"),
        (["--check", "requests"], "check"),
    ],
)
def test_actions(argv: list[str], action: str) -> None:
    assert read_command_line(argv, "torchserve").action == action


@pytest.mark.parametrize(
    ("argv", "folder"), [("--check", ""), ("--check --ncs", ""), ("--check=a", "a"), ("", "")]
)
def test_the_folder_of_requests_to_check(argv: str, folder: str) -> None:
    assert read_command_line(argv.split(), "torchserve").requests == folder


def test_a_first_word_torchserve_names_the_program() -> None:
    line = read_command_line(["torchserve", "--start"], "kserve_torch")
    assert (line.program, line.unknown) == ("torchserve", ())
    line = read_command_line(["--start", "torchserve"], "kserve_torch")
    assert (line.program, line.unknown) == ("kserve_torch", ("torchserve",))


def test_options_without_an_effect_and_unknown_ones_never_fail() -> None:
    argv = "--log-config a.xml --ppath /p --predictor_host h --enable_predictor_health_check"
    line = read_command_line([*argv.split(), "--shiny=1", "--new", "2"], "torchserve")
    assert line.ignored == (
        "enable_predictor_health_check",
        "log_config",
        "ppath",
        "predictor_host",
    )
    assert line.unknown == ("--shiny", "--new")


def test_options_are_not_abbreviated() -> None:
    assert read_command_line(["--http", "1"], "torchserve").unknown == ("--http",)


def test_an_option_without_its_value_is_an_error() -> None:
    with pytest.raises(SettingError, match="command line: argument --http_port"):
        read_command_line(["--http_port"], "kserve_torch")


def test_secrets_do_not_belong_on_the_command_line() -> None:
    line = read_command_line(["--keystore_pass", "x"], "kserve_torch")
    assert line.values == {}
    assert all(not key.flags for key in KEYS.values() if key.secret)


def test_errors_do_not_show_secrets() -> None:
    key = replace(KEYS["http_port"], secret=True)
    with pytest.raises(SettingError, match=r"^http_port: the value is not an "):
        key.parse("pass", "a file")


def test_help_shows_every_option_with_its_default() -> None:
    text = " ".join(help_text("kserve_torch").split())
    for key in KEYS.values():
        assert all(flag in text for flag in key.flags[:1])
        assert key.flags == () or key.help in text
    assert "--log_json [true|false] write the log as JSON objects (default: false)" in text
    assert "(default: inference_address; if started as torchserve, http://127.0.0.1:8081)" in text


def test_help_names_what_is_accepted_without_effect() -> None:
    _, _, text = help_text("torchserve").partition("\naccepted, but without effect:\n")
    options = text.replace(",", "").split()
    assert {"--start", "--foreground", "--ncs", "--log-config", "--workflow-store"} <= {*options}
    assert all(option.startswith("--") for option in options)
    line = read_command_line(options, "torchserve")
    assert (line.action, line.values, line.unknown) == ("start", {}, ())
    assert len(line.ignored) == len(options) - 4  # four are the case anyway
