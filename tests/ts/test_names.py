"""Every public name that archives import, from where they import it."""

import importlib

import pytest

from kserve_torch.errors import LoadFailed
from kserve_torch.handler import STOCK, stock_handler

NAMES = {
    "context": "Context RequestProcessor",
    "handler_utils.distributed.deepspeed": "get_ds_engine",
    "handler_utils.distributed.pt_pippy": "get_pipeline_driver initialize_rpc_workers",
    "handler_utils.hf_batch_streamer": "TextIteratorStreamerBatch",
    "handler_utils.micro_batching": "MicroBatching HANDLER_METHODS WorkerThread execute_call",
    "handler_utils.preprocess.dali": "get_dali_pipeline",
    "handler_utils.text_utils": (
        "ngrams_iterator get_tokenizer _basic_english_normalize _split_tokenizer"
    ),
    "handler_utils.timer": "timed",
    "handler_utils.utils": (
        "import_class send_intermediate_predict_response create_predict_response Context"
    ),
    "metrics.caching_metric": "CachingMetric",
    "metrics.dimension": "Dimension",
    "metrics.metric": "Metric MetricUnit MetricTypes CachingMetric Units",
    "metrics.metric_abstract": "MetricAbstract MetricUnit Units",
    "metrics.metric_cache_abstract": "MetricCacheAbstract",
    "metrics.metric_cache_errors": "MetricsCacheKeyError MetricsCacheValueError",
    "metrics.metric_cache_yaml_impl": "MetricsCacheYamlImpl",
    "metrics.metric_type_enum": "MetricTypes",
    "metrics.metrics_store": "MetricsStore",
    "metrics.system_metrics": "collect_all cpu_utilization gpu_utilization system_metrics",
    "metrics.unit": "Units",
    "model_loader": "ModelLoader ModelLoaderFactory TsModelLoader",
    "model_service.model_service": "ModelService SingleNodeService",
    "protocol.otf_message_handler": (
        "send_intermediate_predict_response create_predict_response create_load_model_response "
        "retrieve_msg"
    ),
    "service": "Service PredictionException emit_metrics PREDICTION_METRIC logger",
    "torch_handler.base_handler": (
        "BaseHandler list_classes_from_module load_label_mapping check_valid_pt2_backend timed "
        "logger PROFILER_AVAILABLE PT2_AVAILABLE PT230_AVAILABLE XLA_AVAILABLE "
        "IPEX_AVAILABLE ipex_enabled ONNX_AVAILABLE"
    ),
    "torch_handler.contractions": "CONTRACTION_MAP",
    "torch_handler.dali_handler": "DALIHandler",
    "torch_handler.dali_image_classifier": "DALIImageClassifier",
    "torch_handler.densenet_handler": "DenseNetHandler list_classes_from_module logger",
    "torch_handler.distributed.base_deepspeed_handler": "BaseDeepSpeedHandler",
    "torch_handler.distributed.base_pippy_handler": "BasePippyHandler",
    "torch_handler.image_classifier": "ImageClassifier VisionHandler map_class_to_label timed",
    "torch_handler.image_segmenter": "ImageSegmenter VisionHandler",
    "torch_handler.object_detector": "ObjectDetector VisionHandler map_class_to_label",
    "torch_handler.request_envelope.base": "BaseEnvelope",
    "torch_handler.request_envelope.body": "BodyEnvelope",
    "torch_handler.request_envelope.json": "JSONEnvelope",
    "torch_handler.request_envelope.kserve": "KServeEnvelope",
    "torch_handler.request_envelope.kservev2": "KServev2Envelope",
    "torch_handler.text_classifier": (
        "TextClassifier TextHandler ngrams_iterator map_class_to_label logger"
    ),
    "torch_handler.text_handler": (
        "TextHandler BaseHandler get_tokenizer CLEANUP_REGEX CONTRACTION_MAP CONTRACTIONS_PATTERN "
        "logger"
    ),
    "torch_handler.trt_llm_handler": "TRTLLMHandler",
    "torch_handler.unit_tests.test_utils.mock_context": "MockContext",
    "torch_handler.vision_handler": "VisionHandler BaseHandler timed",
    "torch_handler.vllm_handler": "VLLMHandler",
    "utils.util": (
        "PT2Backend CLEANUP_REGEX list_classes_from_module check_valid_pt2_backend "
        "load_label_mapping map_class_to_label get_yaml_config PredictionException deprecated "
        "logger"
    ),
    "version": "__version__",
}


@pytest.mark.parametrize(("module", "names"), NAMES.items())
def test_names(module, names):
    found = importlib.import_module(f"kserve_torch.ts.{module}")
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_unit_tests_of_handlers_find_the_names_without_a_server(forks):
    code = """
from kserve_torch.namespace import imports
imports.install()
from ts.context import Context
from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext
print(Context.__name__, MockContext.__name__)
"""
    assert forks.run(code) == "Context MockContext\n"


def test_what_torchserve_has_imported_needs_no_import_of_its_own(forks):
    code = """
from kserve_torch.namespace import imports
imports.install()
import ts
print(ts.context.Context.__name__, ts.utils.util.PredictionException.__name__)
print(ts.metrics.dimension.Dimension.__name__, hasattr(ts, "nothing"), hasattr(ts, "__wrapped__"))
"""
    assert forks.run(code) == "Context PredictionException\nDimension False False\n"


def test_version():
    ts = importlib.import_module("kserve_torch.ts")
    assert ts.__version__ == "0.12.0"


@pytest.mark.parametrize("name", STOCK)
def test_every_stock_name_has_a_class_with_handle_and_initialize(name):
    handler = stock_handler(name)
    assert isinstance(handler, type)
    assert callable(handler.handle)
    assert callable(handler.initialize)


def test_no_other_name_is_stock():
    assert stock_handler("handler") is None


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("vllm_handler", "vllm"),
        ("trt_llm_handler", "tensorrt_llm"),
        ("dali_image_classifier", "nvidia.dali"),
    ],
)
def test_a_handler_without_its_package_names_it(name, package):
    with pytest.raises(LoadFailed, match=f"needs the package {package}"):
        stock_handler(name)().initialize(None)


@pytest.mark.parametrize(
    ("module", "call", "arguments", "package"),
    [
        ("handler_utils.distributed.deepspeed", "get_ds_engine", (None, None), "deepspeed"),
        ("handler_utils.distributed.pt_pippy", "get_pipeline_driver", (None, 1, None), "pippy"),
        ("handler_utils.distributed.pt_pippy", "initialize_rpc_workers", (0, 1, None), "pippy"),
        ("handler_utils.preprocess.dali", "get_dali_pipeline", ("x",), "nvidia.dali"),
    ],
)
def test_a_function_without_its_package_names_it(module, call, arguments, package):
    function = getattr(importlib.import_module(f"kserve_torch.ts.{module}"), call)
    with pytest.raises(LoadFailed, match=f"needs the package {package}"):
        function(*arguments)


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [
        ("dali_handler", "DALIHandler", "nvidia"),
        ("distributed.base_deepspeed_handler", "BaseDeepSpeedHandler", "deepspeed"),
        ("distributed.base_pippy_handler", "BasePippyHandler", "pippy"),
    ],
)
def test_handlers_that_extend_what_is_not_supported_say_so_when_loaded(module, name, package):
    base = getattr(importlib.import_module(f"kserve_torch.ts.torch_handler.{module}"), name)
    with pytest.raises(LoadFailed, match=f"Mine needs the package {package}"):
        type("Mine", (base,), {})().initialize(None)
