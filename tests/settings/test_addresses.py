import pytest

from kserve_torch.errors import SettingError
from kserve_torch.settings.addresses import HOST, Address, Wish, address_kind, correct_host, share

KIND = address_kind(80, 443)


def http(host: str, port: int) -> Address:
    return Address(host=host, port=port)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://0.0.0.0:8085", Address(host="0.0.0.0", port=8085)),
        ("HTTPS://localhost:1", Address(scheme="https", host="localhost", port=1)),
        ("http://model.example/", Address(host="model.example", port=80)),
        ("https://model.example", Address(scheme="https", host="model.example", port=443)),
        ("http://[::1]:65535", Address(host="::1", port=65535)),
        ("unix:/tmp/serve.sock", Address(scheme="unix", path="/tmp/serve.sock")),
    ],
)
def test_an_address_is_read_and_written_back(text: str, address: Address) -> None:
    assert KIND.read(text) == address
    assert KIND.read(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8085",
        "0.0.0.0:8085",
        "ftp://host:21",
        "http://",
        "http://:8085",
        "http://host:0",
        "http://host:65536",
        "http://host:port",
        "http://host:80/path",
        "http://two hosts:80",
        "http://[::1:80",
        "unix:",
        "unix:relative.sock",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        KIND.read(text)


def test_settings_with_one_address_share_its_socket() -> None:
    everywhere = http("0.0.0.0", 8085)
    bindings = share(
        [
            Wish("inference_address", everywhere, "inference", given=True),
            Wish("management_address", everywhere, "management", given=True),
            Wish("metrics_address", http("0.0.0.0", 8082), "metrics", given=False),
        ]
    )
    assert [(str(binding.address), sorted(binding.roles)) for binding in bindings] == [
        ("http://0.0.0.0:8085", ["inference", "management"]),
        ("http://0.0.0.0:8082", ["metrics"]),
    ]


@pytest.mark.parametrize("first", [True, False])
def test_an_explicit_host_beats_a_default_one(first: bool) -> None:
    wishes = [
        Wish("metrics_address", http("127.0.0.1", 8082), "metrics", given=True),
        Wish("http_port", http("0.0.0.0", 8082), "inference", given=False),
    ]
    (binding,) = share(wishes if first else wishes[::-1])
    assert binding.address == http("127.0.0.1", 8082)
    assert binding.roles == {"metrics", "inference"}


def test_two_explicit_hosts_on_one_port_are_refused() -> None:
    with pytest.raises(SettingError) as caught:
        share(
            [
                Wish("inference_address", http("0.0.0.0", 8085), "inference", given=True),
                Wish("management_address", http("127.0.0.1", 8085), "management", given=True),
            ]
        )
    assert str(caught.value) == (
        "management_address: http://127.0.0.1:8085 and inference_address http://0.0.0.0:8085 "
        "use the same port; give both the same address or different ports"
    )


def test_socket_files_are_told_apart_by_their_paths() -> None:
    paths = [Address(scheme="unix", path=path) for path in ("/a.sock", "/b.sock", "/a.sock")]
    bindings = share([Wish("x", path, "inference", given=True) for path in paths])
    assert [binding.address.path for binding in bindings] == ["/a.sock", "/b.sock"]


def test_the_network_address_that_documents_print_means_this_host() -> None:
    assert correct_host("127.0.0.0") == "127.0.0.1"
    assert correct_host("0.0.0.0") == "0.0.0.0"


@pytest.mark.parametrize(("text", "host"), [("[::1]", "::1"), ("::1", "::1"), ("a.b", "a.b")])
def test_a_host_may_have_brackets(text: str, host: str) -> None:
    assert HOST.read(text) == host
