import pytest

from kserve_torch.errors import LoadFailed
from kserve_torch.handler.labels import load_label_mapping, map_class_to_label
from kserve_torch.runtime.reasons import handler_failure


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        ('{"0": "cat", "1": "dog"}', {"0": "cat", "1": "dog"}),
        ('{"0": ["n1", "cat"], "1": ["dog"]}', {"0": "cat", "1": "dog"}),
        ('{"object_type_names": ["cat", "dog"]}', {"0": "cat", "1": "dog"}),
    ],
)
def test_the_three_forms(tmp_path, text, mapping):
    (tmp_path / "index_to_name.json").write_text(text)
    assert load_label_mapping(tmp_path / "index_to_name.json") == mapping
    assert load_label_mapping(str(tmp_path / "index_to_name.json")) == mapping


def test_no_file(tmp_path, caplog):
    caplog.set_level("INFO")
    assert load_label_mapping(tmp_path / "index_to_name.json") is None
    # Also of handlers whose results have no classes at all.
    assert caplog.messages == ["no index_to_name.json: results have no names of classes"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "index_to_name.json: not valid JSON"),
        ("[1]", "expected an object of class index to label"),
        ('{"0": 1}', "label of class 0 must be a string or a list of strings"),
        ('{"0": []}', "label of class 0 must be"),
        ('{"0": [1]}', "label of class 0 must be"),
    ],
)
def test_other_forms(tmp_path, text, reason):
    (tmp_path / "index_to_name.json").write_text(text)
    with pytest.raises(LoadFailed) as caught:
        load_label_mapping(tmp_path / "index_to_name.json")
    assert reason in caught.value.message
    assert str(tmp_path) not in caught.value.message


def test_values_by_label():
    assert map_class_to_label([[0.1, 0.9]]) == [{"0": 0.1, "1": 0.9}]
    assert map_class_to_label([[0.9], [0.8]], {"3": "cat", "4": "dog"}, [[3], [4]]) == [
        {"cat": 0.9},
        {"dog": 0.8},
    ]
    assert map_class_to_label([]) == []


def test_a_class_without_label():
    with pytest.raises(KeyError) as caught:  # as handlers catch it
        map_class_to_label([[0.1, 0.9]], {"0": "cat"})
    assert handler_failure(caught.value).message == "index_to_name.json: no label for class 1"


@pytest.mark.parametrize("arguments", [("x",), ([[1]], ["cat"])])
def test_arguments_of_the_wrong_type(arguments):
    with pytest.raises(TypeError, match="expected a"):
        map_class_to_label(*arguments)
