import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kserve_torch.metrics.family import Family, counter, gauge, histogram


def text(family, names=None):
    return "\n".join(family.lines(names))


def test_counter_keeps_its_name_and_label_order():
    family = counter("Requests2XX", "Count of answers", ("Level", "Hostname"))
    family.series("Host", "a").add()
    family.series("Host", "a").add(2)
    assert text(family) == (
        "# HELP Requests2XX Count of answers\n"
        "# TYPE Requests2XX counter\n"
        'Requests2XX{Level="Host",Hostname="a"} 3.0'
    )


def test_gauge_without_labels_holds_the_last_value():
    family = gauge("server_ready", "Ready")
    family.series().set(1)
    family.series().set(0)
    assert text(family).splitlines()[-1] == "server_ready 0.0"


def test_family_without_series_still_says_its_type():
    assert text(gauge("QueueTime", "t")).splitlines() == [
        "# HELP QueueTime t",
        "# TYPE QueueTime gauge",
    ]


def test_histogram_buckets_are_cumulative_and_include_their_bound():
    family = histogram("wait", "Wait", ("m",), bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        family.series("x").observe(value)
    assert text(family).splitlines()[2:] == [
        'wait_bucket{m="x",le="0.1"} 2.0',
        'wait_bucket{m="x",le="1.0"} 3.0',
        'wait_bucket{m="x",le="+Inf"} 4.0',
        'wait_count{m="x"} 4.0',
        'wait_sum{m="x"} 7.65',
    ]


def test_label_values_and_help_are_escaped():
    family = gauge("g", "one\ntwo \\", ("m",))
    family.series('a"b\\c\nd').set(1)
    lines = text(family).splitlines()
    assert lines[0] == r"# HELP g one\ntwo \\"
    assert lines[2] == r'g{m="a\"b\\c\nd"} 1.0'
    (parsed,) = text_string_to_metric_families(text(family) + "\n")
    assert parsed.samples[0].labels == {"m": 'a"b\\c\nd'}


@pytest.mark.parametrize(("value", "written"), [(float("inf"), "+Inf"), (float("nan"), "nan")])
def test_numbers_that_json_does_not_know(value, written):
    family = gauge("g", "t")
    family.series().set(value)
    assert text(family).endswith(f"g {written}")
    (parsed,) = text_string_to_metric_families(text(family) + "\n")
    assert repr(parsed.samples[0].value) == repr(value)


class Unread:
    def samples(self):
        pytest.fail("they were read")


def test_samples_that_nobody_asked_for_are_not_even_read():
    """With hundreds of models, that would take longer than all the rest of the answer."""
    family = Family("wait", "histogram", "Wait", (), Unread)
    family.series()
    assert text(family, ["other"]) == ""


def test_names_select_families_and_samples():
    family = histogram("wait", "Wait", bounds=(1.0,))
    family.series().observe(2.0)
    assert text(family, {"wait"}) == text(family)
    assert text(family, {"wait_count"}).splitlines()[1:] == [
        "# TYPE wait histogram",
        "wait_count 1.0",
    ]
    assert text(family, {"other"}) == ""


def test_wrong_number_of_label_values_is_refused():
    with pytest.raises(ValueError, match="labels"):
        counter("c", "t", ("a", "b")).series("1")


def test_no_increment_is_lost_between_threads():
    family = counter("c", "t", ("a",))
    wait = histogram("h", "t", bounds=(1.0,))

    def work():
        for _ in range(5000):
            family.series("x").add()
            wait.series().observe(0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert text(family).endswith(" 20000.0")
    assert "h_count 20000.0" in text(wait)
