import copy
import json
import threading

import numpy as np
import pytest

from kserve_torch.messages import Request, RowReply, Verb
from kserve_torch.runtime.context import Context
from kserve_torch.runtime.processor import RequestProcessor


def context(**kwargs):
    return Context("mnist", "/models/x", {"model": {}}, 4, 1, "0.12.0", **kwargs)


def request(rows=1, **kwargs):
    return Request(**{"id": "r1", "model": "mnist", "rows": [{}] * rows, **kwargs})


def test_facts_about_the_model():
    ctx = context(model_yaml_config={"handler": {"x": 1}})
    assert ctx.system_properties == {
        "model_dir": "/models/x",
        "gpu_id": 1,
        "batch_size": 4,
        "server_name": "MMS",
        "server_version": "0.12.0",
        "limit_max_image_pixels": True,
    }
    assert ctx.model_name == "mnist"
    assert ctx.manifest == {"model": {}}
    assert ctx.model_yaml_config == {"handler": {"x": 1}}
    assert ctx.request_ids is None
    assert ctx.get_request_id() is None


def test_torchserves_own_names_of_the_facts():
    metrics = object()
    ctx = context(metrics=metrics, limit_max_image_pixels=False)
    assert ctx._system_properties is ctx.system_properties
    assert ctx._metrics is ctx.metrics is metrics
    assert ctx._limit_max_image_pixels is False
    ctx.metrics = None
    ctx.begin([request()] * 2)
    assert ctx._metrics is None
    assert ctx._request_processor is ctx.request_processor
    assert len(ctx._request_processor) == 2


def test_contexts_with_the_same_facts_are_equal():
    assert context(model_yaml_config={"a": 1}) == context(model_yaml_config={"a": 1})
    assert context() != context(model_yaml_config={"a": 1})
    assert context() != "mnist"


def test_a_handler_may_keep_things_on_it():
    ctx = context()
    ctx.cache = {"a": 1}
    ctx.begin([request()])
    assert ctx.cache == {"a": 1}


def test_a_copy_is_for_the_same_instance():
    emitted = Emitted()
    ctx = context(metrics=threading.local())
    ctx.cache = {"a": [1]}
    ctx.own = ctx
    ctx.begin([request(parts=emitted.take)], emitted.heard)
    other = copy.deepcopy(ctx)
    assert other.own is other
    assert other.metrics is ctx.metrics
    other.cache["a"].append(2)
    other.set_response_status(404)
    other.model_yaml_config["b"] = 1
    assert (ctx.cache, ctx.get_response_status(0)[0], ctx.model_yaml_config) == (
        {"a": [1]},
        200,
        {},
    )
    other.emit(["x"], other.request_ids)
    ctx.emit(["y"], other.request_ids)
    assert told(emitted.replies) == [{0: "x"}, {0: "y"}]
    assert emitted.calls == 2


class Emitted:
    """Whoever waits for a stream: it holds what cannot be copied."""

    def __init__(self):
        self.replies = []
        self.calls = 0
        self.lock = threading.Lock()

    def take(self, reply):
        with self.lock:
            self.replies.append(reply)

    def heard(self):
        self.calls += 1


def test_each_row_has_its_requests_id_and_headers():
    ctx = context()
    one, two = request(id="a", headers={"X-Key": "1"}), request(id="b", headers={"X-Key": "2"})
    ctx.begin([one, one, two])
    assert ctx.request_ids == {0: "a", 1: "a", 2: "b"}
    assert [ctx.get_request_id(i) for i in range(4)] == ["a", "a", "b", None]
    assert [ctx.get_request_header(i, "x-key") for i in range(3)] == ["1", "1", "2"]


def test_whether_a_batch_has_one_request():
    ctx = context()
    assert ctx.has_one_request
    one, alike = request(), request()
    for requests, has_one in [([one], True), ([one, one], True), ([one, alike], False)]:
        ctx.begin(requests)
        assert ctx.has_one_request is has_one


def test_header_lookup_ignores_case_and_iteration_keeps_it():
    ctx = context()
    ctx.begin([request(headers={"Content-Type": "text/plain"})])
    headers = ctx.get_all_request_header(0)
    assert headers["content-type"] == headers["CONTENT-TYPE"] == "text/plain"
    assert headers.get("Content-type") == "text/plain"
    assert "content-TYPE" in headers
    assert "nothing" not in headers
    assert ctx.get_request_header(0, "nothing") is None
    assert "Content-Type" in list(headers)
    with pytest.raises(KeyError, match="nothing"):
        headers["nothing"]
    json.dumps(headers)


@pytest.mark.parametrize(
    ("verb", "explain", "describe"),
    [
        (Verb.PREDICT, "False", None),
        (Verb.EXPLAIN, "True", None),
        (Verb.DESCRIBE, "False", "True"),
    ],
)
def test_the_verb_is_in_the_headers_as_words(verb, explain, describe):
    ctx = context()
    ctx.begin([request(verb=verb)])
    assert ctx.get_request_header(0, "explain") == explain
    assert ctx.get_request_header(0, "describe") == describe
    assert ctx.get_all_request_header(0)["explain"] == explain
    assert ctx.get_request_header(0, "Explain") == explain


def test_a_client_cannot_choose_the_verb_by_a_header():
    ctx = context()
    ctx.begin([request(headers={"explain": "True"})])
    assert ctx.get_request_header(0, "explain") == "False"
    assert ctx.get_all_request_header(0)["explain"] == "False"


def test_request_parameters_are_read_as_headers_are():
    ctx = context()
    parameters = {"temperature": 0.5, "both": 1, "explain": True}
    ctx.begin([request(parameters=parameters, headers={"Both": "header"})])
    assert ctx.get_request_header(0, "Temperature") == 0.5
    assert ctx.get_request_header(0, "explain") == "False"
    assert ctx.get_request_header(0, "Both") == "header"


def test_url_path_and_content_types_of_fields():
    ctx = context()
    ctx.begin([request(url_path="v1/chat", content_types={"body": "image/png"})])
    assert ctx.get_request_header(0, "url_path") == "v1/chat"
    assert ctx.get_request_header(0, "body") == {"content-type": "image/png"}


def test_untouched_rows_reply_with_200():
    ctx = context()
    ctx.set_response_status(404)  # of no row: no call runs
    ctx.begin([request()] * 2)
    assert ctx.row_replies(["a", b"b"]) == [RowReply(result="a"), RowReply(result=b"b")]


def test_a_request_says_what_its_results_become():
    ctx = context()
    ctx.begin([request(snapshot=str.upper), request()])
    assert [row.result for row in ctx.row_replies(["a", "b"])] == ["A", "b"]


def test_what_a_handler_sets_goes_into_its_rows_reply_only():
    ctx = context()
    ctx.begin([request()] * 2)
    ctx.set_response_status(507, "No room", idx=1)
    ctx.set_response_content_type(1, "text/html")
    ctx.set_response_header(1, "X-Model", "v2")
    assert ctx.get_response_status(1) == (507, "No room")
    assert ctx.get_response_content_type(1) == "text/html"
    assert ctx.get_response_headers(1) == {"content-type": "text/html", "X-Model": "v2"}
    first, second = ctx.row_replies(["ok", "bad"])
    assert first == RowReply(result="ok")
    assert second == RowReply(
        result="bad",
        status=507,
        phrase="No room",
        content_type="text/html",
        headers={"X-Model": "v2"},
    )


def test_the_status_none_is_200():
    ctx = context()
    ctx.begin([request()])
    ctx.set_response_status(404)
    ctx.set_response_status(None, "Found")
    assert ctx.row_replies([1]) == [RowReply(result=1, phrase="Found")]


def test_a_status_may_be_any_integer():
    ctx = context()
    ctx.begin([request()])
    ctx.set_response_status(np.int64(404))
    [row] = ctx.row_replies([1])
    assert (row.status, type(row.status)) == (404, int)


def test_a_status_for_all_rows():
    ctx = context()
    ctx.begin([request()] * 2)
    ctx.set_all_response_status(201, "Made")
    assert [(r.status, r.phrase) for r in ctx.row_replies([1, 2])] == [(201, "Made")] * 2


def test_begin_forgets_the_batch_before():
    ctx = context()
    ctx.begin([request()])
    ctx.set_response_status(500, "x", 0)
    ctx.begin([request()])
    assert ctx.row_replies([1]) == [RowReply(result=1)]


def test_fewer_results_are_of_the_first_rows_and_one_too_many_is_an_error():
    ctx = context()
    ctx.begin([request()] * 2)
    ctx.set_response_status(201, "Made", 0)
    assert ctx.row_replies([1]) == [RowReply(result=1, status=201, phrase="Made")]
    with pytest.raises(ValueError, match="longer"):
        ctx.row_replies([1, 2, 3])


def test_intermediate_results_go_to_their_own_requests():
    sent = {"a": [], "b": []}
    ctx = context()
    one, two = (request(id=name, parts=sent[name].append) for name in sent)
    ctx.begin([one, two, two])
    ctx.emit(["a1", "b1", "b2"], ctx.request_ids)
    ctx.emit({2: "b3"}, {2: "b"})
    ctx.emit(["b4", "b5"], {0: ctx.request_ids[1], 1: ctx.request_ids[2]})  # of a micro batch
    ctx.emit(["b6"], {0: "b"})
    assert told(sent["a"]) == [{0: "a1"}]
    assert told(sent["b"]) == [{0: "b1", 1: "b2"}, {1: "b3"}, {0: "b4", 1: "b5"}, {0: "b6"}]
    assert sent["a"][0][0].headers == {"ts_stream_next": "true"}
    last = ctx.row_replies(["a2", "b4", "b5"])
    assert [reply.headers for reply in last] == [{"ts_stream_next": "false"}] * 3


def test_a_call_hears_of_each_of_its_intermediate_results():
    heard = []
    ctx = context()
    ctx.begin([request(), request()], lambda: heard.append(ctx.request_ids))
    ids = ctx.request_ids
    ctx.emit(["a", "b"], ids)
    copy.deepcopy(ctx).emit({1: "c"}, {1: ids[1]})
    assert heard == [ids, ids]
    ctx.begin([request(), request()], lambda: heard.append(None))
    ctx.emit(["late", "late"], ids)
    ctx.end()
    ctx.emit(["late", "late"], ids)
    assert heard == [ids, ids]


def told(parts):
    return [{row: reply.result for row, reply in part.items()} for part in parts]


def test_intermediate_results_of_an_earlier_call_reach_nobody_else():
    sent = []
    ctx = context()
    ctx.begin([request(id="a", parts=sent.append), request(id="b", parts=sent.append)])
    before = dict(ctx.request_ids)
    ctx.begin([request(id="a", parts=sent.append)])  # another client's, who chose the same id
    ctx.emit(["of a", "of b"], before)
    assert sent == []
    assert ctx.row_replies(["c"])[0].headers == {}
    last = ctx.request_ids
    ctx.emit(["of c"], last)
    ctx.end()
    ctx.emit(["late"], last)
    assert told(sent) == [{0: "of c"}]


def test_what_was_told_does_not_change_any_more():
    sent, words = [], ["one"]
    ctx = context()
    ctx.begin([request(parts=sent.append)])
    ctx.emit([words], ctx.request_ids)
    (final,) = ctx.row_replies([words])
    words.append("two")
    assert told(sent) == [{0: ["one"]}]
    assert final.result == ["one"]


def test_intermediate_results_that_nobody_listens_to_are_dropped():
    ctx = context()
    ctx.begin([request()])
    ctx.emit(["x"], ctx.request_ids)
    assert ctx.row_replies(["y"])[0].result == "y"


def test_sequence_ids_by_header_names_of_the_environment(monkeypatch):
    monkeypatch.setenv("TS_REQUEST_SEQUENCE_ID", "my-seq")
    ctx = context()
    ctx.begin([request(headers={"my-seq": "7", "ts_request_sequence_id": "8"})])
    assert ctx.get_sequence_id(0) == "7"
    assert ctx.header_key_sequence_start == "ts_request_sequence_start"
    assert ctx.header_key_sequence_end == "ts_request_sequence_end"


def test_request_processor_stands_alone():
    processor = RequestProcessor({"Accept": "x"})
    assert processor.get_request_property("accept") == "x"
    assert processor.get_request_properties() == {"Accept": "x"}
    assert processor.get_response_status_code() == 200
    assert processor.get_response_status_phrase() is None
    processor.report_status(404, reason_phrase="Gone")
    processor.add_response_property("k", "v")
    assert processor.get_response_status_code() == 404
    assert processor.get_response_status_phrase() == "Gone"
    assert processor.get_response_header("k") == "v"
    assert processor.get_response_header("other") is None
