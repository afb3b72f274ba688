"""Settings: where they come from, what they mean, which source wins.

The first wins::

    command line  >  TS_* environment  >  config.properties  >  model-config.yaml  >  default

`load_settings` applies the first three to every key of the table (`Settings`);
`Settings.limits_for` adds the archive's yaml, model by model.
"""

from kserve_torch.settings.addresses import Binding
from kserve_torch.settings.limits import Limits
from kserve_torch.settings.load import load_settings
from kserve_torch.settings.models import StartupModel
from kserve_torch.settings.table import Settings

__all__ = [
    "Binding",
    "Limits",
    "Settings",
    "StartupModel",
    "load_settings",
]
