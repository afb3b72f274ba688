"""``ts.model_service``."""
