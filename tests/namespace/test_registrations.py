import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kserve_torch.namespace.loader import Namespace

from ..makers import write

transformers = pytest.importorskip("transformers")
auto = pytest.importorskip("transformers.models.auto.configuration_auto")

#: As of a repository whose code `from_pretrained` runs.
REMOTE = {
    "handler.py": """
import os
from transformers import AutoConfig, AutoModel, PreTrainedModel

FOLDER = os.path.join(os.path.dirname(__file__), "model")

def load():
    config = AutoConfig.from_pretrained(FOLDER, trust_remote_code=True)
    return AutoModel.from_config(config, trust_remote_code=True)
""",
    "model/config.json": """
{"model_type": "tiny",
 "auto_map": {"AutoConfig": "configuration.Config", "AutoModel": "modeling.Model"}}
""",
    "model/configuration.py": """
from transformers import PretrainedConfig

class Config(PretrainedConfig):
    model_type = "tiny"
""",
    "model/modeling.py": """
from transformers import PreTrainedModel
from .configuration import Config
from .helper import ANSWER

class Model(PreTrainedModel):
    config_class = Config
    answer = ANSWER
""",
}

REGISTER = """
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

class Config(PretrainedConfig):
    model_type = "kt-own"

def register():
    AutoConfig.register("kt-own", Config)

def registered(name="kt-own"):
    return CONFIG_MAPPING[name] if name in CONFIG_MAPPING else None
"""

Make = Callable[[str, dict[str, str]], ModuleType]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the handler module of a new instance of the archive ``name``."""
    made = []

    def new(name: str, files: dict[str, str]) -> ModuleType:
        namespace = Namespace(write(tmp_path / name, files))
        made.append(namespace)
        with namespace.loading():
            return namespace.import_module("handler")

    yield new
    for namespace in made:
        namespace.close()


@pytest.mark.usefixtures("remote_code")
def test_archives_with_one_configuration_run_their_own_remote_code(make: Make) -> None:
    def handler(answer: int) -> ModuleType:
        files = {"model/helper.py": f"ANSWER = {answer}", "model/old.py/notes": "of a folder"}
        return make(f"a{answer}", {**REMOTE, **files})

    handlers = [handler(answer) for answer in (1, 2, 1, 2)]
    assert [handler.load().answer for handler in handlers] == [1, 2, 1, 2]


def test_what_an_archive_registers_is_its_own(make: Make) -> None:
    one, two, other = (make(name, {"handler.py": REGISTER}) for name in ("a", "a", "b"))
    one.register()
    two.register()
    assert [one.registered(), two.registered(), other.registered()] == [
        one.Config,
        two.Config,
        None,
    ]


def test_threads_that_may_be_anybodys_find_it_until_the_archive_goes(tmp_path: Path) -> None:
    namespace = Namespace(write(tmp_path / "a", {"handler.py": REGISTER}))
    handler = namespace.import_module("handler")
    handler.register()
    assert auto.CONFIG_MAPPING["kt-own"] is handler.Config
    namespace.close()
    assert "kt-own" not in auto.CONFIG_MAPPING


def test_what_a_library_registers_while_an_archive_imports_it_is_everybodys(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "lib", {"kt_library.py": REGISTER + "register()"})
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.setattr(auto.CONFIG_MAPPING, "_extra_content", {})
    importing = {"handler.py": "import kt_library\n" + REGISTER}
    handlers = [make(name, importing) for name in ("a", "b")]
    library = sys.modules["kt_library"]
    try:
        assert [handler.registered() for handler in handlers] == [library.Config] * 2
    finally:
        del sys.modules["kt_library"]


@pytest.mark.parametrize("several", [tuple, lambda classes: dict(enumerate(classes))])
def test_several_classes_are_registered_as_one(make: Make, several: Callable[..., Any]) -> None:
    """Slow and fast tokenizers, image processors by their libraries: the first may be None."""
    handler = make("a", {"handler.py": REGISTER})
    registered = several((None, handler.Config))
    auto.CONFIG_MAPPING.register("kt-several", registered)
    other = make("b", {"handler.py": REGISTER})
    assert [handler.registered("kt-several"), other.registered("kt-several")] == [registered, None]


PIPELINE = """
from transformers import Pipeline
from transformers.pipelines import PIPELINE_REGISTRY

class Own(Pipeline):
    pass

PIPELINE_REGISTRY.register_pipeline("kt-own", pipeline_class=Own)

def found(task="kt-own"):
    return PIPELINE_REGISTRY.check_task(task)[1]["impl"]
"""


def test_pipelines_of_one_name_are_each_archives_own(make: Make) -> None:
    handlers = [make(name, {"handler.py": PIPELINE}) for name in ("a", "a", "b")]
    assert [handler.found() for handler in handlers] == [handler.Own for handler in handlers]
    assert handlers[0].found("fill-mask")


#: In place of fvcore's, which is detectron2's too.
LIBRARY = """
class Registry:
    def __init__(self):
        self._obj_map = {}

    def register(self, made):
        assert made.__name__ not in self._obj_map
        self._obj_map[made.__name__] = made
        return made

    def get(self, name):
        return self._obj_map.get(name)

MODELS = Registry()
"""
MODEL = """
from fvcore.common.registry import MODELS, Registry

@MODELS.register
class Net:
    pass

def build():
    return MODELS.get("Net")

def fresh():
    return Registry().register(Net)
"""


@pytest.fixture
def fvcore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    files = {"__init__.py": "", "common/__init__.py": "", "common/registry.py": LIBRARY}
    write(tmp_path / "lib" / "fvcore", files)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "fvcore"]:
        del sys.modules[name]


@pytest.mark.usefixtures("fvcore")
def test_instances_of_an_archive_register_under_one_name(make: Make) -> None:
    handlers = [make(name, {"handler.py": MODEL}) for name in ("a", "a", "b")]
    assert [handler.build() for handler in handlers] == [handler.Net for handler in handlers]


@pytest.mark.usefixtures("fvcore")
def test_a_new_table_is_empty(make: Make) -> None:
    """Even if it is where one in memory was that is no more."""
    handler = make("a", {"handler.py": MODEL})
    assert [handler.fresh() for _ in range(50)] == [handler.Net] * 50


#: In place of OmegaConf's resolvers and Hydra's one configuration, which it initialises once.
LIBRARIES = {
    "omegaconf/__init__.py": "",
    "omegaconf/basecontainer.py": """
class BaseContainer:
    _resolvers = {}

def register(name, made):
    assert name not in BaseContainer._resolvers
    BaseContainer._resolvers[name] = lambda *args: made(*args)

register("library", max)
""",
    "hydra/__init__.py": "",
    "hydra/core/__init__.py": "",
    "hydra/core/singleton.py": """
class Singleton(type):
    _instances = {}

    def __call__(cls):
        if cls not in cls._instances:
            cls._instances[cls] = super().__call__()
        return cls._instances[cls]
""",
    "hydra/core/global_hydra.py": """
from hydra.core.singleton import Singleton

class GlobalHydra(metaclass=Singleton):
    folder = None

def initialize(folder):
    assert GlobalHydra().folder is None
    GlobalHydra().folder = folder

def clear():
    del Singleton._instances[GlobalHydra]
""",
}
CONFIGURED = """
from hydra.core.global_hydra import GlobalHydra, clear, initialize
from omegaconf.basecontainer import BaseContainer, register

register("eval", eval)

def load():
    initialize(__file__)
    clear()
    initialize(__file__)

def found():
    return GlobalHydra().folder, sorted(BaseContainer._resolvers)
"""


@pytest.mark.parametrize("installed", ["environment", "archives"])
def test_what_libraries_make_for_an_archive_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    """Whoever wraps it; what they make when they are imported is everybody's."""
    libraries = write(tmp_path / "lib", LIBRARIES)
    with ExitStack() as opened:
        packages = None
        if installed == "environment":
            monkeypatch.syspath_prepend(libraries)
            for name in LIBRARIES:
                module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                opened.callback(sys.modules.pop, module, None)
        else:
            packages = opened.enter_context(closing(Namespace(libraries)))
        made = []
        for name in ("a", "a", "b"):
            folder = write(tmp_path / name, {"handler.py": CONFIGURED})
            namespace = opened.enter_context(closing(Namespace(folder, packages=packages)))
            with namespace.activate():
                handler = namespace.import_module("handler")
                handler.load()
            made.append((namespace, handler))
        for namespace, handler in made:
            with namespace.activate():
                assert handler.found() == (handler.__file__, ["eval", "library"])


#: As torch_geometric does, for example.
PIPES = """
from torch.utils.data import IterDataPipe, MapDataPipe, functional_datapipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

@functional_datapipe("kt_twice")
class Twice(IterDataPipe):
    def __init__(self, source):
        self.source = source
        self.functions = [lambda x: 2 * x]

    def __iter__(self):
        return (self.functions[0](each) for each in self.source)

@functional_datapipe("kt_half")
class Half(MapDataPipe):
    def __init__(self, source):
        self.source = source

def pipes():
    return IterableWrapper([1, 2]).kt_twice(), SequenceWrapper([1]).kt_half()

def apply(name):
    return getattr(IterableWrapper([1]), name)(1)
"""


def test_instances_of_an_archive_define_data_pipes_of_one_name(make: Make) -> None:
    handlers = [make(name, {"handler.py": PIPES}) for name in ("a", "a", "b")]
    for handler in handlers:
        twice, half = handler.pipes()
        assert [type(twice), type(half)] == [handler.Twice, handler.Half]
        assert list(twice) == [2, 4]
    other = make("c", {"handler.py": PIPES.replace("kt_", "kt_other_")})
    with pytest.raises(AttributeError, match="kt_twice"):
        other.apply("kt_twice")
    assert list(other.apply("batch")) == [[1]]


@pytest.mark.usefixtures("remote_code")
def test_a_models_own_transformers_runs_code_of_repositories(tmp_path: Path) -> None:
    """The code gets that, not the environment's, which runs the same; two versions differ."""
    copy = tmp_path / "packages" / "transformers"
    copy.parent.mkdir()
    copy.symlink_to(Path(transformers.__file__).parent)
    with ExitStack() as opened:
        own = opened.enter_context(closing(Namespace(copy.parent)))
        models = []
        for name, answer, packages in (("a", 1, None), ("v1", 1, own), ("v2", 2, own)):
            files = {**REMOTE, "model/helper.py": f"ANSWER = {answer}"}
            folder = write(tmp_path / name, files)
            namespace = opened.enter_context(closing(Namespace(folder, packages=packages)))
            with namespace.loading():
                handler = namespace.import_module("handler")
                models.append(handler.load())
        assert [model.answer for model in models] == [1, 1, 2]
        own_class = [isinstance(model, handler.PreTrainedModel) for model in models]
        assert own_class == [False, True, True]


#: In place of albumentations', timm's and Keras' tables, which are global variables.
GLOBAL_TABLES = {
    "albumentations.core.serialization": """
SERIALIZABLE_REGISTRY = {}

def shorten_class_name(name):
    return name.rpartition(".")[2] if name.startswith("albumentations.") else name

def get_shortest_class_fullname(cls):
    return shorten_class_name(f"{cls.__module__}.{cls.__name__}")

def register(made):
    SERIALIZABLE_REGISTRY[get_shortest_class_fullname(made)] = made
    return made

def registered():
    return SERIALIZABLE_REGISTRY

@register
class Library:
    pass
""",
    "timm.models._registry": """
_model_entrypoints = {}

def register(made):
    _model_entrypoints["nets." + made.__name__ if made.__name__ == "Net" else "Library"] = made
    return made

def registered():
    return _model_entrypoints

@register
class Library:
    pass
""",
}
GLOBAL = """
from {library} import Library, register, registered

import nets

def found():
    table = registered()
    assert sorted(table) == ["Library", "nets.Net"] and len(table) == 2
    assert table.copy() == {"Library": Library, "nets.Net": nets.Net}
    return [table["Library"] is Library, table["nets.Net"] is nets.Net]

def forget():
    registered().pop("nets.Net")
"""
NETS = """
from {library} import register

@register
class Net:
    pass
"""


@pytest.mark.parametrize("library", GLOBAL_TABLES)
def test_each_archive_has_its_own_in_tables_that_are_global_variables(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """By the names that its modules have in training, where files with these were written."""
    file = library.replace(".", "/") + ".py"
    monkeypatch.syspath_prepend(write(tmp_path / "lib", {file: GLOBAL_TABLES[library]}))
    files = {
        name: text.replace("{library}", library)
        for name, text in (("handler.py", GLOBAL), ("nets.py", NETS))
    }
    try:
        handlers = [make(name, files) for name in ("a", "a", "b")]
        assert [handler.found() for handler in handlers] == [[True, True]] * 3
        handlers[0].forget()
        assert handlers[2].found() == [True, True]
        with pytest.raises(AssertionError):
            handlers[0].found()
    finally:
        for name in [n for n in sys.modules if n.partition(".")[0] == library.partition(".")[0]]:
            del sys.modules[name]
